"""An Iceberg catalog in a Spark Connect session, its tables, and the sessions of their commits.

Tables are queried and changed by SQL, and described by the JSON of their metadata. The objects of this module
have the same methods as a table's Java objects. A method that only the Java object has raises UsageError.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.errors import PySparkException
from pyspark.sql.utils import is_remote
from pyspark.version import __version__

from backstory.errors import Failed, UsageError
from backstory.formats.memory import Memory
from backstory.model.table import TableName
from backstory.model.versions_layout import OF_ICEBERG
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


@dataclass(frozen=True)
class _Described:
    """A part of a table's metadata. `members` maps methods of its Java class to names in its JSON."""

    json: Mapping[str, Any]
    members: ClassVar[Mapping[str, str]] = {}

    @property
    def text(self) -> str:
        """The part's JSON."""
        return json.dumps(self.json)

    def __getattr__(self, name: str) -> Callable[[], Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self.members:
            raise needs_java()
        return lambda: self.json.get(self.members[name])


class DescribedField(_Described):
    """A column of a schema, or a field of a partition spec."""

    members: ClassVar = {"fieldId": "id", "name": "name", "sourceId": "source-id"}


class DescribedSchema(_Described):
    """The columns of a table in one of its states."""

    members: ClassVar = {"schemaId": "schema-id"}

    def columns(self) -> list[DescribedField]:
        """The columns, in their order."""
        return [DescribedField(field) for field in self.json["fields"]]

    def findField(self, name: str) -> DescribedField | None:  # noqa: N802 - Java's name
        """The column with this name, or None."""
        return next((field for field in self.columns() if field.name() == name), None)

    def findColumnName(self, number: int) -> str | None:  # noqa: N802 - Java's name
        """The name of the column with this id, or None."""
        return next((field.name() for field in self.columns() if field.fieldId() == number), None)


class DescribedSnapshot(_Described):
    """A commit."""

    members: ClassVar = {
        "snapshotId": "snapshot-id",
        "parentId": "parent-snapshot-id",
        "timestampMillis": "timestamp-ms",
        "schemaId": "schema-id",
    }

    def sequenceNumber(self) -> int:  # noqa: N802 - Java's name
        """The number of the commit among the table's commits."""
        return int(self.json.get("sequence-number", 0))

    def operation(self) -> str:
        """The kind of change to files."""
        return str(self.json["summary"]["operation"])

    def summary(self) -> dict[str, str]:
        """The commit's properties."""
        return {name: value for name, value in self.json["summary"].items() if name != "operation"}


class DescribedReference(_Described):
    """A branch or a tag."""

    members: ClassVar = {"snapshotId": "snapshot-id", "maxRefAgeMs": "max-ref-age-ms"}

    def isTag(self) -> bool:  # noqa: N802 - Java's name
        """Whether the reference is a tag."""
        return bool(self.json["type"] == "tag")


class DescribedSpec(_Described):
    """A partition spec of a table."""

    def fields(self) -> list[DescribedField]:
        """The fields of the partition spec."""
        return [DescribedField(field) for field in self.json["fields"]]


@dataclass(frozen=True)
class DescribedTable(_Described):
    """A table in one of its states, with its metadata and the location of its metadata file."""

    file: str
    members: ClassVar = {
        "uuid": "table-uuid",
        "location": "location",
        "formatVersion": "format-version",
        "lastColumnId": "last-column-id",
    }

    def operations(self) -> "DescribedTable":
        """This object, which also replaces Java's objects for the table's operations and metadata."""
        return self

    current = operations

    def metadataFileLocation(self) -> str:  # noqa: N802 - Java's name
        """The location of the metadata file."""
        return self.file

    def properties(self) -> dict[str, str]:
        """The table's properties, including Iceberg's own."""
        return self.json.get("properties") or {}

    def schemas(self) -> Mapping[int, DescribedSchema]:
        """Every schema of the table, by id."""
        return {schema["schema-id"]: DescribedSchema(schema) for schema in self.json["schemas"]}

    def schema(self) -> DescribedSchema:
        """The current columns."""
        return self.schemas()[self.json["current-schema-id"]]

    def spec(self) -> DescribedSpec:
        """The current partition spec."""
        number = self.json["default-spec-id"]
        return DescribedSpec(next(spec for spec in self.json["partition-specs"] if spec["spec-id"] == number))

    def snapshots(self) -> list[DescribedSnapshot]:
        """Every commit that has not expired, oldest first."""
        return [DescribedSnapshot(snapshot) for snapshot in self.json.get("snapshots") or ()]

    def snapshot(self, number: int) -> DescribedSnapshot | None:
        """The commit with this id, or None if it has expired."""
        return next((one for one in self.snapshots() if one.snapshotId() == number), None)

    def currentSnapshot(self) -> DescribedSnapshot | None:  # noqa: N802 - Java's name
        """The newest commit, or None if there are no commits."""
        number = self.json.get("current-snapshot-id")
        return None if number in {None, -1} else self.snapshot(number)

    def refs(self) -> Mapping[str, DescribedReference]:
        """The branches and tags, by name."""
        return {name: DescribedReference(ref) for name, ref in (self.json.get("refs") or {}).items()}


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

    def reserves(self, name: str) -> bool:
        """Whether Iceberg reserves this column name."""
        return name in OF_ICEBERG

    def find(self, table: TableName) -> Any:
        """The table, from its newest metadata file, or None if the table or schema does not exist."""
        if not self.has(table):
            return None
        location = self.metadata_location(table, self.spark)
        return DescribedTable(self._metadata(table, location), location)

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

    def metadata_location(self, table: TableName, session: "SparkSession") -> str:
        """The location of the table's newest metadata file, as a session sees the table."""
        log = session.table(self.sql_name(table, "metadata_log_entries")).select("file")
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


def fast_forward(
    store: ConnectStore, session: "SparkSession", table: TableName, onto: str, branch: str
) -> None:
    """Move `onto` to the newest commit of `branch`, which must contain the newest commit of `onto`."""
    name = text_literal(f"{quote(table.schema)}.{quote(table.name)}")
    session.sql(f"CALL {quote(store.catalog)}.system.fast_forward({name}, '{onto}', '{branch}')").collect()


def require_unchanged(store: ConnectStore, session: "SparkSession", table: IcebergTable) -> None:
    """Raise TryAgain if the table has changed since it was loaded."""
    name = table.shape.table
    session.sql(f"REFRESH TABLE {replace(store, branch=None).sql_name(name)}")
    if store.metadata_location(name, session) != table.metadata:
        raise conflict(name)


@contextmanager
def commit_session(
    store: ConnectStore, table: TableName, notes: Mapping[str, str]
) -> Iterator["SparkSession"]:
    """A session for one commit. Its settings contain the commit's notes, which no other commit gets.

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
                yield session
            except PySparkException as fault:
                if any(text in str(fault) for text in _CONFLICTS):
                    raise conflict(table) from fault
                raise
    finally:
        with suppress(Exception):  # the server ends a session that is not released
            session.client.release_session()
