"""The contract of a dialect (section 5.1). A dialect writes the statements of a load for a database.

Types and canonical texts are tables of templates.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, ClassVar

import sqlglot
from sqlglot.dialects.duckdb import DuckDB as _Reserved

from backstory.errors import UsageError
from backstory.stores.sql.columns import Datatype, SqlColumn
from backstory.stores.sql.engine import without_placeholders

if TYPE_CHECKING:
    from backstory.stores.sql.engine import Engine

PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def keywords(dialect: str, *more: str) -> frozenset[str]:
    """A dialect's keywords in sqlglot, in upper case, with further keywords."""
    known = {word.upper() for word in sqlglot.Dialect.get_or_raise(dialect).tokenizer_class.KEYWORDS} | {
        word.upper() for word in _Reserved.Generator.RESERVED_KEYWORDS
    }
    return frozenset(word for word in known if PLAIN.fullmatch(word)) | set(more)


class Dialect(ABC):
    """The SQL of one database for a load.

    Expressions and names are passed as SQL that the dialect rendered itself. A statement has no semicolon at
    its end. Capabilities are declared. A missing capability is an error when a load is planned.
    """

    DIALECT_NAME: ClassVar[str] = ""
    RESERVED_KEYWORDS: ClassVar[frozenset[str]] = frozenset()
    # sqlglot's name of the dialect, to parse conditions of users.
    SQLGLOT_NAME: ClassVar[str] = ""
    QUOTES: ClassVar[tuple[str, str]] = ('"', '"')

    supports_hist_merge: ClassVar[bool] = False
    supports_alter_column_type: ClassVar[bool] = True
    supports_transactions: ClassVar[bool] = True

    # Names

    def quote_ident(self, name: str) -> str:
        """The name in quotes. Quote characters in it are doubled."""
        left, right = self.QUOTES
        return f"{left}{name.replace(right, right * 2)}{right}"

    def should_quote(self, name: str) -> bool:
        """Whether the name would have another meaning without quotes."""
        return PLAIN.fullmatch(name) is None or name.upper() in self.RESERVED_KEYWORDS

    def render_identifier(self, name: str) -> str:
        """The name, in quotes if necessary."""
        return self.quote_ident(name) if self.should_quote(name) else name

    def render_table_identifier(self, schema: str | None, name: str) -> str:
        """The SQL name of a table: `schema.name`, or only the name if there is no schema."""
        parts = [schema, name] if schema else [name]
        return ".".join(self.render_identifier(part) for part in parts)

    # Literals

    def string_literal(self, text: str) -> str:
        """A string, which may contain any characters, as a literal."""
        return "'" + text.replace("'", "''") + "'"

    @abstractmethod
    def timestamp_literal(self, instant: datetime) -> str:
        """An aware time as an instant in UTC with six digits."""

    def render_literal(self, value: object) -> str:
        """A literal for None, a number, a day, an aware time or a string. Raises ValueError for others."""
        match value:
            case None:
                return "NULL"
            case bool():
                return self.boolean_literal(value)
            case int() | Decimal():
                return str(value)
            case float():
                return repr(value)
            case datetime():
                if value.tzinfo is None:
                    raise ValueError("a time needs a zone")
                return self.timestamp_literal(value.astimezone(UTC))
            case date():
                return f"DATE '{value.isoformat()}'"
            case str():
                return self.string_literal(value)
            case time():
                return self.string_literal(value.isoformat())
        raise ValueError(f"there is no literal of {type(value).__name__}")

    def boolean_literal(self, value: bool) -> str:  # noqa: FBT001
        """TRUE or FALSE."""
        return "TRUE" if value else "FALSE"

    # Types and expressions

    @abstractmethod
    def map_logical_type(
        self,
        datatype: Datatype,
        max_length: int | None = None,
        precision: int | None = None,
        scale: int | None = None,
        *,
        strict: bool = True,
    ) -> str:
        """The database's own type. Unless `strict` is true, strings have no length."""

    def type_of(self, column: SqlColumn) -> str:
        """The type of a column in the database."""
        return self.map_logical_type(
            column.datatype, column.max_length, column.decimal_precision, column.decimal_scale
        )

    def cast_expression(self, sql: str, type_: str) -> str:
        """The value as another type. The database reports an error for a value that does not fit."""
        return f"CAST({sql} AS {type_})"

    @abstractmethod
    def canonical_text(
        self, sql: str, datatype: Datatype, precision: int | None = None, scale: int | None = None
    ) -> str:
        """The canonical text of a value (section 2.4) regardless of session settings. It is NULL for NULL."""

    def concat_expression(self, parts: Sequence[str]) -> str:
        """The concatenated strings, or NULL if one of them is NULL."""
        return f"({' || '.join(parts)})" if len(parts) > 1 else parts[0]

    @abstractmethod
    def hash_expression(self, text_sql: str) -> str:
        """The SHA-256 of a string's UTF-8 bytes, in lowercase hexadecimal digits."""

    def null_safe_ne(self, a: str, b: str) -> str:
        """Whether two values are distinct, where NULL counts as a value. The result is never NULL."""
        return f"{a} IS DISTINCT FROM {b}"

    def current_instant(self) -> str:
        """The time of the database's clock."""
        return "CURRENT_TIMESTAMP"

    # Statements

    def render_update_exists(
        self, target: str, alias: str, assignments: Mapping[str, str], where: str
    ) -> str:
        """The UPDATE of `target`, under this alias, where a condition with subqueries holds."""
        values = _lines([f"{name} = {value}" for name, value in assignments.items()])
        return f"UPDATE {target} AS {alias}\nSET\n  {values}\nWHERE {where}"

    def render_insert_select_guarded(
        self, target: str, columns: Sequence[str], select: Sequence[str], source: str, alias: str, where: str
    ) -> str:
        """The INSERT of `select` from `source`, under this alias, where a condition holds."""
        if len(columns) != len(select) or len(set(columns)) != len(columns):
            raise ValueError("the columns of an INSERT do not match its values")
        return (
            f"INSERT INTO {target} (\n  {_lines(columns)}\n)\nSELECT\n  {_lines(select)}\n"
            f"FROM {source} AS {alias}\nWHERE {where}"
        )

    def render_delete_detection_statement(self, target: str, alias: str, where: str) -> str:
        """The DELETE from `target`, under this alias, where a condition with subqueries holds."""
        return f"DELETE FROM {target} AS {alias}\nWHERE {where}"

    def render_hist_merge_statement(
        self,
        target: str,
        source: str,
        on: str,
        assignments: Mapping[str, str],
        columns: Sequence[str],
        values: Sequence[str],
    ) -> str:
        """The MERGE that updates matched rows of `target` AS t, and inserts other rows of `source` AS s."""
        update = ", ".join(f"{name} = {value}" for name, value in assignments.items())
        return (
            f"MERGE INTO {target} AS t\nUSING (\n{source}\n) AS s\nON {on}\n"
            f"WHEN MATCHED THEN UPDATE SET {update}\n"
            f"WHEN NOT MATCHED THEN INSERT (\n  {_lines(columns)}\n) VALUES (\n  {_lines(values)}\n)"
        )

    # Schema changes

    def render_create_schema_if_not_exists(self, schema: str) -> str:
        """The statement that creates a schema, unless it exists."""
        return f"CREATE SCHEMA IF NOT EXISTS {self.render_identifier(schema)}"

    def render_create_table_if_not_exists_from_columns(self, table: str, columns: Sequence[SqlColumn]) -> str:
        """The statement that creates a table with these columns, unless it exists."""
        parts = [
            f"{self.render_identifier(column.name)} {self.type_of(column)}"
            + ("" if column.nullable else " NOT NULL")
            for column in columns
        ]
        return f"CREATE TABLE IF NOT EXISTS {table} (\n  {_lines(parts)}\n)"

    def render_add_column(self, table: str, column: SqlColumn) -> str:
        """The statement that adds a column, which is always nullable."""
        return f"ALTER TABLE {table} ADD COLUMN {self.render_identifier(column.name)} {self.type_of(column)}"

    def render_rename_column(self, schema: str, table: str, old: str, new: str) -> str:
        """The statement that renames a column."""
        return (
            f"ALTER TABLE {self.render_table_identifier(schema, table)} "
            f"RENAME COLUMN {self.render_identifier(old)} TO {self.render_identifier(new)}"
        )

    def render_rename_table(self, schema: str, old: str, new: str) -> str:
        """The statement that renames a table in its schema."""
        return (
            f"ALTER TABLE {self.render_table_identifier(schema, old)} RENAME TO {self.render_identifier(new)}"
        )

    def render_alter_column_type(self, table: str, column: SqlColumn, old_type: str) -> str | None:
        """The statement that widens a column in place, or None if the database does not support this."""
        del old_type
        name = self.render_identifier(column.name)
        return f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {self.type_of(column)}"

    def render_drop_column(self, table: str, name: str) -> str:
        """The statement that drops a column. Loads never drop one."""
        return f"ALTER TABLE {table} DROP COLUMN {self.render_identifier(name)}"

    # Running

    def secret_reference(self, name: str) -> str | None:
        """An expression that returns a secret of the session, or None if secrets can only be literals."""
        del name
        return None

    def get_execution_engine(self, url: str) -> "Engine":
        """A connection. By default this raises UsageError, because the dialect only writes SQL."""
        del url
        raise UsageError(
            "no-engine",
            f"The dialect {self.DIALECT_NAME} only prints SQL.",
            "Print the statements with `sql=True`, and run them with the database's own tool.",
        )


def _lines(parts: Sequence[str]) -> str:
    return ",\n  ".join(parts)


BOOLEAN_TEXT = "CASE WHEN {sql} THEN 'true' WHEN NOT {sql} THEN 'false' END"


class TemplateDialect(Dialect):
    """A dialect with tables of types and canonical texts.

    A type may contain `{precision}` and `{scale}`. `LIMITED` is the type of a string with a maximum
    `{length}`. A canonical text contains the value as `{sql}` and, for numbers, `{precision}` and `{scale}`.
    Other types use `CAST_TEXT`.
    """

    TYPES: ClassVar[Mapping[Datatype, str]]
    LIMITED: ClassVar[str]
    TEXTS: ClassVar[Mapping[Datatype, str]]
    CAST_TEXT: ClassVar[str]

    def map_logical_type(
        self,
        datatype: Datatype,
        max_length: int | None = None,
        precision: int | None = None,
        scale: int | None = None,
        *,
        strict: bool = True,
    ) -> str:
        if datatype is Datatype.STRING and strict and max_length:
            return self.LIMITED.format(length=max_length)
        return self.TYPES[datatype].format(precision=precision, scale=scale)

    def canonical_text(
        self, sql: str, datatype: Datatype, precision: int | None = None, scale: int | None = None
    ) -> str:
        template = self.TEXTS.get(datatype, self.CAST_TEXT)
        return template.format(sql=sql, precision=precision, scale=scale)


@dataclass(frozen=True)
class SqlNames:
    """Columns and strings in the SQL of a dialect."""

    dialect: Dialect

    def name(self, column: str) -> str:
        """A column's name, quoted for the dialect."""
        return self.dialect.render_identifier(column)

    def of(self, alias: str, column: str) -> str:
        """A column of an alias: `alias.column`."""
        return f"{alias}.{self.name(column)}"

    def text(self, text: str) -> str:
        """The SQL literal of a string. Parts that look like placeholders are split to protect them."""
        parts = map(self.dialect.string_literal, without_placeholders(text))
        return self.dialect.concat_expression([*parts])
