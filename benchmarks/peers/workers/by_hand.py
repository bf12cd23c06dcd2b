"""A history by a MERGE as textbooks show it: it closes rows by key, and inserts new rows under a NULL key."""

from line import run
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
COLUMNS = ("name", "email", "city", "credit", "since", "seen", "note")
DIFFER = " OR ".join(f"t.{name} <> s.{name}" for name in COLUMNS)
NAMES = ", ".join(("id", *COLUMNS))


def load(number: int) -> None:
    """Create the table by a select the first time; afterwards run one MERGE."""
    table = f"backstory.hand.customer_{number}"
    if not spark.catalog.tableExists(table):
        spark.sql(
            f"CREATE TABLE {table} USING iceberg AS SELECT *, true AS is_current, current_timestamp() AS valid_from, "
            "CAST(NULL AS TIMESTAMP) AS valid_to FROM backstory.src.current"
        )
        return
    spark.sql(
        f"MERGE INTO {table} t USING ("
        f"SELECT s.id AS merge_key, s.* FROM backstory.src.current s UNION ALL "
        f"SELECT NULL AS merge_key, s.* FROM backstory.src.current s JOIN {table} t ON s.id = t.id "
        f"WHERE t.is_current AND ({DIFFER})) s ON t.id = s.merge_key "
        f"WHEN MATCHED AND t.is_current AND ({DIFFER}) THEN UPDATE SET is_current = false, "
        "valid_to = current_timestamp() "
        f"WHEN NOT MATCHED THEN INSERT ({NAMES}, is_current, valid_from, valid_to) "
        f"VALUES ({', '.join(f's.{name}' for name in NAMES.split(', '))}, true, current_timestamp(), NULL)"
    )


run(load)
