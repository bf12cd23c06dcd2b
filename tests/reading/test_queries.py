"""A query may only read, which its plan shows before Spark analyses it."""

import pytest

from backstory.errors import Failed, UsageError
from backstory.reading.queries import translate_query_faults
from backstory.stores.table_files import local_path
from backstory.warehouse import Warehouse


@pytest.fixture(scope="module")
def reader(spark):
    from backstory.stores.iceberg.store import IcebergStore

    store = IcebergStore(spark)
    spark.sql("CREATE SCHEMA IF NOT EXISTS backstory.queries")
    spark.sql("CREATE OR REPLACE TABLE backstory.queries.t USING iceberg AS SELECT 1 AS a")
    return Warehouse(store, embedded=False)


READING = {
    "SELECT a + 1 AS b FROM queries.t": [2],
    "WITH x AS (SELECT a FROM queries.t) SELECT count(*) FROM x JOIN queries.t USING (a)": [1],
    "SELECT sum(a) OVER (ORDER BY a) FROM backstory.queries.t": [1],
    "SELECT min(1) FROM queries.t.snapshots": [1],
    "VALUES (3)": [3],
    "SHOW TABLES IN queries": ["queries"],
    "DESCRIBE queries.t": ["a"],
}


@pytest.mark.parametrize("query", READING)
def test_read_only_queries_are_answered(reader, query):
    assert [row[0] for row in reader.sql(query).collect()] == READING[query]


def test_queries_may_use_views_and_names_in_either_letter_case(reader):
    """Views of the catalog are not files, and WITH names follow the session's case."""
    reader.spark.sql("CREATE OR REPLACE VIEW backstory.queries.v AS SELECT a FROM backstory.queries.t")
    assert [row[0] for row in reader.sql("SELECT a FROM queries.v").collect()] == [1]
    exact = reader.spark.conf.get("spark.sql.caseSensitive")
    reader.spark.conf.set("spark.sql.caseSensitive", "false")
    try:
        assert reader.sql("WITH X AS (SELECT 1 AS a) SELECT a FROM x").collect() == [(1,)]
    finally:
        reader.spark.conf.set("spark.sql.caseSensitive", exact)


def test_a_query_with_a_missing_file_names_the_file(reader):
    """The error names the file as every other query does, not as an error of the query."""
    reader.spark.sql("CREATE OR REPLACE TABLE backstory.queries.lost USING iceberg AS SELECT 1 AS a")
    (file,) = reader.spark.table("backstory.queries.lost.files").collect()
    local_path(file.file_path).unlink()
    try:
        with (
            pytest.raises(Failed, match=r"A file of queries\.lost is missing") as error,
            translate_query_faults("queries.lost"),
        ):
            reader.sql("SELECT a FROM queries.lost").collect()
        assert error.value.code == "file-lost"
        assert file.file_path.endswith(f"/{error.value.message.split()[-1].rstrip('.')}")
    finally:
        reader.spark.sql("DROP TABLE backstory.queries.lost")


WRITING = [
    "CREATE TABLE queries.u USING iceberg AS SELECT 1 AS a",
    "DELETE FROM queries.t",
    "DROP TABLE queries.t",
    "INSERT INTO queries.t VALUES (2)",
    "MERGE INTO queries.t USING queries.t AS s ON false WHEN NOT MATCHED THEN INSERT *",
    "ALTER TABLE queries.t ADD COLUMN b INT",
    "CALL backstory.system.expire_snapshots('queries.t')",
    "SET spark.sql.ansi.enabled = false",
    "ADD JAR '/tmp/no.jar'",
    "SELECT TRANSFORM(a) USING 'cat' AS (b STRING) FROM queries.t",
    "SELECT reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT java_method('java.lang.System', 'getenv', 'HOME')",
    "SELECT a FROM queries.t; DROP TABLE queries.t",
    "EXPLAIN ANALYZE queries.t",
    "SELECT * FROM text.`/etc/passwd`",
    "CREATE TEMPORARY VIEW v AS SELECT 1",
    "SHOW TABLES; DROP TABLE queries.t",
]


@pytest.mark.parametrize("query", WRITING)
def test_queries_that_do_more_than_read_are_wrong_usage(reader, query):
    before = reader.spark.sql("SELECT count(*) FROM backstory.queries.t.snapshots").first()
    with pytest.raises(UsageError):
        reader.sql(query)
    assert reader.spark.sql("SELECT count(*) FROM backstory.queries.t.snapshots").first() == before
    assert not reader.spark.catalog.tableExists("backstory.queries.u")
