"""The address of a database, with the table or query to read."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote_plus

from backstory.errors import UsageError
from backstory.sources.templates import without_secrets

Kind = Literal["postgresql", "sqlite", "duckdb", "jdbc"]
_KINDS: Final[dict[str, Kind]] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "sqlite": "sqlite",
    "duckdb": "duckdb",
    "mysql": "jdbc",
    "mariadb": "jdbc",
}
_JDBC: Final = "jdbc:"
# JDBC addresses of databases that are read without Java.
_OURS: Final = re.compile(r"jdbc:(?:(?=postgresql://)|(sqlite|duckdb):)")
# Characters with a meaning in an address, or in a template.
_RESERVED: Final = re.compile(r"[%&;+${}]")
_TABLE: Final = re.compile(r"([?&;])table=([^&;]*)")


@dataclass(frozen=True, slots=True)
class Database:
    """The address of a database, with the table or query to read.

    `url` is for the database's driver. `name` is for messages, without user, password and options. Either
    `table` (as in the source, with its schema before a dot) or `query` is set.
    """

    kind: Kind
    url: str = field(repr=False)
    name: str
    table: str | None = None
    query: str | None = field(default=None, repr=False)

    @property
    def what(self) -> str:
        """The table or query, as named in messages."""
        return f"the query on {self.name}" if self.table is None else f"{self.table} in {self.name}"

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the table's name: its schema, if given, and its own name."""
        return tuple((self.table or "").split(".", 1))

    def source(self, mark: str = '"') -> str:
        """The table or subquery for a FROM clause.

        `mark` is the quotation mark that the database uses for names.
        """
        if self.query is not None:
            return f"({self.query.strip().rstrip(';')}\n) copied"  # the query may end in a comment
        return ".".join(quote_name(part, mark) for part in self.parts)

    def file(self) -> Path:
        """The path of a database that is a file. Raises UsageError if the file does not exist."""
        path = Path(self.url.partition("://")[2].partition("?")[0])
        if not path.is_file():
            remedy = f"Write {self.kind}:///path/of/the/file."
            raise UsageError("no-database", f"There is no file {self.name}.", remedy)
        return path


def quote_name(name: str, mark: str = '"') -> str:
    """Quote a name for SQL."""
    return mark + name.replace(mark, mark * 2) + mark


def escape_name(name: str) -> str:
    """Escape a table's name for the `table=` part of an address."""
    return _RESERVED.sub(lambda mark: f"%{ord(mark[0]):02X}", name)


def is_database(source: str) -> bool:
    """Whether a source is the address of a database, by its scheme."""
    return source.startswith(_JDBC) or source.partition("://")[0] in _KINDS


def parse_address(source: str, query: str | None = None) -> Database:
    """Parse a source. Raises UsageError unless it has exactly one table or query."""
    source = _with_our_scheme(source)
    match = _TABLE.search(source)
    table = unquote_plus(match[2]) if match else None
    url = source if match is None else _without_table(source, match)
    if bool(table) == bool(query):
        problem = "both a table and a query" if table else "neither a table nor a query"
        remedy = "Add ?table=schema.table to the address, or use `query='SELECT ...'`."
        if table:
            remedy = "Omit `?table=` in the address, or omit `query=`."
        raise UsageError("bad-option", f"The source {name_of(source)} has {problem}.", remedy)
    return Database(_kind(url), url, name_of(url), table, query)


def parse_server(source: str) -> Database:
    """Parse the address of a database without a table."""
    url = _with_our_scheme(source)
    return Database(_kind(url), url, name_of(url))


def _with_our_scheme(source: str) -> str:
    return _OURS.sub(lambda match: f"{match[1]}://" if match[1] else "", source, count=1)


def _kind(url: str) -> Kind:
    return "jdbc" if url.startswith(_JDBC) else _KINDS[url.partition("://")[0]]


def name_of(url: str) -> str:
    """The address for messages, without user, password and options."""
    if not url.startswith(_JDBC):
        return without_secrets(url)
    return _JDBC + without_secrets(url.removeprefix(_JDBC).partition(";")[0])


def _without_table(source: str, match: re.Match[str]) -> str:
    """The address without its `table=` option. The first remaining option follows a question mark."""
    before, after = source[: match.start()], source[match.end() :]
    return before + (match[1] + after[1:] if after and match[1] == "?" else after)
