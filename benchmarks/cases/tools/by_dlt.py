"""dlt's merge strategy scd2 on DuckDB; rows are dictionaries, and the time is `boundary_timestamp`."""

from datetime import UTC, datetime, timedelta

import dlt
import duckdb
from telling import FOLDER, literal, names_of, run, select, table

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def quote(name):
    return '"' + name.replace('"', '""') + '"'


class Dlt:
    """A pipeline for each case."""

    def bring(self, case, copy, number):
        connection = duckdb.connect()
        if copy["csv"] is not None:
            path = FOLDER / f"{table(case)}.csv"
            path.write_text(copy["csv"], "utf-8")
            query = f"SELECT * FROM read_csv({literal(str(path))}, header=true)"
        else:
            query = select(copy, quote)
        found = connection.sql(query)
        rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
        at = FIRST + timedelta(milliseconds=copy["at"] if copy["at"] is not None else number * 86_400_000)
        merging = {"disposition": "merge", "strategy": "scd2", "boundary_timestamp": at.isoformat()}
        pipeline = dlt.pipeline(
            table(case),
            pipelines_dir=str(FOLDER / "pipelines"),
            destination=dlt.destinations.duckdb(str(FOLDER / f"{table(case)}.duckdb")),
            dataset_name="kept",
        )
        pipeline.run(dlt.resource(rows, name=table(case), write_disposition=merging))

    def rows(self, case):
        connection = duckdb.connect(str(FOLDER / f"{table(case)}.duckdb"))
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.sql(f"SELECT * FROM kept.{table(case)}")
        known = dict(zip((name.lower() for name in found.columns), found.columns, strict=True))
        normal = {name: known.get(_normal(name)) for name in names_of(case)}
        columns = [f"CAST({quote(normal[n])} AS VARCHAR)" if normal[n] else "NULL" for n in names_of(case)]
        ends = "CAST(_dlt_valid_from AS VARCHAR), CAST(_dlt_valid_to AS VARCHAR)"
        told = connection.sql(f"SELECT {', '.join(columns)}, {ends} FROM kept.{table(case)}").fetchall()
        connection.close()
        return told


def _normal(name):
    """A name as dlt stores it, by dlt's own rule, so that unusual names are found."""
    from dlt.common.normalizers.naming.snake_case import NamingConvention

    return NamingConvention().normalize_identifier(name).lower()


run(Dlt())
