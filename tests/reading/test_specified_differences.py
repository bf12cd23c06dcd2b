"""The specification of differences: between two states, in between, and the order of rows."""

from decimal import Decimal

import pytest
from specification.differences import Lived, Side, differences, in_order, passages

NAN = float("nan")


def changes(before, after, key=("k",)):
    sides = [Side(row, is_after=False) for row in before] + [Side(row, is_after=True) for row in after]
    return [(each["key"], each["change"], each["changed"]) for each in differences(sides, key)]


def test_records_are_added_removed_or_changed_by_column():
    before = [{"k": 1, "a": "x", "b": 1}, {"k": 2, "a": "x", "b": 1}]
    after = [{"k": 1, "a": "y", "b": 1}, {"k": 3, "a": None, "b": 1}]
    assert changes(before, after) == [
        ({"k": 1}, "changed", ["a"]),
        ({"k": 2}, "removed", []),
        ({"k": 3}, "added", []),
    ]


def test_indistinguishable_values_are_no_difference():
    """NULLs, NaNs, both zeros and maps in any order are equal (V16)."""
    before = {"k": None, "d": NAN, "z": 0.0, "m": {"a": {"x": {1: 1}}, "b": None}}
    after = {"k": None, "d": NAN, "z": -0.0, "m": {"b": None, "a": {"x": {1: 1}}}}
    assert changes([before], [after]) == []
    assert changes([before], [after | {"m": {"a": {"x": {1: 2}}, "b": None}}]) == [
        ({"k": None}, "changed", ["m"])
    ]


def test_keyless_rows_are_added_and_removed_by_their_count():
    row = {"a": 1}
    assert changes([row], [row] * 3, key=()) == [(row, "added", [])] * 2


def test_rows_are_sorted_in_sparks_order():
    """NULL is first, NaN last, texts sort by bytes, structs field by field, and lists by their first
    difference."""
    rows = [{"v": each} for each in (NAN, 2.0, None, -1.0)]
    assert repr([row["v"] for row in in_order(rows, ["v"])]) == "[None, -1.0, 2.0, nan]"
    rows = [{"v": each} for each in ("ä", "b", "", "Z", "\U0001f600", "\uffff")]
    assert [row["v"] for row in in_order(rows, [])] == ["", "Z", "b", "ä", "\uffff", "\U0001f600"]
    rows = [{"v": {"x": x, "y": y}} for x, y in ((1, b"\xff"), (1, None), (None, b""), (1, b"\x01"))]
    assert [tuple(row["v"].values()) for row in in_order(rows, [])] == [
        (None, b""),
        (1, None),
        (1, b"\x01"),
        (1, b"\xff"),
    ]
    rows = [
        {"v": each, "w": w}
        for each, w in (([Decimal(2)], 1), ([], 2), ([Decimal(1), None], 3), ([Decimal(1)], 4))
    ]
    assert [row["w"] for row in in_order(rows, ["v"])] == [2, 4, 3, 1]


# Versions `value[start,end)` of a record that begin or end between the times 10 and 20, and the expected
# change.
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


@pytest.mark.parametrize(("life", "change"), LIVES.items())
def test_changes_between_two_times_are_reported_once(life, change):
    """The ends decide, otherwise the time in between. It also shows whether the record was away."""
    rows = passages(map(lived, life.split()), ["k"])
    assert [" ".join([each["change"], *(["away"] if each["away"] else [])]) for each in rows] == [change][
        : bool(change)
    ]


def test_passages_are_reported_separately_for_every_key():
    """Versions belong to one record if their keys are equal, whatever their other values are."""
    lives = ((1, "a", 12), (2, "a", 12), (1, "b", 14))
    versions = [Lived({"k": k, "v": v}, start, start + 2, before=False, after=False) for k, v, start in lives]
    assert [each["key"] for each in passages(versions, ["k"])] == [{"k": 1}, {"k": 2}]


def lived(word):
    value, _, span = word.partition("[")
    start, end = span.strip(")").split(",")
    end = None if end == "~" else int(end)
    before, after = (int(start) <= time and (end is None or end > time) for time in (10, 20))
    return Lived({"k": 1, "v": value}, int(start), end, before, after)
