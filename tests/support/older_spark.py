"""Let tests get Arrow tables from frames of Spark 3.5 as from frames of Spark 4."""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from backstory.spark.versions import arrow_of, condition_of, frame_of_arrow, is_before_4


def ask_as_spark_4() -> None:
    """Give pyspark's classes the methods of Spark 4 that tests call.

    The product itself calls none of them.
    """
    if not is_before_4():
        return
    DataFrame.toArrow = arrow_of
    PySparkException.getCondition = condition_of
    make = SparkSession.createDataFrame
    if make.__name__ == "createDataFrame":
        SparkSession.createDataFrame = lambda spark, rows, *given, **named: _made(
            make, spark, rows, *given, **named
        )


def _made(make, spark, rows, *arguments, **named):
    import pyarrow as pa

    if not isinstance(rows, pa.Table):
        return make(spark, rows, *arguments, **named)
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    fields = arguments[0] if arguments else named.get("schema")
    return frame_of_arrow(
        spark, rows, fields if isinstance(fields, StructType) else from_arrow_schema(rows.schema, True)
    )
