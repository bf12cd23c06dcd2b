"""The worked examples of native.md keep the laws of memory, and each breaks if a row is altered."""

from collections import Counter
from dataclasses import replace

import pytest
from specification.laws import terms_of_layout, violations

from backstory.model.layout import Layout
from backstory.upkeep.laws.terms import Law, RecordRow

TERMS = terms_of_layout(Layout.VERSIONS, newest=99, tracked=("v",), numbers={"v": 2})


def rows(text):
    """`value from to recorded`, then the differing fields: `role kind ended_at end_before`."""
    records = []
    for place, line in enumerate(text.strip().splitlines()):
        value, *rest = line.split()
        start, end, written, role, kind, ended, before = [*rest, *"-" * (7 - len(rest))]
        numbers = [None if each == "-" else int(each) for each in (start, end, written, ended, before)]
        known = {"role": None if role == "-" else role, "kind": None if kind == "-" else kind}
        at, until, recorded, moved, was = numbers
        records.append(
            RecordRow(
                place, at, until, flag=until is None, written=recorded, ended_at=moved, end_before=was,
                values={"v": None if value == "-" else value}, **known,
            )
        )  # fmt: skip
    return records


E1 = rows("""
a 10 20 1 - upsert 2 -
b 20 30 2 - upsert 3 -
- 30 30 3 fact delete
c 40 -  4 - upsert
""")
E2 = rows("""
a 10 20 3 - upsert 4 30
b 20 30 4 - upsert
c 40 -  1 - upsert
- 30 30 3 fact delete
a 10 10 2 past upsert 3 40
""")
E4 = rows("""
A 5  12 4 - upsert 5 20
A 5  5  1 past upsert 4 -
A 10 10 2 fact upsert
B 12 15 5 - upsert
A 15 15 3 fact upsert 5
A 15 20 5 - upsert
C 20 -  4 - upsert
""")
E13 = rows("""
a 10 15 2 - upsert 3 20
c 15 20 3 - upsert
b 20 -  2 - upsert
a 10 10 1 past upsert 2 -
""")


@pytest.mark.parametrize("life", [E1, E2, E4, E13], ids=["E1", "E2", "E4", "E13"])
def test_worked_examples_keep_every_law(life):
    """E1, E2, E4 and E13 keep the laws as section 1 stores them."""
    assert violations(life, TERMS) == Counter()


def test_E9_a_copy_explains_ends_without_facts():
    """The records of a copy are derived from the table, including for a late event."""
    life = rows("m 10 20 1 - upsert 3 30\nb 20 - 3 - upsert")
    copied = replace(TERMS, marks=(RecordRow(0, 30, keyed=False, kind="copy"),))

    assert violations(life, copied) == Counter()
    assert violations(rows("p 10 30 1 - upsert 2 -"), copied) == Counter()
    assert violations(rows("p 10 30 1 - upsert 2 -"), TERMS) == Counter({Law.FOLD: 1})


def test_E12_settled_versions_need_no_facts():
    """Copies were settled when the feed began, so their starts and ends need no fact."""
    life = rows("o 5 10 5 - upsert\na 10 20 1 - - 2 -\nb 20 25 2 - - 3 -\nc 25 - 3 - upsert")

    assert violations(life, replace(TERMS, settled=(10, 20))) == Counter()
    assert violations(life, TERMS)[Law.FOLD] == 2


def test_E8_a_truncate_ends_every_record():
    """A mark without a key is a fact of each record."""
    cleared = replace(TERMS, marks=(RecordRow(0, 30, keyed=False, kind="truncate"),))

    assert violations(rows("a 10 30 1 - upsert 2 -"), cleared) == Counter()
    assert violations(rows("a 10 - 1 - upsert"), cleared) == Counter({Law.FOLD: 1})


def test_E6_an_event_asserts_only_its_columns():
    """An unmodified column keeps its value."""
    events = [
        replace(rows("x 10 20 1 - upsert 2 -")[0], values={"v": "ann", "c": "oslo"}),
        replace(rows("x 20 - 2 - upsert")[0], place=1, values={"v": "ann", "c": "rome"}, columns=(3,)),
    ]
    terms = replace(TERMS, tracked=("v", "c"), numbers={"v": 2, "c": 3})

    assert violations(events, terms) == Counter()
    assert violations([events[0], replace(events[1], values={"v": "bob", "c": "rome"})], terms) == {
        Law.FOLD: 1
    }


@pytest.mark.parametrize(
    ("place", "change", "law"),
    [
        (0, {"end": None, "flag": True}, Law.NO_OVERLAP),
        (0, {"ended_at": 4}, Law.ONE_BELIEF),
        (0, {"ended_at": None}, None),
        (0, {"written": None}, Law.RECORDED),
        (0, {"written": 2}, Law.RECORDED),
        (0, {"ended_at": 100}, Law.RECORDED),
        (0, {"flag": True}, Law.OPEN_MARKER),
        (1, {"values": {"v": "a"}}, Law.FOLD),
        (2, {"kind": "copy"}, Law.MEMORY),
        (2, {"role": "past", "kind": "delete"}, Law.MEMORY),
        (2, {"end": 31}, Law.MEMORY),
        (2, {"role": None, "kind": None}, Law.START_BEFORE_END),
        (3, {"start": 30}, Law.ONE_FACT),
    ],
)
def test_an_altered_row_breaks_its_law(place, change, law):
    """E1 has one row that no writer would leave."""
    life = [replace(row, **change) if number == place else row for number, row in enumerate(E1)]

    broken = violations(life, TERMS)

    assert (law in broken) if law else not broken


def test_facts_in_a_settled_interval_break_a_law():
    """V33: Settling removes the facts and refuses others."""
    assert violations(E1, replace(TERMS, settled=(None, 30)))[Law.SETTLED] == 1


def test_a_repeated_mark_for_a_time_and_scope_breaks_a_law():
    """V43: A copy of one instant and scope is stored once."""
    mark = RecordRow(0, 10, 10, keyed=False, flag=False, written=1, role="fact", kind="copy")

    assert violations([mark, replace(mark, place=1, scope='{"r":"e"}')], TERMS) == Counter()
    assert violations([mark, replace(mark, place=1)], TERMS) == Counter({Law.ONE_FACT: 1})
