"""One record's life, drawn as text: a bar for each version, and what changed in it.

One record's life as an SVG picture, which needs nothing else: no script, no font, no other file.
"""

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import chain
from typing import Final

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.reading.lives import (
    Lane,
    Scale,
    VersionRow,
    describe_change,
    differ,
    removal_time,
    time_format,
    value_text,
)

BARS_WIDTH, NARROW_WIDTH = 48, 20  # of the bars, and where a line has no room for both them and words
ROOMY = 110
BAR_SIGN, OPEN_SIGN, GONE_SIGN, AWAY_SIGN = "█", "▶", "╳", "┄"
NEW_SIGN: Final = "+ "


def draw(
    versions: Sequence[VersionRow], columns: Sequence[str], now: datetime, width: int | None = None
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
    form = time_format([each[name] for each in versions for name in (VALID_FROM, VALID_TO) if each[name]])
    room = BARS_WIDTH if width is None or width >= ROOMY else NARROW_WIDTH
    drawing = _Drawing(scale, form, room, columns, news=any(lane.known_from for lane in lanes))
    known = time_format([lane.known_from for lane in lanes if lane.known_from])
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
        self.margin = len(NEW_SIGN) if news else 0
        self.dates = len(f"{scale.first:{form}}") + 2
        self.begun = self.margin + self.dates + room + 3  # where words begin

    def axis(self) -> str:
        left, right = self.scale.labels()
        room = max(self.room - len(left), len(right) + 2)  # labels that are longer than the bars stay apart
        return f"{'':{self.margin + self.dates}}{left}{right:>{room}}"

    def lines(self, lane: Lane) -> list[str]:
        found, before = [], None
        for version in lane.versions:
            mark = NEW_SIGN if lane.is_news(version) else ""
            start, end = version[VALID_FROM], version[VALID_TO]
            left = self._place(start)
            right = max(self._place(end or self.scale.until), left + 1)
            bar = BAR_SIGN * (right - left)
            if end is None:
                bar = bar[:-1] + OPEN_SIGN
            told = describe_change(before, version, self.columns)
            found.append(self._line(mark, start, left, bar, told))
            gone = removal_time(lane.versions, version)
            if gone is not None:
                away = AWAY_SIGN * (self._returned(lane, gone) - right - 1)
                found.append(self._line("", gone, right, GONE_SIGN + away, "gone"))
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
    room = max(width - begun, NARROW_WIDTH)
    parts = textwrap.wrap(line[begun:], room, break_on_hyphens=False, break_long_words=False) or [""]
    return [(line[:begun] + parts[0]).rstrip(), *(" " * begun + part for part in parts[1:])]


WIDTH, LEFT, RIGHT = 960, 190, 24
TOP, ROW, BAR = 62, 34, 24  # where the first row begins, from row to row, and how high a bar is
LETTER: Final = 7.2  # how wide one is, at most
TICK: Final = 96  # between dates, so that they can be read
MOST_COLUMNS: Final = 16  # rows of columns
KINDS: Final = ("one", "two", "three", "four")  # the colours of values
STYLE: Final = """
.backstory { --paper: #ffffff; --ink: #1d2733; --faint: #5d6b7a; --line: #d4dae1; --news: #b45309;
  --one: #cfe1f7; --two: #dcead3; --three: #fbe6c5; --four: #ecd9f0;
  font: 12px ui-monospace, Menlo, Consolas, monospace; max-width: 960px; }
@media (prefers-color-scheme: dark) { .backstory {
  --paper: #14181d; --ink: #e8ebef; --faint: #9aa7b4; --line: #37414c; --news: #fbbf24;
  --one: #26466b; --two: #31502f; --three: #5d4420; --four: #4f355a; } }
.backstory .paper { fill: var(--paper); } .backstory text { fill: var(--ink); }
.backstory .faint { fill: var(--faint); } .backstory .title { font-weight: bold; font-size: 14px; }
.backstory .one { fill: var(--one); } .backstory .two { fill: var(--two); }
.backstory .three { fill: var(--three); } .backstory .four { fill: var(--four); }
.backstory .tick { stroke: var(--line); } .backstory .news { stroke: var(--news); stroke-width: 2; }
.backstory a:hover polygon, .backstory a:focus polygon { stroke: var(--ink); stroke-width: 2; }
.backstory .away { stroke: var(--faint); stroke-width: 2; stroke-dasharray: 2 5; }
"""
Link = Callable[["Bar"], str | None]
# What no XML document can hold.
_NO_LETTERS: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of one value; `end` is None while it lasts, `gone` when nothing followed it."""

    start: datetime
    end: datetime | None
    text: str
    told: str
    gone: datetime | None = None
    news: bool = False
    column: str = ""


@dataclass(frozen=True, slots=True)
class PictureRow:
    """A line of the picture: what it is about, and its bars."""

    label: str
    bars: Sequence[Bar]


def picture(
    lanes: Sequence[Lane],
    telling: Sequence[str],
    columns: Sequence[str],
    now: datetime,
    title: str,
    link: Link | None = None,
) -> str:
    """A life as SVG: a row for each of the columns that tell it, or for each known time at which it changed.

    A bar is a stretch of one value and shows the whole of it under the pointer; an open one ends in an
    arrow, and while the record is away a dotted line stands in the place of a bar. `link` gives the address
    that a bar leads to, None for none.
    """
    versions = list(chain.from_iterable(lane.versions for lane in lanes))
    if not versions:
        return _document([], title, ROW)
    by_lane = any(lane.known_from for lane in lanes)
    rows = list(_rows_of_lanes(lanes, telling, columns) if by_lane else _rows_of_columns(lanes[0], telling))
    height = TOP + len(rows) * ROW
    scale = Scale.of(versions, now)
    drawn = [*_ticks(scale, versions, height)]
    kinds: dict[str, str] = {}
    for number, row in enumerate(rows):
        for bar in row.bars:
            kinds.setdefault(bar.text, KINDS[len(kinds) % len(KINDS)])
        drawn += _row(row, scale, TOP + number * ROW, kinds, link)
    return _document(drawn, title, height + 8)


def _rows_of_lanes(
    lanes: Sequence[Lane], telling: Sequence[str], columns: Sequence[str]
) -> Iterator[PictureRow]:
    known = time_format([lane.known_from for lane in lanes if lane.known_from])
    for lane in lanes:
        bars = [
            Bar(
                version[VALID_FROM],
                version[VALID_TO],
                ", ".join(value_text(version[name]) for name in telling),
                _all_values(version, columns),
                removal_time(lane.versions, version),
                lane.is_news(version),
            )
            for version in lane.versions
        ]
        yield PictureRow(f"known {lane.known_from:{known}}" if lane.known_from else "", bars)


def _rows_of_columns(lane: Lane, telling: Sequence[str]) -> Iterator[PictureRow]:
    for name in telling[:MOST_COLUMNS]:
        yield PictureRow(name, list(_stretches(lane, name)))
    if len(telling) > MOST_COLUMNS:
        yield PictureRow(f"… and {len(telling) - MOST_COLUMNS} more", [])


def _stretches(lane: Lane, name: str) -> Iterator[Bar]:
    """The values of a column; versions that follow each other with the same are one bar."""
    begun: VersionRow | None = None
    for version, following in zip(lane.versions, [*lane.versions[1:], None], strict=True):
        begun = begun or version
        same = following is not None and not differ(name, following, version)
        if same and following is not None and following[VALID_FROM] == version[VALID_TO]:
            continue
        text = value_text(version[name])
        gone = removal_time(lane.versions, version)
        yield Bar(begun[VALID_FROM], version[VALID_TO], text, f"{name}: {text}", gone, column=name)
        begun = None


def _all_values(version: VersionRow, columns: Sequence[str]) -> str:
    return "\n".join(f"{name}: {value_text(version[name])}" for name in columns)


def _row(
    row: PictureRow, scale: Scale, top: float, kinds: Mapping[str, str], link: Link | None
) -> Iterator[str]:
    middle = top + BAR / 2
    yield _text(10, middle + 4, _fit(row.label, LEFT - 20), "faint", told=row.label)
    for bar in row.bars:
        later = [each.start for each in row.bars if bar.gone is not None and each.start >= bar.gone]
        left, right = _x(bar.start, scale), _x(bar.end or scale.until, scale)
        if bar.gone is not None:
            back = min(later, default=scale.until)
            until = f" to {back:%Y-%m-%d %H:%M:%S}" if later else ""
            ends = f'x1="{right:.1f}" y1="{middle:g}" x2="{_x(back, scale):.1f}" y2="{middle:g}"'
            line = f'<line class="away" {ends}/>'
            yield _with_title(f"gone from {bar.gone:%Y-%m-%d %H:%M:%S}{until}", line)
        drawn = _bar(bar, left, max(right, left + 3), top, kinds[bar.text])
        address = None if link is None else link(bar)
        yield drawn if address is None else f'<a href="{_escape_text(address)}">{drawn}</a>'


def _bar(bar: Bar, left: float, right: float, top: float, kind: str) -> str:
    until = f"to {bar.end:%Y-%m-%d %H:%M:%S}" if bar.end else "on"
    told = f"{bar.told}\nfrom {bar.start:%Y-%m-%d %H:%M:%S} {until}"
    tip = 9 if bar.end is None else 0
    corners = [(left, top), (right, top), (right + tip, top + BAR / 2), (right, top + BAR), (left, top + BAR)]
    places = " ".join(f"{x:.1f},{y:g}" for x, y in corners)
    news = " news" if bar.news else ""
    text = _text(left + 5, top + BAR / 2 + 4, _fit(bar.text, right - left - 8))
    return _with_title(told, f'<polygon class="{kind}{news}" points="{places}"/>{text}')


def _ticks(scale: Scale, versions: Sequence[VersionRow], height: float) -> Iterator[str]:
    """A line where a version begins or the record is gone, with its date where there is room."""
    times = {each[name] for each in versions for name in (VALID_FROM, VALID_TO)} - {None}
    form, free = time_format(sorted(times)), 0.0
    for time in sorted(times):
        x = _x(time, scale)
        yield f'<line class="tick" x1="{x:.1f}" y1="{TOP - 12}" x2="{x:.1f}" y2="{height}"/>'
        label = f"{time:{form}}"
        if x >= free and x + len(label) * LETTER <= WIDTH:
            yield _text(x, TOP - 18, label, "faint")
            free = x + max(len(label) * LETTER + 8, TICK)


def _x(time: datetime, scale: Scale) -> float:
    return LEFT + scale.place(time, WIDTH - LEFT - RIGHT)


def _fit(text: str, room: float) -> str:
    """As much of a text as there is room for."""
    line, letters = " ".join(text.split()), int(room / LETTER)
    return line if len(line) <= letters else f"{line[: letters - 1]}…" if letters > 1 else ""


def _text(x: float, y: float, text: str, kind: str = "", told: str = "") -> str:
    whole = f"<title>{_escape_text(told)}</title>" if told and told != text else ""
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:g}">{whole}{_escape_text(text)}</text>' if text else ""


def _with_title(title: str, drawn: str) -> str:
    """What is drawn, with a title that a browser shows on hover."""
    return f"<g><title>{_escape_text(title)}</title>{drawn}</g>"


def _escape_text(text: str) -> str:
    return escape(_NO_LETTERS.sub("\ufffd", text))


def _document(drawn: Sequence[str], title: str, height: float) -> str:
    place = f'viewBox="0 0 {WIDTH} {height:g}" width="100%"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="backstory" role="img" {place}>',
        f"<title>{_escape_text(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height:g}" rx="6"/>',
        _text(10, 24, _fit(title, WIDTH - 20), "title"),
        *drawn,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
