"""A Spark session with an Iceberg catalog for a tool's cases, and the source that tools read there."""

from telling import FOLDER, names_of, quoted, select, table


class Source:
    """Copies as tables `src.case_N`, and the session's time zone for each load."""

    def __init__(self, spark):
        self.spark = spark
        for schema in ("src", "kept", "default"):
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS backstory.{schema}")

    def put(self, case, copy):
        """Replace the source's table by the copy."""
        self.spark.conf.set("spark.sql.session.timeZone", "UTC")
        if copy["csv"] is not None:
            path = FOLDER / f"{table(case)}.csv"
            path.write_text(copy["csv"], "utf-8")
            columns = ", ".join(f"{name} {type_}" for name, type_ in copy["columns"].items())
            found = self.spark.read.schema(columns).csv(str(path), header=True)
        else:
            found = self.spark.sql(select(copy))
        found.writeTo(f"backstory.src.{table(case)}").using("iceberg").createOrReplace()
        self.spark.conf.set("spark.sql.session.timeZone", copy["zone"])

    def rows(self, case, stored, begin, end, only="true"):
        """The rows of a table as texts."""
        self.spark.conf.set("spark.sql.session.timeZone", "UTC")
        frame = self.spark.table(stored).where(only)
        names = [
            f"CAST({quoted(name)} AS STRING)" if name in frame.columns else "CAST(NULL AS STRING)"
            for name in names_of(case)
        ]
        return frame.selectExpr(*names, f"CAST({begin} AS STRING)", f"CAST({end} AS STRING)").collect()
