"""Catalogs that pyiceberg can open, with the properties that Iceberg's Java takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import parse_qs
from uuid import uuid4

from backstory.model.table import TableName
from backstory.settings import CATALOG
from backstory.stores.embedded_catalog import home_of, require_here
from backstory.stores.metadata.described import Counts, Described, described
from backstory.stores.metadata.manifests import counted
from backstory.stores.metadata.scans import read_counts
from backstory.stores.table_files import TableFiles

if TYPE_CHECKING:
    from pyiceberg import catalog
    from pyiceberg.table import Table

    from backstory.stores.metadata.pyiceberg_files import FilesOfPyiceberg

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
_OPENED_BY: Final = "backstory.stores.metadata.pyiceberg_files.FilesOfPyiceberg"
# What Java reads files with; pyiceberg chooses by the location.
_FILES: Final = {
    "org.apache.iceberg.aws.s3.S3FileIO",
    "org.apache.iceberg.hadoop.HadoopFileIO",
    "org.apache.iceberg.io.ResolvingFileIO",
}
_JAVA_ALONE: Final = {"io-impl", "jdbc.schema-version", "cache-enabled"}
_LOGIN: Final = ("user", "password")


@dataclass(frozen=True, slots=True)
class WithPyiceberg:
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

    def describe(self, table: TableName) -> Described | None:
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
        return described(table, told, found.metadata_location)

    def count(self, table: Described) -> Counts:
        """The rows, from manifests where these tell."""
        return counted(table, self.opener(table)) or read_counts(table, self.opened[table.shape.table])

    def opener(self, table: Described) -> TableFiles:
        """How the files of a table are opened."""
        files: TableFiles = cast("FilesOfPyiceberg", self.opened[table.shape.table].io).files
        return files


def open_catalog(
    properties: Mapping[str, str], searched: str = f"the catalog {CATALOG}"
) -> WithPyiceberg | None:
    """The catalog of these properties; None where pyiceberg does not know one of them."""
    known = _translated(properties)
    if known is None:
        return None
    from pyiceberg.catalog import load_catalog

    known |= {"py-io-impl": _OPENED_BY, _OPENED_FOR: str(uuid4())}
    home = home_of(Path(properties.get("warehouse", "")), properties.get("uri", ""))
    return WithPyiceberg(load_catalog(CATALOG, **known), searched=searched, home=home)


def _translated(properties: Mapping[str, str]) -> dict[str, str] | None:
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
