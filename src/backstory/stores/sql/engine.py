"""The contract of a connection (section 5.1), which runs the SQL of a dialect.

Statements have placeholders instead of whole literals (sections 3.5 and 5.2).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from backstory.errors import Failed
from backstory.stores.sql.columns import SqlColumn

if TYPE_CHECKING:
    import pyarrow as pa


class Statement(NamedTuple):
    """One statement of a load, and the name of its step in the log."""

    step: str
    sql: str


LOAD_TIMESTAMP = "{{ load_timestamp }}"
LOAD_TIMESTAMP_TEXT = "{{ load_timestamp_text }}"
LOAD_RUN_ID = "{{ load_run_id }}"
PEPPER = "{{ pepper }}"
_BETWEEN_BRACES = re.compile(r"(?<=\{)(?=\{)")
PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def fill_placeholders(template: str, values: Mapping[str, str]) -> str:
    """Replace each placeholder with its SQL, in one pass, so that values remain data.

    Raises Failed for a placeholder without a value, because the statement must then not run.
    """

    def value(placeholder: re.Match[str]) -> str:
        name = placeholder[1]
        if name not in values:
            raise Failed(
                "unresolved-placeholder", f"A statement has the placeholder {name}, but no value for it."
            )
        return values[name]

    return PLACEHOLDER.sub(value, template)


def without_placeholders(text: str) -> list[str]:
    """Split the string between adjacent braces, so that no part contains a placeholder."""
    return _BETWEEN_BRACES.split(text)


class Engine(ABC):
    """A connection whose session is in UTC.

    The database's errors are raised as TryAgain for a conflict or a busy database, or else as Failed.
    """

    @property
    def address(self) -> str:
        """The address of the database, without its login. Empty if unknown."""
        return ""

    @abstractmethod
    def execute(self, sql: str) -> int:
        """Run a statement. Returns the number of changed rows, or 0 if the statement changes none."""

    def execute_all(self, statements: Iterable[str]) -> None:
        """Run statements one after the other."""
        for statement in statements:
            self.execute(statement)

    @abstractmethod
    def fetch_all(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """A transaction on one consistent snapshot, which an error rolls back."""

    @abstractmethod
    def lock(self, name: str) -> AbstractContextManager[bool]:
        """Lock a name until the connection ends.

        Yields False, without waiting, if another process holds the lock.
        """

    @abstractmethod
    def introspect_table(self, schema: str, table: str) -> dict[str, str] | None:
        """The columns of a table with their types, or None if the table does not exist."""

    @abstractmethod
    def bind_secret(self, name: str, value: str) -> None:
        """Keep a secret in the session, where the dialect's `secret_reference` refers to it."""

    @abstractmethod
    def bring(self, name: str, rows: "pa.Table", columns: Sequence[SqlColumn]) -> str:
        """Load rows as a relation of this session. Returns its name in SQL."""

    def keep(self, name: str, template: str, values: Mapping[str, str]) -> str:
        """The SQL of a relation with a query's rows that is unaffected by the transaction's own writes.

        By default, this is the query itself, because most statements do not see their own writes.
        """
        del name, values
        return f"(\n{template}\n)"

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def run(self, template: str, values: Mapping[str, str]) -> int:
        """Run `execute` for a statement with placeholders."""
        return self.execute(fill_placeholders(template, values))

    def query(self, template: str, values: Mapping[str, str]) -> list[tuple[Any, ...]]:
        """Run `fetch_all` for a query with placeholders."""
        return self.fetch_all(fill_placeholders(template, values))

    def execute_scalar(self, sql: str) -> Any:
        """The first value of a query's first row, or None if the query returns no rows."""
        rows = self.fetch_all(sql)
        return rows[0][0] if rows else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
