"""Rewind from Python, on every layout: its effect, refusals and report (native.md V84, V85)."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from datasets import Dataset, s
from historizing import dataset, document
from historizing_on_spark import SparkPlace
from specification.rewind import live_rows_at
from stored_versions import life, make_table, put, rows_in, shown, t, version

from backstory.doors.odf import door
from backstory.errors import Refused, TryAgain, UsageError
from backstory.model.table import TableName
from backstory.model.versions_layout import KNOWN_FROM, MEMORY_SINCE, SETTLED
from backstory.stores.tables import existing
from backstory.table import Table
from backstory.upkeep.rewinding import memory_at
from backstory.warehouse import Warehouse

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def load(place, run, rows):
    """Load the rows `a:1 b:2`."""
    lines = [word.replace(":", ",") for word in rows.split()]
    (place.folder / "stage.csv").write_text("\n".join(["k,a", *lines, ""]))
    (receipt,) = place.loads(run)
    assert receipt.error is None
    return receipt


class TestVersions:
    def test_a_dry_rewind_reports_its_effect_without_writing(self, store):
        """It reports rows by outcome, commits and keys. The rewind then runs once, and a pruned time is
        refused."""
        name = make_table(store, "told", life([version(1, "a", 10)]))
        put(
            store,
            name,
            life([version(1, "a", 10)], [version(1, "a", 10, 20), version(1, "x", 20), version(2, "y", 20)]),
            "true",
        )
        table, before = Table(store, name), existing(store, name).location
        plan = table.rewind(t(1))
        assert existing(store, name).location == before
        assert (plan.applied, plan.counts, plan.keys) == (
            False,
            {"taken_back": 2, "moved": 1, "returned": 0},
            [{"id": 1}, {"id": 2}],
        )
        assert [each["token"] for each in plan.commits] == [f"token {t(2)}"]
        done = table.rewind(t(1), apply=True)
        assert (done.applied, done.counts) == (True, plan.counts)
        assert shown(live_rows_at(rows_in(store, name), datetime.now(UTC))) == ["1 a [10,)"]
        after = existing(store, name).location
        again = table.rewind(t(1), apply=True)
        assert (again.applied, again.commits, existing(store, name).location) == (False, [], after)
        put(store, name, [], properties={KNOWN_FROM: "2024-01-03T00:00:00Z"}, pruned="yes")
        with pytest.raises(UsageError) as caught:
            table.rewind(t(1))
        assert caught.value.code == "known-pruned"


class TestOtherLayouts:
    """The time of commits counts (interface, section 6)."""

    def test_a_dataset_is_rewound_with_its_chain_by_system_time(self, store, tmp_path):
        dataset = Dataset(
            store, tmp_path, "{kind: Ledger, primaryKey: [city]}", columns="city STRING, population INT"
        )
        for rows in ("A,1 B,1", "C,1", "D,1"):
            assert dataset.push(rows).error is None
        table = Table(store, dataset.table.shape.table)
        plan = table.rewind(s(2))
        assert (plan.applied, len(plan.commits), plan.keys) == (False, 1, [{"city": "D"}])
        assert table.rewind(s(2), apply=True).applied
        assert door.verify_dataset(store, table.name.name, namespace="datasets").valid
        assert not table.rewind(s(2), apply=True).applied
        assert dataset.push("E,1").offsets == (3, 3)
        assert door.verify_dataset(store, table.name.name, namespace="datasets").valid
        with pytest.raises(Refused) as caught:
            table.rewind(s(0))
        assert caught.value.code == "nothing-then"

    def test_a_history_is_rewound_with_its_base(self, store, tmp_path):
        """Its runs are undone too, so their ids load again. It waits for a load between its commits."""
        place = SparkPlace(store, tmp_path)
        place.use(document(dataset(input="stage.csv")))
        try:
            load(place, "r1", "a:1 b:2")
            time = datetime.now(UTC)
            load(place, "r2", "a:9 b:2")
            history = Table(store, TableName("rawcore", "rc_c_hist"))
            with pytest.raises(UsageError, match="is rewound with it"):
                Table(store, TableName("rawcore", "rc_c")).rewind(time)
            done = history.rewind(time, apply=True)
            assert (done.counts, [each["table"] for each in done.also]) == (
                {"rows": 3, "rows_then": 2},
                ["rawcore.rc_c"],
            )
            assert place.rows("SELECT k, a FROM rawcore.rc_c ORDER BY k") == [("a", "1"), ("b", "2")]
            assert load(place, "r2", "a:7 b:2").counts["changed"] == 1
            assert place.rows("SELECT count(*) FROM rawcore.rc_c_hist") == [(3,)]
            place.sql("ALTER TABLE rawcore.rc_c_hist SET TBLPROPERTIES ('backstory.loading' = '{}')")
            with pytest.raises(TryAgain):
                history.rewind(time)
        finally:
            place.close()


FED = {SETTLED: '["a", "b"]', MEMORY_SINCE: "2024-01-04T00:00:00Z"}


def test_E20_copies_are_accepted_again_after_a_rewind(store):
    """A withdrawn copy may be sent again for its own instant, but not one in between."""
    warehouse = Warehouse(store, embedded=False)

    def copy(at, value):
        frame = store.spark.createDataFrame([(1, value)], "k int, v string")
        return warehouse.snapshot(frame, into="lifecycle.copies", key="k", at=t(at))

    copy(10, "a")
    known = datetime.now(UTC)
    copy(20, "b")
    table, since = warehouse.table("lifecycle.copies"), datetime.now(UTC)
    assert table.rewind(known, apply=True).counts == {"taken_back": 1, "moved": 1, "returned": 0}
    assert copy(20, "c").counts["changed"] == 1
    with pytest.raises(Refused) as caught:
        copy(15, "c")
    assert caught.value.code == "time-backwards"
    assert copy(30, "c").snapshot_id is None
    table.rewind(since, apply=True)
    assert [row["v"] for row in table.current().collect()] == ["b"]


class TestMemory:
    """The properties of the memory follow the known state (E20)."""

    def test_E20_a_rewind_before_the_memory_clears_its_properties(self):
        back = memory_at(FED, t(1), NOW)
        assert (back[SETTLED], back[MEMORY_SINCE]) == (None, None)

    def test_rewinding_a_rewind_restores_the_memory(self):
        back = memory_at(FED, t(1), NOW)
        again = memory_at({name: value for name, value in back.items() if value}, t(5), NOW + timedelta(1))
        assert {name: again[name] for name in FED} == FED

    def test_a_rewind_within_the_memory_keeps_its_properties(self):
        assert memory_at(FED, t(3), NOW) == {}
        assert memory_at({}, t(3), NOW) == {}

    def test_a_settled_interval_survives_a_rewind(self):
        assert memory_at({**FED, SETTLED: json.dumps([None, "b"])}, t(1), NOW) == {}
