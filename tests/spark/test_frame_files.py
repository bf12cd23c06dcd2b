"""The frames with the same rows each time, and checks of their files."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as f

from backstory.spark.frame_files import constant_columns, frame_files

NUMBERS = "id BIGINT, v STRING"
SAME_ROWS = {
    "a file": lambda rows: rows,
    "columns and rows of it": lambda rows: rows.where("id > 3").selectExpr("id + 1 AS x", "upper(v) AS v"),
    "two of them": lambda rows: rows.union(rows),
    "numbers": lambda rows: rows.sparkSession.range(5),
}
OTHER_ROWS = {
    "the time": lambda rows: rows.withColumn("t", f.current_timestamp()),
    "the date": lambda rows: rows.selectExpr("current_date() AS d"),
    "a random number": lambda rows: rows.withColumn("r", f.rand()),
    "a number by place": lambda rows: rows.withColumn("r", f.monotonically_increasing_id()),
    "a function in Python": lambda rows: rows.withColumn("u", f.udf(str, useArrow=False)("id")),
    "some rows": lambda rows: rows.limit(3),
    "a sample": lambda rows: rows.sample(0.5),
    "a join": lambda rows: rows.join(rows.withColumnRenamed("v", "w"), "id"),
    "one row of each": lambda rows: rows.dropDuplicates(["id"]),
    "a query in a filter": lambda rows: rows.where("id IN (SELECT max(id) FROM numbers_in_file)"),
    "text": lambda rows: rows.sparkSession.read.csv(__file__),
    "rows of Python": lambda rows: rows.sparkSession.createDataFrame([(1, "a")], NUMBERS),
}


@pytest.fixture(scope="module")
def path(spark, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("files") / "numbers")
    spark.range(10).selectExpr("id", "string(id) AS v").write.parquet(folder)
    spark.read.parquet(folder).createOrReplaceTempView("numbers_in_file")
    return folder


@pytest.mark.parametrize("name", SAME_ROWS)
def test_frames_with_repeatable_rows_have_files(spark, path, name):
    assert frame_files(SAME_ROWS[name](spark.read.parquet(path))) is not None


@pytest.mark.parametrize("name", OTHER_ROWS)
def test_frames_with_variable_rows_have_no_files(spark, path, name):
    assert frame_files(OTHER_ROWS[name](spark.read.parquet(path))) is None


def test_a_rewritten_or_missing_file_is_named(spark, tmp_path):
    path = tmp_path / "a b.parquet"

    def write(*numbers):
        pq.write_table(pa.table({"n": numbers}), path)
        return frame_files(spark.read.parquet(str(path)))

    files = write(1)
    assert files.changed_file() is None
    files_of_more = write(1, 2, 3)
    assert files.changed_file().endswith("a b.parquet")
    os.utime(path, (1, 1))
    assert files_of_more.changed_file().endswith("a b.parquet")
    path.unlink()
    assert files.changed_file().endswith("a b.parquet")


def test_constant_columns_are_found_in_the_plan(spark, path):
    rows = spark.read.parquet(path).selectExpr("id", "v", "NULL AS n", "true AS yes", "id + 1 AS next")
    assert constant_columns(rows) == {"n", "yes"}
    assert constant_columns(spark.read.parquet(path)) == set()
