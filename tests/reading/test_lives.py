"""The known states of a life, by time."""

from told_lives import CORRECTED, day, told

from backstory.reading.lives import (
    Scale,
    changing_columns,
    describe_change,
    lanes,
    statements_at,
    time_format,
)


def test_v97_a_lane_for_each_known_time_at_which_the_life_changed():
    found = [(lane.known_from, [each["v"] for each in lane.versions]) for lane in lanes(told(CORRECTED))]
    assert found == [(day("1"), ["a"]), (day("2"), ["a", "b"]), (day("3"), ["a", "c", "b"])]


def test_a_lane_knows_what_was_new_in_it():
    last = lanes(told(CORRECTED))[-1]
    assert [each["v"] for each in last.versions if last.is_news(each)] == ["a", "c"]


def test_a_life_whose_known_times_nobody_knows_has_one_lane():
    (lane,) = lanes(told("a[1,2)\nb[2,)"))
    assert (lane.known_from, len(lane.versions)) == (None, 2)
    assert lanes([]) == []


def test_what_was_taken_back_for_good_leaves_an_empty_lane():
    assert [len(lane.versions) for lane in lanes(told("a[1,) known [1,2)"))] == [1, 0]


def test_v99_what_is_told_up_to_a_time_is_not_told_at_it():
    assert [
        [each["v"] for each in statements_at(told(CORRECTED), day(at))] for at in ("0", "2", "2.9", "3")
    ] == [
        [],
        ["a", "b"],
        ["a", "b"],
        ["a", "c", "b"],
    ]
    assert statements_at(told(CORRECTED)) == statements_at(told(CORRECTED), day("3"))


def test_only_columns_that_change_tell_a_life():
    assert changing_columns(told(CORRECTED), ["v", "same"]) == ["v"]


def test_v16_nan_is_what_it_was():
    before, after = ({"v": v, "f": float("nan"), "s": {"x": [float("nan")]}} for v in "ab")
    assert changing_columns([before, after], ["v", "f", "s"]) == ["v"]
    assert describe_change(before, after, ["v"]) == "v: a → b"


def test_times_that_differ_look_different():
    days, hours = [day("1"), day("2")], [day("1"), day("1.5")]
    assert [time_format(times) for times in (days, hours)] == ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S"]
    assert Scale(day("0"), day("40")).labels() == ("2024-01", "2024-02")
    assert Scale(day("0"), day("0.5")).labels() == ("2024-01-01 00:00:00", "2024-01-01 12:00:00")
