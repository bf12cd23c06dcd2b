"""Preprocess: SQL over the batch as it was read, which the queries call `input` (section 1.7)."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from backstory.doors.odf.allowed_queries import others_read, steps
from backstory.doors.odf.manifest.read import Sql
from backstory.doors.odf.source_rules import INPUT
from backstory.engine.staging import ARRIVAL
from backstory.errors import Refused, UsageError
from backstory.spark.parsed_queries import cause_of, refuse_session_values
from backstory.spark.settled import hold_settings
from backstory.spark.versions import condition_of
from backstory.stores.iceberg.literals import quoted
from backstory.stores.iceberg.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Operators behind which rows stand in another order, or in none.
OPERATORS: Final = r"Aggregate|Join|Window|Sort|Repartition\w*|Intersect|Except|Distinct|Union"
# SQL states of values that a function or a cast does not take.
DATA: Final = "22"
REORDERING: Final = re.compile(rf"^[\s:+\-|]*({OPERATORS})\b", re.MULTILINE)


@contextmanager
def run_query(store: Store, rows: "DataFrame", sql: Sql, namespace: str) -> "Iterator[DataFrame]":
    """The output of the step without an alias; each query sees `input` and the steps before it.

    `namespace` is the schema of the datasets that a query may name. Raises UsageError for SQL that does
    more than a manifest's may (what is looked at is the very text that runs), or that Spark cannot analyse.
    """
    from pyspark.errors import AnalysisException

    view = f"input {uuid4()}"
    text = _text(sql, view)
    others_read(store, namespace, text, frozenset({view}))
    rows.drop(ARRIVAL).createOrReplaceTempView(quoted(view))
    try:
        with hold_settings(store.session):
            found = store.spark.sql(text)
        refuse_session_values(found._jdf.queryExecution().analyzed())  # noqa: SLF001
        yield found
    except AnalysisException as wrong:
        raise UsageError(
            "wrong-query",
            f"The query of preprocess does not fit the batch: {cause_of(wrong)}",
            f"The batch has the columns {', '.join(rows.drop(ARRIVAL).columns)}.",
        ) from None
    finally:
        store.spark.catalog.dropTempView(view)


def names_others(store: Store, sql: Sql, namespace: str) -> bool:
    """Whether the step reads datasets by their names, beside its batch and its steps."""
    return others_read(store, namespace, _text(sql, INPUT), frozenset({INPUT}))


@contextmanager
def refuse_failing_rows() -> Iterator[None]:
    """Raises Refused when a query fails on a value, as `cast('x' as int)` does; other faults pass."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as fault:
        if not (fault.getSqlState() or "").startswith(DATA):
            raise
        raise Refused(
            "query-failed",
            f"The query of preprocess fails on a value of the batch ({condition_of(fault)}).",
            "Nothing was written; use try_cast or the like, or filter such rows out.",
        ) from None


def keeps_order(frame: "DataFrame") -> bool:
    """Whether the rows of a query stand in the order of the file."""
    plan = frame._jdf.queryExecution().optimizedPlan().toString()  # noqa: SLF001
    return REORDERING.search(plan) is None


def _text(sql: Sql, view: str) -> str:
    named = [(INPUT, f"TABLE {quoted(view)}")]
    named += [(alias, query) for alias, query in steps(sql) if alias is not None]
    output = next(query for alias, query in steps(sql) if alias is None)
    begun = ", ".join(f"{quoted(alias)} AS (\n{_bare(query)}\n)" for alias, query in named)
    return f"WITH {begun}\nSELECT * FROM (\n{_bare(str(output))}\n)"


def _bare(query: str) -> str:
    """A query without the semicolon that ends it."""
    return query.strip().rstrip(";")
