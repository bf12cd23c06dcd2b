"""Full copies into a table of layout `versions`: the worked examples and laws of native.md."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specification.copies import Copy, take
from specification.stored import StoredVersions

from backstory.errors import Refused
from backstory.model.versions_layout import FactKind, Role

KEYS, VALUES = "kmn", "abc"


class Life:
    """A table of one column after copies such as `k:b m:a`. The n-th commit is recorded at n."""

    def __init__(self, **settings):
        self.table = StoredVersions(("v",), **settings)
        self.states = {}

    @property
    def commits(self):
        return len(self.states)

    def copy(self, at, text, **options):
        rows = {key: {"v": value} for key, _, value in (each.partition(":") for each in text.split())}
        return self.take(Copy(at, rows, ("v",), **options))

    def take(self, copy):
        recorded = self.commits + 1
        taken = take(self.table, copy, recorded)
        if taken.table is not self.table:
            self.table = taken.table
            self.states[recorded] = now(taken.table)
        return {outcome: number for outcome, number in taken.counts.items() if number}

    def refused(self, at, text, **options):
        before = self.table
        with pytest.raises(Refused) as refusal:
            self.copy(at, text, **options)
        assert self.table is before
        return refusal.value.code

    def shown(self, key):
        """`a[10,20) b[20,)`, in the form of the worked examples."""
        life = sorted(self.table.life(key), key=lambda row: row.start)
        return " ".join(
            f"{row.values['v']}[{row.start},{'' if row.end is None else row.end})" for row in life
        )

    def marks(self):
        return sorted(row.start for row in self.table.rows if row.is_mark)


def now(table):
    return sorted((row.key, row.start, row.end or 0, str(row.values)) for row in table.versions)


def test_E18_backfill_adds_older_full_copies():
    life = Life()
    life.copy(20, "k:b m:a")
    assert life.refused(10, "k:a m:a") == "time-backwards"
    assert life.copy(10, "k:a m:a", backfill=True) == {"reopened": 2}
    assert (life.shown("k"), life.shown("m")) == ("a[10,20) b[20,)", "a[10,)")
    assert life.copy(15, "k:x m:a") == {"changed": 1, "unchanged": 1}
    assert (life.shown("k"), life.shown("m")) == ("a[10,15) x[15,20) b[20,)", "a[10,)")
    assert life.marks() == [10, 15]
    assert life.table.settled == (20, 20)


def test_E19_a_repeated_copy_changes_nothing_and_a_restated_one_replaces_it():
    life = Life()
    life.copy(10, "k:a", backfill=True)
    life.copy(20, "k:b")
    assert life.copy(30, "k:b") == {"unchanged": 1}
    assert life.marks() == [10, 20, 30]
    commits = life.commits
    assert life.copy(30, "k:b") == {"unchanged": 1}
    assert life.commits == commits
    assert life.refused(30, "k:c") == "same-instant"
    life.copy(30, "k:c", restate=True)
    assert life.shown("k") == "a[10,20) b[20,30) c[30,)"
    assert life.marks() == [10, 20, 30]


def test_an_unchanged_copy_leaves_its_time_only_in_a_table_with_a_memory():
    """V27, V28, V31: Without a memory, a different copy for an earlier time is accepted later."""
    forgetful, life = Life(), Life()
    for each, options in ((forgetful, {}), (life, {"remember": True})):
        each.copy(1, "k:a", **options)
        assert each.copy(5, "k:a") == {"unchanged": 1}
    forgetful.copy(3, "k:b")
    assert forgetful.shown("k") == "a[1,3) b[3,)"
    life.copy(3, "k:b")
    assert (life.shown("k"), life.marks()) == ("a[1,3) b[3,5) a[5,)", [1, 3, 5])
    before = life.table
    assert life.copy(5, "k:a", remember=True) == {"unchanged": 1}
    assert life.table is before


def test_a_later_memory_settles_stored_copies_and_refuses_older_ones():
    """V28, V40: Only `backfill` accepts an older copy, and may be combined with `remember`."""
    life = Life()
    life.copy(10, "k:a")
    life.copy(20, "k:b")
    assert life.refused(15, "k:c", remember=True) == "time-backwards"
    assert life.refused(20, "k:b", remember=True) == "settled"
    assert life.refused(20, "k:c", remember=True, restate=True) == "settled"
    assert life.refused(30, "k:b", remember=True, closes=False) == "partial-copy"
    assert life.copy(30, "k:b", remember=True) == {"unchanged": 1}
    assert (life.table.settled, life.marks()) == ((10, 20), [30])
    life.copy(5, "k:z", remember=True)
    assert life.shown("k") == "z[5,10) a[10,20) b[20,)"
    both = Life()
    both.copy(20, "k:b")
    both.copy(10, "k:a", remember=True, backfill=True)
    assert (both.shown("k"), both.marks()) == ("a[10,20) b[20,)", [10])


def test_E13_earlier_states_are_kept_in_the_rows():
    """After an end moves twice, its row has the last two ends, and a row of the past has the first."""
    life = Life()
    life.copy(10, "k:a", backfill=True)
    life.copy(20, "k:b")
    life.copy(15, "k:c")
    rows = {
        (row.values["v"], row.start, row.end, row.recorded, row.role, row.ended_at, row.end_before)
        for row in life.table.rows
        if row.key
    }
    assert rows == {
        ("a", 10, 15, 2, None, 3, 20),
        ("c", 15, 20, 3, None, None, None),
        ("b", 20, None, 2, None, None, None),
        ("a", 10, 10, 1, Role.PAST, 2, None),
    }
    expected = {(17, 3): "c", (17, 2): "a", (25, 1): "a"}
    for (instant, known), value in expected.items():
        values = [
            v["v"]
            for _, start, end, v in life.table.statements_at(known)
            if start <= instant and (end is None or instant < end)
        ]
        assert values == [value]


def test_only_the_newest_copy_is_restated_without_a_memory():
    life = Life()
    life.copy(10, "k:a m:a")
    life.copy(20, "k:b n:x")
    assert life.copy(20, "k:b n:x") == {"unchanged": 2}
    assert life.refused(20, "k:c n:x") == "same-instant"
    assert life.refused(10, "k:c m:a", restate=True) == "time-backwards"
    assert life.copy(20, "k:a m:a", restate=True) == {"changed": 1, "reopened": 1, "closed": 1}
    assert (life.shown("k"), life.shown("m"), life.shown("n")) == ("a[10,)", "a[10,)", "")
    assert {row.role for row in life.table.rows} == {None, Role.PAST}


def test_settled_copies_stay_unchanged():
    life = Life()
    life.copy(10, "k:a")
    life.copy(20, "k:b")
    life.copy(5, "k:z", backfill=True)
    for instant in (10, 15, 20):
        assert life.refused(instant, "k:q") == "settled"
    assert life.refused(30, "k:b", closes=False) == "partial-copy"
    life.copy(30, "k:b")
    assert life.shown("k") == "z[5,10) a[10,20) b[20,)"


def test_undelivered_columns_are_not_compared():
    """V39, N1, N2: A new column begins versions of the records that have a value in it."""
    life = Life()
    life.table = replace(life.table, columns=("v", "w"))
    both, one = ("v", "w"), ("v",)
    life.take(Copy(1, {"k": {"v": "a", "w": 1}, "m": {"v": "a", "w": 1}}, both))
    assert life.take(Copy(2, {"k": {"v": "a"}, "m": {"v": "b"}}, one)) == {"unchanged": 1, "changed": 1}
    assert [row.values for row in life.table.life("m")] == [{"v": "a", "w": 1}, {"v": "b", "w": None}]


def test_an_older_copy_with_columns_that_a_later_copy_lacks_is_refused():
    life = Life()
    life.table = replace(life.table, columns=("v", "w"))
    life.take(Copy(20, {"k": {"v": "a"}}, ("v",), backfill=True))
    with pytest.raises(Refused, match="lacked columns"):
        life.take(Copy(10, {"k": {"v": "a", "w": 1}}, ("v", "w")))
    life.take(Copy(20, {"k": {"v": "b", "w": 2}}, ("v", "w"), restate=True))
    life.take(Copy(10, {"k": {"v": "a", "w": 1}}, ("v", "w")))
    marks = [(row.start, row.columns, row.ended_at) for row in life.table.rows if row.kind is FactKind.COPY]
    assert sorted(marks, key=str) == [(10, None, None), (20, ("v",), 2), (20, None, None)]


def test_a_restatement_without_changes_adds_its_columns_to_the_copy():
    """V37: The restated copy replaces the stored one, so an older copy with the added columns is accepted."""
    life = Life()
    life.table = replace(life.table, columns=("v", "w"))
    life.take(Copy(10, {"k": {"v": "a", "w": 1}}, ("v", "w"), backfill=True))
    life.take(Copy(20, {"k": {"v": "a"}}, ("v",)))
    assert life.take(Copy(20, {"k": {"v": "a", "w": 1}}, ("v", "w"), restate=True)) == {"unchanged": 1}
    assert life.take(Copy(15, {"k": {"v": "a", "w": 2}}, ("v", "w"))) == {"changed": 1}


def test_a_restatement_withdraws_values_of_columns_that_it_lacks():
    """L11: The result is as if the replaced copy had never arrived."""
    life = Life()
    life.table = replace(life.table, columns=("v", "w"))
    life.take(Copy(10, {"k": {"v": "a", "w": 1}}, ("v", "w")))
    life.take(Copy(20, {"k": {"v": "a", "w": 2}, "m": {"v": "a", "w": 2}}, ("v", "w")))
    counted = life.take(Copy(20, {"k": {"v": "a"}, "m": {"v": "a"}}, ("v",), restate=True))
    assert counted == {"changed": 2}
    values = {(row.key, row.start): row.values["w"] for row in life.table.versions}
    assert values == {("k", 10): 1, ("m", 20): None}


def test_ignored_and_overwritten_columns_begin_no_versions():
    life = Life()
    life.table = StoredVersions(("v", "i", "o"), ignored=frozenset("i"), overwritten=frozenset("o"))
    columns = ("v", "i", "o")
    life.take(Copy(1, {"k": {"v": "a", "i": 1, "o": 1}}, columns))
    assert life.take(Copy(2, {"k": {"v": "a", "i": 2, "o": 1}}, columns)) == {"unchanged": 1}
    assert life.take(Copy(3, {"k": {"v": "a", "i": 2, "o": 2}}, columns)) == {"changed": 1}
    assert life.take(Copy(4, {"k": {"v": "b", "i": 3, "o": 3}}, columns)) == {"changed": 1}
    assert [row.values for row in life.table.life("k")] == [
        {"v": "a", "i": 1, "o": 2},
        {"v": "b", "i": 3, "o": 3},
    ]


COPIES = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)).map(
    lambda rows: " ".join(f"{key}:{value}" for key, value in rows.items())
)
SERIES = st.lists(
    st.tuples(st.integers(1, 30), COPIES), min_size=1, max_size=8, unique_by=lambda each: each[0]
)


@given(SERIES)
def test_L13_copies_in_order_leave_no_memory_rows(series):
    """V19, V27: Every row is a version, no commit is empty, and each copy can be read again."""
    life = Life()
    for at, text in sorted(series):
        before = life.commits
        changed = life.copy(at, text).keys() - {"unchanged"}
        assert life.commits == before + bool(changed)
    assert all(row.is_version for row in life.table.rows)
    _assert_copies_read_as_they_were(life, series)


@given(SERIES)
def test_L1_L6_copies_in_any_order_give_the_same_table(series):
    """With a memory, the order of arrival does not matter, and `as_of` a copy's instant is the copy."""
    lives = [Life(), Life()]
    for life, order in zip(lives, (series, sorted(series)), strict=True):
        for at, text in order:
            life.copy(at, text, backfill=True)
        _assert_copies_read_as_they_were(life, series)
    one, other = (now(life.table) for life in lives)
    assert one == other


@given(SERIES, st.data())
def test_L3_L5_recorded_states_stay_known(series, data):
    """After every commit, the state known at every earlier recorded time is what the table contained then."""
    life = Life()
    for at, text in series:
        life.copy(at, text, backfill=True)
        again = data.draw(st.sampled_from(life.marks()))
        commits = life.commits
        life.copy(again, _as_of(life, again))
        assert life.commits == commits
        if data.draw(st.booleans()):
            life.copy(again, data.draw(COPIES), restate=True)
        for recorded, versions in life.states.items():
            known = sorted(
                (k, start, end or 0, str(values))
                for k, start, end, values in life.table.statements_at(recorded)
            )
            assert known == versions
    _assert_each_life_is_whole(life)


def _as_of(life, instant):
    states = {key: life.table.as_of(key, instant) for key in KEYS}
    return " ".join(f"{key}:{values['v']}" for key, values in states.items() if values)


def _assert_copies_read_as_they_were(life, series):
    for at, text in series:
        assert sorted(_as_of(life, at).split()) == sorted(text.split())
    _assert_each_life_is_whole(life)


def _assert_each_life_is_whole(life):
    """L4, V23: Half-open predicates find each record at most once, and equal values are one version."""
    for key in KEYS:
        rows = sorted(life.table.life(key), key=lambda row: row.start)
        for one, other in pairwise(rows):
            assert one.end is not None
            assert one.end < other.start or (one.end == other.start and one.values != other.values)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_repeated_nan_is_no_change_in_copies(overwrite):
    """V16: A repeated NaN changes nothing, in columns with and without a history."""
    life = Life(overwritten=frozenset("v" if overwrite else ""))
    for at in (1, 2):
        life.take(Copy(at, {"k": {"v": float("nan")}}, ("v",)))
    assert len(life.table.rows) == 1
