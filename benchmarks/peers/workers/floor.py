"""The floor: one full outer join of the copy and the stored rows, and one append of the differences.

It closes nothing and keeps no history. No tool that reads both sides can do less.
"""

from line import run
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
COLUMNS = ("name", "email", "city", "credit", "since", "seen", "note")


def load(number: int) -> None:
    """Create the table by a select the first time; afterwards join, and append the differences."""
    table = f"backstory.floor.customer_{number}"
    if not spark.catalog.tableExists(table):
        spark.sql(f"CREATE TABLE {table} USING iceberg AS SELECT * FROM backstory.src.current")
        return
    differ = " OR ".join(f"NOT (t.{name} <=> s.{name})" for name in COLUMNS)
    found = spark.sql(
        f"SELECT coalesce(s.id, t.id) AS id, {', '.join(f's.{name}' for name in COLUMNS)} "
        f"FROM backstory.src.current s FULL OUTER JOIN {table} t ON s.id = t.id "
        f"WHERE s.id IS NULL OR t.id IS NULL OR {differ}"
    )
    found.writeTo(table).append()


def stand(number: int) -> None:
    """Replace the table by the rows that a history's open versions would have, for the next join."""
    spark.sql(f"INSERT OVERWRITE backstory.floor.customer_{number} SELECT * FROM backstory.src.current")


run(load, stand)
