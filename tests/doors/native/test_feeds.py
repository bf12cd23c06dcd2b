"""Feeds of changes: the worked examples of native.md, section 8, and refusals."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pyarrow as pa
import pytest
from depth import DEPTH, deep
from remembering import ZERO, day, lives

from backstory.errors import BackstoryError, Refused
from backstory.formats.memory import Memory
from backstory.model.instant import parse_instant
from backstory.model.table import table_name
from backstory.model.versions_layout import MEMORY_SINCE, ORDERED_BY, SETTLED
from backstory.settings import DRIVER_MEMORY
from backstory.stores.iceberg.store import existing
from backstory.warehouse import Warehouse

EVENT = re.compile(r"(?P<key>\w+): (?P<value>[^\s@]+)@(?P<at>\d+)(?:\.(?P<seq>\d+))?")
TYPES = pa.schema(
    {
        "k": pa.string(),
        "v": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "seq": pa.int64(),
        "op": pa.string(),
    }
)
FEED = {
    "key": "k",
    "sequence_by": ["at", "seq"],
    "apply_as_deletes": "op = 'D'",
    "apply_as_truncates": "op = 'T'",
    "drop": ["op", "seq"],
    "ignore": ["at"],
}


def events(text):
    """Events from `k: a@10 k: -@30 truncate: !@40`, with the further sequence after a point."""
    ops = {"-": "D", "!": "T"}
    rows = []
    for match in EVENT.finditer(text):
        value = match["value"]
        op = ops.get(value, "U")
        rows.append(
            {
                "k": None if op == "T" else match["key"],
                "v": None if op != "U" or value == "~" else value,
                "at": day(match["at"]),
                "seq": int(match["seq"] or 0),
                "op": op,
            }
        )
    return pa.Table.from_pylist(rows, TYPES)


class Fed:
    """A table with feeds and copies at given recorded times."""

    numbers = iter(range(1000))

    def __init__(self, warehouse, **options):
        self.warehouse, self.store = warehouse, warehouse.store
        self.name = f"feeds.t{next(self.numbers)}"
        self.options = FEED | options

    def apply(self, text, **options):
        receipt = self.warehouse.apply(events(text), into=self.name, **self.options | options)
        return {name: count for name, count in receipt.counts.items() if count}

    def refused(self, text, **options):
        with pytest.raises(BackstoryError) as stop:
            self.apply(text, **options)
        return stop.value.code

    def copy(self, at, text, **options):
        rows = [dict(zip(("k", "v"), each.split(":"), strict=True)) for each in text.split()]
        rows = pa.Table.from_pylist(rows, pa.schema({"k": pa.string(), "v": pa.string()}))
        receipt = self.warehouse.snapshot(rows, into=self.name, key="k", at=day(at), **options)
        return {name: count for name, count in receipt.counts.items() if count}

    @property
    def rows(self):
        name = self.store.sql_name(table_name(self.name))
        return self.store.spark.sql(f"SELECT * FROM {name}").toArrow().to_pylist()

    @property
    def lives(self):
        return lives([row for row in self.rows if (row["_memory"] or {}).get("role") is None])

    @property
    def remembered(self):
        """The live facts without a version, as ordered `kind@instant`."""
        live = (row for row in self.rows if (row["_memory"] or {}).get("role") == "fact")
        live = (row for row in live if row["_memory"]["ended_at"] is None)
        return sorted(f"{row['_memory']['kind']}@{(row['valid_from'] - ZERO).days}" for row in live)

    @property
    def commits(self):
        return len(self.warehouse.table(self.name).log())

    def check(self):
        return [
            (each["law"], each["violations"])
            for each in self.warehouse.table(self.name).check()
            if each["violations"]
        ]


def in_tasks_of(store):
    return Fed(Warehouse(replace(store, memory=Memory(0)), embedded=False))


@pytest.fixture(params=["here", "tasks"] if DEPTH == "laws" else ["here"])
def fed(store, request):
    return Fed(Warehouse(store, embedded=False)) if request.param == "here" else in_tasks_of(store)


@pytest.fixture
def in_tasks(store):
    """A table whose deliveries are all planned in Spark's tasks."""
    return in_tasks_of(store)


def test_spark_tasks_plan_feeds_truncates_and_late_copies(in_tasks):
    """With `driver-memory = "0m"`, the lives of E2, E8, E10 and E5 are in one table."""
    in_tasks.apply("k: c@40 k: a@10 m: a@10")
    in_tasks.apply("k: -@30 all: !@35")
    in_tasks.apply("k: b@20 n: x@25")
    assert in_tasks.lives == ["k: a[10,20) b[20,30) c[40,)", "m: a[10,35)", "n: x[25,35)"]
    assert in_tasks.apply("k: b@20") == {"duplicate": 1}
    assert in_tasks.refused("k: z@20") == "sequence-conflict"
    in_tasks.copy(15, "k:y m:a", max_delete_ratio=1)
    assert in_tasks.lives == ["k: a[10,15) y[15,20) b[20,30) c[40,)", "m: a[10,35)", "n: x[25,35)"]
    in_tasks.copy(50, "k:c m:d", max_delete_ratio=1)
    assert in_tasks.lives[1] == "m: a[10,35) d[50,)"
    assert in_tasks.check() == []


@pytest.mark.parametrize("memory", [DRIVER_MEMORY, 0] if DEPTH == "laws" else [DRIVER_MEMORY])
def test_a_rename_can_follow_a_rewind_of_a_feed(store, memory):
    """A copy renames the column. The feed's values under the new name are sent again, and reported once."""
    fed = Fed(Warehouse(replace(store, memory=Memory(memory)), embedded=False))
    fed.apply("k: a@10 m: b@10")
    renamed = events("k: c@20").rename_columns({"v": "w"})
    bring = partial(fed.warehouse.apply, renamed, into=fed.name, **fed.options)
    mistake = bring()
    assert "column v is missing from the feed; kept as it was" in mistake.schema_changes
    before = parse_instant(mistake.recorded_at) - timedelta(microseconds=1)
    fed.warehouse.table(fed.name).rewind(before, apply=True)
    copy = pa.table({"k": ["k", "m"], "w": ["a", "b"]})
    receipt = fed.warehouse.snapshot(copy, into=fed.name, key="k", at=day(15), rename={"v": "w"})
    assert "column v renamed to w" in receipt.schema_changes
    again = bring()
    assert (again.counts["began"], again.schema_changes) == (mistake.counts["began"], [])
    assert fed.check() == []


def test_E1_E2_E3_E4_facts_of_one_record_in_any_order(fed):
    """Deletes, late facts and facts without news have the results of the examples, in one table."""
    for text in (
        "k: a@10 m: c@40 n: a@10 p: A@5",
        "k: b@20 m: a@10 n: -@30 o: -@20 p: A@10",
        "k: -@30 m: -@30 n: b@20 o: x@10 p: A@15",
        "k: c@40 m: b@20 p: C@20",
        "p: B@12",
    ):
        fed.apply(text)
    assert fed.lives == [
        "k: a[10,20) b[20,30) c[40,)",
        "m: a[10,20) b[20,30) c[40,)",
        "n: a[10,20) b[20,30)",
        "o: x[10,20)",
        "p: A[5,12) B[12,15) A[15,20) C[20,)",
    ]
    assert (fed.commits, fed.check()) == (5, [])
    assert fed.remembered == ["delete@20", "delete@30", "delete@30", "delete@30", "upsert@10"]


def test_E3_a_delete_of_an_unknown_record_is_silent(fed):
    fed.apply("k: a@10")
    assert fed.apply("k: -@30 m: -@20") == {"ended": 1, "silent": 1}


def test_E5_conflicting_changes_at_one_time_are_refused(fed):
    fed.apply("k: a@10 m: a@10.1")
    assert fed.apply("k: a@10") == {"duplicate": 1}
    assert (fed.refused("k: b@10"), fed.refused("k: -@10")) == ("sequence-conflict", "sequence-conflict")
    fed.apply("m: b@10.2")
    assert fed.refused("n: x@10 n: y@10") == "sequence-conflict"
    assert (fed.lives, fed.commits) == (["k: a[10,)", "m: b[10,)"], 2)


def test_E8_late_changes_before_a_truncate_end_at_the_truncate(fed):
    fed.apply("k: a@10 m: a@10")
    assert fed.apply("all: !@30") == {"ended": 1}
    fed.apply("k: b@20 n: x@25")
    fed.apply("m: c@35")
    assert fed.lives == ["k: a[10,20) b[20,30)", "m: a[10,30) c[35,)", "n: x[25,30)"]
    assert fed.check() == []


def test_E9_a_full_copy_corrects_a_feed_and_late_events_still_apply(fed):
    fed.apply("k: a@10 m: a@10 p: a@10")
    assert fed.copy(30, "k:a m:b n:x") == {"new": 1, "changed": 1, "closed": 1, "unchanged": 1}
    assert fed.lives == ["k: a[10,)", "m: a[10,30) b[30,)", "n: x[30,)", "p: a[10,30)"]
    fed.apply("k: z@20 m: b@20 p: -@25")
    assert fed.lives == ["k: a[10,20) z[20,30) a[30,)", "m: a[10,20) b[20,)", "n: x[30,)", "p: a[10,25)"]
    assert fed.check() == []


def test_E10_a_late_copy_applies_at_its_own_time(fed):
    fed.apply("k: a@10 n: a@10 n: c@40")
    fed.apply("k: b@30")
    fed.copy(20, "k:x m:y", max_delete_ratio=1)
    assert fed.lives == ["k: a[10,20) x[20,30) b[30,)", "m: y[20,)", "n: a[10,20) c[40,)"]


def test_E11_a_record_moves_between_two_scopes_at_one_time(fed):
    def copy(at, text, **options):
        rows = [dict(zip(("k", "v", "region"), each.split(":"), strict=True)) for each in text.split()]
        rows = pa.Table.from_pylist(rows)
        return fed.warehouse.snapshot(rows, into=fed.name, key="k", at=day(at), max_delete_ratio=1, **options)

    copy(10, "k:ann:e m:bob:u n:cy:e")
    copy(20, "k:ann:e", scope={"region": "e"})
    assert fed.lives == ["k: ann[10,)", "m: bob[10,)", "n: cy[10,20)"]
    copy(20, "m:bob:u n:cy:u", scope={"region": "u"})
    assert fed.lives == ["k: ann[10,)", "m: bob[10,)", "n: cy[10,20) cy[20,)"]
    for at, text, scope, code in (
        (30, "k:ann:u", {"region": "e"}, "out-of-scope"),
        (20, "k:ann:e", {"v": "ann"}, "same-instant"),
        (20, "k:ann:e n:cy:e", {"region": "e"}, "same-instant"),
        (30, "k:ann:e", {"country": "e"}, "bad-option"),
    ):
        with pytest.raises(BackstoryError) as stop:
            copy(at, text, scope=scope)
        assert stop.value.code == code
    assert copy(20, "k:ann:e", scope={"region": "e"}).snapshot_id is None
    assert fed.check() == []


def test_E12_a_feed_can_follow_copies(fed):
    fed.copy(10, "k:a m:a")
    fed.copy(20, "k:b m:a")
    fed.apply("k: c@25")
    assert fed.lives == ["k: a[10,20) b[20,25) c[25,)", "m: a[10,)"]
    assert fed.refused("m: z@15") == "settled"
    assert fed.apply("m: z@15", late="drop") == {"too_late": 1}
    fed.apply("k: o@5 m: a@7")
    assert fed.lives == ["k: o[5,10) a[10,20) b[20,25) c[25,)", "m: a[7,)"]


def test_E14_a_rewound_change_can_be_replaced(fed):
    fed.apply("k: a@10")
    first = fed.warehouse.table(fed.name).log()[0]
    fed.apply("k: x@20")
    fed.warehouse.table(fed.name).rewind(first["recorded_at"], apply=True)
    fed.apply("k: b@20")
    assert fed.lives == ["k: a[10,20) b[20,)"]


def test_E15_a_restatement_replaces_changes_from_a_date(fed):
    fed.apply("k: a@10 k: b@20 k: c@30 m: a@10")
    fed.apply("k: x@12 k: c@25", restate_from=day(12), restate_until=day(30))
    assert fed.lives == ["k: a[10,12) x[12,25) c[25,)", "m: a[10,)"]
    assert fed.refused("k: y@40", restate_from=day(12), restate_until=day(30)) == "outside-restatement"


def test_E17_late_changes_of_settled_times_are_refused(fed):
    fed.apply("k: a@10 k: -@30 m: A@5 m: A@10 m: A@15")
    fed.warehouse.table(fed.name).maintain(settle_before=day(20))
    fed.apply("k: b@25")
    assert fed.lives == ["k: a[10,25) b[25,30)", "m: A[5,)"]
    assert fed.refused("m: B@12") == "settled"
    assert fed.apply("m: B@12", late="drop") == {"too_late": 1}


def test_E19_repeated_changes_are_duplicates_and_a_copy_can_be_replaced(fed):
    fed.apply("k: a@10 k: b@20")
    assert fed.apply("k: b@20 k: a@10") == {"duplicate": 2}
    fed.copy(30, "k:b")
    fed.copy(30, "k:b")
    assert fed.lives == ["k: a[10,20) b[20,)"]
    with pytest.raises(BackstoryError, match="Another copy"):
        fed.copy(30, "k:c")
    fed.copy(30, "k:c", restate=True)
    assert fed.lives == ["k: a[10,20) b[20,30) c[30,)"]
    assert fed.commits == 3


def test_E6_a_sparse_update_is_completed_by_a_late_change(fed):
    schema = pa.schema(
        {"k": pa.string(), "v": pa.string(), "city": pa.string(), "at": pa.timestamp("us", "UTC")}
    )

    def say(v, city, at):
        rows = pa.Table.from_pylist([{"k": "k", "v": v, "city": city, "at": day(at)}], schema)
        receipt = fed.warehouse.apply(rows, into=fed.name, key="k", sequence_by="at", unmodified="_")
        return {name: count for name, count in receipt.counts.items() if count}

    def shown():
        return lives(
            [
                {**row, "v": f"{row['v'] or '~'}/{row['city']}"}
                for row in fed.rows
                if (row["_memory"] or {}).get("role") is None
            ]
        )

    assert say("_", "rome", 20) == {"began": 1, "partial": 1}
    assert shown() == ["k: ~/rome[20,)"]
    say("ann", "oslo", 10)
    assert shown() == ["k: ann/oslo[10,20) ann/rome[20,)"]
    say("bob", "_", 15)
    assert shown() == ["k: ann/oslo[10,15) bob/oslo[15,20) bob/rome[20,)"]


def test_E7_null_and_unmodified_are_different(fed):
    rows = pa.Table.from_pylist(
        [
            {"k": "k", "v": "ann", "city": "oslo", "at": day(10)},
            {"k": "k", "v": None, "city": "rome", "at": day(20)},
        ],
        pa.schema({"k": pa.string(), "v": pa.string(), "city": pa.string(), "at": pa.timestamp("us", "UTC")}),
    )
    other = fed.name + "b"
    fed.warehouse.apply(rows, into=fed.name, key="k", sequence_by="at")
    fed.warehouse.apply(rows, into=other, key="k", sequence_by="at", ignore_null_updates=True)
    now = {name: fed.warehouse.table(name).current().collect()[0].v for name in (fed.name, other)}
    assert now == {fed.name: None, other: "ann"}


def test_V50_a_cell_is_unmodified_by_its_text_even_if_the_row_names_its_column(fed):
    rows = pa.table(
        {
            "k": ["k"] * 3,
            "v": ["ann", "_", "bob"],
            "city": ["oslo", "rome", "bergen"],
            "at": [day(10), day(20), day(30)],
            "sets": [["v", "city"], ["v", "city"], ["city"]],
        }
    )
    options = {"columns_to_update": "sets", "unmodified": "_", "drop": ["sets", "at"]}
    fed.warehouse.apply(rows, into=fed.name, key="k", sequence_by="at", **options)
    table = fed.warehouse.table(fed.name)
    rows = [table.as_of(day(at)).select("v", "city").first() for at in (10, 20, 30)]
    assert [tuple(row) for row in rows] == [("ann", "oslo"), ("ann", "rome"), ("ann", "bergen")]


def test_the_first_feed_starts_the_memory_and_settles_earlier_copies(fed):
    """V28: The first feed starts the memory and settles the time of earlier copies."""
    fed.copy(10, "k:a")
    assert SETTLED not in existing(fed.store, table_name(fed.name)).properties
    fed.apply("k: b@20")
    properties = existing(fed.store, table_name(fed.name)).properties
    assert (properties[SETTLED].count("2024-03-10"), MEMORY_SINCE in properties) == (2, True)


@pytest.mark.parametrize(
    ("column", "type_", "code", "type_name"),
    [
        ("at", pa.int64(), "no-instant", "BIGINT"),
        ("at", pa.float64(), "no-instant", "DOUBLE"),
        ("at", pa.timestamp("us"), "naive-time", None),
    ],
)
def test_sequence_columns_without_instants_are_refused(store, column, type_, code, type_name):
    """V45: The first of sequence_by must contain instants."""
    fed = Fed(Warehouse(store, embedded=False))
    rows = events("k: a@10")
    values = rows["at"].cast(pa.timestamp("us") if pa.types.is_timestamp(type_) else pa.int64()).cast(type_)
    rows = rows.set_column(rows.column_names.index(column), column, values)
    with pytest.raises(BackstoryError) as stop:
        fed.warehouse.apply(rows, into=fed.name, **FEED)
    assert stop.value.code == code
    assert (f"of type {type_name}," in stop.value.message) is (type_name is not None)


LINES = (
    '{"k": "a", "v": {"x": 1, "y": {"z": 1}, "w": [{"u": 1}]}, "at": "2024-03-10"}\n',
    '{"k": "a", "v": {}, "at": "2024-03-11"}\n',
    '{"k": "a", "v": {"y": {}, "w": [{}]}, "at": "2024-03-12"}\n',
    "",
)


def test_json_feeds_have_the_same_result_in_any_split(fed, tmp_path):
    """L2: Objects without keys have the table's type. A file without a line is no change (V59)."""
    (tmp_path / "none.jsonl").touch()
    whole, order = f"{fed.name}w", {"key": "k", "sequence_by": "at"}
    assert not any(fed.warehouse.apply(tmp_path / "none.jsonl", into=whole, **order).counts.values())
    for number, text in enumerate(LINES):
        (tmp_path / f"{number}.jsonl").write_text(text)
        receipt = fed.warehouse.apply(tmp_path / f"{number}.jsonl", into=fed.name, **order)
        assert receipt.counts["began"] == (text != "")
    (tmp_path / "whole.jsonl").write_text("".join(LINES))
    fed.warehouse.apply(tmp_path / "whole.jsonl", into=whole, **order)
    one, other = (fed.warehouse.table(name).timeline("a").versions for name in (whole, fed.name))
    assert [(each["v"], each["valid_from"]) for each in one] == [
        (each["v"], each["valid_from"]) for each in other
    ]


@pytest.mark.parametrize("words", [{"sequence_by": ["at", "seq desc"]}, {"apply_as_deletes": "v = 'a' and"}])
def test_a_word_after_an_expression_is_not_an_alias(store, words):
    """Spark would read the word as a name, so the order or the condition would not be the intended one."""
    fed = Fed(Warehouse(store, embedded=False))
    with pytest.raises(BackstoryError, match="Spark cannot compute") as stop:
        fed.warehouse.apply(events("k: a@10"), into=fed.name, **FEED | words)
    assert stop.value.code == "bad-option"


def test_a_row_without_a_key_or_an_order_refuses_the_delivery(fed):
    """V47: A row with NULL in a key or order column refuses the delivery."""
    rows = events("k: a@10 m: b@20").to_pylist()
    for name, code in (("k", "null-key"), ("at", "null-sequence"), ("seq", "null-sequence")):
        wrong = pa.Table.from_pylist([rows[0], rows[1] | {name: None}], TYPES)
        with pytest.raises(BackstoryError) as stop:
            fed.warehouse.apply(wrong, into=fed.name, **FEED)
        assert stop.value.code == code


COMPARISONS = [("op in ('D', 'T')", None), ("op = 'D'", 0), ("op = 'D'", None)]


@pytest.mark.parametrize(("order", "size"), COMPARISONS[: deep(3, 2)])
def test_a_null_comparison_cannot_order_changes(store, order, size):
    """V47: The driver and Spark's tasks refuse the same rows. As a condition, NULL is false (V48)."""
    store = store if size is None else replace(store, memory=Memory(size))
    fed = Fed(Warehouse(store, embedded=False))
    rows = pa.Table.from_pylist([{**events("k: a@10").to_pylist()[0], "op": None}], TYPES)
    with pytest.raises(BackstoryError) as stop:
        fed.warehouse.apply(rows, into=fed.name, **FEED | {"sequence_by": ["at", order]})
    assert (stop.value.code, stop.value.keys) == ("null-sequence", ["k"])
    assert fed.warehouse.apply(rows, into=fed.name, **FEED).counts["began"] == 1


def test_a_dry_run_only_reports_the_changes(fed):
    """V120: A dry run reports counts and writes nothing."""
    fed.apply("k: a@10")
    plan = fed.warehouse.apply(events("k: b@20 m: x@5"), into=fed.name, **FEED, dry_run=True)
    assert {name: count for name, count in plan.counts.items() if count} == {"began": 2}
    assert sorted(plan.keys["began"]) == ["k=k", "k=m"] or sorted(plan.keys["began"]) == ["k", "m"]
    assert (fed.lives, fed.commits) == (["k: a[10,)"], 1)


def test_settings_are_kept_and_may_not_be_contradicted(fed):
    """V13: The table stores settings, and contradicting ones are refused."""
    fed.apply("k: a@10")
    rows = events("k: b@20")
    fed.warehouse.apply(rows, into=fed.name)
    assert fed.lives == ["k: a[10,20) b[20,)"]
    assert fed.refused("k: c@30", sequence_by=["at"]) == "settings-changed"
    assert fed.refused("k: c@30", key="v") == "key-changed"


def test_the_table_keeps_the_types_of_its_order_in_their_stored_form(fed):
    fed.apply("k: a@10")
    ordered_by = json.loads(existing(fed.store, table_name(fed.name)).properties[ORDERED_BY])
    assert [each["type"] for each in ordered_by] == ["TIMESTAMP", "LONG"]
    rows = events("k: b@20")
    other = rows.set_column(rows.column_names.index("seq"), "seq", rows["seq"].cast(pa.string()))
    with pytest.raises(Refused, match="seq orders changes as BIGINT in the table, but has type STRING"):
        fed.warehouse.apply(other, into=fed.name, **FEED)


def test_row_options_are_stored_for_later_feeds(fed):
    """A delivery without these options uses the stored ones, if it has their columns."""
    fed.apply("k: a@10")
    fed.warehouse.apply(events("k: b@20 k: -@30"), into=fed.name)
    assert fed.lives == ["k: a[10,20) b[20,30)"]
    fed.warehouse.apply(events("k: c@40").drop_columns(["op"]), into=fed.name)
    assert fed.lives == ["k: a[10,20) b[20,30) c[40,)"]
    assert "op" not in fed.warehouse.table(fed.name).current().columns


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"apply_as_truncates": None, "drop": None}, "apply_as_deletes"),
        ({"apply_as_deletes": "upper(`op`) = 'T'", "drop": None}, "apply_as_deletes"),
        ({"apply_as_deletes": None, "drop": None}, "apply_as_truncates"),
        ({"apply_as_deletes": None, "apply_as_truncates": None}, "drop"),
    ],
)
def test_a_column_in_another_case_does_not_disable_stored_options(fed, options, named):
    """B5: Otherwise deletes would be stored as updates, and dropped columns would be stored."""
    fed.apply("k: a@10", **options)
    rows = events("k: -@20")
    capitals = rows.rename_columns(["OP" if name == "op" else name for name in rows.column_names])
    for dry_run in (True, False):
        with pytest.raises(Refused, match=f"has column OP, and the table's `{named}=` names op") as stop:
            fed.warehouse.apply(capitals, into=fed.name, dry_run=dry_run)
        assert (stop.value.code, stop.value.keys) == ("other-case", ["OP"])
    assert (fed.lives, fed.commits) == (["k: a[10,)"], 1)
    again = {"apply_as_deletes": "OP = 'D'", "apply_as_truncates": "OP = 'T'", "drop": ["OP", "seq"]}
    fed.warehouse.apply(capitals, into=fed.name, **again)
    fed.warehouse.apply(capitals, into=fed.name)
    assert fed.lives == ["k: a[10,20)"]


def test_a_literal_is_a_condition(fed):
    """`false` is not the name of a column, although it has the form of one."""
    fed.warehouse.apply(events("k: a@10"), into=fed.name, **{**FEED, "apply_as_deletes": "false"})
    assert fed.lives == ["k: a[10,)"]
    fed.warehouse.apply(events("k: b@20"), into=fed.name, apply_as_deletes="TRUE")
    assert fed.lives == ["k: a[10,20)"]


def test_new_row_options_replace_stored_options(fed):
    fed.apply("k: a@10")
    fed.warehouse.apply(events("k: b@20"), into=fed.name, apply_as_deletes="op = 'U'")
    fed.warehouse.apply(events("m: b@20"), into=fed.name)
    assert fed.lives == ["k: a[10,20)"]
    fed.warehouse.apply(events("m: c@30"), into=fed.name, apply_as_deletes="op = 'D'")
    assert fed.lives == ["k: a[10,20)", "m: c[30,)"]


@pytest.mark.parametrize(
    "option",
    [{"ignore_null_updates": ["v"]}, {"unmodified": "same"}, {"ignore_null_updates": True}][: deep(3, 2)],
)
def test_options_for_unmodified_cells_are_stored(fed, option):
    """Otherwise NULL would be stored for an unmodified cell."""
    text = "k: same@20" if "unmodified" in option else "k: ~@20"
    fed.apply("k: a@10", **option)
    fed.warehouse.apply(events(text), into=fed.name)
    assert fed.lives == ["k: a[10,)"]


def test_dates_and_texts_can_order_changes(store):
    """V45: A date is its first instant, and a text without an offset is UTC."""
    fed = Fed(Warehouse(store, embedded=False))
    rows = pa.table({"k": ["a", "b"], "v": ["1", "2"], "at": ["2024-03-10", "2024-03-10T02:00:00+02:00"]})
    fed.warehouse.apply(rows, into=fed.name, key="k", sequence_by="at")
    assert fed.lives == ["a: 1[10,)", "b: 2[10,)"]
    days = pa.table({"k": ["a"], "v": ["1"], "d": pa.array([(ZERO + timedelta(days=10)).date()])})
    fed.warehouse.apply(days, into=fed.name + "d", key="k", sequence_by="d")
    (row,) = fed.warehouse.table(fed.name + "d").current().toArrow().to_pylist()
    assert row["valid_from"] == day(10)
    with pytest.raises(BackstoryError, match="Row 2") as stop:
        fed.warehouse.apply(
            pa.table({"k": ["a", "b"], "v": ["1", "2"], "at": ["2024-03-10", "soon"]}),
            into=fed.name + "x",
            key="k",
            sequence_by="at",
        )
    assert stop.value.code == "unreadable-instant"


@pytest.mark.parametrize("where", ["here", "in_tasks"])
def test_unmodified_csv_cells_keep_values_of_any_type(where, store, tmp_path):
    """Numbers, days and texts are unmodified, even if a column of this file has no other cell, or the table
    stores the option."""
    into = in_tasks_of(store) if where == "in_tasks" else Fed(Warehouse(store, embedded=False))
    path = tmp_path / "events.csv"

    def say(text, **options):
        path.write_text("k,price,day,note,at\n" + text)
        into.warehouse.apply(str(path), into=into.name, key="k", sequence_by="at", **options)
        rows = into.warehouse.table(into.name).current().toArrow().sort_by("k").to_pylist()
        return [(row["k"], row["price"], row["day"] and str(row["day"]), row["note"]) for row in rows]

    first = "1,10,2026-01-01,a,2026-02-01\n2,=,=,=,2026-02-01\n"
    assert say(first, unmodified="=") == [(1, 10, "2026-01-01", "a"), (2, None, None, None)]
    assert say("1,=,2026-01-02,=,2026-02-02\n") == [(1, 10, "2026-01-02", "a"), (2, None, None, None)]
    assert say("1,,=,b,2026-02-03\n2,=,=,=,2026-02-03\n")[0] == (1, None, "2026-01-02", "b")


def test_a_key_equal_to_the_unmodified_placeholder_is_kept(fed, tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("k,v,at\n=,a,2026-02-01\nx,=,2026-02-01\n")
    fed.warehouse.apply(str(path), into=fed.name, key="k", sequence_by="at", unmodified="=")
    assert [row["k"] for row in fed.rows if row["k"] is not None] == ["=", "x"]
