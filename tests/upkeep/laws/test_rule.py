"""The laws of versions, each in one line."""

from collections import Counter

import pytest
from specification.laws import HashedRow, broken_keys, terms_of_layout, violations

from backstory.model.layout import Layout
from backstory.upkeep.laws.terms import Law, RecordRow

FAR = Layout.FIVETRAN_HISTORY.span.far
FIVETRAN = terms_of_layout(Layout.FIVETRAN_HISTORY)
DBT, LIVE = terms_of_layout(Layout.DBT), terms_of_layout(Layout.FIVETRAN_LIVE)
MODEL = terms_of_layout(Layout.HIST)


def life(*spans, **more):
    return [HashedRow(place, start, end, **more) for place, (start, end) in enumerate(spans)]


def fivetran(*spans):
    return [RecordRow(place, start, end, flag=end == FAR) for place, (start, end) in enumerate(spans)]


@pytest.mark.parametrize(
    ("spans", "broken"),
    [
        ([(10, 20), (20, None)], {}),
        ([(10, 20), (30, 40)], {}),
        ([(10, 20), (19, None)], {Law.NO_OVERLAP: 1}),
        ([(10, 90), (20, 30), (40, 50)], {Law.NO_OVERLAP: 2}),
        ([(10, None), (20, None), (30, None)], {Law.NO_OVERLAP: 2, Law.ONE_OPEN: 2}),
        ([(10, 20), (10, 30)], {Law.UNIQUE_START: 1, Law.NO_OVERLAP: 1}),
        ([(10, 10)], {Law.START_BEFORE_END: 1}),
        ([(20, 10)], {Law.START_BEFORE_END: 1}),
        ([(None, 10)], {Law.START_BEFORE_END: 1}),
    ],
)
def test_overlapping_or_reversed_versions_break_the_laws(spans, broken):
    assert violations(life(*spans), DBT) == Counter(broken)


@pytest.mark.parametrize(
    ("spans", "broken"),
    [
        ([(10_000, 19_000), (20_000, FAR)], {}),
        ([(10_000, 9_250), (10_250, FAR)], {}),
        ([(10_000, 20_000), (20_000, FAR)], {}),
        ([(10_000, 20_500), (20_000, FAR)], {Law.NO_OVERLAP: 1}),
        ([(10_000, 9_000)], {Law.START_BEFORE_END: 1}),
    ],
)
def test_fivetran_versions_end_a_millisecond_before_their_successor(spans, broken):
    assert violations(fivetran(*spans), FIVETRAN) == Counter(broken)


@pytest.mark.parametrize(
    ("end", "flag"), [(FAR, False), (FAR, None), (10_000, True), (None, None), (None, True)]
)
def test_flag_and_end_agree(end, flag):
    assert violations([RecordRow(0, 5_000, end, flag=flag)], FIVETRAN) == {Law.OPEN_MARKER: 1}


@pytest.mark.parametrize(
    ("state", "end", "agrees"),
    [
        ("new", None, True),
        ("changed", None, True),
        ("changed", 20, True),
        ("deleted", 20, True),
        ("new", 20, False),
        ("deleted", None, False),
        (None, 20, False),
        ("OPEN", 20, True),
    ],
)
def test_state_and_end_agree(state, end, agrees):
    broken = violations(life((10, end), state=state, hash="erased"), MODEL)

    assert (Law.OPEN_MARKER not in broken) is agrees


@pytest.mark.parametrize(
    ("hash_", "is_one"), [("a" * 64, True), ("erased", True), ("A" * 64, False), (None, False)]
)
def test_a_malformed_hash_breaks_the_hash_law(hash_, is_one):
    broken = violations(life((10, None), state="new", hash=hash_), MODEL)

    assert (Law.ROW_HASH not in broken) is is_one


def test_rows_without_a_key_are_only_null_key_violations():
    """They break one law, whatever their times."""
    assert violations(life((10, None), (10, None), keyed=False), DBT) == {Law.NULL_KEY: 2}


def test_a_repeated_live_key_breaks_a_law():
    assert broken_keys(life((None, None), (None, None)), LIVE) == {Law.UNIQUE_KEY: 1}
    assert broken_keys(life((None, None), (None, None), keyed=False), LIVE) == {Law.NULL_KEY: 2}


@pytest.mark.parametrize(
    ("hashed", "broken"),
    [
        ({"hash": "a" * 64}, 0),
        ({"hash": "a" * 64, "rightly": True}, 0),
        ({"hash": "a" * 64, "rightly": False}, 1),
        ({"hash": "erased", "rightly": True}, 0),
        ({"hash": "A" * 64, "rightly": True}, 1),
        ({"hash": None}, 1),
    ],
)
def test_a_hash_must_be_well_formed_and_match_known_values(hashed, broken):
    for judge in (violations, broken_keys):
        assert judge([HashedRow(0, 10, None, state="new", **hashed)], MODEL)[Law.ROW_HASH] == broken
