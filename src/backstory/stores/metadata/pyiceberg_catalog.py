"""Catalogs that pyiceberg can open, with the properties of Iceberg's Java.

Their files are opened like the files of other catalogs. If manifests do not suffice, pyiceberg counts the
rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final, NoReturn, cast
from urllib.parse import parse_qs
from uuid import uuid4
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, load_file_io
from pyiceberg.table import StaticTable, Table

from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.settings import CATALOG
from backstory.stores.embedded_catalog import home_of, require_here
from backstory.stores.metadata.table_metadata import (
    Counts,
    TableMetadata,
    counts_of_manifests,
    table_of_metadata,
)
from backstory.stores.table_files import TableFiles

# A table that is loaded again shares its open files with the first one.
_SHARED: WeakValueDictionary[frozenset[tuple[str, str]], TableFiles] = WeakValueDictionary()


class FilesOfPyiceberg(FileIO):
    """The files of a table, opened with the properties of its catalog and of a REST catalog's response.

    Files that are neither local nor on S3 are opened by pyiceberg's classes, which take a second to load.
    """

    def __init__(self, properties: Mapping[str, Any] = {}) -> None:
        super().__init__(dict(properties))
        same = frozenset(self._texts().items())
        self.files = _SHARED.get(same) or TableFiles(self._texts, self._open)
        _SHARED[same] = self.files

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        return _Input(location, self.files)

    def new_output(self, location: str) -> NoReturn:
        """Not supported: nothing is written here."""
        raise NotImplementedError(location)

    def delete(self, location: object) -> NoReturn:
        """Not supported: nothing is deleted here."""
        raise NotImplementedError(location)

    def _texts(self) -> dict[str, str]:
        return {name: value for name, value in self.properties.items() if isinstance(value, str)}

    def _open(self, location: str) -> pa.NativeFile:
        own = {name: value for name, value in self.properties.items() if name != PY_IO_IMPL}
        file = load_file_io(own, location).new_input(location).open()
        return file if isinstance(file, pa.NativeFile) else pa.PythonFile(file, mode="r")


class _Input(InputFile):
    def __init__(self, location: str, files: TableFiles) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        with self.open() as file:
            return file.seek(0, 2)

    def exists(self) -> bool:
        try:
            self.open().close()
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> IO[bytes]:  # noqa: FBT001, FBT002, ARG002 - pyiceberg's
        return self._files(self.location)


_INSTANT: Final = pa.timestamp("us")


def open_table(location: str) -> Table:
    """The table whose metadata is at a location, opened by pyiceberg for reading."""
    return StaticTable.from_metadata(location)


def read_counts(table: TableMetadata, opened: Table) -> Counts:
    """The numbers of rows, counted in batches from the columns that mark open versions and memory.

    Counts are None for a table with rows deleted by value, which pyiceberg does not read.
    """
    newest, layout = table.newest, table.shape.layout
    if newest is not None and (newest.properties.get("total-equality-deletes") or "0") != "0":
        return Counts(None, None)
    span = layout.span
    if span is None:
        return Counts(opened.scan().count(), None)
    ends = span.open == f"{span.end} IS NULL" or layout.is_adopted
    names = [span.start, span.end] if layout is Layout.VERSIONS else [span.end if ends else span.open]
    rows = open_ = memory = 0
    for batch in opened.scan(selected_fields=tuple(names)).to_arrow_batch_reader():
        marks = batch.column(names[-1])
        rows += len(batch)
        open_ += marks.null_count if ends else pc.sum(marks).as_py() or 0
        if layout.is_adopted:
            open_ += (
                pc.sum(pc.greater_equal(marks.cast(_INSTANT), pa.scalar(span.far, _INSTANT))).as_py() or 0
            )
        if layout is Layout.VERSIONS:
            memory += pc.sum(pc.equal(batch.column(span.start), marks)).as_py() or 0
    return Counts(rows - memory, open_, memory)


# Properties with the same meaning in Java and in pyiceberg.
_BOTH: Final = frozenset(
    {
        "client.region",
        "credential",
        "oauth2-server-uri",
        "prefix",
        "rest.sigv4-enabled",
        "rest.signing-name",
        "rest.signing-region",
        "s3.access-key-id",
        "s3.endpoint",
        "s3.path-style-access",
        "s3.secret-access-key",
        "s3.session-token",
        "scope",
        "token",
        "type",
        "uri",
        "warehouse",
    }
)
_HEADER: Final = "header."
# The class that opens files, and an id that separates this catalog's files from another's.
_OPENED_FOR: Final = "backstory.files"
_OPENED_BY: Final = "backstory.stores.metadata.pyiceberg_catalog.FilesOfPyiceberg"
# Java's classes for files. pyiceberg chooses its class by the location.
_FILES: Final = {
    "org.apache.iceberg.aws.s3.S3FileIO",
    "org.apache.iceberg.hadoop.HadoopFileIO",
    "org.apache.iceberg.io.ResolvingFileIO",
}
_JAVA_ONLY: Final = {"io-impl", "jdbc.schema-version", "cache-enabled"}
_LOGIN: Final = ("user", "password")


@dataclass(frozen=True, slots=True)
class PyicebergCatalog:
    """The tables of a catalog that pyiceberg opened, or their branches.

    `home` is the folder of a catalog in a SQLite file.
    """

    catalog: Catalog
    opened: dict[TableName, Table] = field(default_factory=dict)
    description: str = f"the catalog {CATALOG}"
    home: Path | None = None
    branch: str | None = None

    def tables(self) -> list[TableName]:
        """Every table, sorted."""
        schemas = self.catalog.list_namespaces()
        names = (name for schema in schemas for name in self.catalog.list_tables(schema))
        return sorted(TableName(".".join(name[:-1]), name[-1]) for name in names)

    def describe(self, table: TableName) -> TableMetadata | None:
        """The current metadata of a table, or None if it does not exist.

        Raises UsageError for a table in a former folder of the warehouse or without the branch.
        """
        place = None if self.home is None else require_here(self.home, table)
        try:
            loaded = self.catalog.load_table((*table.schema.split("."), table.name))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        if place is not None:
            place.require_table(table, loaded.metadata.location, loaded.metadata.properties)
        self.opened[table] = loaded
        metadata = loaded.metadata.model_dump(mode="json", by_alias=True)
        described = table_of_metadata(table, metadata, loaded.metadata_location, self.branch)
        return replace(described, files=cast("FilesOfPyiceberg", loaded.io).files)

    def count(self, table: TableMetadata) -> Counts:
        """The number of rows, from manifests if they suffice."""
        return counts_of_manifests(table) or read_counts(table, self.opened[table.shape.table])


def open_catalog(
    properties: Mapping[str, str],
    description: str = f"the catalog {CATALOG}",
    branch: str | None = None,
) -> PyicebergCatalog | None:
    """The catalog with these properties, or None if pyiceberg does not support one of them."""
    known = _pyiceberg_properties(properties)
    if known is None:
        return None
    known |= {"py-io-impl": _OPENED_BY, _OPENED_FOR: str(uuid4())}
    home = home_of(Path(properties.get("warehouse", "")), properties.get("uri", ""))
    opened = load_catalog(CATALOG, **known)
    return PyicebergCatalog(opened, description=description, home=home, branch=branch)


def _pyiceberg_properties(properties: Mapping[str, str]) -> dict[str, str] | None:
    """Java's properties in pyiceberg's form, or None if one has no counterpart there."""
    login = {f"jdbc.{name}" for name in _LOGIN} if properties.get("type") == "jdbc" else set()
    extra = {name for name in properties if name not in _BOTH and not name.startswith(_HEADER)}
    if extra - _JAVA_ONLY - login or properties.get("io-impl") not in {None, *_FILES}:
        return None
    common = {name: value for name, value in properties.items() if name not in extra}
    if common.get("type") == "rest":
        return common
    if common.get("type") != "jdbc":
        return None
    uri = _sql_uri(properties)
    return None if uri is None else {**common, "type": "sql", "uri": uri, "init_catalog_tables": "false"}


def _sql_uri(properties: Mapping[str, str]) -> str | None:
    """SQLAlchemy's address for a JDBC catalog in SQLite or PostgreSQL, or None for any other catalog."""
    from sqlalchemy import URL

    place, _, query = properties.get("uri", "").partition("?")
    if place.startswith("jdbc:sqlite:"):
        return str(URL.create("sqlite", database=place.removeprefix("jdbc:sqlite:").removeprefix("file:")))
    if not place.startswith("jdbc:postgresql://"):
        return None
    parameters = {name: values[0] for name, values in parse_qs(query).items()}
    if set(parameters) - set(_LOGIN):
        return None
    login = {name: properties.get(f"jdbc.{name}") or parameters.get(name) for name in _LOGIN}
    server, _, database = place.removeprefix("jdbc:postgresql://").partition("/")
    host, _, port = server.partition(":")
    url = URL.create(
        "postgresql+psycopg",
        username=login["user"],
        password=login["password"],
        host=host,
        port=int(port) if port else None,
        database=database,
    )
    return url.render_as_string(hide_password=False)
