"""The plan of a copy gives the rule's rows, whole and in parts by key, without Spark."""

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from part_plans import whole_plan
from specification.copies import Copy, take
from specification.stored import StoredRow, StoredVersions

from backstory.errors import Refused
from backstory.formats.delivered import arrow_schema, shape_rows
from backstory.model.layout import FILE, POSITION, ROW_ID, VALID_FROM, VALID_TO
from backstory.model.table import Column
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import OWN_COLUMNS, FactKind, Role
from backstory.strategies.copies.comparison import DIFFERING, NO_KEY, SPOILT, plan_rows
from backstory.strategies.copies.plan import APPEARED, CHANGED, CLOSED, UNCHANGED, CopyTerms
from backstory.strategies.copies.version_rows import copy_mark, micros, withdraw_facts
from backstory.strategies.feeds.copy_plan import FeedCopyTerms
from backstory.strategies.feeds.terms import FeedTerms
from backstory.strategies.keys import key_parts

DATA = ("v", "w", "i", "o")
COLUMNS = (*(Column(name, ColumnType(Kind.LONG)) for name in ("k", *DATA)), *OWN_COLUMNS)
SCHEMA = pa.schema([*arrow_schema({each.name: each.type for each in COLUMNS}), pa.field(ROW_ID, pa.int64())])
IGNORED, OVERWRITTEN = frozenset("i"), frozenset("o")
KEYS = st.integers(1, 6)
VALUES = st.fixed_dictionaries({name: st.none() | st.integers(1, 2) for name in DATA})
DELIVERIES = st.tuples(
    st.dictionaries(KEYS, VALUES),
    st.booleans(),
    st.sampled_from([DATA, DATA, DATA, ("v", "w", "o"), ("v", "o"), ("o",), ()]),
)
COPIES = st.lists(DELIVERIES, max_size=5)
# Copies of any instant: (at, restate, delivered).
LATE_COPIES = st.lists(st.tuples(st.integers(0, 5), st.booleans(), DELIVERIES), min_size=3, max_size=6)
WHOLE = 1


def terms_of(at, recorded, delivered, in_order=True, **more):
    named = [name for name in DATA if name in delivered]
    terms = CopyTerms(
        columns=COLUMNS,
        key=("k",),
        delivered=("k", *named),
        compared=tuple(name for name in named if name in {"v", "w"}),
        renewed=tuple(name for name in named if name in OVERWRITTEN),
        tracked=("v", "w"),
        overwritten=("o",),
        at=at,
        recorded=recorded,
        ids=True,
        **more,
    )
    return terms if in_order else replace(terms, feed=among_copies(terms))


def among_copies(terms):
    """The terms of a copy between other copies, as the door makes them."""
    numbers = {name: number for number, name in enumerate(DATA)}
    feed = FeedTerms(
        *(COLUMNS, ("k",), terms.tracked, terms.recorded, numbers, terms.overwritten),
        ids=True,
        following=terms.following,
    )
    ids = sorted(numbers[name] for name in terms.delivered if name in numbers)
    own = shape_rows(copy_mark(terms.at, terms.recorded, terms.memory, ids), COLUMNS, ids=True)
    return FeedCopyTerms(feed, terms.at, own, (*terms.compared, *terms.renewed), terms.restated)


def stored(rule):
    """The rule's rows as a table contains them. Instants and recorded times are in microseconds."""
    rows = []
    for number, row in enumerate(rule.rows):
        memory = {
            "role": row.role and Role(row.role).value,
            "ended_at": row.ended_at,
            "end_before": row.end_before,
            "kind": row.kind and FactKind(row.kind).value,
            "columns": None if row.columns is None else [DATA.index(name) for name in row.columns],
            "scope": None,
        }
        times = {"valid_from": row.start, "valid_to": row.end, "recorded_at": row.recorded}
        memory_cell = memory if any(value is not None for value in memory.values()) else None
        rows.append(
            {
                "k": row.key,
                **row.values,
                **times,
                "is_current": row.end is None,
                "_memory": memory_cell,
                ROW_ID: number,
            }
        )
    return rows


def table(rows):
    return pa.Table.from_pylist(rows, SCHEMA)


def plain(rows):
    """Rows without ids, in comparable form."""
    return sorted(repr({name: row.get(name) for name in SCHEMA.names if name != ROW_ID}) for row in rows)


def placed(rows):
    places = pa.table({FILE: pa.repeat("f", len(rows)), POSITION: pa.array(range(len(rows)), pa.int64())})
    return pa.table(
        {**{n: rows[n] for n in rows.column_names}, **{n: places[n] for n in places.column_names}}
    )


def slice_of(terms, rows):
    """The versions that the copy can touch (V119)."""
    version = pc.is_null(pc.struct_field(rows["_memory"].combine_chunks(), "role"))
    start, end = micros(rows[VALID_FROM]), micros(rows[VALID_TO])
    if terms.in_order:
        return rows.filter(pc.and_(version, rows[VALID_TO].combine_chunks().is_null()))
    reached = end >= terms.at
    if terms.following is not None:
        reached &= start <= terms.following
    return rows.filter(pc.and_(version, pa.array(reached)))


def plan(terms, delivered, rows, parts):
    slice_ = slice_of(terms, rows)
    sides = [(each, key_parts(each, terms.key, parts)) for each in (delivered, slice_)]
    return whole_plan(
        plan_rows(terms, *(each.filter(pa.array(of == part)) for each, of in sides), lambda few: few)
        for part in range(parts)
    )


def take_by_plan(rows, copy, recorded, parts, **place):
    """The stored rows after the copy, and the records by outcome. Rewritten rows keep their ids."""
    rows = placed(table([{**row, ROW_ID: number} for number, row in enumerate(rows)]))
    delivered = pa.Table.from_pylist(
        [{"k": key, **values} for key, values in copy.rows.items()],
        pa.schema([pa.field(name, pa.int64()) for name in ("k", *copy.columns)]),
    )
    terms = terms_of(copy.at, recorded, copy.columns, closes=copy.closes, **place)
    planned = plan(terms, delivered, rows, parts)
    gone = set(planned.removed[POSITION].to_pylist())
    row_ids = [id_ for id_ in planned.added[ROW_ID].to_pylist() if id_ is not None]
    assert sorted(row_ids) == sorted(rows[ROW_ID][each].as_py() for each in gone)
    stays = [row for number, row in enumerate(rows.to_pylist()) if number not in gone]
    known = {row["k"] for row in rows.to_pylist() if (row["_memory"] or {}).get("role") is None}
    reopened = sum(key in known for key in planned.appeared["k"].to_pylist())
    counts = {
        "new": planned.counts.get(APPEARED, 0) - reopened,
        "changed": planned.counts.get(CHANGED, 0),
        "closed": planned.counts.get(CLOSED, 0),
        "reopened": reopened,
        "unchanged": planned.counts.get(UNCHANGED, 0),
    }
    return [*stays, *planned.added.to_pylist()], counts


def with_mark(rows, copy, recorded):
    """The rows with the copy's mark, as the door writes it (V31)."""
    here = [
        row
        for row in rows
        if (memory := row["_memory"] or {}).get("role") == Role.FACT.value
        and memory["ended_at"] is None
        and micros(table([row])[VALID_FROM])[0] == copy.at
    ]
    columns = None if set(copy.columns) >= set(DATA) else [DATA.index(name) for name in copy.columns]
    if here and (here[0]["_memory"]["columns"] == columns or not copy.restate):
        return rows
    memory = OWN_COLUMNS[-1].type
    back = withdraw_facts(table(here), recorded, memory).to_pylist() if here else []
    return [
        *(row for row in rows if row not in here),
        *back,
        *copy_mark(copy.at, recorded, memory, columns).to_pylist(),
    ]


@pytest.mark.parametrize("parts", [WHOLE, 3])
@given(COPIES, st.booleans(), st.booleans())
def test_V7_V9_V18_V31_a_plan_of_ordered_copies_gives_the_rules_rows(parts, series, remembers, moved_before):
    """Versions end, begin and are renewed as in the rule, and lost statements are kept."""
    first = StoredRow(1, dict.fromkeys(DATA, 1), -9, None, -9)
    if moved_before:  # its end was already moved once, and back
        first = StoredRow(1, dict.fromkeys(DATA, 1), -9, None, -9, ended_at=-5, end_before=-6)
    rule = StoredVersions(DATA, (first,), -9, (-9, -8) if remembers else None, IGNORED, OVERWRITTEN)
    rows = stored(rule)
    for number, (delivered, closes, columns) in enumerate(series):
        values = {key: {name: row[name] for name in columns} for key, row in delivered.items()}
        copy = Copy(number, values, columns, closes=closes or remembers)
        taken = take(rule, copy, number)
        rows, counts = take_by_plan(rows, copy, number, parts)
        rows = with_mark(rows, copy, number) if remembers else rows
        rule = taken.table
        assert counts == taken.counts
        assert plain(rows) == plain(table(stored(rule)).to_pylist())


@pytest.mark.parametrize("parts", [WHOLE, 3])
@given(LATE_COPIES, st.booleans())
def test_V8_V30_V37_a_plan_of_late_and_restated_copies_gives_the_rules_rows(parts, series, settles):
    """A copy of any instant is true until the next known one, and withdraws contradicting versions."""
    first = StoredRow(1, dict.fromkeys(DATA, 1), 3, None, -9)
    settled = (3, 4) if settles else ()
    rule = StoredVersions(DATA, (first,) if settles else (), 4, settled, IGNORED, OVERWRITTEN)
    rows = stored(rule)
    for number, (at, restate, (delivered, _, columns)) in enumerate(series):
        values = {key: {name: row[name] for name in columns} for key, row in delivered.items()}
        copy = Copy(at, values, columns, restate=restate)
        try:
            taken = take(rule, copy, number)
        except Refused:
            continue
        marks = [row.start for row in rule.rows if row.is_mark]
        later = [each for each in [*marks, *rule.settled[:1]] if each > at]
        is_stored = at in marks
        in_order = not later and not is_stored
        rows, counts = take_by_plan(
            rows,
            copy,
            number,
            parts,
            following=min(later, default=None),
            in_order=in_order,
            restated=restate and not in_order,
        )
        rows = with_mark(rows, copy, number)
        rule = taken.table
        assert counts == taken.counts
        assert plain(rows) == plain(table(stored(rule)).to_pylist())


def test_missing_and_conflicting_keys_are_sampled():
    """Identical rows of a key are one. A refusal has at most ten keys."""
    rows = placed(table([]))
    terms = terms_of(1, 1, ("v",))
    of = pa.schema([pa.field(name, pa.int64()) for name in ("k", "v")])
    same = plan(terms, pa.Table.from_pylist([{"k": 1, "v": 1}] * 3, of), rows, WHOLE)
    assert same.added["k"].to_pylist() == [1]
    none = plan(terms, pa.Table.from_pylist([{"k": None, "v": 1}, {"k": 1, "v": 1}], of), rows, WHOLE)
    assert (none.counts, none.samples[NO_KEY].to_pylist()) == ({NO_KEY: 1}, [{"k": None}])
    two = plan(terms, pa.Table.from_pylist([{"k": 1, "v": 1}, {"k": 1, "v": 2}], of), rows, WHOLE)
    assert (two.counts, two.samples[DIFFERING].to_pylist()) == ({DIFFERING: 1}, [{"k": 1}])
    many = [{"k": key, "v": value} for key in range(11) for value in (1, 2)]
    most = plan(terms, pa.Table.from_pylist(many, of), rows, WHOLE)
    assert (most.counts, len(most.samples[DIFFERING])) == ({DIFFERING: 11}, 10)


def test_V119_keys_with_two_versions_at_one_time_are_sampled():
    """Such a table must be repaired before a plan."""
    version = {"k": 1, "valid_from": 1, "is_current": True, "recorded_at": 1}
    rows = placed(table([version, version]))
    planned = plan(terms_of(2, 2, ("v",)), table([]).select(["k", "v"]), rows, WHOLE)
    assert (planned.counts, planned.samples[SPOILT].to_pylist()) == ({SPOILT: 1}, [{"k": 1}])


def test_a_composite_key_identifies_a_record_by_all_its_columns():
    """Composite keys with equal concatenated texts differ, and times keep their type."""
    columns = (*(Column(name, ColumnType(Kind.STRING)) for name in ("k", "l", "v")), *OWN_COLUMNS)
    terms = CopyTerms(columns, ("k", "l"), ("k", "l", "v"), ("v",), (), ("v",), (), 5, 6)
    schema = arrow_schema({each.name: each.type for each in columns})
    instant = datetime(2026, 1, 1, tzinfo=UTC)
    own = {"valid_from": instant, "is_current": True, "recorded_at": instant}
    rows = placed(pa.Table.from_pylist([{"k": "ab", "l": "c", "v": "x", **own}], schema))
    delivered = pa.table({"k": ["a", "ab"], "l": ["bc", "c"], "v": ["x", "y"]})
    planned = plan(terms, delivered, rows, WHOLE)
    assert planned.appeared.to_pylist() == [{"k": "a", "l": "bc"}]
    come = planned.added.select(["k", "l", "v", "is_current"]).to_pylist()
    assert sorted(tuple(row.values()) for row in come) == [
        ("a", "bc", "x", True),
        ("ab", "c", "x", False),
        ("ab", "c", "y", True),
    ]


def test_a_stored_version_with_an_incomplete_key_ends_with_the_next_copy():
    """Only other programs write such versions, and no copy lists their record."""
    columns = (*(Column(name, ColumnType(Kind.STRING)) for name in ("k", "l", "v")), *OWN_COLUMNS)
    terms = CopyTerms(columns, ("k", "l"), ("k", "l", "v"), ("v",), (), ("v",), (), 5, 6)
    own = {"valid_from": 1, "is_current": True, "recorded_at": 1}
    versions = [{"k": "a", "l": each, "v": "x", **own} for each in ("b", None)]
    rows = placed(pa.Table.from_pylist(versions, arrow_schema({each.name: each.type for each in columns})))
    for parts in (WHOLE, 3):
        planned = plan(terms, pa.table({"k": ["a"], "l": ["b"], "v": ["x"]}), rows, parts)
        assert (planned.counts[UNCHANGED], planned.counts[CLOSED]) == (1, 1)
        ended = planned.added.select(["k", "l", "is_current"]).to_pylist()
        assert ended == [{"k": "a", "l": None, "is_current": False}]


NESTED = {
    Kind.LIST: (("element",), lambda numbers: numbers),
    Kind.STRUCT: (("a", "b"), lambda numbers: dict(zip("ab", numbers, strict=False))),
    Kind.MAP: (("key", "value"), lambda numbers: [(number, number) for number in numbers]),
}


@pytest.mark.parametrize("kind", NESTED)
def test_V16_float_keys_and_nested_values_are_compared_by_value(kind):
    """0.0 equals -0.0 and NaN equals NaN, in keys and in lists, structs and maps."""
    parts, nested = NESTED[kind]
    type_ = ColumnType(kind, parts=tuple((part, ColumnType(Kind.DOUBLE)) for part in parts))
    columns = (Column("k", ColumnType(Kind.DOUBLE)), Column("v", type_), *OWN_COLUMNS)
    terms = CopyTerms(columns, ("k",), ("k", "v"), ("v",), (), ("v",), (), 5, 6)
    schema = arrow_schema({each.name: each.type for each in columns})
    nan, own = float("nan"), {"valid_from": 1, "is_current": True, "recorded_at": 1}
    values = [(0.0, [1.0, nan]), (nan, [0.0]), (1.0, [1.0])]
    rows = placed(pa.Table.from_pylist([{"k": k, "v": nested(v), **own} for k, v in values], schema))
    copy = [(-0.0, [1.0, nan]), (nan, [-0.0]), (1.0, [1.0, 1.0])]
    delivered = pa.Table.from_pylist(
        [{"k": k, "v": nested(v)} for k, v in copy], schema=pa.schema([schema.field("k"), schema.field("v")])
    )
    planned = plan(terms, delivered, rows, WHOLE)
    assert (planned.counts[UNCHANGED], planned.counts[CHANGED]) == (2, 1)
