"""The changes that a table needs before it is loaded, from its metadata (section 4.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from backstory.errors import Refused
from backstory.stores.sql.columns import EQUAL, OTHER, WIDENING, Datatype, SqlColumn, TableColumn, drift
from backstory.stores.sql.dialect import Dialect

ColumnT = TypeVar("ColumnT", bound=SqlColumn)
_KIND = exp.DataType.Type
_DATATYPES = {
    _KIND.INT: Datatype.INTEGER,
    _KIND.SMALLINT: Datatype.INTEGER,
    _KIND.TINYINT: Datatype.INTEGER,
    _KIND.BIGINT: Datatype.BIGINT,
    _KIND.DECIMAL: Datatype.DECIMAL,
    _KIND.DOUBLE: Datatype.FLOAT,
    _KIND.FLOAT: Datatype.FLOAT,
    _KIND.BOOLEAN: Datatype.BOOLEAN,
    _KIND.BIT: Datatype.BOOLEAN,
    _KIND.DATE: Datatype.DATE,
    _KIND.TIME: Datatype.TIME,
    _KIND.TIMESTAMP: Datatype.TIMESTAMP,
    _KIND.TIMESTAMPTZ: Datatype.TIMESTAMP,
    _KIND.TIMESTAMPNTZ: Datatype.TIMESTAMP,
    _KIND.DATETIME2: Datatype.TIMESTAMP,
    _KIND.VARBINARY: Datatype.BINARY,
    _KIND.BINARY: Datatype.BINARY,
    _KIND.UUID: Datatype.UUID,
    _KIND.JSON: Datatype.JSON,
}
_TEXT = {_KIND.VARCHAR, _KIND.NVARCHAR, _KIND.TEXT, _KIND.CHAR, _KIND.NCHAR}


@dataclass(frozen=True)
class DdlPlan(Generic[ColumnT]):
    """The changes to one table, in order."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    widened: Sequence[tuple[ColumnT, str]] = ()
    added: Sequence[ColumnT] = ()

    @property
    def changes_in_words(self) -> list[str]:
        """The changes as strings, such as `ADD_COLUMN name`."""
        return [
            *(f"RENAME_COLUMN {old} to {new}" for old, new in self.renamed.items()),
            *(f"ALTER_COLUMN_TYPE {column.name} from {old}" for column, old in self.widened),
            *(f"ADD_COLUMN {column.name}" for column in self.added),
        ]

    def statements(self, dialect: Dialect, schema: str, table: str) -> list[str]:
        """The changes in SQL: renames, then types, then new columns."""
        name = dialect.render_table_identifier(schema, table)
        renames = [dialect.render_rename_column(schema, table, old, new) for old, new in self.renamed.items()]
        types = []
        for column, old in self.widened:
            sql = dialect.render_alter_column_type(name, column, old)
            if not sql or not dialect.supports_alter_column_type:
                raise Refused(
                    "UNSUPPORTED_TYPE_EVOLUTION",
                    f"{dialect.DIALECT_NAME} cannot widen {table}.{column.name} from {old} in place.",
                    "Widen it by hand, or use a new column for the new values.",
                    [column.name],
                )
            types.append(sql)
        added = [dialect.render_add_column(name, column) for column in self.added]
        return [*renames, *types, *added]


def plan_changes(
    table: str, columns: Sequence[ColumnT], stored: Mapping[str, str], dialect: Dialect
) -> DdlPlan[ColumnT]:
    """The changes that give these columns to a table with the columns `stored` (name to type).

    Columns that only the table has are kept. Names are compared without surrounding spaces and regardless of
    case. Raises Refused for a table without columns, an ambiguous rename, and a type that does not widen.
    """
    if not stored:
        raise Refused("NO_COLUMNS_RETURNED", f"{table} exists but has no columns.", "Check the table.")
    known = {name.strip().lower(): name for name in stored}
    if len(known) < len(stored):
        raise Refused(
            "DUPLICATE_COLUMN", f"{table} has two columns with the same name.", "Rename one of them."
        )
    renamed = _plan_renames(table, columns, stored, dialect)
    sources = {new: old for old, new in renamed.items()}
    own = {name: stands for name, stands in known.items() if stands not in renamed}
    widened: list[tuple[ColumnT, str]] = []
    added: list[ColumnT] = []
    for column in columns:
        source = sources.get(column.name) or own.get(column.name)
        if source is not None:
            widened += _plan_widening(table, column, stored[source], dialect)
        elif column.active:
            added.append(column)
    return DdlPlan(renamed, widened, added)


def _plan_renames(
    table: str, columns: Sequence[SqlColumn], stored: Mapping[str, str], dialect: Dialect
) -> dict[str, str]:
    """A mapping of old names to new names, in an order in which each new name is free.

    A missing column takes the stored column that has one of its former names. If that name belongs to another
    current column, the other column then needs a stored column itself: `b` becomes `c`, and then `a` becomes
    `b`.
    """
    free = {name.strip().lower(): name for name in stored}
    active = {column.name: column for column in columns if column.active}
    missing = [column for column in columns if column.name not in free]
    renamed: dict[str, str] = {}
    while missing:
        column = missing.pop(0)
        former = [name for name in dict.fromkeys(map(str.lower, column.former_names)) if name in free]
        if len(former) > 1:  # a former name that another column now has belongs to that column
            former = [name for name in former if name not in active] or former
        if not column.active:  # a retired column keeps the values of a column whose type has changed
            former = [name for name in former if _goes_another_way(active.get(name), free, stored, dialect)]
        if len(former) > 1:
            raise Refused(
                "AMBIGUOUS_RENAME",
                f"{table} has no column {column.name}, but several columns with its former names.",
                "Rename the right one by hand.",
                [free[name] for name in former],
            )
        for name in former:
            renamed[free.pop(name)] = column.name
            missing += [active[name]] if name in active else []
    return renamed


def _goes_another_way(
    column: SqlColumn | None, names: Mapping[str, str], stored: Mapping[str, str], dialect: Dialect
) -> bool:
    """Whether the stored column with the given column's name has an incompatible type."""
    if column is None:
        return False
    old = logical_type(stored[names[column.name]], dialect)
    new = logical_type(dialect.type_of(column), dialect)
    return old is not None and new is not None and _drift(old, new) == OTHER


def _plan_widening(table: str, column: ColumnT, stored: str, dialect: Dialect) -> list[tuple[ColumnT, str]]:
    old, new = logical_type(stored, dialect), logical_type(dialect.type_of(column), dialect)
    if old is None or new is None or not column.active:
        return []
    verdict = _drift(old, new)
    if verdict != OTHER:
        return [(column, stored)] if verdict == WIDENING else []
    raise Refused(
        "UNSAFE_TYPE_DRIFT",
        f"{table}.{column.name} is {stored}, and {dialect.type_of(column)} cannot hold all of its values.",
        "Give the column another name; a history's types never get narrower.",
        [column.name],
    )


def _drift(old: SqlColumn, new: SqlColumn) -> str:
    """The `drift` between two types. A string type without a length fits any length: DuckDB stores none."""
    if old.datatype is new.datatype is Datatype.STRING and old.max_length is None:
        return EQUAL
    return drift(old, new)


def logical_type(type_: str, dialect: Dialect) -> TableColumn | None:
    """The column type for a database's type, or None for an unknown type."""
    try:
        parsed = sqlglot.maybe_parse(type_, into=exp.DataType, dialect=dialect.SQLGLOT_NAME or None)
    except ParseError:  # a type that only the database has
        return None
    numbers = [int(part.name) for part in parsed.expressions if part.name.isdigit()]
    if parsed.this in _TEXT:
        length = numbers[0] if numbers else None
        return TableColumn("c", Datatype.STRING, length)
    datatype = _DATATYPES.get(parsed.this)
    if datatype is None:
        return None
    if datatype is Datatype.DECIMAL and numbers:
        precision, scale = (*numbers, 0)[:2]
        return TableColumn("c", datatype, None, precision, scale)
    return TableColumn("c", datatype)


def fits(stage: str, column: SqlColumn, dialect: Dialect) -> bool:
    """Whether a base column can hold all values of a stage column's type, or the database refuses others."""
    old, new = logical_type(stage, dialect), logical_type(dialect.type_of(column), dialect)
    if old is None or new is None:
        return stage.lower() == dialect.type_of(column).lower()
    integers = {Datatype.INTEGER, Datatype.BIGINT}
    if {old.datatype, new.datatype} <= integers or old.datatype is new.datatype is Datatype.STRING:
        return True  # the database refuses a value that is too large or too long
    if old.datatype is Datatype.STRING and column.datatype in {Datatype.JSON, Datatype.TIME, Datatype.UUID}:
        return True  # the type itself checks it
    if old.datatype is Datatype.DECIMAL and old.decimal_precision is None:
        return False  # any number of digits
    return drift(old, new) != OTHER
