"""The expressions of a feed: columns and plain conditions are computed here, all others by Spark (V124)."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.options import Expression
from backstory.doors.native.request import bad_option
from backstory.spark.parsed_queries import is_of_each_row

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Compute = Callable[[pa.Table], pa.ChunkedArray]
_NAME: Final = r"\s*(?:`(?P<quoted>[^`]+)`|(?P<bare>[A-Za-z_][A-Za-z_0-9]*))\s*"
_COLUMN: Final = re.compile(_NAME)
_CONDITION: Final = re.compile(_NAME + r"(?:==?\s*'(?P<one>[^'\\]*)'|(?i:in)\s*\((?P<some>[^()]*)\))\s*")
_TEXT: Final = re.compile(r"\s*'([^'\\]*)'\s*")


def plain_column(expression: Expression, names: Sequence[str]) -> str | None:
    """The column that an expression is, if it is nothing else."""
    name = _name_alone(expression)
    return name if name in names else None


def lacking_column(expression: Expression, names: Sequence[str]) -> str | None:
    """The name that an expression is if it is nothing else, and no column."""
    name = _name_alone(expression)
    return None if name in names else name


def _name_alone(expression: Expression) -> str | None:
    match = _COLUMN.fullmatch(expression) if isinstance(expression, str) else None
    return match and (match["quoted"] or match["bare"])


def computed_here(expression: Expression, schema: pa.Schema) -> Compute | None:
    """How to compute an expression without Spark; None for one that only Spark computes exactly.

    Those are columns, and texts that are compared with others: `op = 'D'`, `op in ('D', 'T')`.
    """
    if (name := plain_column(expression, schema.names)) is not None:
        return lambda rows: rows[name]
    match = _CONDITION.fullmatch(expression) if isinstance(expression, str) else None
    if match is None:
        return None
    texts = [match["one"]] if match["one"] is not None else _texts(match["some"])
    name = match["quoted"] or match["bare"]
    if texts is None or name not in schema.names or not pa.types.is_string(schema.field(name).type):
        return None
    among = pa.array(texts, pa.string())

    def condition(rows: pa.Table) -> pa.ChunkedArray:
        return pc.is_in(rows[name], value_set=among)

    return condition


def _texts(some: str) -> list[str] | None:
    matches = [_TEXT.fullmatch(each) for each in some.split(",")]
    return None if None in matches else [match[1] for match in matches if match]


def computed_by_spark(rows: "DataFrame", expressions: Mapping[str, Expression]) -> "DataFrame":
    """The rows with more columns; UsageError for an expression that Spark does not take, or that may not be.

    Subqueries, what depends on other rows and what differs from one run to the next are no expressions of a
    feed (V124).
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql.functions import expr

    for name, expression in expressions.items():
        try:
            column: Column = expr(expression) if isinstance(expression, str) else expression
            alone = rows.select(column)
        except (AnalysisException, ParseException) as wrong:
            reason = str(wrong).strip().splitlines()[0]
            raise bad_option(
                f"Spark cannot compute {expression}: {reason}", "Write it in Spark SQL."
            ) from None
        _refuse_unsafe(rows, alone, expression)
        rows = rows.withColumn(name, column)
    return rows


def _refuse_unsafe(rows: "DataFrame", alone: "DataFrame", expression: Expression) -> None:
    if not is_of_each_row(rows, alone):
        raise bad_option(
            f"{expression} has a subquery, depends on other rows, or differs from one run to the next.",
            "Use deterministic expressions over the columns of each delivered row.",
        )
