"""The expressions of a feed. Arrow computes simple expressions, and Spark computes all others (V124)."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import expr, lit
from pyspark.sql.types import NullType, StructField, StructType

from backstory.doors.native.options import Expression
from backstory.doors.native.sources import SourceRows
from backstory.engine.driver import few_rows, hold_frame
from backstory.errors import bad_option
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.spark.parsed_queries import is_of_each_row
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.metadata.table_metadata import Unreadable

Compute = Callable[[pa.Table], pa.ChunkedArray]
_NAME: Final = r"\s*(?:`(?P<quoted>[^`]+)`|(?P<bare>[A-Za-z_][A-Za-z_0-9]*))\s*"
_COLUMN: Final = re.compile(_NAME)
_CONDITION: Final = re.compile(_NAME + r"(?:==?\s*'(?P<one>[^'\\]*)'|(?i:in)\s*\((?P<some>[^()]*)\))\s*")
_LITERALS: Final = {"true", "false", "null"}
_TEXT: Final = re.compile(r"\s*'([^'\\]*)'\s*")


def plain_column(expression: Expression, names: Sequence[str]) -> str | None:
    """The column's name if the expression is only a column, or else None."""
    name = _only_name(expression)
    return name if name in names else None


def lacking_column(expression: Expression, names: Sequence[str]) -> str | None:
    """The name if the expression is only a name and no column has it, or else None."""
    name = _only_name(expression)
    return None if name in names or str(expression).strip().lower() in _LITERALS else name


def _only_name(expression: Expression) -> str | None:
    match = _COLUMN.fullmatch(expression) if isinstance(expression, str) else None
    return match and (match["quoted"] or match["bare"])


def local_computation(expression: Expression, schema: pa.Schema) -> Compute | None:
    """A function that computes an expression on Arrow tables, or None if only Spark computes it exactly.

    The function covers columns, and strings compared with literals: `op = 'D'`, `op in ('D', 'T')`.
    """
    if (name := plain_column(expression, schema.names)) is not None:
        return lambda rows: rows[name]
    name, texts = _comparison(expression, schema.names)
    if name is None or not pa.types.is_string(schema.field(name).type):
        return None
    values = pa.array(texts, pa.string())

    def condition(rows: pa.Table) -> pa.ChunkedArray:
        # As in Spark, a comparison with NULL is NULL, and a row without a place in the order is refused.
        return pc.if_else(rows[name].is_valid(), pc.is_in(rows[name], value_set=values), None)

    return condition


def _comparison(expression: Expression, names: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The column and the strings that an expression compares, or None and no strings."""
    match = _CONDITION.fullmatch(expression) if isinstance(expression, str) else None
    if match is None:
        return None, ()
    name = match["quoted"] or match["bare"]
    if match["one"] is not None:
        return (name, [match["one"]]) if name in names else (None, ())
    texts = [_TEXT.fullmatch(text) for text in match["some"].split(",")]
    return (None, ()) if None in texts or name not in names else (name, [text[1] for text in texts if text])


def compute_by_spark(rows: DataFrame, expressions: Mapping[str, Expression]) -> DataFrame:
    """The frame with a column for each expression. Raises UsageError for invalid or unsafe expressions.

    An expression must not have subqueries, depend on other rows, or differ from one run to the next (V124).
    """
    for name, expression in expressions.items():
        try:
            column: Column = expr(expression) if isinstance(expression, str) else expression
            # Within parentheses, no word is read as a name of the result: `lsn desc` is refused.
            alone = rows.select(expr(f"({expression}\n)") if isinstance(expression, str) else column)
        except (AnalysisException, ParseException) as wrong:
            reason = str(wrong).strip().splitlines()[0]
            raise bad_option(
                f"Spark cannot compute {expression}: {reason}", "Write it in Spark SQL."
            ) from None
        # The text of a column, or of its comparison with strings, shows that it depends on one row only.
        plain = plain_column(expression, rows.columns) or _comparison(expression, rows.columns)[0]
        if plain is None and not is_of_each_row(rows, alone):
            raise bad_option(
                f"{expression} has a subquery, depends on other rows, or differs from one run to the next.",
                "Use deterministic expressions over the columns of each delivered row.",
            )
        rows = rows.withColumn(name, column)
    return rows


def read_feed_rows(
    store: IcebergStore, source: SourceRows, computed: Mapping[str, Expression], lease: MemoryLease
) -> pa.Table:
    """All rows, with a column for each expression. Raises TooLarge if the lease cannot hold them."""
    with suppress(Unreadable):
        rows = _read_here(source, computed, lease)
        if rows is not None:
            return rows
    frame, few = compute_by_spark(source.frame(), computed), few_rows(store, len(source.fields))
    sure = hold_frame(store, frame, source.size, "feed", lease)
    rows = arrow_of(frame if sure else frame.limit(few + 1))
    if not sure and len(rows) > few:
        raise TooLarge
    lease.hold("feed", rows.nbytes)
    return rows


def with_key(source: SourceRows, key: Sequence[str]) -> SourceRows:
    """The source with NULL in the key columns that it lacks, because truncates have no key (V48)."""
    lacking = [name for name in key if name not in source.fields.names]
    if not lacking:
        return source
    fields = StructType([*source.fields, *(StructField(name, NullType()) for name in lacking)])
    frame, read = source.frame, source.batches

    def batches(names: Sequence[str]) -> Iterator[pa.Table]:
        assert read is not None
        for rows in read([name for name in names if name not in lacking]):
            nothing = pa.nulls(len(rows))
            yield pa.table({name: nothing if name in lacking else rows[name] for name in names})

    return replace(
        source,
        fields=fields,
        frame=lambda: frame().withColumns(dict.fromkeys(lacking, lit(None))),
        batches=None if read is None else batches,
    )


def _read_here(source: SourceRows, computed: Mapping[str, Expression], lease: MemoryLease) -> pa.Table | None:
    if source.batches is None:
        return None
    parts: list[pa.Table] = []
    for rows in source.batches(source.fields.names):
        makes = {name: local_computation(expression, rows.schema) for name, expression in computed.items()}
        columns = {}
        for name, make in makes.items():
            if make is None:
                return None
            columns[name] = make(rows)
        parts.append(pa.table({**{name: rows[name] for name in rows.column_names}, **columns}))
        lease.hold("feed", sum(part.nbytes for part in parts))
    if not parts:
        return None
    return pa.concat_tables(parts, promote_options="permissive")
