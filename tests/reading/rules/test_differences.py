"""What two states differ in, and how rows stand in order."""

from decimal import Decimal

from backstory.reading.rules.differences import Side, differences, in_order

NAN = float("nan")


def told(before, after, key=("k",)):
    sides = [Side(row, is_after=False) for row in before] + [Side(row, is_after=True) for row in after]
    return [(each["key"], each["change"], each["changed"]) for each in differences(sides, key)]


def test_records_come_go_and_change_by_column():
    before = [{"k": 1, "a": "x", "b": 1}, {"k": 2, "a": "x", "b": 1}]
    after = [{"k": 1, "a": "y", "b": 1}, {"k": 3, "a": None, "b": 1}]
    assert told(before, after) == [
        ({"k": 1}, "changed", ["a"]),
        ({"k": 2}, "removed", []),
        ({"k": 3}, "added", []),
    ]


def test_values_are_alike_where_nothing_tells_them_apart():
    """NULL and NULL, NaN and NaN, both zeros, maps in any order (V16)."""
    before = {"k": None, "d": NAN, "z": 0.0, "m": {"a": {"x": {1: 1}}, "b": None}}
    after = {"k": None, "d": NAN, "z": -0.0, "m": {"b": None, "a": {"x": {1: 1}}}}
    assert told([before], [after]) == []
    assert told([before], [after | {"m": {"a": {"x": {1: 2}}, "b": None}}]) == [
        ({"k": None}, "changed", ["m"])
    ]


def test_without_a_key_rows_come_and_go_as_often_as_they_are():
    row = {"a": 1}
    assert told([row], [row] * 3, key=()) == [(row, "added", [])] * 2


def test_rows_stand_in_the_order_of_spark():
    """NULL first, NaN last, texts by their bytes, structs field by field, lists by what comes first."""
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
