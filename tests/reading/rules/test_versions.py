"""Which rows are versions, by the worked examples of native.md and the ends that Fivetran sends."""

import pytest
from remembering import E13, E14

from backstory.model.instant import EPOCH, MILLISECOND, TMAX
from backstory.reading.rules.events import unfolded
from backstory.reading.rules.versions import (
    Endless,
    RememberedRow,
    Sent,
    SpannedRow,
    lasting,
    lasting_then,
    sent,
)

FAR = (TMAX - EPOCH) // (TMAX.resolution)


def remembered(text):
    """The rows of `remembering`, their instants as they are written."""
    for place, line in enumerate(text.strip().splitlines()):
        words = [None if word == "~" else word for word in line.split()]
        start, end, recorded, ended, before = (each and int(each) for each in (*words[2:5], *words[6:8]))
        yield words[:2], RememberedRow(place, start, end, recorded, words[5] == "fact", ended, before)


def told(text, known_at=None):
    rows = list(remembered(text))
    facts = [row for _, row in rows]
    found = lasting(facts) if known_at is None else lasting_then(facts, known_at)
    return [
        f"{rows[each.place][0][1]}[{each.start},{'' if each.end is None else each.end})" for each in found
    ]


def test_E13_what_did_we_know():
    assert [sorted(told(E13, at)) for at in (0, 1, 2, 3, None)] == [
        [],
        ["a[10,)"],
        ["a[10,20)", "b[20,)"],
        ["a[10,15)", "b[20,)", "c[15,20)"],
        ["a[10,15)", "b[20,)", "c[15,20)"],
    ]


def test_E14_what_was_rewound_stays_known():
    """Facts and marks are read by nobody (V92)."""
    assert sorted(told(E14, 3)) == ["a[10,20)", "x[20,)", "y[20,)"]
    assert sorted(told(E14, 4)) == ["a[10,)"]
    assert told(E14) == ["a[10,20)", "b[20,)"]


@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        ([(0, 10, False), (10 + MILLISECOND, FAR, True)], [10 + MILLISECOND, None]),  # a grain is no gap
        ([(0, 10, False), (11 + MILLISECOND, FAR, True)], [10, None]),
        ([(0, 90, False), (50, FAR, True)], [50, None]),  # what began last is read
        ([(0, FAR, None)], [None]),  # without a flag the end tells
        ([(0, 10, True)], [None]),
    ],
)
def test_a_version_that_was_sent_ends_where_the_next_begins(rows, ends):
    found = sent(Sent(place, "k", *row) for place, row in enumerate(rows))
    assert [each.end for each in found] == ends


def test_neither_an_end_nor_a_flag_is_refused():
    with pytest.raises(Endless):
        sent([Sent(0, "k", 0, None, None)])


def test_intervals_are_half_open():
    """V99; without a start nothing tells."""
    assert [SpannedRow(0, 10, 20).holds(time) for time in (9, 10, 19, 20)] == [False, True, True, False]
    assert SpannedRow(0, None, None).holds(1) is None


def test_a_statement_without_length_on_either_axis_is_none():
    assert unfolded(0, 10, [(20, 1), (10, 2), (15, 3), (None, 3)]) == [
        SpannedRow(0, 10, 20, 1, 2),
        SpannedRow(0, 10, None, 3, None),
    ]
