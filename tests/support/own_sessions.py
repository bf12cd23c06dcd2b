"""Sessions as users create them: catalogs of any type, cached by default, and foreign settings."""

from datetime import UTC, date, datetime
from decimal import Decimal

import backstory

KINDS = ("hadoop", "jdbc", "in-memory", "rest", "spark_catalog")
# No session of ours has any of these settings.
SETTINGS = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "false",
}
COLUMNS = "id int, V string, amount decimal(10,2), day date, seen timestamp"
FIRST, SECOND, THIRD = "2026-01-01", "2026-01-02", "2026-01-03"


def catalog_of(kind, folder, rest=None):
    """The settings of an empty catalog of this type."""
    if kind == "rest":
        return rest
    if kind == "in-memory":
        own = {"catalog-impl": "org.apache.iceberg.inmemory.InMemoryCatalog"}
    elif kind == "jdbc":
        own = {"type": kind, "uri": f"jdbc:sqlite:{folder}/{kind}.db?busy_timeout=60000"}
        own["jdbc.schema-version"] = "V1"
    else:
        own = {"type": "hadoop"}
    return {**own, "warehouse": f"{folder}/{kind}"}


def own_session(spark, name, settings, cached=None):
    """A session in addition to this one, with a catalog.

    `cached` sets its caching, or None for the default.
    """
    session = spark.newSession()
    prefix = f"spark.sql.catalog.{name}"
    beside = name == "spark_catalog"
    session.conf.set(prefix, f"org.apache.iceberg.spark.Spark{'Session' if beside else ''}Catalog")
    options = settings if cached is None else {**settings, "cache-enabled": cached}
    for key, value in options.items():
        session.conf.set(f"{prefix}.{key}", value)
    for key, value in SETTINGS.items():
        session.conf.set(key, value)
    return session


def copy(session, *letters):
    """A full copy. The n-th letter is the value of record n, and a dot omits the record."""
    day, seen = date(1900, 1, 1), datetime(2026, 7, 1, 12, 30, tzinfo=UTC)
    rows = [
        (number, letter, Decimal("0.10") * number, day, seen)
        for number, letter in enumerate(letters, 1)
        if letter != "."
    ]
    return session.createDataFrame(rows, COLUMNS)


def walk(session, catalog, other=None):
    """Read and write one table in all ways. Returns the answers, which are the same in every session.

    `other` is a session of another program, whose writes this one must see although it cached the table.
    """
    warehouse = backstory.open(spark=session, catalog=catalog)
    name, key = f"{catalog}.crm.c", {"into": "crm.c", "key": "id"}
    assert warehouse.snapshot(copy(session, "a", "b", "c"), at=FIRST, **key).counts["new"] == 3
    assert session.table(name).cache().count() == 3
    assert warehouse.snapshot(copy(session, "A", ".", "c"), at=SECOND, **key).counts["closed"] == 1
    assert session.table(name).count() == 4, "the caller's own session reads what was committed"
    table = warehouse.table("crm.c")
    assert records(table.current()) == {1: "A", 3: "c"}
    writer = warehouse if other is None else backstory.open(spark=other, catalog=catalog)
    session.table(name).cache().count()
    writer.snapshot(copy(writer.spark, "A", "B", "c"), at=THIRD, **key)
    open_rows = warehouse.sql("SELECT id, V FROM crm.c WHERE valid_to IS NULL")
    assert records(open_rows) == {1: "A", 2: "B", 3: "c"}
    assert records(table.current()) == {1: "A", 2: "B", 3: "c"}
    session.catalog.clearCache()
    orders = session.createDataFrame(
        [(1, datetime(2026, 1, 1, 12, tzinfo=UTC)), (2, datetime(2026, 1, 2, 12, tzinfo=UTC))],
        "id int, at timestamp",
    )
    joined = table.join_as_of(orders, on="id", at="at")
    with table.changes(net=True) as feed:
        changed = feed.frame.count()
    seen = session.table(name).selectExpr("unix_micros(seen)", "date_format(day, 'yyyy-MM-dd')", "amount")
    return {
        "as of": records(table.as_of(FIRST)),
        "diff": sorted(row["key"]["id"] for row in table.diff(FIRST, SECOND).collect()),
        "joined": {row["id"]: row["V"] for row in joined.collect()},
        "changes": changed,
        "violations": sum(each["violations"] for each in table.check()),
        "values": sorted({tuple(map(str, row)) for row in seen.collect()}),
        "versions": session.table(name).count(),
        "maintained": [each.error for each in warehouse.maintain("crm.c")],
        "after": records(table.current()),
        "listed": "crm.c" in {each["table"] for each in warehouse.tables()},
    }


def records(frame):
    return {row["id"]: row["V"] for row in frame.select("id", "V").collect()}


ANSWERS = {
    "as of": {1: "a", 2: "b", 3: "c"},
    "diff": [1, 2],
    "joined": {1: "a", 2: None},
    "changes": 5,
    "violations": 0,
    "values": [
        ("1782909000000000", "1900-01-01", "0.10"),
        ("1782909000000000", "1900-01-01", "0.20"),
        ("1782909000000000", "1900-01-01", "0.30"),
    ],
    "versions": 5,
    "maintained": [None],
    "after": {1: "A", 2: "B", 3: "c"},
    "listed": True,
}
