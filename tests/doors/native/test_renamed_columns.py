"""Columns that a copy renames or retypes, in the options of feeds and in the scopes of stored copies."""

from dataclasses import replace

import pyarrow as pa
import pytest
from remembering import day, lives

from backstory.doors.native.feeds.agreement import rename_in_text
from backstory.errors import Refused
from backstory.formats.memory import Memory
from backstory.settings import DRIVER_MEMORY
from backstory.warehouse import Warehouse

NAMES = {"op": "kind", "ts": "changed at", "a": "b", "b": "a", "tick": "t`k"}


@pytest.fixture
def lake(store):
    return Warehouse(store, embedded=False)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ts", "`changed at`"),
        ("tick", "`t``k`"),
        ("op = 'D'", "kind = 'D'"),
        ("`op` in ('op', 'D')", "kind in ('op', 'D')"),
        ('coalesce(op, "op")', 'coalesce(kind, "op")'),
        ("x.op = 1 and `x`.`op` = 2 and op=2", "x.op = 1 and `x`.`op` = 2 and kind=2"),
        ("to_utc_timestamp(ts, 'Europe/Paris')", "to_utc_timestamp(`changed at`, 'Europe/Paris')"),
        ("a(a + b) > b", "a(b + a) > a"),
        ("op_x = ts2", "op_x = ts2"),
        ("a '2026-01-01' < a", "a '2026-01-01' < b"),
    ],
)
def test_a_rename_changes_only_column_names_in_expressions(before, after):
    """Strings, functions, fields of structs and prefixes of literals keep their words."""
    assert rename_in_text(before, NAMES) == after


def rows_of_feed(text, **names):
    """Rows of a feed: key, value or `~`, day, sequence, and `y` for a delete."""
    cells = [each.split(":") for each in text.split()]
    columns = {
        "k": [key for key, *_ in cells],
        "v": [None if value == "~" else value for _, value, *_ in cells],
        "at": [day(at) for _, _, at, *_ in cells],
        "seq": [int(seq) for *_, seq, _ in cells],
        "gone": [gone for *_, gone in cells],
    }
    return pa.table({names.get(name, name): values for name, values in columns.items()})


def test_a_feed_continues_under_renamed_columns(lake):
    """The order, the deletes and the unmodified NULLs still apply, although the later feed repeats none."""
    into, new = "renamed.feed", {"v": "value", "at": "changed", "seq": "lsn", "gone": "deleted"}
    lake.apply(
        rows_of_feed("k:a:10:1:n m:a:10:1:n"),
        into=into,
        key="k",
        sequence_by=["at", "seq"],
        apply_as_deletes="gone = 'y'",
        ignore_null_updates=["v"],
        ignore=["gone"],
    )
    copy = rows_of_feed("k:a:15:1:n m:a:15:1:n", **new)
    lake.snapshot(copy, into=into, at=day(15), rename=new)
    receipt = lake.apply(rows_of_feed("k:b:20:2:n k:~:20:3:n m:a:20:4:y", **new), into=into)
    assert (receipt.counts["ended"], receipt.schema_changes) == (1, [])
    rows = lake.spark.sql(f"SELECT *, value AS v FROM backstory.{into} WHERE _memory.role IS NULL").toArrow()
    assert lives(rows.to_pylist()) == ["k: a[10,20) b[20,)", "m: a[10,20)"]


@pytest.mark.parametrize("memory", [DRIVER_MEMORY, 0])
def test_a_column_of_a_stored_scope_keeps_its_name_and_type(store, memory):
    """Its marks store the name and the value as text. Once they are settled, the column may change."""
    lake, into = Warehouse(replace(store, memory=Memory(memory)), embedded=False), f"renamed.scopes_{memory}"
    columns = {"k": ["k", "m"], "v": ["a", "b"], "part": [1, 1]}
    lake.snapshot(pa.table(columns), into=into, key="k", at=day(10), scope={"part": 1})
    renamed = pa.table(columns).rename_columns(["k", "v", "area"])
    texts = pa.table(columns | {"part": ["1", "1"]})
    for rows, options in (
        (renamed, {"rename": {"part": "area"}}),
        (texts, {"retype": {"part": "STRING"}}),
        (renamed, {"rename": {"part": "area"}, "scope": {"area": 1}}),
    ):
        with pytest.raises(Refused) as stop:
            lake.snapshot(rows, into=into, at=day(20), **options)
        assert (stop.value.code, stop.value.keys) == ("settings-changed", ["part"])
    assert len(lake.table(into).log()) == 1
    lake.snapshot(
        pa.table(columns).rename_columns(["k", "w", "part"]), into=into, at=day(20), rename={"v": "w"}
    )
    lake.table(into).maintain(settle_before=day(10))
    with pytest.raises(Refused) as stop:
        lake.snapshot(
            renamed.rename_columns(["k", "w", "area"]), into=into, at=day(5), rename={"part": "area"}
        )
    assert stop.value.code == "settled"
    receipt = lake.snapshot(
        renamed.rename_columns(["k", "w", "area"]), into=into, at=day(30), rename={"part": "area"}
    )
    assert receipt.counts["unchanged"] == 2
    assert [law for law in lake.table(into).check() if law["violations"]] == []
