"""Columns added after a copy was stored: the copy asserted nothing about them (V22, V138)."""

from dataclasses import replace
from itertools import count, permutations

import pyarrow as pa
import pytest
from remembering import day

from backstory.errors import Refused
from backstory.formats.memory import Memory
from backstory.settings import DRIVER_MEMORY
from backstory.warehouse import Warehouse

NUMBERS = count()


class Later:
    """A table with versions of k, v and w, where w is NULL as long as the table lacks it."""

    def __init__(self, store, memory=DRIVER_MEMORY):
        self.warehouse = Warehouse(replace(store, memory=Memory(memory)), embedded=False)
        self.name = f"later.t{next(NUMBERS)}"

    def copy(self, at, text, names="kvw", **options):
        return self.warehouse.snapshot(
            rows_of(text, names), into=self.name, key="k", at=day(at), max_delete_ratio=1, **options
        )

    def event(self, at, text, names="kvw"):
        rows = rows_of(text, names).append_column("at", pa.array([day(at)], pa.timestamp("us", "UTC")))
        return self.warehouse.apply(rows, into=self.name, key="k", sequence_by=["at"], drop=["at"])

    def at(self, instant):
        rows = self.warehouse.table(self.name).as_of(day(instant)).collect()
        return sorted("".join(row[name] or "~" for name in "kvw" if name in row) for row in rows)

    def broken(self):
        return [law for law in self.warehouse.table(self.name).check() if law["violations"]]


def rows_of(text, names):
    """Rows such as `ka1 mb2` of one letter for each column, `~` for NULL."""
    columns = zip(*(word.replace("~", "\0") for word in text.split()), strict=True)
    return pa.table(
        {
            name: pa.array([None if cell == "\0" else cell for cell in cells], pa.string())
            for name, cells in zip(names, columns, strict=True)
        }
    )


@pytest.mark.parametrize(("late", "memory"), [("copy", DRIVER_MEMORY), ("event", 0)])
def test_the_arrival_order_of_columns_is_irrelevant(store, late, memory):
    """L1: The copy of 20 has no w, so it keeps the w of a fact before it, whichever arrived first."""
    deliveries = {
        "first": lambda table: table.event(5, "kz", "kv"),
        "late": lambda table: getattr(table, late)(10, "ka1"),
        "narrow": lambda table: table.copy(20, "ka", "kv"),
    }
    for order in permutations(["late", "narrow"]):
        table = Later(store, memory)
        for name in ("first", *order):
            deliveries[name](table)
        assert [table.at(time) for time in (7, 15, 25)] == [["kz~"], ["ka1"], ["ka1"]], order
        assert table.broken() == []


@pytest.mark.parametrize("memory", [DRIVER_MEMORY, 0])
def test_only_late_copies_with_a_newer_column_are_refused(store, memory):
    """The copy of 20 had no w. A late copy with w would lose it there; one without w loses nothing."""
    table = Later(store, memory)
    table.copy(20, "ka", "kv", remember=True)
    table.copy(30, "ka1")
    with pytest.raises(Refused) as stop:
        table.copy(10, "kb2")
    assert stop.value.code == "settled"
    assert table.copy(10, "kb", "kv").counts["reopened"] == 1
    assert [table.at(time) for time in (15, 25, 35)] == [["kb~"], ["ka~"], ["ka1"]]
    table.copy(20, "ka3", restate=True)
    assert table.copy(12, "kc4").counts["changed"] == 1
    assert [table.at(time) for time in (11, 15, 25, 35)] == [["kb~"], ["kc4"], ["ka3"], ["ka1"]]
    assert table.broken() == []
