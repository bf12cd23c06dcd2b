"""Rows of several sides, whole or in parts by key: the same rows, with each key in one part, for any memory."""

from contextlib import ExitStack

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.engine.plans import SideRows, parts_by_key
from backstory.engine.row_buffers import RowBuffer, Spill
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory, TooLarge
from backstory.model.change import RowBatches

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
SIDE = st.lists(st.tuples(st.none() | st.text(max_size=3), st.integers(0, 9)), max_size=30)


def rows(pairs):
    """A side that is read five rows at a time."""
    table = pa.Table.from_pylist([{"k": k, "v": v} for k, v in pairs], SCHEMA)
    return SideRows(SCHEMA, lambda: [table.slice(first, 5) for first in range(0, len(table), 5)])


def parts(sides, most, **how):
    with Memory(CLEAR_TEXT_SHARE * most).lease() as lease:
        return [dict(part) for part in parts_by_key(sides, ["k"], lease, **how)]


@given(SIDE, SIDE, st.booleans())
def test_parts_contain_all_rows_and_each_key_is_in_one_part(left, right, spread):
    """This holds for both sides, and rows keep their order within a part."""
    sides = {"left": rows(left), "right": rows(right)}
    all_parts = parts(sides, 1 << 20, spread=spread)
    assert len(all_parts) == (16 if spread else 1)
    for name, pairs in (("left", left), ("right", right)):
        each = [[tuple(row.values()) for row in part[name].to_pylist()] for part in all_parts]
        assert sorted(map(repr, (row for part in each for row in part))) == sorted(map(repr, pairs))
        for part in each:
            assert part == [pair for pair in pairs if pair in part]
    keys = [{row["k"] for side in part.values() for row in side.to_pylist()} for part in all_parts]
    assert sum(map(len, keys)) == len({k for k, _ in [*left, *right]})


def test_rows_and_parts_larger_than_the_memory_are_spilled():
    """Bytes are counted as they are read. Without permission, nothing is spilled."""
    sides = {"left": rows([(f"key {number}", number) for number in range(2_000)])}
    assert len(parts(sides, 1 << 20)) == 1
    assert len(parts(sides, 1 << 14)) == 16
    assert len(parts(sides, 1 << 10)) == 256
    with pytest.raises(TooLarge):
        parts(sides, 1 << 14, spills=False)
    with pytest.raises(TooLarge):
        parts({"left": rows([("one key", number) for number in range(2_000)])}, 1 << 10)


def test_spilled_rows_are_unreadable_on_disk_and_deleted_afterwards(tmp_path, monkeypatch):
    """Only this process has their key."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = pa.table({"k": ["a secret word"] * 3})
    with ExitStack() as stack:
        spill = Spill(stack)
        spill.put("x", table)
        spill.put("x", table)
        assert pa.concat_tables(spill.rows("x")) == pa.concat_tables([table, table])
        assert list(spill.rows("none")) == []
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert files
        assert not any(b"secret" in path.read_bytes() for path in files)
    assert not any(tmp_path.rglob("*"))


def test_dropping_spilled_rows_keeps_the_others():
    """A file that is opened after a drop has its own name."""
    one, two = pa.table({"k": [1]}), pa.table({"k": [2]})
    with ExitStack() as stack:
        spill = Spill(stack)
        spill.put("a", one)
        spill.put("b", one)
        assert list(spill.rows("b")) == [one]
        spill.drop("a")
        spill.put("c", two)
        assert [list(spill.rows(name)) for name in "cba"] == [[two], [one], []]


def test_rows_to_write_are_one_table_or_pieces_of_spilled_rows():
    """Rows are the same in both ways, and empty if there are none."""
    table = pa.table({"v": list(range(1_000))})
    with ExitStack() as stack, Memory(CLEAR_TEXT_SHARE * 10_000).lease() as lease:
        small, large = RowBuffer("small", lease, stack), RowBuffer("large", lease, stack)
        assert small.rows() is None
        small.add(table.slice(0, 10))
        for _ in range(3):
            large.add(table)
        assert small.rows() == table.slice(0, 10)
        pieces = large.rows()
        assert isinstance(pieces, RowBatches)
        assert pa.concat_tables(pieces.tables())["v"].to_pylist() == list(range(1_000)) * 3


def test_buffered_rows_are_spilled_to_leave_memory_for_reading():
    """Rows that could be spilled take no memory from others."""
    table = pa.table({"k": [f"key {number}" for number in range(1_000)]})
    with ExitStack() as stack, Memory(CLEAR_TEXT_SHARE * 10 * table.nbytes).lease() as lease:
        gathering = RowBuffer("gathering", lease, stack)
        for _ in range(20):
            gathering.add(table)
            lease.hold("read", 3 * table.nbytes)
            lease.hold("read", 0)
        assert gathering.is_spilled
        assert gathering.count == 20_000
