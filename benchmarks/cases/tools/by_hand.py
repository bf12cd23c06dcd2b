"""A MERGE as textbooks show it, with the columns of the first copy; the time is current_timestamp().

In a feed it uses the last change of each record in a delivery, at its own time.
"""

from on_spark import Source
from pyspark.sql import SparkSession
from telling import quoted, run, table


class Hand:
    """One MERGE for each copy."""

    def __init__(self):
        self.source = Source(SparkSession.builder.getOrCreate())
        self.columns = {}

    def bring(self, case, copy, number):
        self.source.put(case, copy)
        spark, source, stored = (
            self.source.spark,
            f"backstory.src.{table(case)}",
            f"backstory.kept.{table(case)}",
        )
        if case["feed"] is not None:
            apply(spark, source, stored)
            return
        if number == 0:
            self.columns[table(case)] = list(copy["columns"])
            spark.sql(
                f"CREATE TABLE {stored} USING iceberg AS SELECT *, true AS is_current, "
                f"current_timestamp() AS valid_from, CAST(NULL AS TIMESTAMP) AS valid_to FROM {source}"
            )
            return
        names = [quoted(name) for name in self.columns[table(case)]]
        keys = [quoted(name) for name in case["key"]]
        differ = " OR ".join(f"t.{name} <> s.{name}" for name in names if name not in keys)
        same = " AND ".join(f"s.{name} = t.{name}" for name in keys)
        merge_keys = ", ".join(f"s.{name} AS merge_{place}" for place, name in enumerate(keys))
        nothing = ", ".join(f"NULL AS merge_{place}" for place in range(len(keys)))
        found = " AND ".join(f"t.{name} = s.merge_{place}" for place, name in enumerate(keys))
        spark.sql(
            f"MERGE INTO {stored} t USING (SELECT {merge_keys}, s.* FROM {source} s UNION ALL "
            f"SELECT {nothing}, s.* FROM {source} s JOIN {stored} t ON {same} WHERE t.is_current AND ({differ})) s "
            f"ON {found} WHEN MATCHED AND t.is_current AND ({differ}) THEN UPDATE SET is_current = false, "
            "valid_to = current_timestamp() "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}, is_current, valid_from, valid_to) "
            f"VALUES ({', '.join(f's.{name}' for name in names)}, true, current_timestamp(), NULL)"
        )

    def rows(self, case):
        return self.source.rows(case, f"backstory.kept.{table(case)}", "valid_from", "valid_to")


def apply(spark, source, stored):
    """Merge the changes of a feed."""
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {stored} (id BIGINT, name STRING, city STRING, is_current BOOLEAN, "
        "valid_from TIMESTAMP, valid_to TIMESTAMP) USING iceberg"
    )
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW last_changes AS SELECT * FROM (SELECT *, row_number() OVER "
        f"(PARTITION BY id ORDER BY updated DESC) AS place FROM {source}) WHERE place = 1"
    )
    differ = "NOT (t.name <=> s.name AND t.city <=> s.city)"
    spark.sql(
        f"MERGE INTO {stored} t USING (SELECT s.id AS merge_id, s.* FROM last_changes s UNION ALL "
        f"SELECT NULL, s.* FROM last_changes s JOIN {stored} t ON s.id = t.id "
        f"WHERE t.is_current AND s.op <> 'delete' AND {differ}) s ON t.id = s.merge_id "
        f"WHEN MATCHED AND t.is_current AND (s.op = 'delete' OR {differ}) THEN UPDATE SET is_current = false, "
        "valid_to = s.updated "
        "WHEN NOT MATCHED AND s.op <> 'delete' THEN INSERT (id, name, city, is_current, valid_from, valid_to) "
        "VALUES (s.id, s.name, s.city, true, s.updated, NULL)"
    )


run(Hand())
