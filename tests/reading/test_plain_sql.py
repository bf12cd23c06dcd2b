"""Engines without backstory read native tables correctly: DuckDB, on Iceberg's files."""

import re
from pathlib import Path

import duckdb
import pytest
from remembering import E13, E14, day, lives, remembered

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-in-plain-sql.md"


def queries():
    return re.findall(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("rows", [E13, E14], ids=["E13", "E14"])
def test_L4_L17_documented_queries_return_the_readers_rows(store, rows):
    """V5, V95: At every instant and known time, results are equal, without memory rows."""
    history = remembered(store, "plain", rows)
    files = [
        row.file_path.removeprefix("file:")
        for row in store.spark.sql(f"SELECT file_path FROM {store.sql_name(history.name, 'files')}").collect()
    ]
    engine = duckdb.connect()
    engine.execute("SET TimeZone = 'UTC'")
    engine.execute(f"CREATE VIEW t AS SELECT k AS id, * FROM read_parquet({files})")
    now, at, known_at = queries()

    def ids(query, **times):
        for name, time in times.items():
            query = query.replace(f":{name}", f"TIMESTAMPTZ '{day(time).isoformat()}'")
        return sorted(row[:2] for row in engine.execute(query).fetchall())

    def read(frame):
        return sorted((row["k"], row["v"]) for row in frame.toArrow().to_pylist())

    assert ids(now) == read(history.current())
    for valid in (5, 10, 17, 20, 30):
        assert ids(at, valid=valid) == read(history.as_of(day(valid)))
        for known in (0, 1, 2, 3, 4):
            expected = read(history.as_of(day(valid), known_at=day(known)))
            assert ids(known_at, valid=valid, known=known) == expected
    assert lives(history.as_of(day(20)).toArrow().to_pylist()) == ["k: b[20,)"]
