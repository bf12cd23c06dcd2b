"""The plan of a copy in order on Arrow tables gives the rule's rows; Spark does not run here."""

from datetime import UTC, datetime

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from backstory.formats.delivered import arrow_schema
from backstory.model.layout import VALID_TO
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.remembered import OWN_COLUMNS, Role, Told
from backstory.model.schema import Column
from backstory.model.types import ColumnType, Kind
from backstory.strategies.copies.arrow import comparable, copied, rows_that_come, rows_that_go
from backstory.strategies.copies.plan import CopyTerms
from backstory.strategies.copies.rule import Copy, StoredCopies, StoredRow, take

DATA = ("v", "i", "o")
COLUMNS = (*(Column(name, ColumnType(Kind.LONG)) for name in ("k", *DATA)), *OWN_COLUMNS)
SCHEMA = pa.schema([*arrow_schema({each.name: each.type for each in COLUMNS}), pa.field(ROW_ID, pa.int64())])
OWN = [each.name for each in OWN_COLUMNS]
IGNORED, OVERWRITTEN = frozenset("i"), frozenset("o")
KEYS = st.integers(1, 6)
VALUES = st.fixed_dictionaries({name: st.none() | st.integers(1, 2) for name in DATA})
COPIES = st.lists(
    st.tuples(
        st.dictionaries(KEYS, VALUES),
        st.booleans(),
        st.sampled_from([DATA, ("v", "o"), ("o",), ()]),
    ),
    max_size=5,
)


def terms(at, recorded, delivered):
    named = [name for name in DATA if name in delivered]
    return CopyTerms(
        columns=COLUMNS,
        types=None,
        key=("k",),
        delivered=("k", *named),
        compared=tuple(name for name in named if name == "v"),
        renewed=tuple(name for name in named if name in OVERWRITTEN),
        tracked=("v",),
        overwritten=("o",),
        at=at,
        recorded=recorded,
    )


def stored(rule):
    """The rule's rows as a table has them; instants and recorded times are microseconds."""
    rows = []
    for number, row in enumerate(rule.rows):
        memory = {
            "role": row.role and Role(row.role).value,
            "ended_at": row.ended_at,
            "end_before": row.end_before,
            "kind": row.kind and Told(row.kind).value,
            "columns": None if row.columns is None else [DATA.index(name) for name in row.columns],
            "scope": None,
        }
        told = {"valid_from": row.start, "valid_to": row.end, "recorded_at": row.recorded}
        kept = memory if any(value is not None for value in memory.values()) else None
        rows.append(
            {
                "k": row.key,
                **row.values,
                **told,
                "is_current": row.end is None,
                "_memory": kept,
                ROW_ID: number,
            }
        )
    return rows


def table(rows):
    return pa.Table.from_pylist(rows, SCHEMA)


def plain(rows):
    """Rows without ids, comparable."""
    return sorted(repr({name: row.get(name) for name in SCHEMA.names if name != ROW_ID}) for row in rows)


def placed(rows):
    """The open versions with their places, and the keys of the closed ones."""
    places = pa.table({FILE: pa.repeat("f", len(rows)), POSITION: pa.array(range(len(rows)), pa.int64())})
    whole = pa.table(
        {**{n: rows[n] for n in rows.column_names}, **{n: places[n] for n in places.column_names}}
    )
    live = [(row["_memory"] or {}).get("role") is None for row in rows.to_pylist()]
    versions = whole.filter(pa.array(live, pa.bool_()))
    is_open = versions[VALID_TO].is_null()
    return versions.filter(is_open), versions.filter(pa.compute.invert(is_open)).select(["k"])


def whole_of(versions):
    """Rows of these versions, of which not all columns are there, with all."""

    def whole(rows):
        return versions.take(
            pa.compute.index_in(rows[POSITION], value_set=versions[POSITION].combine_chunks())
        )

    return whole


def take_by_arrow(rows, copy, recorded, *, marks):
    """The stored rows after the copy, the records by outcome, and which rows kept their place."""
    open_, closed = placed(rows)
    delivered = pa.Table.from_pylist(
        [{"k": key, **values} for key, values in copy.rows.items()],
        pa.schema([pa.field(name, pa.int64()) for name in ("k", *copy.columns)]),
    )
    told = terms(copy.at, recorded, copy.columns)
    found = copied(
        told, delivered, open_.drop_columns(OWN), whole_of(open_), lambda: closed, closes=copy.closes
    )
    come = rows_that_come(
        found, [DATA.index(n) for n in copy.columns] if len(copy.columns) < 3 else None, marks=marks
    )
    gone = set(rows_that_go(found)[POSITION].to_pylist())
    kept = {rows[ROW_ID][place].as_py() for place in gone}
    assert {id_ for id_ in come[ROW_ID].to_pylist() if id_ is not None} == kept
    stays = [row for place, row in enumerate(rows.to_pylist()) if place not in gone]
    reopened = sum(found.back.to_pylist())
    counts = {
        "new": len(found.found.appeared) - reopened,
        "changed": len(found.found.changed[0]),
        "closed": len(found.found.vanished),
        "reopened": reopened,
        "unchanged": len(found.found.same[0]),
    }
    return [*stays, *come.to_pylist()], counts


@given(COPIES, st.booleans(), st.booleans())
def test_V7_V9_V18_V31_a_copy_in_order_gives_the_rules_rows(series, remembers, moved_before):
    """Versions end, begin and are renewed as the rule has it, statements that would be forgotten stay."""
    first = StoredRow(1, dict.fromkeys(DATA, 1), -9, None, -9)
    if moved_before:  # its end was moved once already, and back
        first = StoredRow(1, dict.fromkeys(DATA, 1), -9, None, -9, ended_at=-5, end_before=-6)
    rule = StoredCopies(DATA, (first,), -9, (-9, -8) if remembers else None, IGNORED, OVERWRITTEN)
    rows = stored(rule)
    for number, (delivered, closes, columns) in enumerate(series):
        values = {key: {name: row[name] for name in columns} for key, row in delivered.items()}
        copy = Copy(number, values, columns, closes=closes or remembers)
        taken = take(rule, copy, number)
        whole = table([{**row, ROW_ID: place} for place, row in enumerate(rows)])
        rows, counts = take_by_arrow(whole, copy, number, marks=remembers)
        rule = taken.table
        assert counts == taken.counts
        assert plain(rows) == plain(table(stored(rule)).to_pylist())


def test_what_arrow_cannot_tell_apart_is_left_to_frames():
    """V16: NULL keys, repeated ones, floating ones (0.0 is -0.0), and what is nested."""
    rows = table([{"k": 1, "v": 1}, {"k": 1, "v": 1}, {"k": None, "v": 1}])
    none = rows.slice(0, 0)
    for delivered, open_ in ((rows[:2], none), (rows[2:], none), (none, rows[:2])):
        told = terms(1, 1, ("v",))
        assert (
            copied(told, delivered, open_, whole_of(open_), lambda: none.select(["k"]), closes=True) is None
        )
    told = terms(1, 1, ("v",))
    assert comparable(told)
    nested = ColumnType(Kind.LIST, parts=(("element", ColumnType(Kind.LONG)),))
    for name, type_ in (("k", ColumnType(Kind.DOUBLE)), ("v", nested)):
        columns = tuple(Column(name, type_) if each.name == name else each for each in COLUMNS)
        assert not comparable(CopyTerms(columns, None, *[getattr(told, n) for n in told.__slots__[2:]]))


def test_a_key_of_several_columns_is_one():
    """Composite keys whose texts together are equal are two, and times are what they are."""
    columns = (*(Column(name, ColumnType(Kind.STRING)) for name in ("k", "l", "v")), *OWN_COLUMNS)
    told = CopyTerms(columns, None, ("k", "l"), ("k", "l", "v"), ("v",), (), ("v",), (), 5, 6)
    schema = arrow_schema({each.name: each.type for each in columns})
    instant = datetime(2026, 1, 1, tzinfo=UTC)
    own = {"valid_from": instant, "is_current": True, "recorded_at": instant}
    open_ = pa.Table.from_pylist([{"k": "ab", "l": "c", "v": "x", **own}], schema)
    open_ = open_.append_column(FILE, pa.array(["f"])).append_column(POSITION, pa.array([0], pa.int64()))
    delivered = pa.table({"k": ["a", "ab"], "l": ["bc", "c"], "v": ["x", "y"]})
    closed = pa.table({"k": ["a"], "l": ["bc"]})
    found = copied(told, delivered, open_, whole_of(open_), lambda: closed, closes=True)
    assert (found.back.to_pylist(), found.anew.to_pylist(), found.driving) == ([True], [True], {"v": 1})
    come = rows_that_come(found, marks=False).select(["k", "l", "v", "is_current"]).to_pylist()
    assert [tuple(row.values()) for row in come] == [
        ("ab", "c", "x", False),
        ("a", "bc", "x", True),
        ("ab", "c", "y", True),
    ]
