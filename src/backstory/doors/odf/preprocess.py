"""What the queries of a manifest may do: compute on their batch and on the datasets that they name, no more.

A manifest may come from anywhere: Spark looks at its queries when they were read here (section 1.7, O12).

Preprocess: SQL over the batch as it was read, which the queries call `input` (section 1.7).

What preprocess makes of the declared columns is known before there is a row (section 2.11, R33).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa

from backstory.documents import DocumentPath
from backstory.doors.odf.data_types import arrow_schema, declared_schema
from backstory.doors.odf.lints import Lint, lints_of
from backstory.doors.odf.manifest.dataset import Dataset, DatasetSource
from backstory.doors.odf.manifest.events import NAME, Sql
from backstory.doors.odf.manifest.rules import INPUT
from backstory.doors.odf.registry import RegisteredDataset
from backstory.engine.staging import ARRIVAL
from backstory.errors import Refused, UsageError
from backstory.model.table import TableName
from backstory.spark.parsed_queries import cause_of, refuse_session_values, tables_read
from backstory.spark.session_settings import hold_settings
from backstory.spark.versions import condition_of
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.store import Store, require_here


def steps(sql: Sql) -> list[tuple[str | None, str]]:
    """The queries of a step, each with its alias."""
    return [(None, sql.query)] if sql.query is not None else [(s.alias, s.query) for s in sql.queries or ()]


def refuse_forbidden_queries(store: Store, name: TableName, dataset: Dataset) -> None:
    """Raise UsageError, with file and line, for a query of a manifest that does more; nothing is run.

    `name` is the dataset's table, whose schema holds the datasets that a query may name.
    """
    for path, source in dataset.sources():
        sql, given = source.preprocess, {INPUT}
        for number, (alias, query) in enumerate(steps(sql) if sql else ()):
            place = ("queries", number, "query") if sql and sql.queries else ("query",)
            try:
                others_read(store, name.schema, query, frozenset(given))
            except UsageError as wrong:
                where = dataset.place((*path, "preprocess", *place))
                raise UsageError(wrong.code, f"{where}: {wrong.message}", wrong.remedy) from None
            given |= {alias} if alias is not None else set()


def others_read(store: Store, namespace: str, query: str, given: frozenset[str]) -> bool:
    """Whether a query reads other datasets beside what it is given.

    Raises UsageError if it reads anything else, or does more than compute.
    """
    found = tables_read(store.spark, query, given)
    for table in sorted(found):
        *folders, last = table
        is_name = re.fullmatch(NAME, last) is not None and "/" not in last
        if folders not in ([namespace], [store.catalog, namespace]) or not is_name:
            raise UsageError(
                "forbidden-query",
                f"The query reads {'.'.join(table)}, which is neither an earlier step nor a dataset.",
                f"It may read `{INPUT}`, and datasets as {store.catalog}.{namespace}.`name`.",
            )
        require_here(store, TableName(namespace, last))
    return bool(found)


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
    rows.drop(ARRIVAL).createOrReplaceTempView(quote(view))
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
    named = [(INPUT, f"TABLE {quote(view)}")]
    named += [(alias, query) for alias, query in steps(sql) if alias is not None]
    output = next(query for alias, query in steps(sql) if alias is None)
    begun = ", ".join(f"{quote(alias)} AS (\n{_bare(query)}\n)" for alias, query in named)
    return f"WITH {begun}\nSELECT * FROM (\n{_bare(str(output))}\n)"


def _bare(query: str) -> str:
    """A query without the semicolon that ends it."""
    return query.strip().rstrip(";")


if TYPE_CHECKING:
    from pyspark.sql.types import StructField

# Stands for the types of Spark that Arrow has no name for; none of them is a time.
NAMELESS: Final = pa.month_day_nano_interval()


def lint_dataset(store: Store, dataset: RegisteredDataset) -> list[Lint]:
    """The findings about a dataset, those about the outputs of its queries among them.

    Raises UsageError for a query that a manifest must not hold, or that does not fit the declared columns.
    """
    refuse_forbidden_queries(store, dataset.name, dataset.dataset)
    return lints_of(dataset.dataset, partial(output_of, store, dataset))


def output_of(
    store: Store, dataset: RegisteredDataset, path: DocumentPath, source: DatasetSource
) -> pa.Schema | None:
    """The columns after preprocess; None if there is no query, or nobody declares what it reads.

    A query that reads other tables may have to wait for them.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    declared = declared_schema(source.read)
    if source.preprocess is None or declared is None or not declared.fields_:
        return None
    rows = store.spark.createDataFrame([], from_arrow_schema(arrow_schema(declared)))
    place = dataset.dataset.place((*path, "preprocess"))
    waits = names_others(store, source.preprocess, dataset.name.schema)
    try:
        with run_query(store, rows, source.preprocess, dataset.name.schema) as built:
            return pa.schema([_arrow_field(column) for column in built.schema])
    except UsageError as wrong:
        if waits and wrong.code == "wrong-query":
            return None
        raise UsageError(wrong.code, f"{place}: {wrong.message}", wrong.remedy) from None
    except PySparkException as fault:  # texts and formats in a query are looked at before any row
        told = f"{place}: The query of preprocess cannot be analysed ({condition_of(fault)})."
        raise UsageError("wrong-query", told, "Fix the query.") from None


def _arrow_field(column: "StructField") -> pa.Field:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        type_ = to_arrow_type(column.dataType)
    except PySparkException:
        type_ = NAMELESS
    return pa.field(column.name, type_, column.nullable)
