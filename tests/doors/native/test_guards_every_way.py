"""Every guard refuses a delivery in every way of planning, before a row is written (law 8)."""

from dataclasses import replace
from itertools import count

import pyarrow as pa
import pytest
from remembering import day
from structlog.testing import capture_logs

from backstory.doors.native import refusals
from backstory.errors import BackstoryError
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory
from backstory.model.table import table_name
from backstory.stores.iceberg.store import IcebergStore, load
from backstory.strategies.copies.comparison import CLAIMED, DIFFERING, FAULTS, NO_KEY, OUTSIDE, SPOILT
from backstory.strategies.feeds import arrival
from backstory.warehouse import Warehouse

NUMBERS = count()
ROWS = {f"k{number:05}": ("1", "e") for number in range(400)}
COLUMNS = pa.schema({"k": pa.string(), "v": pa.string(), "r": pa.string()})
IN_E, IN_U = {"scope": {"r": "e"}}, {"scope": {"r": "u"}}
TWICE = "INSERT INTO {0} SELECT * FROM {0} WHERE k = 'k00007' AND is_current"

# For each guard of a copy: its rows, its options, its code, and the tables to which it applies. The rows
# follow ROWS or replace them, or a column has another name.
FIRST, THERE = "first", "there"
COPIES = {
    NO_KEY: ([(None, "1", "e")], {}, "null-key", (FIRST, THERE)),
    DIFFERING: ([("k00007", "2", "e")], {}, "duplicate-key", (FIRST, THERE)),
    SPOILT: ([], {}, "spoilt-table", (THERE,)),
    OUTSIDE: ([("x", "1", "u")], IN_E, "out-of-scope", (FIRST, THERE)),
    CLAIMED: ([("k00007", "1", "u")], IN_U, "same-instant", (THERE,)),
    "refuse_empty": (None, {"max_delete_ratio": 1}, "empty-snapshot", (FIRST, THERE)),
    "refuse_other_content": ([("x", "1", "e")], {"at": 1}, "same-instant", (THERE,)),
    "refuse_absences": ("v", {"on_schema_change": "refuse"}, "columns-changed", (THERE,)),
    "refuse_other_columns": ("v", {"on_schema_change": "refuse", "key": "row"}, "columns-changed", (THERE,)),
    "refuse_mass_delete": ({"v": None, "keep": 5}, {"max_delete_ratio": 0.1}, "mass-delete", (THERE,)),
    "refuse_mass_null": ({"v": None, "keep": 400}, {"max_null_ratio": 0.1}, "mass-null", (THERE,)),
}
# Guards that run before a way is chosen, and functions that raise the faults of FAULTS.
OF_FILES = {"refuse_files", "refuse_names", "refuse_lacking_key", "refuse_whole_headers"}
BEFOREHAND = {"refuse_copy_faults", "refuse_untyped_key", *OF_FILES}
OF_FAULTS = {"refuse_null_keys", "refuse_duplicates", "refuse_spoilt"}
OF_FEEDS = {"refuse_feed_faults", "refuse_empty_restatement"}

AS_THEY_COME = "more rows than a step: planned in their order"
# The bytes that the driver may hold, whether rows are in another order than the table's, and the log line.
WAYS = {
    "whole": (None, False, None),
    "sifted": (30_000, False, "more rows than a step: planned where fingerprints differ"),
    "parts": (10_000, True, "more rows than driver-memory holds: planned in parts"),
    "tasks": (0, False, "planned in Spark's tasks"),
}


def test_every_guard_of_a_copy_is_listed():
    """If the code gets a new guard, this test fails until the guard has a row here."""
    guards = {name for name in vars(refusals) if name.startswith("refuse_")}
    assert guards - BEFOREHAND - OF_FAULTS - OF_FEEDS | set(FAULTS) == set(COPIES)


def rows_of(change):
    if change is None:
        return []
    if isinstance(change, str):
        return rows_of([])
    if isinstance(change, dict):
        return [(k, change["v"], r) for k, (_, r) in list(ROWS.items())[: change["keep"]]]
    return [*((k, *rest) for k, rest in ROWS.items()), *change]


def table_of(rows, *, shuffled):
    rows = [*rows[1::2], *rows[::2]] if shuffled else rows
    return pa.table([pa.array(list(each)) for each in zip(*rows, strict=True)] or [[], [], []], COLUMNS)


@pytest.fixture(scope="module")
def copied(spark):
    """Unchanged tables, because every delivery is refused: by scope, time and damaged state."""
    store, made = IcebergStore(spark), {}

    def table(guard):
        scoped, at = guard in {OUTSIDE, CLAIMED}, 10 if guard == CLAIMED else 1
        key = COPIES[guard][1].get("key", "k")
        kind = scoped, at, guard == SPOILT, key
        if kind not in made:
            made[kind] = into = f"guards.t{next(NUMBERS)}"
            rows, scope = table_of(rows_of([]), shuffled=False), IN_E if scoped else {}
            Warehouse(store, embedded=False).snapshot(rows, into=into, key=key, at=day(at), **scope)
            if guard == SPOILT:
                spark.sql(TWICE.format(store.sql_name(table_name(into))))
        return made[kind]

    return table


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("guard", COPIES)
def test_a_copy_is_refused_in_every_way_of_planning(store, monkeypatch, copied, guard, way):
    """First copies and later ones are refused, and the table is unchanged."""
    monkeypatch.setattr("backstory.stores.iceberg.data_files.ROWS_IN_GROUP", 50)
    monkeypatch.setattr("backstory.stores.iceberg.slice.BY_PLACE", 50)
    monkeypatch.setattr("backstory.engine.tasks.SIFTED_FROM", 1)
    held, shuffled, logged = WAYS[way]
    change, options, code, tables = COPIES[guard]
    memory = store.memory if held is None else Memory(CLEAR_TEXT_SHARE * held)
    lake = Warehouse(replace(store, memory=memory), embedded=False)
    for stands in tables:
        into = copied(guard) if stands == THERE else f"guards.t{next(NUMBERS)}"
        before = _snapshot(store, into)
        assert (before is None) == (stands == FIRST)
        source = table_of(rows_of(change), shuffled=shuffled)
        if isinstance(change, str):
            source = source.rename_columns({change: "another"})
        arguments = {"key": "k", "max_delete_ratio": 1, "at": 20, **options}
        at = arguments.pop("at")
        if guard == CLAIMED:
            at, source = 10, table_of([(k, v, "u") for k, (v, _) in ROWS.items()], shuffled=shuffled)
        with capture_logs() as logs, pytest.raises(BackstoryError) as refused:
            lake.snapshot(source, into=into, at=day(at), **arguments)
        assert (refused.value.code, _snapshot(store, into)) == (code, before)
        ways = {each["event"] for each in logs if "planned" in each["event"]}
        if way in {"whole", "tasks"}:
            assert ways == ({logged} - {None})
        else:  # a first copy has nothing to sift; the rows that a sift leaves may be planned in parts
            assert ways <= {AS_THEY_COME, WAYS["sifted"][2], WAYS["parts"][2]}


def _snapshot(store, into):
    table = load(store, table_name(into))
    return None if table is None else [each.snapshotId() for each in table.iceberg.snapshots()]


EVENTS = pa.schema({"k": pa.string(), "v": pa.string(), "at": pa.timestamp("us", "UTC")})
# For each guard of a feed: its events, its options, and its code. The table has a copy of day 5 or events.
FEEDS = {
    arrival.NO_KEY: ([(None, "1", 9)], {}, "null-key"),
    arrival.NO_SEQUENCE: ([("a", "1", None)], {}, "null-sequence"),
    arrival.SETTLED: ([("a", "1", 2)], {}, "settled"),
    arrival.OUTSIDE: (
        [("a", "1", 19)],
        {"restate_from": day(11), "restate_until": day(12)},
        "outside-restatement",
    ),
    arrival.OVERLAP: ([("a", "1", 4)], {"restate_from": day(3), "restate_until": day(12)}, "settled"),
    arrival.CONFLICT: ([("a", "1", 9), ("a", "2", 9)], {}, "sequence-conflict"),
    arrival.SPOILT: ([("a", "1", 9)], {}, "spoilt-table"),
    "refuse_absences": ([("a", "1", 9)], {"drop": ["v"], "on_schema_change": "refuse"}, "columns-changed"),
}


def test_every_guard_of_a_feed_is_listed():
    """If the code gets a new guard, this test fails until the guard has a row here."""
    assert {*arrival.FAULTS, "refuse_absences"} == set(FEEDS)


@pytest.fixture(scope="module")
def settled(spark):
    """A table of copies without memory, which a feed settles, and a damaged table. Neither changes."""
    store, copies = IcebergStore(spark), pa.table({"k": ["a", "b"], "v": ["0", "0"]})
    sound, spoilt = (f"guards.f{next(NUMBERS)}" for _ in range(2))
    for into in (sound, spoilt):
        for at in (1, 5):
            rows = copies.set_column(1, "v", [[str(at), "0"]])
            Warehouse(store, embedded=False).snapshot(rows, into=into, key="k", at=day(at))
    name = store.sql_name(table_name(spoilt))
    spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE k = 'a' AND is_current")
    return sound, spoilt


@pytest.mark.parametrize("way", ["driver", "tasks"])
@pytest.mark.parametrize("guard", FEEDS)
def test_a_feed_is_refused_in_every_way_of_planning(store, settled, guard, way):
    """The table is unchanged in every way of planning."""
    memory = Memory(0) if way == "tasks" else store.memory
    lake = Warehouse(replace(store, memory=memory), embedded=False)
    into, (events, options, code) = settled[guard == arrival.SPOILT], FEEDS[guard]
    before = _snapshot(store, into)
    rows = [(k, v, None if at is None else day(at)) for k, v, at in events]
    source = pa.table([list(each) for each in zip(*rows, strict=True)], EVENTS)
    with capture_logs() as logs, pytest.raises(BackstoryError) as refused:
        lake.apply(source, into=into, key="k", sequence_by="at", **options)
    assert (refused.value.code, _snapshot(store, into)) == (code, before)
    # A window that overlaps a settled interval is refused before a way is chosen.
    chosen = way == "tasks" and guard != arrival.OVERLAP
    assert ("planned in Spark's tasks" in {each["event"] for each in logs}) == chosen
