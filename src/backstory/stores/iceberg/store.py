"""An Iceberg catalog in a Spark session, and the tables loaded from it.

In an embedded warehouse, Java starts with the first call, and Spark starts when it is first needed.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.errors import UsageError
from backstory.formats.memory import Memory
from backstory.model.change import COLUMNS_STATE, DOOR, TOKEN, foreign_writes
from backstory.model.layout import layout_of
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType
from backstory.settings import CATALOG, DRIVER_MEMORY, Settings
from backstory.spark.connect import Py4JError, Py4JJavaError
from backstory.spark.session import LateSpark, activate, session_properties
from backstory.spark.versions import require_known_types
from backstory.stores import embedded_catalog
from backstory.stores.branches import (
    DELIVERY,
    MAIN,
    finished_deliveries,
    in_effect,
    pending_in,
)
from backstory.stores.embedded_catalog import remember_if_writable
from backstory.stores.iceberg.faults import is_missing, translate_faults
from backstory.stores.iceberg.jvm import (
    build_catalog,
    catalog,
    gateway,
    has_branch,
    identifier,
    is_reserved,
    metadata_json,
    namespace,
    set_properties,
    table_of_json,
    texts_of,
    uncached_catalog,
)
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.schema import columns_of, names_of_property
from backstory.stores.iceberg.sessions import refresh, watch
from backstory.stores.port import DISORDER, conflict, no_table, property_garbled, require_columns
from backstory.stores.table_files import TableFiles

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
LAYOUT = "backstory.layout"
KEY = "backstory.key"
SOURCE_NAMES = "backstory.source-names"
LAYOUT_VERSION = "backstory.layout-version"


@dataclass(frozen=True, slots=True)
class IcebergStore:
    """An Iceberg catalog of a Spark session.

    `session` may not have started yet, and `catalog` is the catalog's name there. `format_version` is for new
    tables. `memory` is the memory that deliveries may use on the driver. `origin` is the option, variable or
    file that named the warehouse. If `branch` is set, tables are read and written on their branch with this
    name, which must exist.
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

    def find(self, table: TableName) -> Any:
        """Iceberg's object for a table's current state, or None if the table or schema does not exist."""
        try:  # Iceberg checks whether a table exists by loading it, so a separate check would load it twice
            return self.iceberg().loadTable(self.identifier(table))
        except Py4JJavaError as fault:
            if is_missing(fault):
                return None
            raise

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

    def setting(self, name: str) -> str | None:
        """A setting of the session. Reading it does not start the session."""
        if isinstance(self.session, LateSpark) and self.session.started is None:
            return self.session.properties.get(name)
        return self.spark.conf.get(name, None)

    def reserves(self, name: str) -> bool:
        """Whether Iceberg reserves this column name."""
        return bool(is_reserved(self.jvm)(name))

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
class IcebergTable:
    """A table in the state in which it was loaded: its shape, and Iceberg's object for it.

    `metadata` is the location of the table's metadata at that time. Iceberg's object may have been refreshed
    since then. With pending properties or on a branch, `iceberg` is the table as every reader sees it, and
    `base` is the table itself. The next commit sets the properties and drops the `finished` branches of
    deliveries.
    """

    shape: Shape
    iceberg: Any
    metadata: str | None = None
    files: TableFiles = field(default_factory=TableFiles, compare=False)
    base: Any = None
    pending: Mapping[str, str | None] = field(default_factory=dict)
    finished: Sequence[str] = ()

    def begin(self) -> Any:
        """A transaction on the table as it was loaded. Raises TryAgain if another writer committed first."""
        transaction = (self.base or self.iceberg).newTransaction()
        if transaction.startMetadata().metadataFileLocation() != self.metadata:
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
    def foreign_writes(self) -> Sequence[str]:
        """Descriptions of writes by other programs since the table's door last wrote."""
        state = self.properties.get(COLUMNS_STATE)
        schema = None if state is None else self.iceberg.schemas().get(int(state))
        before = None if schema is None or int(state or 0) == self.schema_id else _names_by_id(schema)
        now = {} if before is None else _names_by_id(self.iceberg.schema())
        commits = ((one.id, one.operation, one.get_property(DOOR)) for one in ancestry(self))
        return foreign_writes(self.shape.layout, commits, before, now)

    @property
    def disorderly(self) -> bool:
        """Whether a sender has ever delivered overlapping versions of a key."""
        return self.iceberg.properties().get(DISORDER) == "true"  # one call; reading all needs several

    @property
    def newest_token(self) -> str | None:
        """The token of the newest commit, if backstory made it."""
        newest = newest_snapshot(self)
        return None if newest is None else newest.get_property(TOKEN)

    @property
    def rows(self) -> int:
        """The number of rows in data files, including deleted rows."""
        return self._total("records")

    @property
    def bytes(self) -> int:
        """The size of the table's files, or 0 if the writer of the files did not record the size."""
        return self._total("files-size")

    def _total(self, what: str) -> int:
        newest = newest_snapshot(self)
        return int((newest and newest.get_property(f"total-{what}")) or 0)

    @property
    def schema_id(self) -> int:
        """The id of the current schema."""
        return int(self.iceberg.schema().schemaId())

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The table's properties, including Iceberg's own."""
        return texts_of(self.iceberg.properties())

    def number(self, name: str, default: int) -> int:
        """The number in a property. Raises Failed for any other content."""
        try:
            return int(self.properties.get(name, default))
        except ValueError:
            raise property_garbled(self.shape.table, name) from None

    @property
    def tags(self) -> Mapping[str, int]:
        """The snapshot of each tag."""
        return {name: int(ref.snapshotId()) for name, ref in dict(self.iceberg.refs()).items() if ref.isTag()}

    @property
    def format_version(self) -> int:
        """The table's format version in Iceberg."""
        return int(self.iceberg.operations().current().formatVersion())

    @property
    def guards_properties(self) -> bool:
        """Whether the catalog refuses a commit after another commit that only changed properties.

        A REST catalog does not, because a commit to it contains only a snapshot, and the schema at its start.
        """
        operations = (self.base or self.iceberg).operations()
        return str(operations.getClass().getSimpleName()) != "RESTTableOperations"


def _names_by_id(schema: Any) -> dict[int, str]:
    return {int(field.fieldId()): str(field.name()) for field in schema.columns()}


def load(store: IcebergStore, table: TableName) -> IcebergTable | None:
    """The current state of the table, or None if the table or schema does not exist.

    Raises UsageError for a table in a former folder of an embedded warehouse.
    """
    folders = require_here(store, table)
    with translate_faults(table):
        iceberg = store.find(table)
        if iceberg is None:
            return None
        if folders is not None:
            folders.require_table(table, str(iceberg.location()), iceberg.properties())
        metadata = iceberg.operations().current().metadataFileLocation()
        refresh(store, table, metadata)  # after the load, so that the session reads no older state
        if store.branch is None and not has_branch(iceberg, DELIVERY):
            return IcebergTable(shape_of(store, table, iceberg), iceberg, metadata, files_of(iceberg))
        return _load_in_effect(store, table, iceberg, metadata)


def _load_in_effect(store: IcebergStore, table: TableName, iceberg: Any, location: str) -> IcebergTable:
    """The table with its pending properties, or its branch. Raises UsageError if there is no branch."""
    metadata = json.loads(metadata_json(store.jvm, iceberg))
    now = in_effect(metadata, table, store.branch)
    base, files = iceberg, files_of(iceberg)
    if now is not metadata:
        iceberg = table_of_json(store.jvm, iceberg, json.dumps(now))
    shape, pending = shape_of(store, table, iceberg), pending_in(metadata, store.branch or MAIN)
    finished = finished_deliveries(metadata) if store.branch is None else ()
    return IcebergTable(shape, iceberg, location, files, base, pending, finished)


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
    require_known_types(table, [column.name for column in loaded.shape.columns if _is_variant(column.type)])
    return loaded


def _is_variant(type_: ColumnType) -> bool:
    """Whether a column of this type contains variants, including in its parts."""
    return type_.foreign == "variant" or any(_is_variant(part) for _, part in type_.parts)


def shape_of(store: IcebergStore, table: TableName, iceberg: Any) -> Shape:
    """The shape of a table from its schema and properties. For a foreign table, it is inferred."""
    properties = iceberg.properties()
    columns = columns_of(store.jvm, iceberg.schema(), names_of_property(table, properties, SOURCE_NAMES, {}))
    return shape_of_properties(table, columns, properties)


def shape_of_properties(
    table: TableName, columns: tuple[Column, ...], properties: Mapping[str, str]
) -> Shape:
    """The shape of a table with these columns and properties."""
    return Shape(
        table,
        columns,
        tuple(names_of_property(table, properties, KEY, [])),
        layout_of(properties.get(LAYOUT), table.name, frozenset(column.name for column in columns)),
    )


def shape_at(store: IcebergStore, table: IcebergTable, schema_id: int | None) -> Shape:
    """The table's shape in an earlier state of its columns. Key columns have their names from that state."""
    if schema_id is None or schema_id == table.schema_id:
        return table.shape
    now, earlier = table.iceberg.schema(), table.iceberg.schemas().get(schema_id)
    columns = columns_of(
        store.jvm, earlier, {column.name: column.source_name for column in table.shape.columns}
    )
    key = (earlier.findColumnName(now.findField(name).fieldId()) for name in table.shape.key)
    return replace(table.shape, columns=columns, key=tuple(name for name in key if name is not None))


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


@dataclass(frozen=True)
class IcebergSnapshot:
    """A commit. Each property is read when it is used, because reading it costs a call to Java."""

    java: Any

    @cached_property
    def summary(self) -> Any:
        """Java's map of the commit's properties."""
        return self.java.summary()

    @property
    def id(self) -> int:
        """The snapshot id, unique in the table."""
        return int(self.java.snapshotId())

    @property
    def committed_at(self) -> datetime:
        """The time of the commit."""
        return datetime.fromtimestamp(self.java.timestampMillis() / 1000, UTC)

    @property
    def parent(self) -> int | None:
        """The id of the previous commit, which may have expired, or None for the first commit."""
        id_ = self.java.parentId()
        return None if id_ is None else int(id_)

    @property
    def schema_id(self) -> int | None:
        """The id of the schema that the commit was written with."""
        id_ = self.java.schemaId()
        return None if id_ is None else int(id_)

    @property
    def operation(self) -> str:
        """The kind of change to files: append, overwrite, replace or delete."""
        return str(self.java.operation())

    def get_property(self, name: str) -> str | None:
        """A property in the commit's summary, as its writer wrote it, or None."""
        value: str | None = self.summary.get(name)
        return value


@dataclass(frozen=True, slots=True)
class Reference:
    """A branch or tag, and the snapshot that it keeps."""

    name: str
    snapshot_id: int
    committed_at: datetime
    max_age_ms: int | None


def newest_snapshot(table: IcebergTable) -> IcebergSnapshot | None:
    """The table's current snapshot, or None for a table without commits."""
    return next(ancestry(table), None)


def ancestry(table: IcebergTable) -> Iterator[IcebergSnapshot]:
    """The current snapshot and its ancestors, newest first, ending before the first one that has expired."""
    java = table.iceberg.currentSnapshot()
    while java is not None:
        snapshot = IcebergSnapshot(java)
        yield snapshot
        parent = snapshot.parent
        java = None if parent is None else table.iceberg.snapshot(parent)


def references(table: IcebergTable) -> list[Reference]:
    """The branches and tags of a table, except its main branch and branches that the next commit drops."""
    branches_and_tags = []
    for name, ref in dict(table.iceberg.refs()).items():
        java = table.iceberg.snapshot(ref.snapshotId())
        if name not in {MAIN, *table.finished} and java is not None:
            time = IcebergSnapshot(java).committed_at
            branches_and_tags.append(Reference(str(name), int(ref.snapshotId()), time, ref.maxRefAgeMs()))
    return branches_and_tags
