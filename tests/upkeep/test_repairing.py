"""`repair`: afterwards `check` finds nothing, healthy records are unchanged, and the commit is marked."""

import json

import pytest
from histories_as_text import written
from spoilt_histories import FIVETRAN, HIST, VERSIONS, broken, of_files, recorded

from backstory.errors import UsageError
from backstory.model.layout import Layout
from backstory.stores.iceberg.store import existing
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.upkeep.checking import check
from backstory.upkeep.repairing import REPAIR, repair, repair_small


def lives(store, table, names):
    """The rows of each key in order of their starts."""
    rows = store.spark.table(store.sql_name(table)).select("k", *names).orderBy("k", names[0]).collect()
    by_key = {}
    for key, *rest in rows:
        by_key.setdefault(key, []).append(tuple(_short(each) for each in rest))
    return by_key


def _short(value):
    """`T10` for an instant of the text tables. The open end is `TMAX`."""
    if not hasattr(value, "second"):
        return value
    return "TMAX" if value.year == 9999 else f"T{value.minute * 60 + value.second}"


def healthy(store, table, *more):
    """The places and ids of the healthy records' rows, and the oldest of rows with these keys."""
    rows = store.spark.sql(f"SELECT _file, _pos, _row_id, k FROM {store.sql_name(table)}").collect()
    oldest = {row["k"]: row for row in sorted(rows, key=lambda row: -row["_row_id"]) if row["k"] in more}
    return sorted([*oldest.values(), *(row for row in rows if str(row["k"]).startswith("good"))])


def test_native_versions_are_repaired(store):
    """V117, V118: Violating keys are repaired in one marked commit. It is dry by default, and runs once."""
    table = written(store, "mended", Layout.VERSIONS, VERSIONS)
    recorded(store, table, "2024-02-29T00:00:05Z")
    before, places = existing(store, table).newest.id, healthy(store, table)

    dry = repair(store, table)
    assert existing(store, table).newest.id == before
    done = repair(store, table, apply=True)

    assert (dry.counts, dry.laws, dry.samples) == (done.counts, done.laws, done.samples)
    assert (dry.applied, done.applied) == (False, True)
    assert healthy(store, table) == places
    assert done.left == {}
    assert not any(broken(check(store, table)).values())
    records = lives(store, table, ["valid_from", "valid_to", "is_current", "v"])
    assert records["overlap"] == [("T10", "T20", False, "a"), ("T20", "T40", False, "b")]
    assert records["open"] == [("T10", "T20", False, "a"), ("T20", None, True, "b")]
    assert records["empty"] == [("T20", None, True, "a")]
    assert records["facts"] == [("T20", None, True, None)]  # the remaining event implies a version
    assert records["marker"] == [("T10", None, True, "a")]
    assert records["role"] == [("T10", "T20", False, "a")]
    assert not {None, "back"} & set(records)
    commit = existing(store, table).newest
    mark = json.loads(commit.properties.get(REPAIR))
    assert mark == {"laws": dict(done.laws), "keys": done.keys, **done.counts}
    assert commit.properties.get("backstory.door") == "native"
    assert commit.properties.get("backstory.recorded-at") > "2024-02-29T00:00:05Z"
    again = repair(store, table, apply=True)
    assert (again.applied, again.snapshot_id, commit.id) == (False, None, done.snapshot_id)


def test_fivetran_histories_are_repaired(store):
    """A version ends a millisecond before its successor. The mark of disorder is removed when there is none."""
    table = written(
        store, "sent", Layout.FIVETRAN_HISTORY, FIVETRAN + "twin a T1 TMAX true T1\ntwin a T1 TMAX true T1\n"
    )
    store.spark.sql(f"ALTER TABLE {store.sql_name(table)} SET TBLPROPERTIES ('backstory.disorder' = 'true')")
    places = healthy(store, table, "twin")

    done = repair(store, table, apply=True)

    assert healthy(store, table, "twin") == places
    assert broken(check(store, table))["open-marker"] == set(done.left["open-marker"]) == {"mark3"}
    records = lives(store, table, ["_fivetran_start", "_fivetran_end", "_fivetran_active", "v"])
    assert records["over"] == [("T10", "T19", False, "a"), ("T20", "T40", False, "b")]
    assert records["start"] == [("T10", "TMAX", True, "b")]
    assert records["mark1"] == [("T10", "TMAX", True, "a")]
    assert records["mark2"] == [("T10", "T20", False, "a")]
    assert records["twin"] == [("T1", "TMAX", True, "a")]
    assert existing(store, table).disorderly
    store.spark.sql(f"DELETE FROM {store.sql_name(table)} WHERE k = 'mark3'")
    assert repair(store, table, apply=True).applied
    assert not existing(store, table).disorderly


def test_model_histories_are_repaired_except_wrong_hashes(store):
    """States follow the ends. The values of a wrong hash are unknown."""
    table = written(store, "m_hist", Layout.HIST, HIST)

    done = repair(store, table, apply=True)

    assert done.left == {"row-hash": ["hash1", "hash2"]}
    records = lives(store, table, ["version_started_at", "version_ended_at", "version_state"])
    assert records["over"] == [("T10", "T20", "changed"), ("T20", None, "changed")]
    assert records["opens"] == [("T10", "T20", "changed"), ("T20", None, "new")]
    assert records["state1"] == [("T10", "T20", "deleted")]
    assert records["state2"] == records["state3"] == [("T10", None, "new")]


@pytest.mark.parametrize(
    ("layout", "text"),
    [(Layout.VERSIONS, VERSIONS), (Layout.FIVETRAN_HISTORY, FIVETRAN), (Layout.HIST, HIST)],
    ids=str,
)
def test_small_tables_without_damaged_rows_need_no_spark_for_a_repair(store, layout, text):
    """A wrong property is never changed. Spark repairs rows."""
    table = written(store, "s_hist", layout, text)
    recorded(store, table, "2024-02-29T00:00:05Z")
    with pytest.raises(Unreadable):
        of_files(store, table, repair_small)
    store.spark.sql(f"DELETE FROM {store.sql_name(table)} WHERE k NOT LIKE 'good%' OR k IS NULL")
    assert of_files(store, table, repair_small) == repair(store, table)

    store.spark.sql(f"ALTER TABLE {store.sql_name(table)} UNSET TBLPROPERTIES ('backstory.layout-version')")

    receipt = of_files(store, table, repair_small)
    assert (receipt, receipt.left) == (repair(store, table), {"properties": ["backstory.layout-version"]})


def test_tables_without_a_basis_for_repair_are_refused(store):
    """Logs are append-only, and a table without versions has no basis for a repair."""
    table = written(store, "logged", Layout.FIVETRAN_LIVE, "k v synced\na b T1\n")
    for layout in ("fivetran-live", "odf", "odf-log"):
        store.spark.sql(
            f"ALTER TABLE {store.sql_name(table)} SET TBLPROPERTIES ('backstory.layout' = '{layout}')"
        )
        with pytest.raises(UsageError) as stop:
            repair(store, table)
        assert (stop.value.code, bool(stop.value.remedy)) == ("no-repair", True), layout
        with pytest.raises(UsageError) as here:
            of_files(store, table, repair_small)
        assert here.value.to_dict() == stop.value.to_dict()


def test_a_table_without_a_key_is_not_repaired(store):
    """Without a key, all rows would belong to one record."""
    table = written(store, "keyless", Layout.VERSIONS, "k from to recorded\na T1 - T1\nb T2 - T2\n")
    store.spark.sql(f"ALTER TABLE {store.sql_name(table)} UNSET TBLPROPERTIES ('backstory.key')")

    with pytest.raises(UsageError) as stop:
        repair(store, table, apply=True)

    assert (stop.value.code, "backstory.key" in stop.value.message) == ("no-repair", True)
    assert [each["law"] for each in check(store, table) if each["violations"]] == ["properties"]
