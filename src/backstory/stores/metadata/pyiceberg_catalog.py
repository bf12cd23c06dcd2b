"""Files as pyiceberg asks for them, opened where all are.

How many rows a table has, read with pyiceberg: where its manifests alone do not tell.

Catalogs that pyiceberg can open, with the properties that Iceberg's Java takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, cast
from urllib.parse import parse_qs
from uuid import uuid4
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, load_file_io

from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.settings import CATALOG
from backstory.stores.embedded_catalog import home_of, require_here
from backstory.stores.metadata.table_metadata import (
    Counts,
    TableMetadata,
    counts_of_manifests,
    deletes_by_value,
    table_of_metadata,
)
from backstory.stores.table_files import TableFiles

# A table that is loaded again, while it is there, opens its files no second time.
_SHARED: WeakValueDictionary[frozenset[tuple[str, str]], TableFiles] = WeakValueDictionary()


class FilesOfPyiceberg(FileIO):
    """The files of a table, by the properties of its catalog and those that a REST catalog hands out with it.

    pyiceberg's own classes open what is neither of this machine nor of S3; they take a second to load.
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
        """Nothing is written so."""
        raise NotImplementedError(location)

    def delete(self, location: object) -> NoReturn:
        """Nothing is deleted so."""
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


if TYPE_CHECKING:
    from pyiceberg.table import Table


_INSTANT: Final = pa.timestamp("us")


def open_table(location: str) -> "Table":
    """The table whose metadata is at a location, opened with pyiceberg for reading."""
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(location)


def read_counts(table: TableMetadata, opened: "Table") -> Counts:
    """The rows, from the columns that tell which are open and which are no versions, batch by batch.

    Those of a table of which another writer deleted rows by value are None: pyiceberg does not read it.
    """
    newest, layout = table.newest, table.shape.layout
    if newest is not None and deletes_by_value(newest.properties.get):
        return Counts(None, None)
    span = layout.span
    if span is None:
        return Counts(opened.scan().count(), None)
    ends = span.open == f"{span.end} IS NULL" or layout.is_adopted
    asked = [span.start, span.end] if layout is Layout.VERSIONS else [span.end if ends else span.open]
    rows = open_ = memory = 0
    for batch in opened.scan(selected_fields=tuple(asked)).to_arrow_batch_reader():
        told = batch.column(asked[-1])
        rows += len(batch)
        open_ += told.null_count if ends else pc.sum(told).as_py() or 0
        if layout.is_adopted:
            open_ += pc.sum(pc.greater_equal(told.cast(_INSTANT), pa.scalar(span.far, _INSTANT))).as_py() or 0
        if layout is Layout.VERSIONS:
            memory += pc.sum(pc.equal(batch.column(span.start), told)).as_py() or 0
    return Counts(rows - memory, open_, memory)


if TYPE_CHECKING:
    from pyiceberg import catalog
    from pyiceberg.table import Table


# Properties that mean the same to both.
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
# By what files are opened, and what tells this catalog's apart from those of another.
_OPENED_FOR: Final = "backstory.files"
_OPENED_BY: Final = "backstory.stores.metadata.pyiceberg_catalog.FilesOfPyiceberg"
# What Java reads files with; pyiceberg chooses by the location.
_FILES: Final = {
    "org.apache.iceberg.aws.s3.S3FileIO",
    "org.apache.iceberg.hadoop.HadoopFileIO",
    "org.apache.iceberg.io.ResolvingFileIO",
}
_JAVA_ALONE: Final = {"io-impl", "jdbc.schema-version", "cache-enabled"}
_LOGIN: Final = ("user", "password")


@dataclass(frozen=True, slots=True)
class PyicebergCatalog:
    """The tables of a catalog that pyiceberg opened."""

    catalog: "catalog.Catalog"
    opened: dict[TableName, "Table"] = field(default_factory=dict)
    searched: str = f"the catalog {CATALOG}"
    home: Path | None = None

    def tables(self) -> list[TableName]:
        """Every table, sorted."""
        schemas = self.catalog.list_namespaces()
        found = (each for schema in schemas for each in self.catalog.list_tables(schema))
        return sorted(TableName(".".join(each[:-1]), each[-1]) for each in found)

    def describe(self, table: TableName) -> TableMetadata | None:
        """The table as it stands now, or None if there is none.

        `home` is the folder of a warehouse whose catalog is a file in it: UsageError for a table that lies
        where that stood before.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        stands = None if self.home is None else require_here(self.home, table)
        try:
            found = self.catalog.load_table((*table.schema.split("."), table.name))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        if stands is not None:
            stands.require_table(table, found.metadata.location, found.metadata.properties)
        self.opened[table] = found
        told = found.metadata.model_dump(mode="json", by_alias=True)
        return table_of_metadata(table, told, found.metadata_location)

    def count(self, table: TableMetadata) -> Counts:
        """The rows, from manifests where these tell."""
        return counts_of_manifests(table, self.opener(table)) or read_counts(
            table, self.opened[table.shape.table]
        )

    def opener(self, table: TableMetadata) -> TableFiles:
        """How the files of a table are opened."""
        files: TableFiles = cast("FilesOfPyiceberg", self.opened[table.shape.table].io).files
        return files


def open_catalog(
    properties: Mapping[str, str], searched: str = f"the catalog {CATALOG}"
) -> PyicebergCatalog | None:
    """The catalog of these properties; None where pyiceberg does not know one of them."""
    known = _pyiceberg_properties(properties)
    if known is None:
        return None
    from pyiceberg.catalog import load_catalog

    known |= {"py-io-impl": _OPENED_BY, _OPENED_FOR: str(uuid4())}
    home = home_of(Path(properties.get("warehouse", "")), properties.get("uri", ""))
    return PyicebergCatalog(load_catalog(CATALOG, **known), searched=searched, home=home)


def _pyiceberg_properties(properties: Mapping[str, str]) -> dict[str, str] | None:
    """Java's properties as pyiceberg's; None where one has no counterpart."""
    login = {f"jdbc.{name}" for name in _LOGIN} if properties.get("type") == "jdbc" else set()
    extra = {name for name in properties if name not in _BOTH and not name.startswith(_HEADER)}
    if extra - _JAVA_ALONE - login or properties.get("io-impl") not in {None, *_FILES}:
        return None
    found = {name: value for name, value in properties.items() if name not in extra}
    if found.get("type") == "rest":
        return found
    if found.get("type") != "jdbc":
        return None
    uri = _sql_uri(properties)
    return None if uri is None else {**found, "type": "sql", "uri": uri, "init_catalog_tables": "false"}


def _sql_uri(properties: Mapping[str, str]) -> str | None:
    """SQLAlchemy's address of what JDBC calls SQLite or PostgreSQL; None for another database."""
    from sqlalchemy import URL

    place, _, query = properties.get("uri", "").partition("?")
    if place.startswith("jdbc:sqlite:"):
        return str(URL.create("sqlite", database=place.removeprefix("jdbc:sqlite:").removeprefix("file:")))
    if not place.startswith("jdbc:postgresql://"):
        return None
    asked = {name: values[0] for name, values in parse_qs(query).items()}
    if set(asked) - set(_LOGIN):
        return None
    login = {name: properties.get(f"jdbc.{name}") or asked.get(name) for name in _LOGIN}
    server, _, database = place.removeprefix("jdbc:postgresql://").partition("/")
    host, _, port = server.partition(":")
    found = URL.create(
        "postgresql+psycopg",
        username=login["user"],
        password=login["password"],
        host=host,
        port=int(port) if port else None,
        database=database,
    )
    return found.render_as_string(hide_password=False)
