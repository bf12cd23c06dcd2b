"""The lanes and changes of a record's history, and its drawings as text and as SVG."""

from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from told_lives import CORRECTED, NOW, day, statements_of

import backstory
from backstory.errors import Refused, UsageError
from backstory.model.table import TableName
from backstory.reading.timelines import (
    Lane,
    Scale,
    Timeline,
    changing_columns,
    describe_change,
    draw_lanes,
    lanes,
    name_beside,
    picture,
    require_axis,
    statements_at,
    time_format,
    timeline_of,
)


def test_v97_each_known_time_with_a_change_has_its_own_lane():
    lane_values = [
        (lane.known_from, [each["v"] for each in lane.versions]) for lane in lanes(statements_of(CORRECTED))
    ]
    assert lane_values == [(day("1"), ["a"]), (day("2"), ["a", "b"]), (day("3"), ["a", "c", "b"])]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["v", "known_from"], ["v", "known_from_src"]),
        (["known_from", "known_from_src"], ["known_from_src_src", "known_from_src"]),
        (["known_from_src"], ["known_from_src"]),
    ],
)
def test_a_user_column_named_like_a_known_time_keeps_its_values(names, shown):
    """Two columns of one name would be one value in JSON, and a file that others refuse."""
    assert [name_beside(["known_from", "known_to"], name, names) for name in names] == shown
    row = dict.fromkeys(names, 7) | {"valid_from": day("1"), "valid_to": None}
    (version,) = timeline_of(TableName("s", "t"), {}, [row], {}).versions
    assert {name: version[name] for name in shown} == dict.fromkeys(shown, 7)


def test_a_lane_identifies_its_new_versions():
    last = lanes(statements_of(CORRECTED))[-1]
    assert [each["v"] for each in last.versions if last.is_news(each)] == ["a", "c"]


def test_a_history_without_known_times_has_one_lane():
    (lane,) = lanes(statements_of("a[1,2)\nb[2,)"))
    assert (lane.known_from, len(lane.versions)) == (None, 2)
    assert lanes([]) == []


def test_a_withdrawn_history_ends_in_an_empty_lane():
    assert [len(lane.versions) for lane in lanes(statements_of("a[1,) known [1,2)"))] == [1, 0]


def test_v99_a_statement_known_until_a_time_is_excluded_at_that_time():
    assert [
        [each["v"] for each in statements_at(statements_of(CORRECTED), day(at))]
        for at in ("0", "2", "2.9", "3")
    ] == [
        [],
        ["a", "b"],
        ["a", "b"],
        ["a", "c", "b"],
    ]
    assert statements_at(statements_of(CORRECTED)) == statements_at(statements_of(CORRECTED), day("3"))


def test_columns_with_constant_values_are_no_changing_columns():
    assert changing_columns(statements_of(CORRECTED), ["v", "same"]) == ["v"]


def test_v16_nan_is_no_change_from_nan():
    before, after = ({"v": v, "f": float("nan"), "s": {"x": [float("nan")]}} for v in "ab")
    assert changing_columns([before, after], ["v", "f", "s"]) == ["v"]
    assert describe_change(before, after, ["v"]) == "v: a → b"


def test_different_times_are_formatted_differently():
    days, hours = [day("1"), day("2")], [day("1"), day("1.5")]
    assert [time_format(times) for times in (days, hours)] == ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S"]
    assert Scale(day("0"), day("40")).labels() == ("2024-01", "2024-02")
    assert Scale(day("0"), day("0.5")).labels() == ("2024-01-01 00:00:00", "2024-01-01 12:00:00")


def draw(versions, *more):
    return draw_lanes([Lane(versions)], *more)


def drawn(lines):
    return "\n" + "\n".join(line.rstrip() for line in lines) + "\n"


def test_a_gap_in_a_history_is_drawn_as_gone():
    """Changed values are shown, a gap is empty, and the present value ends in an arrow."""
    life = statements_of("Almaty[0,20)\nAstana[20,50)\nAstana[70,)")
    assert drawn(draw(life, ["v"], NOW)) == (
        """
            2024-01                                  2024-04
2024-01-01  ██████████                                         v: Almaty
2024-01-21            ██████████████                           v: Almaty → Astana
2024-02-20                          ╳┄┄┄┄┄┄┄┄┄                 gone
2024-03-11                                    █████████████▶   the same again
"""
    )


def test_an_ended_history_is_drawn_as_gone_until_now():
    assert drawn(draw(statements_of("a[0,20)"), ["v"], NOW)).splitlines()[-1].split() == [
        "2024-01-21",
        "╳",
        "gone",
    ]


def test_v97_each_known_time_is_drawn_as_a_lane():
    """A plus marks the new versions of a known time."""
    assert drawn(draw_lanes(lanes(statements_of(CORRECTED)), ["v"], NOW)) == (
        """
              2024-01                                  2024-04
known from 2024-01-02 to 2024-01-03
+ 2024-01-11  ███████████████████████████████████████████████▶   v: a
known from 2024-01-03 to 2024-01-04
+ 2024-01-11  █████                                              v: a
+ 2024-01-21       ██████████████████████████████████████████▶   v: a → b
known from 2024-01-04
+ 2024-01-11  ███                                                v: a
+ 2024-01-16     ██                                              v: a → c
  2024-01-21       ██████████████████████████████████████████▶   v: c → b
"""
    )


def test_a_narrow_terminal_folds_words_not_bars():
    lines = draw(statements_of(f"{'word ' * 20}[0,20)\nb[20,)"), ["v"], NOW, 60)
    assert max(map(len, lines)) <= 60
    assert [line[:10] for line in lines if line[0] != " "] == ["2024-01-01", "2024-01-21"]


def test_versions_of_one_day_show_their_times():
    lines = draw(statements_of("a[0,0.25)\nb[0.25,)"), ["v"], NOW)
    assert [line[:19] for line in lines[1:]] == ["2024-01-01 00:00:00", "2024-01-01 06:00:00"]


def test_escape_characters_in_values_are_not_drawn():
    assert "\x1b" not in draw(statements_of("a\x1b[2J[0,20)".replace("[2J", "")), ["v"], NOW)[1]


def test_an_empty_history_draws_no_lines():
    assert draw([], ["v"], NOW) == draw_lanes(lanes([]), ["v"], NOW) == []


SVG = "{http://www.w3.org/2000/svg}"


def seen(life, telling=("v",), columns=("v", "same"), title="crm.customer k=k"):
    return ET.fromstring(picture(life, telling, columns, NOW, title))


def texts(tree):
    return ["".join(each.itertext()) for each in tree.iter(f"{SVG}text")]


def hovers(tree):
    return [each.find(f"{SVG}title").text for each in tree.iter(f"{SVG}g")]


def test_the_picture_has_a_row_per_column_and_a_bar_per_value_period():
    tree = seen([Lane(statements_of("Almaty[0,20)\nAstana[20,50)\nAstana[70,)"))], telling=("v", "same"))
    assert texts(tree) == [
        "crm.customer k=k",
        "2024-01-01",
        "2024-01-21",
        "2024-02-20",
        "2024-03-11",
        *("v", "Almaty", "Astana", "Astana"),
        *("same", "1", "1"),
    ]
    assert hovers(tree)[:4] == [
        "v: Almaty\nfrom 2024-01-01 00:00:00 to 2024-01-21 00:00:00",
        "gone from 2024-02-20 00:00:00 to 2024-03-11 00:00:00",
        "v: Astana\nfrom 2024-01-21 00:00:00 to 2024-02-20 00:00:00",
        "v: Astana\nfrom 2024-03-11 00:00:00 on",
    ]
    assert len(list(tree.iter(f"{SVG}line"))) == 4 + 2


def test_v97_the_picture_has_a_row_per_known_time_and_marks_new_versions():
    tree = seen(lanes(statements_of(CORRECTED)))
    bars = [each.get("class") for each in tree.iter(f"{SVG}polygon")]
    assert [text for text in texts(tree) if text.startswith("known")] == [
        f"known 2024-01-0{number}" for number in (2, 3, 4)
    ]
    assert bars == ["one news", "one news", "two news", "one news", "three news", "two"]


def test_values_are_text_and_never_markup():
    evil = "</text><script>alert(1)</script>&\"'\x00\x0b"
    drawn = picture([Lane(statements_of(f"{evil}[0,)"))], ["v"], ["v"], NOW, evil)
    tree = ET.fromstring(drawn)
    assert "<script" not in drawn
    assert [each.tag for each in tree.iter() if "script" in each.tag] == []
    assert tree.find(f"{SVG}title").text.startswith("</text><script>alert(1)</script>&")


def test_the_picture_is_self_contained_and_supports_dark_mode():
    drawn = picture([Lane(statements_of("a[0,)"))], ["v"], ["v"], NOW, "t")
    assert "prefers-color-scheme: dark" in drawn
    assert drawn.count("http") == 1  # the name of the format, which is never fetched
    assert "url(" not in drawn


def test_wide_and_empty_records_are_drawn():
    wide = statements_of("a[0,)")[0] | {f"c{number}": number for number in range(40)}
    tree = seen([Lane([wide])], telling=[f"c{number}" for number in range(40)])
    assert texts(tree)[-1] == "… and 24 more"
    assert texts(seen([], title="nothing")) == ["nothing"]


def test_a_timeline_is_drawn_in_a_terminal_a_notebook_and_a_file(tmp_path):
    life = Timeline(statements_of(CORRECTED), ["v", "same"], "both", "crm.customer k=k")
    assert isinstance(life, backstory.Timeline)
    assert str(life).count("known from") == len(life.lanes) == 3
    assert life._repr_html_().startswith("<svg")
    life.save(tmp_path / "life.svg")
    assert (tmp_path / "life.svg").read_text("utf-8").count("known") == 3
    with pytest.raises(UsageError, match="cannot be written"):
        life.save(tmp_path / "none" / "life.svg")


def test_a_timeline_on_the_valid_axis_has_one_lane():
    life = Timeline([each for each in statements_of(CORRECTED) if each["known_to"] is None], ["v"])
    assert "known from" not in str(life)
    assert len(life.lanes) == 1


def test_an_empty_timeline_reports_that_no_version_exists():
    assert str(Timeline([], [])) == "There is no version of this record."
    assert "There is no version" in Timeline([], []).svg()
    assert Timeline([], []).drawn(80) == Timeline([], []).draw(80)


def test_an_unknown_or_contradictory_axis_is_refused():
    require_axis("both")
    for axis, known in (("recorded", None), ("both", "2024-01-01")):
        with pytest.raises(UsageError) as refused:
            require_axis(axis, known)
        assert refused.value.code == "bad-option"


@pytest.mark.parametrize(
    ("start", "end"),
    [(None, None), ("-0044-03-15T00:00:00Z", day("1")), (day("1"), "+19999-12-31T00:00:00Z")],
)
def test_versions_without_a_usable_start_or_end_have_no_timeline(start, end):
    """They cannot be sorted among the others, or drawn."""
    rows = [{"v": "a", "valid_from": start, "valid_to": end}, {"v": "b", "valid_from": NOW, "valid_to": None}]
    with pytest.raises(Refused) as stop:
        timeline_of(TableName("s", "t"), {}, rows, {})
    assert stop.value.code == "no-timeline"


def test_a_32_bit_key_has_its_displayed_number_in_the_title():
    (single,) = pa.array([72.1], pa.float32()).to_pylist()
    row = {"k": 72.1, "v": "a", "valid_from": day("1"), "valid_to": None}
    assert timeline_of(TableName("crm", "t"), {"k": single}, [row], {}).title == "crm.t k=72.1"
    assert timeline_of(TableName("crm", "t"), {"k": "x"}, [], {}).title == "crm.t k=x"
