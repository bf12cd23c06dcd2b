"""Lives as text, compared with fixed outputs."""

from told_lives import CORRECTED, NOW, told

from backstory.reading.drawings import draw_lanes
from backstory.reading.lives import Lane, lanes


def draw(versions, *more):
    return draw_lanes([Lane(versions)], *more)


def drawn(lines):
    return "\n" + "\n".join(line.rstrip() for line in lines) + "\n"


def test_a_life_with_a_gap():
    """Changed values are shown, a gap is empty, and the present value ends in an arrow."""
    life = told("Almaty[0,20)\nAstana[20,50)\nAstana[70,)")
    assert drawn(draw(life, ["v"], NOW)) == (
        """
            2024-01                                  2024-04
2024-01-01  ██████████                                         v: Almaty
2024-01-21            ██████████████                           v: Almaty → Astana
2024-02-20                          ╳┄┄┄┄┄┄┄┄┄                 gone
2024-03-11                                    █████████████▶   the same again
"""
    )


def test_a_life_that_ended_is_gone_until_now():
    assert drawn(draw(told("a[0,20)"), ["v"], NOW)).splitlines()[-1].split() == ["2024-01-21", "╳", "gone"]


def test_v97_a_lane_for_each_known_time():
    """A plus marks the new versions of a known time."""
    assert drawn(draw_lanes(lanes(told(CORRECTED)), ["v"], NOW)) == (
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
    lines = draw(told(f"{'word ' * 20}[0,20)\nb[20,)"), ["v"], NOW, 60)
    assert max(map(len, lines)) <= 60
    assert [line[:10] for line in lines if line[0] != " "] == ["2024-01-01", "2024-01-21"]


def test_versions_of_one_day_show_their_times():
    lines = draw(told("a[0,0.25)\nb[0.25,)"), ["v"], NOW)
    assert [line[:19] for line in lines[1:]] == ["2024-01-01 00:00:00", "2024-01-01 06:00:00"]


def test_a_value_moves_no_cursor():
    assert "\x1b" not in draw(told("a\x1b[2J[0,20)".replace("[2J", "")), ["v"], NOW)[1]


def test_nothing_is_drawn_of_nothing():
    assert draw([], ["v"], NOW) == draw_lanes(lanes([]), ["v"], NOW) == []
