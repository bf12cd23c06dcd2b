"""Rows of several sides in the order in which they come: the same rows, each key in one part."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from backstory.engine.parts import Rows
from backstory.engine.steps import (
    ComingRows,
    OutOfStep,
    PlacedRows,
    is_small,
    parts_as_they_come,
    parts_in_step,
    rows_in_step,
)
from backstory.errors import Failed
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory, TooLarge
from backstory.model.places import FILE, POSITION

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string()), ("v", pa.int64())])
PLACED = pa.schema([*SCHEMA, (FILE, pa.dictionary(pa.int32(), pa.string())), (POSITION, pa.int64())])
KEYS = {"a whole number": ["k"], "a text": ["t"], "both": ["k", "t"]}
NUMBERS = st.lists(st.integers(0, 40), max_size=40)


def table(numbers):
    """A row for each number, which is its key; rows of one key differ by `v`."""
    rows = [{"k": k, "t": f"key {k}", "v": place} for place, k in enumerate(numbers)]
    return pa.Table.from_pylist(rows, SCHEMA)


def reader(rows):
    return Rows(rows.schema, lambda: [rows.slice(first, 5) for first in range(0, len(rows), 5)])


def coming(numbers, key):
    rows = table(numbers)
    return ComingRows(reader(rows), reader(rows.select(key)))


def placed(files, key):
    """Stored rows in files, read by place; and all of them."""
    tables = [
        table(numbers)
        .append_column(FILE, pa.array([f"file {number}"] * len(numbers)).dictionary_encode())
        .append_column(POSITION, pa.array(range(len(numbers)), pa.int64()))
        .cast(PLACED)
        for number, numbers in enumerate(files)
    ]
    rows = pa.concat_tables([PLACED.empty_table(), *tables]).unify_dictionaries()
    where = pc.binary_join_element_wise(rows[FILE].cast("string"), rows[POSITION].cast("string"), "/")

    def at(places):
        names = pc.binary_join_element_wise(places[FILE].cast("string"), places[POSITION].cast("string"), "/")
        return rows.take(pc.index_in(names, value_set=where.combine_chunks()))

    return PlacedRows(reader(rows.select([*key, FILE, POSITION])), at), rows


def parts(came, stored, key, count, most=1 << 20):
    memory = Memory(CLEAR_TEXT_SHARE * most)
    with parts_in_step("came", came, stored, key, memory, count) as found:
        taken = None if found is None else [dict(part) for part in found]
    with memory.lease() as lease:
        lease.hold("everything", memory.most)  # whose steps are over, holds nothing
    return taken


def values(rows):
    return [(row["k"], row["v"]) for row in rows.to_pylist()]


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@given(NUMBERS, st.lists(NUMBERS, max_size=3), st.integers(1, 50))
def test_the_parts_are_the_rows_and_each_key_is_in_one_of_them(key, numbers, files, count):
    """What comes keeps its order, in parts of so many rows; or it is refused because the orders differ."""
    one, rows = placed(files, key)
    found = parts(coming(numbers, key), {"stored": one}, key, count)
    assume(found is not None)
    came = [values(part["came"]) for part in found]
    assert [row for part in came for row in part] == values(table(numbers))
    assert all(len(part) <= count for part in came)
    stored = [values(part["stored"]) for part in found]
    assert sorted(row for part in stored for row in part) == sorted(values(rows))
    keys = [
        {row[0] for side in (mine, theirs) for row in side} for mine, theirs in zip(came, stored, strict=True)
    ]
    assert sum(map(len, keys)) == len({*numbers, *(k for each in files for k in each)})


def test_stored_rows_in_the_order_of_those_that_come_are_read_as_they_are_needed():
    """New rows are behind, rows that do not come any more in parts of their own."""
    one, _ = placed([[0, 1, 2, 3, 4, 5]], ["k"])
    found = parts(coming([1, 2, 3, 4, 5, 6, 7], ["k"]), {"stored": one}, ["k"], 3)
    assert [[k for k, _ in values(part["came"])] for part in found] == [[1, 2, 3], [4, 5, 6], [7], []]
    assert [[k for k, _ in values(part["stored"])] for part in found] == [[1, 2, 3], [4, 5], [], [0]]


@pytest.mark.parametrize(
    ("numbers", "stored"),
    [
        ([*range(50), 0], [[*range(50)]]),
        ([*range(50)], [[number * 7 % 50 for number in range(50)]]),
    ],
    ids=["a key that comes twice, far apart", "another order"],
)
def test_rows_that_are_out_of_step_are_none(numbers, stored):
    """They are laid down by key."""
    one, _ = placed(stored, ["k"])
    assert parts(coming(numbers, ["k"]), {"stored": one}, ["k"], 5) is None


@pytest.mark.parametrize("second", [[*range(12)], [*range(8)], [*range(9)]])
def test_a_source_that_changes_between_its_readings_is_refused(second):
    """More rows than before, or fewer: what was matched is then not what comes."""
    came = ComingRows(reader(table(second)), reader(table([*range(10)]).select(["k"])))
    with pytest.raises(Failed, match="changed while it was read"):
        parts(came, {}, ["k"], 3)


def test_parts_and_keys_that_the_memory_cannot_hold_are_refused():
    """A number for each key, and two parts."""
    one, _ = placed([[*range(1000)]], ["t"])
    came = coming([*range(1000)], ["t"])
    assert parts(came, {"stored": one}, ["t"], 10, most=64 << 10) is not None
    for most, count in ((4 << 10, 10), (64 << 10, 1000)):
        with pytest.raises(TooLarge):
            parts(came, {"stored": one}, ["t"], count, most=most)


def test_the_rows_of_a_step_are_a_sixteenth_of_the_memory():
    """What is smaller is planned as a whole."""
    memory = Memory(CLEAR_TEXT_SHARE * 16 * 4800)
    assert rows_in_step(memory, [reader(table([]))]) == 100
    assert is_small(memory, 4799)
    assert not is_small(memory, 4800)
    assert is_small(memory, None)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@given(NUMBERS, st.integers(1, 50))
def test_where_nothing_is_stored_rows_are_read_once_unless_a_key_comes_in_two_parts(key, numbers, count):
    memory, readings, taken = Memory(CLEAR_TEXT_SHARE << 20), [], []

    def read():
        readings.append(len(numbers))
        yield from reader(table(numbers)).tables()

    stored = {"stored": reader(PLACED.empty_table())}
    with parts_as_they_come("came", Rows(SCHEMA, read), stored, key, memory, count) as found:
        try:
            taken += (dict(part) for part in found)
        except OutOfStep:
            assert any(numbers.count(each) > 1 for each in numbers)
            return
    parts_of_keys = [{k for k, _ in values(part["came"])} for part in taken]
    assert [row for part in taken for row in values(part["came"])] == values(table(numbers))
    assert sum(map(len, parts_of_keys)) == len(set(numbers))
    assert all(part["stored"].schema == PLACED and not len(part["stored"]) for part in taken)
    assert readings == [len(numbers)]
