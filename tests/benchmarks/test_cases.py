"""The plain rule of the case book by its outcomes, and the book itself."""

import json

import pytest

from benchmarks.cases.book import BOOK, Case, Copy, told
from benchmarks.cases.rule import (
    LOUD,
    REFUSED,
    RIGHT,
    WRONG,
    Contradiction,
    expected,
    names_of,
    outcome,
)

PLAIN = {"id": "BIGINT", "city": "STRING"}


def case(*copies, **more):
    return Case("case", ["id"], [Copy(PLAIN, rows) for rows in copies], **more)


GONE_AND_BACK = case([("1", "oslo"), ("2", "rome")], [("2", "rome")], [("1", "oslo"), ("2", "rome")])


def test_a_version_ends_when_a_copy_lacks_its_record():
    assert expected(GONE_AND_BACK, GONE_AND_BACK.copies) == {
        ("1",): [(("1", "oslo"), "gone"), (("1", "oslo"), "open")],
        ("2",): [(("2", "rome"), "open")],
    }


def test_copies_are_ordered_by_their_instants():
    late = Case("late", ["id"], [Copy(PLAIN, [("1", x)], at=at) for x, at in (("a", 0), ("c", 2), ("b", 1))])

    assert [values[1] for values, _ in expected(late, late.copies)["1",]] == ["a", "b", "c"]


def test_a_copy_with_two_rows_for_a_key_is_a_contradiction():
    with pytest.raises(Contradiction):
        expected(GONE_AND_BACK, [Copy(PLAIN, [("1", "oslo"), ("1", "rome")])])


RIGHT_ROWS = [("1", "oslo", "d1", "d2"), ("1", "oslo", "d3", None), ("2", "rome", "d1", None)]


@pytest.mark.parametrize(
    ("result", "failed_at", "rows"),
    [
        (RIGHT, None, RIGHT_ROWS),
        (WRONG, None, RIGHT_ROWS[:2]),
        (WRONG, None, [("1", "oslo", "d1", None), ("2", "rome", "d1", None)]),
        (REFUSED, 1, [("1", "oslo", "d1", None), ("2", "rome", "d1", None)]),
        (REFUSED, 0, []),
        (LOUD, 1, RIGHT_ROWS),
    ],
)
def test_outcomes_follow_from_the_failed_copy_and_the_rows(result, failed_at, rows):
    assert outcome(GONE_AND_BACK, failed_at, rows) == result


def test_only_a_refusal_is_right_for_a_refuse_only_case():
    torn = case([("1", "oslo")], [("1", "bern"), ("1", "rome")], refuse_only=True)

    assert outcome(torn, None, [("1", "oslo", "d1", "d2"), ("1", "rome", "d2", None)]) == WRONG
    assert outcome(torn, 1, [("1", "oslo", "d1", None)]) == REFUSED


def test_the_case_book_is_valid_data():
    """Names are unique, cells fit their columns, and the book can be stored as JSON."""
    assert len({each.name for each in BOOK}) == len(BOOK)
    for each in BOOK:
        assert set(each.key) <= set(names_of(each))
        assert all(len(row) == len(copy.columns) for copy in each.copies for row in copy.rows)
    assert len(json.loads(json.dumps(told()))) == len(BOOK)


@pytest.mark.parametrize("each", [each for each in BOOK if not each.refuse_only], ids=lambda each: each.name)
def test_every_case_can_be_passed_by_the_rule(each):
    """Each case has a right answer that the rule gives, so no case suits only one tool."""
    answers = []
    for copies in (each.copies, *each.also):
        try:
            answers.append(expected(each, copies))
        except Contradiction:
            continue

    assert answers
