"""The audits of HistoryBench: conditions on a table of versions, checked in SQL and with the generated data.

They use a view of versions with `valid_from` and `valid_to` (half open, NULL for an open version), so they
apply to any layout. Each is a query that counts violations.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.history.days import ACCOUNT, CUSTOMER, KEYS, World

COLUMNS = {"customer": CUSTOMER, "account": ACCOUNT}


def queries(table: str) -> dict[str, str]:
    """Name and query of each audit of the view `table`."""
    key = KEYS[table]
    following = (
        f"(SELECT *, lead(valid_from) OVER (PARTITION BY {key} ORDER BY valid_from, valid_to NULLS LAST) AS next "
        f"FROM {table})"
    )
    return {
        "no NULL key": f"SELECT count(*) FROM {table} WHERE {key} IS NULL",
        "starts are distinct": f"SELECT count(*) - count(DISTINCT {key}, valid_from) FROM {table}",
        "an end is the next start": f"SELECT count(*) FROM {following} WHERE NOT (valid_to <=> next)",
        "no overlap": f"SELECT count(*) FROM {following} WHERE next < valid_to OR (valid_to IS NULL AND next IS NOT NULL)",
        "one open version": f"SELECT count(*) FROM (SELECT {key} FROM {table} GROUP BY {key} "
        "HAVING count_if(valid_to IS NULL) <> 1)",
        "nothing of zero length": f"SELECT count(*) FROM {table} WHERE valid_to <= valid_from",
    }


REFERENCES = (
    "SELECT count(*) FROM account a LEFT JOIN customer c ON a.customer_id = c.customer_id "
    "AND a.customer_from = c.valid_from WHERE c.customer_id IS NULL OR a.valid_from < c.valid_from "
    "OR coalesce(a.valid_to > c.valid_to, c.valid_to IS NOT NULL AND a.valid_to IS NULL)"
)
STARTS_BY_DAY = (
    "SELECT greatest(0, datediff(valid_from, DATE '2026-01-01') + 1) AS day, count(*) FROM {table} GROUP BY 1"
)


def audited(spark: Any, world: World, starts: Sequence[dict[str, int]]) -> list[tuple[str, str, int]]:
    """Audit the views `customer` and `account`: return table, audit and number of violations.

    `starts` contains, for each day, the number of versions that must begin in each table.
    """
    found = []
    for table in KEYS:
        found += [(table, name, _one(spark, query)) for name, query in queries(table).items()]
        by_day = {row[0]: row[1] for row in spark.sql(STARTS_BY_DAY.format(table=table)).collect()}
        told = {day: count[table] for day, count in enumerate(starts) if count[table]}
        wrong = sum(by_day.get(day) != told.get(day) for day in by_day.keys() | told.keys())
        found.append((table, "starts lie within their batch", wrong))
        found.append((table, "versions are those generated", _differing(spark, world, table)))
    found.append(("account", "references are valid in their range", _one(spark, REFERENCES)))
    return found


def _one(spark: Any, query: str) -> int:
    return int(spark.sql(query).collect()[0][0])


def _differing(spark: Any, world: World, table: str) -> int:
    """The number of versions on only one side; values, start and end are compared as texts."""
    names = COLUMNS[table]
    stored = spark.sql(f"SELECT valid_from, valid_to, {', '.join(names)} FROM {table}").toArrow().to_pylist()
    ours = {_told(row["valid_from"], row["valid_to"], [row[name] for name in names]) for row in stored}
    theirs = {_told(start, end, [row[name] for name in names]) for start, end, row in world.lives(table)}
    return len(ours ^ theirs) + abs(len(stored) - len(ours))


def _told(start: Any, end: Any, values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(_text(each) for each in (start, end, *values))


def _text(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
