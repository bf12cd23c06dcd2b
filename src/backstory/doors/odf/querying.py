"""Preprocess: SQL over the batch as it was read, which the queries call `input` (section 1.7)."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from backstory.doors.odf.manifest.read import Sql
from backstory.doors.odf.staging import ARRIVAL
from backstory.errors import Refused, UsageError
from backstory.tables.literals import quoted
from backstory.tables.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Operators behind which rows stand in another order, or in none.
OPERATORS: Final = r"Aggregate|Join|Window|Sort|Repartition\w*|Intersect|Except|Distinct|Union"
# How a plan that is not analysed yet shows a name of several parts.
RELATION: Final = re.compile(r"'UnresolvedRelation \[[^\]]*, ")
ZONE: Final = "spark.sql.session.timeZone"
# SQL states of values that a function or a cast does not take.
DATA: Final = "22"
IN_ANOTHER_ZONE = Lock()
REORDERING: Final = re.compile(rf"^[\s:+\-|]*({OPERATORS})\b", re.MULTILINE)


@contextmanager
def queried(store: Store, rows: "DataFrame", sql: Sql) -> "Iterator[DataFrame]":
    """The output of the step without an alias; each query sees `input` and the steps before it.

    Raises UsageError for SQL that Spark cannot analyse.
    """
    from pyspark.errors import AnalysisException, ParseException

    view = f"input {uuid4()}"
    rows.drop(ARRIVAL).createOrReplaceTempView(quoted(view))
    try:
        with utc(store.spark):
            found = store.spark.sql(_text(sql, view))
        yield found
    except (AnalysisException, ParseException) as wrong:
        raise UsageError(
            "wrong-query",
            f"The query of preprocess does not fit the batch: {_cause(wrong)}",
            f"The batch has the columns {', '.join(rows.drop(ARRIVAL).columns)}.",
        ) from None
    finally:
        store.spark.catalog.dropTempView(view)


@contextmanager
def utc(spark: "SparkSession") -> Iterator[None]:
    """What a query says of times is settled when it is analysed: UTC, whatever zone the session has (E3)."""
    with IN_ANOTHER_ZONE:
        zone = spark.conf.get(ZONE)
        if zone != "UTC":
            spark.conf.set(ZONE, "UTC")
            try:
                yield
            finally:
                spark.conf.set(ZONE, str(zone))
            return
    yield


@contextmanager
def failing_rows_refused() -> Iterator[None]:
    """Raises Refused when a query fails on a value, as `cast('x' as int)` does; other faults pass."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as fault:
        if not (fault.getSqlState() or "").startswith(DATA):
            raise
        raise Refused(
            "query-failed",
            f"The query of preprocess fails on a value of the batch ({fault.getCondition()}).",
            "Nothing was written; use try_cast or the like, or leave such rows out.",
        ) from None


def names_others(store: Store, sql: Sql) -> bool:
    """Whether the step reads tables or files, by names of several parts, beside its batch and its steps."""
    from pyspark.errors import ParseException

    parser = store.spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
    try:
        plans = [parser.parsePlan(_bare(query)).toString() for _, query in _steps(sql)]
    except ParseException:
        return False
    return any(RELATION.search(plan) for plan in plans)


def keeps_order(frame: "DataFrame") -> bool:
    """Whether the rows of a query stand in the order of the file."""
    plan = frame._jdf.queryExecution().optimizedPlan().toString()  # noqa: SLF001
    return REORDERING.search(plan) is None


def _text(sql: Sql, view: str) -> str:
    steps = _steps(sql)
    named = [("input", f"TABLE {quoted(view)}")]
    named += [(alias, query) for alias, query in steps if alias is not None]
    output = next(query for alias, query in steps if alias is None)
    begun = ", ".join(f"{quoted(alias)} AS (\n{_bare(query)}\n)" for alias, query in named)
    return f"WITH {begun}\nSELECT * FROM (\n{_bare(str(output))}\n)"


def _steps(sql: Sql) -> list[tuple[str | None, str]]:
    """The queries of a step, each with its alias."""
    return [(None, sql.query)] if sql.query is not None else [(s.alias, s.query) for s in sql.queries or ()]


def _bare(query: str) -> str:
    """A query without the semicolon that ends it."""
    return query.strip().rstrip(";")


def _cause(wrong: Exception) -> str:
    return str(wrong).partition("SQLSTATE")[0].strip().splitlines()[0][:300]
