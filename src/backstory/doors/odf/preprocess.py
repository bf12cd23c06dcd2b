"""The queries of preprocess: SQL over the batch, which is the table `input` (section 1.7).

The author of a manifest may be untrusted. Its queries may only compute on their batch and on datasets that
they name (O12). The queries' output columns are analysed before any rows exist (section 2.11, R33).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type

from backstory.documents import DocumentPath
from backstory.doors.odf.columns import arrow_schema, declared_schema
from backstory.doors.odf.lints import Lint, lints
from backstory.doors.odf.manifest.dataset import INPUT, Dataset, DatasetSource
from backstory.doors.odf.manifest.events import NAME, Sql
from backstory.doors.odf.registry import RegisteredDataset
from backstory.engine.staging import ARRIVAL
from backstory.errors import Refused, UsageError
from backstory.model.table import TableName
from backstory.spark.connect import needs_java
from backstory.spark.parsed_queries import cause_of, refuse_session_values, tables_read
from backstory.spark.session import hold_settings
from backstory.spark.versions import condition_of
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.store import IcebergStore, require_here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

# Operators that change or lose the order of rows.
OPERATORS: Final = r"Aggregate|Join|Window|Sort|Repartition\w*|Intersect|Except|Distinct|Union"
# The class of SQL states for values that a function or a cast rejects.
DATA: Final = "22"
REORDERING: Final = re.compile(rf"^[\s:+\-|]*({OPERATORS})\b", re.MULTILINE)
# A placeholder for Spark's types without an Arrow type. None of these types is a time.
NAMELESS: Final = pa.month_day_nano_interval()


def steps(sql: Sql) -> list[tuple[str | None, str]]:
    """The queries of preprocess, each with its alias."""
    return [(None, sql.query)] if sql.query is not None else [(s.alias, s.query) for s in sql.queries or ()]


def refuse_forbidden_queries(store: IcebergStore, name: TableName, dataset: Dataset) -> None:
    """Raise UsageError, with file and line, if a manifest has a forbidden query.

    No query is run. `name` is the dataset's table. Queries may read other datasets of its schema.
    """
    for path, source in dataset.sources():
        sql, earlier_steps = source.preprocess, {INPUT}
        for number, (alias, query) in enumerate(steps(sql) if sql else ()):
            place = ("queries", number, "query") if sql and sql.queries else ("query",)
            try:
                others_read(store, name.schema, query, frozenset(earlier_steps))
            except UsageError as wrong:
                where = dataset.place((*path, "preprocess", *place))
                raise UsageError(wrong.code, f"{where}: {wrong.message}", wrong.remedy) from None
            earlier_steps |= {alias} if alias is not None else set()


def others_read(store: IcebergStore, namespace: str, query: str, known_tables: frozenset[str]) -> bool:
    """Whether a query reads datasets other than `known_tables`, the tables that it may always read.

    Raises UsageError if the query reads anything else, or does more than compute.
    """
    if not store.has_java:  # Spark's parser and analysis show which tables a query reads
        raise needs_java("A query of preprocess")
    read_tables = tables_read(store.spark, query, known_tables)
    for table in sorted(read_tables):
        *folders, last = table
        is_name = re.fullmatch(NAME, last) is not None and "/" not in last
        if folders not in ([namespace], [store.catalog, namespace]) or not is_name:
            raise UsageError(
                "forbidden-query",
                f"The query reads {'.'.join(table)}, which is neither an earlier step nor a dataset.",
                f"It may read `{INPUT}`, and datasets as {store.catalog}.{namespace}.`name`.",
            )
        require_here(store, TableName(namespace, last))
    return bool(read_tables)


@contextmanager
def run_query(store: IcebergStore, rows: "DataFrame", sql: Sql, namespace: str) -> "Iterator[DataFrame]":
    """A context manager that yields the output of the query without an alias.

    Each query can read `input` and the earlier queries. `namespace` is the schema of the datasets that a
    query may read. Raises UsageError for a forbidden query (the checked text is the one that runs), and for a
    query that Spark cannot analyse.
    """
    view = f"input {uuid4()}"
    text = _text(sql, view)
    others_read(store, namespace, text, frozenset({view}))
    rows.drop(ARRIVAL).createOrReplaceTempView(quote(view))
    try:
        with hold_settings(store.session):
            output = store.spark.sql(text)
        refuse_session_values(output._jdf.queryExecution().analyzed())  # noqa: SLF001
        yield output
    except AnalysisException as wrong:
        raise UsageError(
            "wrong-query",
            f"The query of preprocess does not fit the batch: {cause_of(wrong)}",
            f"The batch has the columns {', '.join(rows.drop(ARRIVAL).columns)}.",
        ) from None
    finally:
        store.spark.catalog.dropTempView(view)


@contextmanager
def refuse_failing_rows() -> Iterator[None]:
    """Raise Refused if a query fails on a value, as `cast('x' as int)` does. Other errors are unchanged."""
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
    """Whether the rows of a query are in the order of the file."""
    plan = frame._jdf.queryExecution().optimizedPlan().toString()  # noqa: SLF001
    return REORDERING.search(plan) is None


def _text(sql: Sql, view: str) -> str:
    ctes = [(INPUT, f"TABLE {quote(view)}")]
    ctes += [(alias, query) for alias, query in steps(sql) if alias is not None]
    output = next(query for alias, query in steps(sql) if alias is None)
    with_clause = ", ".join(f"{quote(alias)} AS (\n{_bare(query)}\n)" for alias, query in ctes)
    return f"WITH {with_clause}\nSELECT * FROM (\n{_bare(str(output))}\n)"


def _bare(query: str) -> str:
    """A query without its final semicolon."""
    return query.strip().rstrip(";")


def lint_dataset(store: IcebergStore, dataset: RegisteredDataset) -> list[Lint]:
    """The lints of a dataset, including the lints of its queries' outputs.

    Raises UsageError for a forbidden query, and for a query that does not fit the declared columns.
    """
    refuse_forbidden_queries(store, dataset.name, dataset.dataset)
    return lints(dataset.dataset, partial(output_of, store, dataset))


def output_of(
    store: IcebergStore, dataset: RegisteredDataset, path: DocumentPath, source: DatasetSource
) -> pa.Schema | None:
    """The columns after preprocess, or None if there is no query or no declared column.

    The result is also None if the query reads other datasets that do not exist yet.
    """
    declared = declared_schema(source.read)
    if source.preprocess is None or declared is None or not declared.fields_:
        return None
    rows = store.spark.createDataFrame([], from_arrow_schema(arrow_schema(declared)))
    place = dataset.dataset.place((*path, "preprocess"))
    text = _text(source.preprocess, INPUT)
    reads_datasets = others_read(store, dataset.name.schema, text, frozenset({INPUT}))
    try:
        with run_query(store, rows, source.preprocess, dataset.name.schema) as output:
            return pa.schema([_arrow_field(column) for column in output.schema])
    except UsageError as wrong:
        if reads_datasets and wrong.code == "wrong-query":
            return None
        raise UsageError(wrong.code, f"{place}: {wrong.message}", wrong.remedy) from None
    except PySparkException as fault:  # literals and formats are checked by the analysis
        message = f"{place}: The query of preprocess cannot be analysed ({condition_of(fault)})."
        raise UsageError("wrong-query", message, "Fix the query.") from None


def _arrow_field(column: "StructField") -> pa.Field:
    try:
        type_ = to_arrow_type(column.dataType)
    except PySparkException:
        type_ = NAMELESS
    return pa.field(column.name, type_, column.nullable)
