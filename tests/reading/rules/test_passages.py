"""What became of records between two times: also of those that are the same at both."""

import pytest

from backstory.reading.rules.passages import Lived, passages

# Versions `value[start,end)` of a record that begin or end between the times 10 and 20, and what is told of it.
LIVES = {
    "a[0,15)": "removed",
    "a[15,~)": "added",
    "a[0,15) b[15,~)": "changed",
    "a[0,12) a[14,~)": "returned away",
    "a[0,12) b[14,18) a[18,~)": "returned away",
    "a[0,12) b[12,14) a[14,~)": "reverted",
    "a[0,12) a[12,~)": "",
    "a[12,14)": "passed",
    "a[12,14) b[16,18)": "passed away",
    "a[0,12) b[14,~)": "changed away",
    "a[0,12) b[14,16)": "removed away",
}


@pytest.mark.parametrize(("life", "told"), LIVES.items())
def test_what_happened_in_between_is_told_once(life, told):
    """By what the ends are, else by what was between; and whether the record was away and came back."""
    found = passages(map(lived, life.split()), ["k"])
    assert [" ".join([each["change"], *(["away"] if each["away"] else [])]) for each in found] == [told][
        : bool(told)
    ]


def test_only_the_columns_that_are_compared_count():
    """A record is told apart by its key alone."""
    one, other = (Lived({"k": key}, 12, 14, before=False, after=False) for key in (1, 2))
    assert [each["key"] for each in passages([one, other], ["k"])] == [{"k": 1}, {"k": 2}]


def lived(word):
    value, _, span = word.partition("[")
    start, end = span.strip(")").split(",")
    end = None if end == "~" else int(end)
    before, after = (int(start) <= time and (end is None or end > time) for time in (10, 20))
    return Lived({"k": 1, "v": value}, int(start), end, before, after)
