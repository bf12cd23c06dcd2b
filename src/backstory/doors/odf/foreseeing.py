"""What preprocess makes of the declared columns is known before there is a row (section 2.11, R33)."""

from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from backstory.documents import DocumentPath
from backstory.doors.odf.allowed_queries import refuse_forbidden_queries
from backstory.doors.odf.data_types import arrow_schema, declared_schema
from backstory.doors.odf.dataset import Source
from backstory.doors.odf.lints import Lint, lints_of
from backstory.doors.odf.querying import names_others, run_query
from backstory.doors.odf.registry import Registered
from backstory.errors import UsageError
from backstory.spark.versions import condition_of
from backstory.stores.iceberg.store import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

# Stands for the types of Spark that Arrow has no name for; none of them is a time.
NAMELESS: Final = pa.month_day_nano_interval()


def foreseen(store: Store, dataset: Registered) -> list[Lint]:
    """The findings about a dataset, those about the outputs of its queries among them.

    Raises UsageError for a query that a manifest must not hold, or that does not fit the declared columns.
    """
    refuse_forbidden_queries(store, dataset.name, dataset.dataset)
    return lints_of(dataset.dataset, partial(output_of, store, dataset))


def output_of(store: Store, dataset: Registered, path: DocumentPath, source: Source) -> pa.Schema | None:
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
            return pa.schema([_field(column) for column in built.schema])
    except UsageError as wrong:
        if waits and wrong.code == "wrong-query":
            return None
        raise UsageError(wrong.code, f"{place}: {wrong.message}", wrong.remedy) from None
    except PySparkException as fault:  # texts and formats in a query are looked at before any row
        told = f"{place}: The query of preprocess cannot be analysed ({condition_of(fault)})."
        raise UsageError("wrong-query", told, "Fix the query.") from None


def _field(column: "StructField") -> pa.Field:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        type_ = to_arrow_type(column.dataType)
    except PySparkException:
        type_ = NAMELESS
    return pa.field(column.name, type_, column.nullable)
