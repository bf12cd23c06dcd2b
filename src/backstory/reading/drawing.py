"""One record's life, drawn as text: a bar for each version, and what changed in it."""

import textwrap
from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from typing import Final

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.reading.lives import Lane, Scale, Told, describe_change, form_of, gone_at

WIDTH, NARROW = 48, 20  # of the bars, and where a line has no room for both them and words
ROOMY = 110
BAR, OPEN, GONE, AWAY = "█", "▶", "╳", "┄"
NEWS: Final = "+ "


def draw(
    versions: Sequence[Told], columns: Sequence[str], now: datetime, width: int | None = None
) -> list[str]:
    """Lines for versions in the order of their starts: date, bar, and the changes of `columns`.

    The time axis reaches from the first start to `now`; the last bar of a record that is
    still there ends in an arrow, and while it is away there is a line without one. With a `width` the bars of
    a narrow one are short, and what was changed goes on in lines below.
    """
    return draw_lanes([Lane(versions)], columns, now, width) if versions else []


def draw_lanes(
    lanes: Sequence[Lane], columns: Sequence[str], now: datetime, width: int | None = None
) -> list[str]:
    """The same for each lane, below the time from which on it was known; `+` marks what was new then."""
    versions = list(chain.from_iterable(lane.versions for lane in lanes))
    if not versions:
        return []
    scale = Scale.of(versions, now)
    form = form_of([each[name] for each in versions for name in (VALID_FROM, VALID_TO) if each[name]])
    room = WIDTH if width is None or width >= ROOMY else NARROW
    drawing = _Drawing(scale, form, room, columns, news=any(lane.known_from for lane in lanes))
    known = form_of([lane.known_from for lane in lanes if lane.known_from])
    lines = [drawing.axis()]
    for lane in lanes:
        lines += _heading(lane, known)
        for line in drawing.lines(lane):
            lines += [line] if width is None else _wrap(line, drawing.begun, width)
    return lines


def _heading(lane: Lane, form: str) -> list[str]:
    if lane.known_from is None:
        return []
    until = f" to {lane.known_to:{form}}" if lane.known_to else ""
    told = "" if lane.versions else ": nothing"
    return [f"known from {lane.known_from:{form}}{until}{told}"]


class _Drawing:
    """The lines of versions on one scale."""

    def __init__(self, scale: Scale, form: str, room: int, columns: Sequence[str], *, news: bool) -> None:
        self.scale, self.form, self.room, self.columns = scale, form, room, columns
        self.margin = len(NEWS) if news else 0
        self.dates = len(f"{scale.first:{form}}") + 2
        self.begun = self.margin + self.dates + room + 3  # where words begin

    def axis(self) -> str:
        left, right = self.scale.labels()
        room = max(self.room - len(left), len(right) + 2)  # labels that are longer than the bars stay apart
        return f"{'':{self.margin + self.dates}}{left}{right:>{room}}"

    def lines(self, lane: Lane) -> list[str]:
        found, before = [], None
        for version in lane.versions:
            mark = NEWS if lane.is_news(version) else ""
            start, end = version[VALID_FROM], version[VALID_TO]
            left = self._place(start)
            right = max(self._place(end or self.scale.until), left + 1)
            bar = BAR * (right - left)
            if end is None:
                bar = bar[:-1] + OPEN
            told = describe_change(before, version, self.columns)
            found.append(self._line(mark, start, left, bar, told))
            gone = gone_at(lane.versions, version)
            if gone is not None:
                away = AWAY * (self._returned(lane, gone) - right - 1)
                found.append(self._line("", gone, right, GONE + away, "gone"))
            before = version
        return found

    def _line(self, mark: str, time: datetime, left: int, bar: str, told: str) -> str:
        date = f"{time:{self.form}}"
        return f"{mark:{self.margin}}{date}  {' ' * left}{bar:<{self.room + 1 - left}}  {told}"

    def _returned(self, lane: Lane, gone: datetime) -> int:
        later = (each[VALID_FROM] for each in lane.versions if each[VALID_FROM] > gone)
        return self._place(min(later, default=gone))

    def _place(self, time: datetime) -> int:
        return round(self.scale.place(time, self.room))


def _wrap(line: str, begun: int, width: int) -> list[str]:
    """The line, its words behind the bar below each other; no word is broken."""
    room = max(width - begun, NARROW)
    parts = textwrap.wrap(line[begun:], room, break_on_hyphens=False, break_long_words=False) or [""]
    return [(line[:begun] + parts[0]).rstrip(), *(" " * begun + part for part in parts[1:])]
