"""The rows that are versions: the specification by examples, and each layout's query by the specification."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from remembering import E13, E14
from specification import event_lives
from specification.event_lives import unfolded
from specification.lifetimes import (
    Endless,
    RememberedRow,
    Sent,
    SpannedRow,
    lasting,
    lasting_then,
    sent,
)

from backstory.model.instant import EPOCH, MILLISECOND, TMAX
from backstory.model.layout import Layout
from backstory.reading.files import query_rows
from backstory.reading.lifetimes import (
    DUCKDB,
    ENDED,
    STARTED,
    STATED_FROM,
    STATED_TO,
    LogKind,
    RecordedRows,
    internal_name,
)

SPAN = (STARTED, ENDED)
STATEMENT = (*SPAN, STATED_FROM, STATED_TO)
FAR = (TMAX - EPOCH) // (TMAX.resolution)


def remembered(text):
    """The rows of `remembering`, with their instants as written."""
    for place, line in enumerate(text.strip().splitlines()):
        words = [None if word == "~" else word for word in line.split()]
        start, end, recorded, ended, before = (each and int(each) for each in (*words[2:5], *words[6:8]))
        yield words[:2], RememberedRow(place, start, end, recorded, words[5] == "fact", ended, before)


def versions_of(text, known_at=None):
    rows = list(remembered(text))
    facts = [row for _, row in rows]
    versions = lasting(facts) if known_at is None else lasting_then(facts, known_at)
    return [
        f"{rows[each.place][0][1]}[{each.start},{'' if each.end is None else each.end})" for each in versions
    ]


def test_E13_each_known_time_shows_its_own_versions():
    assert [sorted(versions_of(E13, at)) for at in (0, 1, 2, 3, None)] == [
        [],
        ["a[10,)"],
        ["a[10,20)", "b[20,)"],
        ["a[10,15)", "b[20,)", "c[15,20)"],
        ["a[10,15)", "b[20,)", "c[15,20)"],
    ]


def test_E14_rewound_versions_stay_visible_at_earlier_known_times():
    """V92: Readers skip facts and marks."""
    assert sorted(versions_of(E14, 3)) == ["a[10,20)", "x[20,)", "y[20,)"]
    assert sorted(versions_of(E14, 4)) == ["a[10,)"]
    assert versions_of(E14) == ["a[10,20)", "b[20,)"]


@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        ([(0, 10, False), (10 + MILLISECOND, FAR, True)], [10 + MILLISECOND, None]),  # a grain is not a gap
        ([(0, 10, False), (11 + MILLISECOND, FAR, True)], [10, None]),
        ([(0, 90, False), (50, FAR, True)], [50, None]),  # the last version to begin is read
        ([(0, FAR, None)], [None]),  # without a flag the end decides
        ([(0, 10, True)], [None]),
    ],
)
def test_a_sent_version_ends_where_the_next_version_begins(rows, ends):
    versions = sent(Sent(place, "k", *row) for place, row in enumerate(rows))
    assert [each.end for each in versions] == ends


def test_a_version_without_end_and_flag_is_refused():
    with pytest.raises(Endless):
        sent([Sent(0, "k", 0, None, None)])


def test_intervals_are_half_open():
    """V99: A row without a start is not a version."""
    assert [SpannedRow(0, 10, 20).holds(time) for time in (9, 10, 19, 20)] == [False, True, True, False]
    assert SpannedRow(0, None, None).holds(1) is None


def test_statements_without_length_on_an_axis_are_omitted():
    assert unfolded(0, 10, [(20, 1), (10, 2), (15, 3), (None, 3)]) == [
        SpannedRow(0, 10, 20, 1, 2),
        SpannedRow(0, 10, None, 3, None),
    ]


TIME = pa.timestamp("us")
INSTANTS = st.integers(0, 8)
MAYBE = st.none() | INSTANTS
REMEMBERED = st.tuples(MAYBE, MAYBE, MAYBE, st.sampled_from([None, "past", "fact"]), MAYBE, MAYBE)
KEYED = st.sampled_from("ab")


def relation(rows, **types):
    """Rows as a relation for a query of lifetimes."""
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    return {
        name if name == "record" else internal_name(name): pa.chunked_array([pa.array(list(each), type_)])
        for each, (name, type_) in zip(columns, types.items(), strict=True)
    }


def query_spans(rows, query, columns=SPAN):
    """The places and times of the rows in an answer."""
    count = len(next(iter(rows.values())))
    relation = pa.table({"place": pa.array(range(count), pa.int64()), **rows})
    return query_rows(relation, query).select(["place", *columns])


def spans(answer):
    """The versions of an answer, and its statements with their known times."""
    columns = [answer["place"].to_pylist()]
    columns += [answer[name].cast(pa.int64()).to_pylist() for name in answer.column_names[1:]]
    return sorted(zip(*columns, strict=True), key=repr)


def expected(versions, *, stated=False):
    """The same by the specification."""
    return sorted((tuple(each) if stated else tuple(each[:3]) for each in versions), key=repr)


@given(st.lists(REMEMBERED, max_size=8), MAYBE)
def test_native_queries_match_the_specification(rows, until):
    """V3, V5, V6, V93, V97: Versions and statements of native rows equal the specification's."""
    types = {
        "start": TIME,
        "end": TIME,
        "recorded": TIME,
        "role": pa.string(),
        "moved": TIME,
        "end_before": TIME,
    }
    facts = [
        RememberedRow(place, start, end, recorded, role == "fact", moved, before)
        for place, (start, end, recorded, role, moved, before) in enumerate(rows)
    ]
    held = relation(rows, **types)
    versions = spans(query_spans(held, RecordedRows(DUCKDB, Layout.VERSIONS, until=until).versions()))
    assert versions == expected(lasting(facts) if until is None else lasting_then(facts, until))
    steps = (
        statement
        for each in facts
        if not each.is_fact
        for statement in unfolded(
            each.place,
            each.start,
            [(each.end, each.recorded)]
            if each.moved is None
            else [(each.end_before, each.recorded), (each.end, each.moved)],
        )
    )
    query = RecordedRows(DUCKDB, Layout.VERSIONS).statements()
    assert spans(query_spans(held, query, STATEMENT)) == expected(steps, stated=True)


@given(st.lists(st.tuples(KEYED, INSTANTS, INSTANTS | st.just(FAR), st.booleans()), max_size=8))
def test_fivetran_queries_match_the_specification(sent_rows):
    rows = {
        (key, start): (key, start * MILLISECOND, end * MILLISECOND if end != FAR else FAR, flag)
        for key, start, end, flag in sent_rows
    }
    rows = list(rows.values())
    held = relation(rows, record=pa.string(), start=TIME, end=TIME, flag=pa.bool_())
    versions = spans(query_spans(held, RecordedRows(DUCKDB, Layout.FIVETRAN_HISTORY, ["record"]).versions()))
    assert versions == expected(sent(Sent(place, *row) for place, row in enumerate(rows)))


LOGS = [LogKind(False, True, False), LogKind(False, False, True), LogKind(False, False, False), LogKind(True, True, False), LogKind(True, False, False)]  # fmt: skip
OPS = st.sampled_from([0, 1, 2, 3, None])


@pytest.mark.parametrize("log", LOGS)
@given(st.lists(st.tuples(KEYED, OPS, MAYBE, INSTANTS), max_size=8), MAYBE)
def test_event_queries_match_the_specification(log, rows, until):
    """odf-ingest.md 2.10, native.md V97: Versions and statements of events equal the specification's."""
    rows = [(place, *row) for place, row in enumerate(rows)]
    held = relation(rows, offset=pa.int64(), record=pa.string(), op=pa.int64(), time=TIME, recorded=TIME)
    events = [
        event_lives.RecordEvent(place, key, place, op, time, recorded)
        for place, key, op, time, recorded in rows
    ]
    known = [each for each in events if until is None or each.known_at <= until]
    rows_of_log = RecordedRows(DUCKDB, Layout.ODF, ["record"], log, until)
    assert spans(query_spans(held, rows_of_log.versions())) == expected(event_lives.versions(log, known))
    statements = spans(query_spans(held, rows_of_log.statements(), STATEMENT))
    assert statements == expected(event_lives.statements(log, events), stated=True)
