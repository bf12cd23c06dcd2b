"""The time of a copy is fixed when the call begins, and stored if the table remembers."""

import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pytest
from serving import SECONDS, within

from backstory.doors.native.instants import StoredInstants
from backstory.doors.native.options import SnapshotRequest
from backstory.doors.native.snapshot import open_copy
from backstory.doors.native.sources import rows_of_arrow
from backstory.engine.deliver import deliver_once
from backstory.errors import Refused, UsageError
from backstory.formats.memory import Memory
from backstory.model.instant import parse_instant
from backstory.model.table import table_name
from backstory.model.versions_layout import SETTLED
from backstory.stores.iceberg.store import existing
from backstory.stores.tables import lock_tables
from backstory.warehouse import Warehouse


def rows(value, count=2):
    return pa.table({"k": [f"k{number}" for number in range(count)], "v": [value] * count})


class Blocked(threading.Thread):
    """A copy without a time, blocked by a writer of its table."""

    def __init__(self, warehouse, name, source):
        super().__init__()
        self.warehouse, self.name, self.source = warehouse, name, source
        self.error, self.receipt = None, None

    def waits(self):
        """Whether it waits for the table's lock."""
        frame = sys._current_frames().get(self.ident)
        while frame and frame.f_code is not lock_tables.__wrapped__.__code__:
            frame = frame.f_back
        return frame is not None

    def run(self):
        try:
            self.receipt = self.warehouse.snapshot(self.source, into=self.name, key="k")
        except Refused as error:
            self.error = error


def test_a_copy_has_the_start_time_of_its_call(store):
    """If a newer copy was stored while this copy waited, it is refused, because it would undo the newer one."""
    warehouse, name = Warehouse(store, embedded=False), "native_instants.late"
    warehouse.snapshot(rows("first"), into=name, key="k")
    before = datetime.now(UTC)
    with lock_tables(store, table_name(name)):
        late = Blocked(warehouse, name, rows("old"))
        late.start()
        assert within(SECONDS, late.waits)
        newer = partial(open_copy, rows_of_arrow(store, rows("new", 3)), SnapshotRequest(into=name))
        deliver_once(store, newer)
    late.join(SECONDS)
    assert late.error is not None, late.receipt
    assert late.error.code == "time-backwards"
    assert "read the source again" in late.error.remedy
    assert before < parse_instant(late.error.message.split()[5].rstrip(",")) < datetime.now(UTC)
    current = warehouse.table(name).current().orderBy("k").collect()
    assert [(row.k, row.v) for row in current] == [("k0", "new"), ("k1", "new"), ("k2", "new")]
    assert warehouse.snapshot(rows("old"), into=name).counts["changed"] == 2  # sent again, it is the newest


@pytest.mark.parametrize("by_frames", [False, True], ids=["driver", "frames"])
def test_a_table_with_memory_records_the_time_of_an_unchanged_copy(store, by_frames):
    """V27, V28, V31: `remember` starts the memory, once. A copy for an earlier time then ends at it."""
    held = replace(store, memory=Memory(0)) if by_frames else store
    warehouse, name = Warehouse(held, embedded=False), f"native_instants.kept_{by_frames}".lower()

    def copy(at, value, **options):
        return warehouse.snapshot(rows(value), into=name, key="k", at=f"2026-01-{at:02}", **options)

    def values(at):
        return {row.v for row in warehouse.table(name).as_of(f"2026-01-{at:02}").collect()}

    copy(2, "a")
    assert copy(3, "a").snapshot_id is None
    with pytest.raises(Refused, match="2026-01-02") as refusal:
        copy(1, "a", remember=True)
    assert refusal.value.code == "time-backwards"
    assert "`backfill=True`" in refusal.value.remedy
    for options in ({}, {"restate": True}):
        with pytest.raises(Refused) as refusal:
            copy(2, "b", remember=True, **options)
        assert refusal.value.code == "settled"
    with pytest.raises(UsageError) as partial:
        copy(4, "a", remember=True, deletes="ignore")
    assert partial.value.code == "partial-copy"
    assert SETTLED not in existing(store, table_name(name)).properties
    plan = copy(5, "a", remember=True, dry_run=True)
    assert plan.counts["unchanged"] == 2
    begun = copy(5, "a", remember=True)
    assert begun.snapshot_id is not None
    again = copy(5, "a", remember=True)
    assert (again.snapshot_id, again.counts["unchanged"]) == (None, 2)
    settled = existing(store, table_name(name)).properties[SETTLED]
    assert settled == '["2026-01-02T00:00:00.000000Z", "2026-01-02T00:00:00.000000Z"]'
    copy(4, "b")
    copy(1, "z", remember=True)
    assert [values(at) for at in (1, 2, 3, 4, 5)] == [{"z"}, {"a"}, {"a"}, {"b"}, {"a"}]
    assert existing(store, table_name(name)).properties[SETTLED] == settled
    broken = [each["law"] for each in warehouse.table(name).check() if each["violations"]]
    assert broken == []


def test_the_driver_and_spark_read_the_same_instants(store):
    """V10, V28, V31: This includes copies with fewer columns, scoped and late copies, and an empty table."""
    warehouse, name = Warehouse(store, embedded=False), "native_instants.read"
    ways = [store, replace(store, memory=Memory(0))]

    def read():
        instants = [parse_instant(f"2026-01-{day:02}T00:00:00Z") for day in range(1, 10)]
        return [
            [
                stored.ends(),
                stored.newest_recorded(),
                [stored.marks_since(at) for at in instants],
                [stored.has_facts_since(at) for at in instants],
            ]
            for stored in (StoredInstants(each, existing(each, table_name(name))) for each in ways)
        ]

    warehouse.snapshot(rows("a").slice(0, 0), into=name, key="k", at="2026-01-02", allow_empty=True)
    here, by_spark = read()
    assert here == by_spark == [None, None, [[]] * 9, [False] * 9]

    warehouse.snapshot(rows("a"), into=name, at="2026-01-02")
    warehouse.snapshot(rows("b"), into=name, at="2026-01-03")
    warehouse.snapshot(rows("b").select(["k"]), into=name, at="2026-01-05", backfill=True)
    warehouse.snapshot(rows("c", 1), into=name, at="2026-01-04", scope={"k": "k0"})
    warehouse.snapshot(rows("d"), into=name, at="2026-01-05", restate=True)
    here, by_spark = read()
    assert here == by_spark
    ends, _, marks, facts = here
    assert ends[0] == parse_instant("2026-01-02T00:00:00Z")
    assert [(mark.at.day, mark.scope) for mark in marks[0]] == [(4, '{"k": "k0"}'), (5, None)]
    assert [len(each) for each in marks] == [2, 2, 2, 2, 1, 0, 0, 0, 0]
    assert facts == [True] * 5 + [False] * 4


def test_the_first_copy_may_start_the_memory_with_or_without_backfill(store):
    """V28: Nothing is settled by the first copy."""
    warehouse = Warehouse(store, embedded=False)
    for number, options in enumerate(({"remember": True}, {"remember": True, "backfill": True})):
        name = f"native_instants.first_{number}"
        for at, value in ((5, "a"), (7, "a"), (6, "b")):
            warehouse.snapshot(rows(value), into=name, key="k", at=f"2026-01-{at:02}", **options)
        assert existing(store, table_name(name)).properties[SETTLED] == "[]"
        records = warehouse.table(name).as_of("2026-01-07").collect()
        assert {row.v for row in records} == {"a"}
