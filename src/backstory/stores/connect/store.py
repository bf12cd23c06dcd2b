"""An Iceberg catalog in a Spark Connect session, its tables, and the sessions of their commits.

Tables are queried and changed by SQL, and described by the JSON of their metadata.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql.utils import is_remote
from pyspark.version import __version__

from backstory.errors import Failed, UsageError
from backstory.formats.memory import Memory
from backstory.model.table import TableName
from backstory.spark.connect import NoJava, is_connect, needs_java
from backstory.spark.session import OUR_SETTINGS
from backstory.spark.versions import arrow_of, is_older
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.jvm import EXTENSIONS, SPARK_CATALOG
from backstory.stores.iceberg.literals import path_literal, quote, text_literal
from backstory.stores.iceberg.sessions import OLDEST as OLDEST_ICEBERG
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.metadata.table_metadata import parse_metadata
from backstory.stores.port import conflict, file_garbled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Since this version a session can be cloned. Each commit has its own session, whose settings contain its
# notes.
OLDEST = (4, 1)


@dataclass(frozen=True, slots=True)
class ConnectStore(IcebergStore):
    """An Iceberg catalog in a Spark Connect session. Calls that need Java are refused."""

    def __post_init__(self) -> None:
        """Do not announce commits to the session, because each delivery refreshes the tables it reads."""

    @property
    def jvm(self) -> Any:
        """A placeholder for Java. Any use of it raises UsageError."""
        return NoJava()

    @property
    def spark(self) -> "SparkSession":
        """The session."""
        session: Any = self.session
        return session

    @property
    def has_java(self) -> bool:
        """False, because this process cannot call the session's Java."""
        return False

    @property
    def home(self) -> Path | None:
        """None, because the folder of a warehouse may be on another machine."""
        return None

    def iceberg(self) -> Any:
        """Raises UsageError, because Iceberg's catalog object exists only in Java."""
        raise needs_java()

    def find(self, table: TableName) -> tuple[Any, dict[str, Any], str] | None:
        """A placeholder for Iceberg's object, the content of the newest metadata file, and its location.

        Returns None if the table or schema does not exist.
        """
        if not self.has(table):
            return None
        location = self.metadata_location(table)
        return self.jvm, self._metadata(table, location), location

    def metadata(self, table: TableName) -> dict[str, Any]:
        """The content of the newest metadata file. Raises TryAgain if the table no longer exists."""
        found = self.find(table)
        if found is None:
            raise conflict(table)
        return found[1]

    def refresh(self, table: TableName) -> None:
        """Make the session read the table's current state.

        By default, the session's catalog caches tables.
        """
        self.spark.sql(f"REFRESH TABLE {self._whole(table)}")

    def has(self, table: TableName) -> bool:
        """Whether the table exists. By default, the session's catalog caches even dropped tables."""
        exists = self.spark.catalog.tableExists
        if not exists(self._whole(table)):
            return False
        self.refresh(table)
        return exists(self._whole(table))

    def _whole(self, table: TableName) -> str:
        """The quoted name of the table, without the branch."""
        return replace(self, branch=None).sql_name(table)

    def names(self, schema: str | None) -> list[TableName]:
        """Every table of the catalog or of one of its schemas."""
        namespaces = self.spark.sql(f"SHOW NAMESPACES IN {quote(self.catalog)}").collect()
        return [
            TableName(name, row.tableName)
            for (name,) in namespaces
            if schema in {None, name}
            for row in self.spark.sql(f"SHOW TABLES IN {quote(self.catalog)}.{quote(name)}").collect()
        ]

    def metadata_location(self, table: TableName) -> str:
        """The location of the table's newest metadata file, as the session sees the table."""
        log = self.spark.table(self.sql_name(table, "metadata_log_entries")).select("file")
        return str(arrow_of(log)["file"][-1])

    def _metadata(self, table: TableName, location: str) -> dict[str, Any]:
        """The content of a metadata file, read by the session."""
        try:
            files = arrow_of(
                self.spark.read.format("binaryFile").load(path_literal(location)).select("content")
            )
            content = files["content"][0].as_py()
        except PySparkException as fault:
            raise Failed(
                "metadata-unreadable",
                f"The session cannot read the metadata file of {table}.",
                "Let the server's Hadoop read the table's storage as well, for example with "
                "`spark.hadoop.fs.s3.impl` and credentials for s3:// addresses.",
            ) from fault
        try:
            return parse_metadata(content)
        except ValueError as fault:
            raise file_garbled(table, location.rpartition("/")[2]) from fault


def open_connect(spark: "SparkSession", catalog: str, format_version: int, memory: Memory) -> ConnectStore:
    """The store of a Spark Connect session. Raises UsageError if the session cannot be used."""
    import backstory.stores.connect.commit  # noqa: F401 - registers its commit

    require_usable(spark, catalog)
    return ConnectStore(spark, catalog, format_version, memory)


def require_usable(spark: "SparkSession", catalog: str) -> None:
    """Raise UsageError for an older Spark or Iceberg, another catalog, or a server without extensions.

    Also raises UsageError if pyspark uses the functions of classic sessions instead of Spark Connect's.
    This depends on how the session was created.
    """
    assert is_connect(spark)
    older = next((one for one in (str(spark.version), __version__) if is_older(one, OLDEST)), None)
    if older:
        raise UsageError(
            "other-spark",
            f"Spark Connect {older} is not supported.",
            "Use Spark 4.1 on the server and in the client, or a classic session.",
        )
    if not is_remote():
        raise UsageError(
            "classic-functions",
            "This process has pyspark's functions for classic sessions.",
            "Create the session by `SparkSession.builder.remote(...).getOrCreate()` from `pyspark.sql`.",
        )
    setting = f"spark.sql.catalog.{catalog}"
    kind = spark.conf.get(setting, None)
    if kind is None:
        raise UsageError(
            "no-iceberg-catalog",
            f"The session's catalog {catalog} is not configured.",
            f"Start the server with the setting `{setting}={SPARK_CATALOG}`, or give another `catalog=NAME`.",
        )
    if EXTENSIONS not in str(spark.conf.get("spark.sql.extensions", "")):
        raise UsageError(
            "no-extensions",
            "The server has no extensions of Iceberg, which commits need.",
            f"Start the server with the setting `spark.sql.extensions={EXTENSIONS}`.",
        )
    version = iceberg_version(spark, catalog)
    if version is None or is_older(version, OLDEST_ICEBERG):
        raise UsageError(
            "other-iceberg",
            f"The catalog {catalog} has no Iceberg that backstory supports"
            f"{f': it has {version}' if version else ''}.",
            "Start the server with Iceberg 1.11 or 1.12, and with an Iceberg catalog of this name.",
        )


def iceberg_version(spark: "SparkSession", catalog: str) -> str | None:
    """Iceberg's version, or None if the catalog is not Iceberg's."""
    try:
        ((version,),) = spark.sql(f"SELECT {quote(catalog)}.system.iceberg_version()").collect()
    except PySparkException:
        return None
    return str(version)


# The prefix of a session's settings that become properties of its commits.
NOTE: Final = "spark.sql.iceberg.snapshot-property."
# Texts in Spark's errors that mean that another writer was faster.
_CONFLICTS: Final = (
    "CommitFailedException",
    "ValidationException",
    "AlreadyExistsException",
    "TABLE_OR_VIEW_ALREADY_EXISTS",
    "is not an ancestor of",
    "branch does not exist",
    "already exists",
    "Ref does not exist",
)


def fast_forward(store: ConnectStore, table: TableName, onto: str, branch: str) -> None:
    """Move `onto` to the newest commit of `branch`, which must contain the newest commit of `onto`."""
    name = text_literal(f"{quote(table.schema)}.{quote(table.name)}")
    store.spark.sql(
        f"CALL {quote(store.catalog)}.system.fast_forward({name}, '{onto}', '{branch}')"
    ).collect()


def require_unchanged(store: ConnectStore, table: IcebergTable) -> None:
    """Raise TryAgain if the table has changed since it was loaded."""
    name = table.shape.table
    store.refresh(name)
    if store.metadata_location(name) != table.location:
        raise conflict(name)


@contextmanager
def in_commit(store: ConnectStore, table: TableName, notes: Mapping[str, str]) -> Iterator[ConnectStore]:
    """The store in a session for one commit. Its settings contain the notes, which no other commit gets.

    Raises TryAgain if another writer was faster.
    """
    session: Any = store.spark.cloneSession()  # type: ignore[attr-defined]
    try:
        session.conf.set("spark.sql.sources.partitionOverwriteMode", "static")  # all rows, not partitions
        for name, value in OUR_SETTINGS.items():
            session.conf.set(name, value)
        for name, value in notes.items():
            session.conf.set(NOTE + name, value)
        with translate_faults(table):
            try:
                yield replace(store, session=session)
            except PySparkException as fault:
                if any(text in str(fault) for text in _CONFLICTS):
                    raise conflict(table) from fault
                raise
    finally:
        with suppress(Exception):  # the server ends a session that is not released
            session.client.release_session()
