"""An Iceberg catalog in a Spark session, and the tables loaded from it.

In an embedded warehouse, Java starts with the first call, and Spark starts when it is first needed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.errors import UsageError
from backstory.formats.memory import Memory
from backstory.model.change import TOKEN
from backstory.model.layout import Layout
from backstory.model.table import Shape, TableName
from backstory.settings import CATALOG, DRIVER_MEMORY, Settings
from backstory.spark.connect import Py4JError, Py4JJavaError
from backstory.spark.session import LateSpark, activate, session_properties
from backstory.spark.versions import require_known_types
from backstory.stores import embedded_catalog
from backstory.stores.branches import MAIN, finished_deliveries, pending_in
from backstory.stores.embedded_catalog import remember_if_writable
from backstory.stores.iceberg.faults import is_missing, translate_faults
from backstory.stores.iceberg.jvm import (
    build_catalog,
    catalog,
    gateway,
    identifier,
    json_of_metadata,
    namespace,
    set_properties,
    table_of_json,
    texts_of,
    uncached_catalog,
)
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.schema import names_by_id
from backstory.stores.iceberg.sessions import refresh, watch
from backstory.stores.metadata.table_metadata import (
    Counts,
    TableMetadata,
    commit_of,
    parse_metadata,
    table_of_metadata,
)
from backstory.stores.port import DISORDER, conflict, no_table, property_garbled, require_columns
from backstory.stores.table_files import TableFiles, is_remote, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Classes of FileIO whose files in S3 this process opens as well.
_READABLE_IO: Final = frozenset({"S3FileIO", "ResolvingFileIO"})


def files_of(iceberg: Any) -> TableFiles:
    """The files of an Iceberg table, opened by this process with the properties of its FileIO."""
    return TableFiles(partial(_io_properties, iceberg))


def _io_properties(iceberg: Any) -> Mapping[str, str] | None:
    """The properties of a table's FileIO, with vended credentials, or None if only Java can use it."""
    io = iceberg.io()
    if str(io.getClass().getSimpleName()) not in _READABLE_IO:
        return None
    return {**texts_of(io.properties()), **_vended_credentials(io, str(iceberg.location()))}


def _vended_credentials(io: Any, location: str) -> dict[str, str]:
    """The credentials from the catalog for the longest prefix that matches the table's location."""
    try:
        credentials = {str(credential.prefix()): credential.config() for credential in io.credentials()}
    except Py4JError:  # an older Iceberg's FileIO has none
        return {}
    prefixes = [prefix for prefix in credentials if location.startswith(prefix)]
    return dict(credentials[max(prefixes, key=len)]) if prefixes else {}


ADDRESS_SETTINGS = ("uri", "warehouse")


@dataclass(frozen=True, slots=True)
class IcebergStore:
    """An Iceberg catalog of a Spark session.

    `session` may not have started yet, and `catalog` is the catalog's name in the session. `format_version`
    is for new tables. `memory` is the memory that deliveries may use on the driver. `origin` is the option,
    variable or file that named the warehouse. If `branch` is set, tables are read and written on their branch
    with this name, which must exist.
    """

    session: "SparkSession | LateSpark"
    catalog: str = "backstory"
    format_version: int = 3
    memory: Memory = field(default_factory=lambda: Memory(DRIVER_MEMORY))
    origin: str = ""
    branch: str | None = None

    def __post_init__(self) -> None:
        watch(self.session)

    @property
    def jvm(self) -> Any:
        """The session's Java, for the functions of the module `jvm`."""
        return gateway(self.session)

    @property
    def spark(self) -> "SparkSession":
        """The session, which starts on first use."""
        return self.session.session if isinstance(self.session, LateSpark) else activate(self.session)

    def iceberg(self) -> Any:
        """Iceberg's catalog object, without caches."""
        if isinstance(self.session, LateSpark) and self.session.started is None:
            properties = self.session.properties
            return self.session.catalog(
                self.catalog, lambda: build_catalog(self.jvm, self.catalog, properties)
            )
        return uncached_catalog(self.jvm, catalog(self.spark, self.catalog))

    @property
    def has_java(self) -> bool:
        """Whether this process can call the session's Java."""
        return True

    def find(self, table: TableName) -> tuple[Any, dict[str, Any], str] | None:
        """Iceberg's object for a table's current state, its metadata, and the location of its metadata.

        Returns None if the table or schema does not exist.
        """
        try:  # Iceberg checks whether a table exists by loading it, so a separate check would load it twice
            iceberg = self.iceberg().loadTable(self.identifier(table))
        except Py4JJavaError as fault:
            if is_missing(fault):
                return None
            raise
        metadata = iceberg.operations().current()
        location = _location_of(metadata)
        return iceberg, self._read_metadata(location) or json_of_metadata(self.jvm, metadata), location

    def _read_metadata(self, location: str) -> dict[str, Any] | None:
        """The content of a metadata file, or None if only Java can read or complete it."""
        if self.home is None or is_remote(location):
            return None
        with suppress(OSError, ValueError):
            metadata = parse_metadata(local_path(location).read_bytes())
            return metadata if metadata.get("format-version", 1) > 1 else None
        return None

    def has(self, table: TableName) -> bool:
        """Whether the table exists. This is faster than `find` if most tables do not exist."""
        return bool(self.iceberg().tableExists(self.identifier(table)))

    def names(self, schema: str | None) -> list[TableName]:
        """Every table of the catalog or of one of its schemas."""
        catalog = self.iceberg()
        namespaces = {".".join(namespace.levels()): namespace for namespace in catalog.listNamespaces()}
        return [
            TableName(name, identifier.name())
            for name, namespace in namespaces.items()
            if schema in {None, name}
            for identifier in catalog.listTables(namespace)
        ]

    def tables(self) -> list[TableName]:
        """Every table, sorted."""
        return tables(self)

    def describe(self, table: TableName) -> TableMetadata | None:
        """The current metadata of a table, or None if it does not exist."""
        return load(self, table)

    def count(self, table: TableMetadata) -> Counts:
        """The number of rows, from the commit's properties if they suffice.

        Counts are None for a table that Spark cannot read, because a file is missing or a column has another
        tool's type.
        """
        layout, newest = table.shape.layout, table.newest
        span = layout.span
        if newest is None:
            return Counts(0, 0 if span else None)
        summary = newest.properties
        if span is None and summary.get("total-delete-files") == "0" and summary.get("total-records"):
            return Counts(int(summary["total-records"]), None)
        from pyspark.errors import PySparkException

        remembered = f"{span.start} = {span.end}" if span and layout is Layout.VERSIONS else "false"
        open_ = span.open if span else "NULL"
        aggregates = ["count(*) AS rows", f"count_if({open_}) AS open", f"count_if({remembered}) AS memory"]
        try:
            rows = self.spark.table(self.sql_name(table.shape.table))
            (counts,) = rows.selectExpr(*aggregates).collect()
        except (PySparkException, Py4JJavaError):
            return Counts(None, None)
        memory = counts["memory"]
        return Counts(counts["rows"] - memory, counts["open"] if span else None, memory)

    def setting(self, name: str) -> str | None:
        """A setting of the session. Reading it does not start the session."""
        if isinstance(self.session, LateSpark) and self.session.started is None:
            return self.session.properties.get(name)
        return self.spark.conf.get(name, None)

    @property
    def folder(self) -> Path | None:
        """The folder of an embedded warehouse, or None for other catalogs, whose warehouse may be a name."""
        root = self.setting(f"spark.sql.catalog.{self.catalog}.warehouse")
        return Path(root) if root and Path(root).is_absolute() else None

    @property
    def home(self) -> Path | None:
        """The folder of a warehouse whose catalog is a file in that folder, or None for any other catalog."""
        uri = self.setting(f"spark.sql.catalog.{self.catalog}.uri")
        return embedded_catalog.home_of(self.folder, uri or "")

    @property
    def address(self) -> str:
        """The warehouse's folder, or else its catalog's name and addresses without logins."""
        if self.folder is not None:
            return str(self.folder.resolve())
        values = (self.setting(f"spark.sql.catalog.{self.catalog}.{name}") for name in ADDRESS_SETTINGS)
        return " ".join([self.catalog, *(re.sub(r"[^/@]*@|[?;].*", "", value) for value in values if value)])

    @property
    def description(self) -> str:
        """The warehouse and its origin, for errors. The user may have meant another warehouse."""
        what = f"the warehouse {self.home}" if self.home else f"the catalog {self.address}"
        return f"{what} ({self.origin})" if self.origin else what

    def namespace(self, schema: str) -> Any:
        """Iceberg's name of a schema, which always has one level."""
        return namespace(self.jvm, schema)

    def identifier(self, table: TableName) -> Any:
        """Iceberg's name for a table."""
        return identifier(self.jvm, table.schema, table.name)

    def sql_name(self, table: TableName, *more: str) -> str:
        """The quoted name for Spark SQL, including the branch. `more` names a metadata table."""
        branch = (f"branch_{self.branch}",) if self.branch and not more else ()
        return ".".join(map(quote, (self.catalog, table.schema, table.name, *more, *branch)))


@dataclass(frozen=True)
class IcebergTable(TableMetadata):
    """A table in the state in which it was loaded: its metadata, and Iceberg's object for it.

    Iceberg's object may have been refreshed since then. With pending properties or on a branch, the metadata
    and `iceberg` are the table as every reader sees it. `base` and the `stored` properties are of the table
    itself. The next commit sets the pending properties and drops the `finished` branches of deliveries.
    """

    iceberg: Any = None
    base: Any = None
    stored: Mapping[str, str] = field(default_factory=dict)
    pending: Mapping[str, str | None] = field(default_factory=dict)
    finished: Sequence[str] = ()

    def begin(self) -> Any:
        """A transaction on the table as it was loaded. Raises TryAgain if another writer committed first."""
        transaction = self.base.newTransaction()
        if _location_of(transaction.startMetadata()) != self.location:
            raise conflict(self.shape.table)
        if self.finished:
            set_properties(transaction, self.pending)
            references = transaction.manageSnapshots()
            for name in self.finished:
                references.removeBranch(name)
            references.commit()
        return transaction

    def read_file(self, location: str, offset: int, length: int) -> bytes:
        """Bytes of one of the table's files, read by this process or, if that fails, by its FileIO."""
        with suppress(OSError):  # Java reports an error of its own for a file that cannot be read
            return self.files.read(location, offset, length)
        with closing(self.iceberg.io().newInputFile(location).newStream()) as stream:
            stream.seek(offset)
            return bytes(stream.readNBytes(length))

    @cached_property
    def manifests(self) -> TableFiles:
        """The table's manifests, opened by this process or, with one request each, by the table's FileIO."""
        return TableFiles(others=self._open)

    def _open(self, location: str) -> pa.NativeFile:
        with closing(self.iceberg.io().newInputFile(location).newStream()) as stream:
            return pa.BufferReader(bytes(stream.readAllBytes()))

    @property
    def disorderly(self) -> bool:
        """Whether a sender has ever delivered overlapping versions of a key."""
        return self.properties.get(DISORDER) == "true"

    @property
    def newest_token(self) -> str | None:
        """The token of the newest commit, if backstory made it."""
        newest = self.newest
        return None if newest is None else newest.properties.get(TOKEN)

    @property
    def bytes(self) -> int:
        """The size of the table's files, or 0 if the writer of the files did not record the size."""
        newest = self.newest
        return int((newest and newest.properties.get("total-files-size")) or 0)

    def number(self, name: str, default: int) -> int:
        """The number in a property. Raises Failed for any other content."""
        try:
            return int(self.properties.get(name, default))
        except ValueError:
            raise property_garbled(self.shape.table, name) from None

    @property
    def format_version(self) -> int:
        """The table's format version in Iceberg."""
        return int(self.metadata["format-version"])

    @property
    def partitioning(self) -> list[tuple[str, str, str | None]]:
        """The fields of the current partition spec: name, transform, and column. None for a nested column."""
        specs, names = self.metadata["partition-specs"], names_by_id(self.fields)
        fields = next(spec["fields"] for spec in specs if spec["spec-id"] == self.metadata["default-spec-id"])
        return [(field["name"], field["transform"], names.get(field["source-id"])) for field in fields]

    @property
    def guards_properties(self) -> bool:
        """Whether the catalog refuses a commit after another commit that only changed properties.

        A REST catalog does not, because a commit sent to it contains only a snapshot and the schema from
        which the commit started.
        """
        return str(self.base.operations().getClass().getSimpleName()) != "RESTTableOperations"


def _location_of(metadata: Any) -> str:
    """The location of a table's metadata, or an empty string if its REST catalog does not name it."""
    return metadata.metadataFileLocation() or ""


def load(store: IcebergStore, table: TableName) -> IcebergTable | None:
    """The current state of the table, or None if the table or schema does not exist.

    Raises UsageError for a table in a former folder of an embedded warehouse, and for a missing branch.
    """
    folders = require_here(store, table)
    with translate_faults(table):
        found = store.find(table)
        if found is None:
            return None
        base, metadata, location = found
        stored = metadata.get("properties") or {}
        if folders is not None:
            folders.require_table(table, metadata["location"], stored)
        refresh(store, table, location or None)  # after the load, so that the session reads no older state
        now = table_of_metadata(table, metadata, location, store.branch)
        is_stored = now.metadata is metadata or not store.has_java
        iceberg = base if is_stored else table_of_json(store.jvm, base, now.metadata)
        files, pending = files_of(base), pending_in(metadata, store.branch or MAIN)
        finished = finished_deliveries(metadata) if store.branch is None else ()
        return IcebergTable(
            now.shape, now.metadata, location, files, iceberg, base, stored, pending, finished
        )


def table_in(store: IcebergStore, shape: Shape, transaction: Any) -> IcebergTable:
    """The table as a transaction will make it, for which data files can be written."""
    metadata = json_of_metadata(store.jvm, transaction.currentMetadata())
    return IcebergTable(shape, metadata, "", iceberg=transaction.table())


def require_here(store: IcebergStore, table: TableName) -> embedded_catalog.WarehouseFolders | None:
    """The folders of an embedded warehouse, or None. Raises UsageError for a table in a former folder."""
    return None if store.home is None else embedded_catalog.require_here(store.home, table)


def exists(store: IcebergStore, table: TableName) -> bool:
    """Whether the table exists. This is faster than loading it if most tables do not exist."""
    require_here(store, table)
    with translate_faults(table):
        return store.has(table)


def existing(store: IcebergStore, table: TableName) -> IcebergTable:
    """The current state of the table.

    Raises UsageError if it does not exist, and Refused if it lacks one of its columns.
    """
    return require_columns(existing_as_is(store, table))


def existing_as_is(store: IcebergStore, table: TableName) -> IcebergTable:
    """The current state of the table, even if it lacks columns. Raises UsageError if it does not exist."""
    loaded = load(store, table)
    if loaded is None:
        raise no_table(table, searched=store.description)
    require_known_types(
        table, [each.name for each in loaded.shape.columns if "variant" in each.type.foreign_parts]
    )
    return loaded


def source_names(shape: Shape) -> str:
    """The source's names of columns whose stored names differ, as the value of the table's property."""
    return json.dumps(
        {column.name: column.source_name for column in shape.columns if column.source_name},
        ensure_ascii=False,
    )


def tables(store: IcebergStore, schema: str | None = None) -> list[TableName]:
    """Every table of the catalog or of one of its schemas, sorted."""
    with translate_faults(store.catalog):
        return sorted(store.names(schema))


def open_store(settings: Settings, catalog: str = CATALOG, *, verbose: bool = False) -> IcebergStore:
    """The store of a catalog in the settings. An embedded catalog records its folder.

    Raises UsageError, before Java starts, if the settings lack the catalog. Also raises the errors of
    `LateSpark`.
    """
    if catalog != CATALOG:
        _require_configured(settings, catalog)
    session = LateSpark(settings, verbose=verbose)
    memory = Memory(settings.driver_memory)
    store = IcebergStore(session, catalog, settings.format_version, memory, settings.origin)
    remember_if_writable(store.home)
    return store


def _require_configured(settings: Settings, catalog: str) -> None:
    setting = f"spark.sql.catalog.{catalog}"
    if setting not in session_properties(settings):
        raise UsageError(
            "no-iceberg-catalog",
            f"The configuration has no catalog {catalog}.",
            f"Use {CATALOG}, or configure `{setting}` below [spark] in backstory.toml.",
        )


@dataclass(frozen=True, slots=True)
class Reference:
    """A branch or tag, and the snapshot that it keeps."""

    name: str
    snapshot_id: int
    committed_at: datetime
    max_age_ms: int | None


def references(table: IcebergTable) -> list[Reference]:
    """The branches and tags of a table, except its main branch and branches that the next commit drops."""
    branches_and_tags = []
    for name, ref in (table.metadata.get("refs") or {}).items():
        snapshot = table.snapshot_by_id(ref["snapshot-id"])
        if name not in {MAIN, *table.finished} and snapshot is not None:
            commit = commit_of(snapshot)
            branches_and_tags.append(
                Reference(name, commit.id, commit.committed_at, ref.get("max-ref-age-ms"))
            )
    return branches_and_tags
