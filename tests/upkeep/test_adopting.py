"""`adopt`: rows of dbt, dlt and SQLMesh have the same results as ours (written by
`outside/adopt/other_tools.py`)."""

import json
from pathlib import Path

import pytest

from backstory.errors import Refused, UsageError
from backstory.model.layout import Layout, layout_of
from backstory.model.table import TableName
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import existing
from backstory.stores.port import require_layout
from backstory.table import Table
from backstory.upkeep.adopting import adopt
from backstory.upkeep.checking import check
from backstory.upkeep.repairing import repair

FOLDER = Path(__file__).parents[1] / "outside" / "adopt"
TYPES = {
    "INTEGER": "INT",
    "VARCHAR": "STRING",
    "TIMESTAMP": "TIMESTAMP_NTZ",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP",
}
OSLO, BERN = (1, "anna", "oslo"), (1, "anna", "bern")
BOB, CLEO = (2, "bob", "rome"), (3, "cleo", "nice")
# The results of each tool for the same life. SQLMesh begins a record in 1970, and dbt ends it at its own run.
ANSWERS = {
    "dbt": {"2026-01-15": [OSLO, BOB], "2026-03-15": [BERN, BOB, CLEO], None: [BERN, CLEO]},
    "dbt_deleted": {"2026-01-15": [OSLO, BOB], "2026-03-15": [BERN, BOB, CLEO], None: [BERN, CLEO]},
    "dlt": {"2026-01-15": [OSLO, BOB], "2026-03-15": [BERN, CLEO], None: [BERN, CLEO]},
    "sqlmesh": {"2025-01-15": [OSLO, BOB], "2026-02-15": [BERN, BOB], None: [BERN, BOB]},
    "autocdc": {"2026-01-15": [OSLO, BOB], "2026-03-15": [BERN, CLEO], None: [BERN, CLEO]},
}
# AUTO CDC runs only as a service, so these are dlt's rows with the documented names.
RENAMED = {"_dlt_valid_from": "__START_AT", "_dlt_valid_to": "__END_AT"}


def foreign(store, tool):
    """A table with another tool's rows, written by Spark."""
    document = json.loads((FOLDER / f"{'dlt' if tool == 'autocdc' else tool}.json").read_text())
    names = [RENAMED.get(name, name) if tool == "autocdc" else name for name in document["columns"]]
    types = [TYPES.get(each, each) for each in document["columns"].values()]
    places = [
        place for place, name in enumerate(names) if not (tool == "autocdc" and name.startswith("_dlt"))
    ]
    table = TableName("adopted", tool)
    drop(store, table)
    raw = store.spark.createDataFrame(document["rows"], ", ".join(f"`{name}` STRING" for name in names))
    typed = raw.selectExpr(
        *(f"CAST(`{names[place]}` AS {types[place]}) AS `{names[place]}`" for place in places)
    )
    store.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {store.catalog}.adopted")
    typed.writeTo(store.sql_name(table)).using("iceberg").create()
    return table


def rows_in(frame):
    return sorted((row["id"], row["name"], row["city"]) for row in frame.collect())


@pytest.mark.parametrize("tool", ANSWERS)
def test_an_adopted_history_answers_queries(store, tool):
    """Only properties are set. The same rows can be read and checked, and a second call changes nothing."""
    table = foreign(store, tool)
    before = existing(store, table).iceberg.currentSnapshot().snapshotId()

    first = adopt(store, table, tool.removesuffix("_deleted"), ["id"])
    again = adopt(store, table, tool.removesuffix("_deleted"), ["id"])

    adopted, layout = Table(store, table), existing(store, table).shape.layout
    assert (first.changed, again.changed) == (True, False)
    assert (layout, layout.is_adopted) == (Layout(tool.removesuffix("_deleted")), True)
    assert existing(store, table).iceberg.currentSnapshot().snapshotId() == before
    for time, rows in ANSWERS[tool].items():
        assert rows_in(adopted.current() if time is None else adopted.as_of(time)) == sorted(rows)
    assert {"id", "name", "city", "valid_from", "valid_to"} <= set(adopted.current().columns)
    assert not {name for name in adopted.current().columns if name.startswith(("dbt_", "_dlt", "__"))}
    assert not any(each["violations"] for each in check(store, table))
    with pytest.raises(Refused, match="does not write to it"):
        require_layout(existing(store, table), Layout.VERSIONS)


def test_damage_in_an_adopted_table_is_repaired(store):
    """An end in year 9999 is open. If versions overlap, the first ends where the second begins."""
    table = foreign(store, "dbt")
    adopt(store, table, "dbt", ["id"])
    name = store.sql_name(table)
    store.spark.sql(f"UPDATE {name} SET dbt_valid_to = TIMESTAMP_NTZ '9999-12-31' WHERE id = 1")

    broken = {each["law"]: each["keys"] for each in check(store, table) if each["violations"]}
    done = repair(store, table, apply=True)

    assert broken == {"no-overlap": ["1"], "one-open": ["1"]}
    assert done.counts == {"dropped": 0, "rewritten": 1}
    assert not any(each["violations"] for each in check(store, table))
    assert rows_in(Table(store, table).current()) == [BERN, CLEO]


def test_unsuitable_tables_are_not_adopted(store):
    """Each error has the missing part and a remedy, and nothing changes."""
    table = foreign(store, "dlt")
    cases = [
        (table, "dbt", ["id"], "missing-columns", "`layout='dlt'`"),
        (table, "dlt", [], "no-key", "`key=`"),
        (table, "dlt", ["nobody"], "no-key", "source"),
        (table, "dlt", ["_dlt_id"], "no-key", "source"),
        (table, "dlt", ["id", "id"], "no-key", "once"),
        (table, "delta", ["id"], "unknown-layout", "sqlmesh"),
        (TableName("adopted", "nowhere"), "dlt", ["id"], "no-table", "catalog"),
    ]
    for name, layout, key, code, remedy in cases:
        with pytest.raises(UsageError) as stop:
            adopt(store, name, layout, key)
        assert stop.value.code == code
        assert remedy in stop.value.remedy
    assert adopt(store, table, "dlt", ["id"], dry_run=True).changed
    assert existing(store, table).shape.layout is not Layout.DLT


def test_a_numeric_sequence_is_refused_for_adoption(store):
    """AUTO CDC may order versions by numbers, which have no time."""
    table = TableName("adopted", "numbered")
    store.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {store.catalog}.adopted")
    drop(store, table)
    store.spark.sql(
        f"CREATE TABLE {store.sql_name(table)} (id INT, __START_AT BIGINT, __END_AT BIGINT) USING iceberg"
    )

    with pytest.raises(UsageError, match="__START_AT"):
        adopt(store, table, "autocdc", ["id"])


def test_an_unsupported_column_type_is_named(store):
    """Other programs write times of day, which Spark cannot read."""
    table = foreign(store, "dlt")
    adopt(store, table, "dlt", ["id"])
    time = store.jvm.org.apache.iceberg.types.Types.TimeType.get()
    existing(store, table).iceberg.updateSchema().addColumn("opens", time).commit()
    with pytest.raises(Refused, match="a column of type time") as refusal:
        Table(store, table).as_of("2026-01-15").collect()
    assert refusal.value.code == "unsupported-type"


def test_a_table_written_by_a_door_is_not_adopted(store):
    """Adopting it would block its door."""
    table = foreign(store, "sqlmesh")
    store.spark.sql(
        f"ALTER TABLE {store.sql_name(table)} SET TBLPROPERTIES ('backstory.layout' = 'versions')"
    )

    with pytest.raises(Refused):
        adopt(store, table, "sqlmesh", ["id"])


def test_a_layout_from_another_version_is_refused():
    """An unknown property is an error with a remedy."""
    with pytest.raises(UsageError) as stop:
        layout_of("rectangles", "t", frozenset())

    assert stop.value.code == "unknown-layout"
    assert "Upgrade backstory" in stop.value.remedy
