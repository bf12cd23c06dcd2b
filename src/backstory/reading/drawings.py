"""One record's history drawn as text or as a self-contained SVG document: a bar for each version."""

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

# The width of the bars as text, in letters, and in lines that are narrower than `ROOMY`.
BARS_WIDTH, NARROW_WIDTH = 48, 20
ROOMY = 110
BAR_SIGN, OPEN_SIGN, GONE_SIGN, AWAY_SIGN = "█", "▶", "╳", "┄"
NEW_SIGN: Final = "+ "


def draw_lanes(
    lanes: Sequence[Lane], columns: Sequence[str], now: datetime, width: int | None = None
) -> list[str]:
    """Draw lanes as lines of text: for each version, sorted by start, its date, a bar and changed `columns`.

    Each lane follows the time at which it became known; `+` marks the versions that are new then. The time
    axis extends from the first start to `now`. An open version ends in an arrow; a removed record has a line
    without a bar. With a narrow `width` bars are shorter and the changes are wrapped.
    """
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
            lines += [line] if width is None else _wrap(line, drawing.begin, width)
    return lines


def _heading(lane: Lane, form: str) -> list[str]:
    if lane.known_from is None:
        return []
    until = f" to {lane.known_to:{form}}" if lane.known_to else ""
    content = "" if lane.versions else ": nothing"
    return [f"known from {lane.known_from:{form}}{until}{content}"]


class _Drawing:
    """The lines of versions on one scale."""

    def __init__(self, scale: Scale, form: str, room: int, columns: Sequence[str], *, news: bool) -> None:
        self.scale, self.form, self.room, self.columns = scale, form, room, columns
        self.margin = len(NEW_SIGN) if news else 0
        self.dates = len(f"{scale.first:{form}}") + 2
        self.begin = self.margin + self.dates + room + 3  # where words begin

    def axis(self) -> str:
        left, right = self.scale.labels()
        room = max(self.room - len(left), len(right) + 2)  # keeps long labels apart
        return f"{'':{self.margin + self.dates}}{left}{right:>{room}}"

    def lines(self, lane: Lane) -> list[str]:
        lines, before = [], None
        for version in lane.versions:
            mark = NEW_SIGN if lane.is_news(version) else ""
            start, end = version[VALID_FROM], version[VALID_TO]
            left = self._place(start)
            right = max(self._place(end or self.scale.until), left + 1)
            bar = BAR_SIGN * (right - left)
            if end is None:
                bar = bar[:-1] + OPEN_SIGN
            change = describe_change(before, version, self.columns)
            lines.append(self._line(mark, start, left, bar, change))
            removed_at = removal_time(lane.versions, version)
            if removed_at is not None:
                away = AWAY_SIGN * (self._return_place(lane, removed_at) - right - 1)
                lines.append(self._line("", removed_at, right, GONE_SIGN + away, "gone"))
            before = version
        return lines

    def _line(self, mark: str, time: datetime, left: int, bar: str, change: str) -> str:
        date = f"{time:{self.form}}"
        return f"{mark:{self.margin}}{date}  {' ' * left}{bar:<{self.room + 1 - left}}  {change}"

    def _return_place(self, lane: Lane, removed_at: datetime) -> int:
        later = (each[VALID_FROM] for each in lane.versions if each[VALID_FROM] > removed_at)
        return self._place(min(later, default=removed_at))

    def _place(self, time: datetime) -> int:
        return round(self.scale.place(time, self.room))


def _wrap(line: str, begin: int, width: int) -> list[str]:
    """Wrap the text after the bar, without breaking words."""
    room = max(width - begin, NARROW_WIDTH)
    parts = textwrap.wrap(line[begin:], room, break_on_hyphens=False, break_long_words=False) or [""]
    return [(line[:begin] + parts[0]).rstrip(), *(" " * begin + part for part in parts[1:])]


WIDTH, LEFT, RIGHT = 960, 190, 24
TOP, ROW, BAR = 62, 34, 24  # the top of the first row, and the heights of a row and of a bar
LETTER: Final = 7.2  # the greatest width of a letter
TICK: Final = 96  # the least distance between dates
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
# Characters that XML documents cannot contain.
_NO_LETTERS: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Bar:
    """A period with one value. `end` is None while it lasts. `removed_at` is set if no version follows."""

    start: datetime
    end: datetime | None
    text: str
    tooltip: str
    removed_at: datetime | None = None
    news: bool = False
    column: str = ""


@dataclass(frozen=True, slots=True)
class PictureRow:
    """A row of the picture: a label and bars."""

    label: str
    bars: Sequence[Bar]


def picture(
    lanes: Sequence[Lane],
    shown: Sequence[str],
    columns: Sequence[str],
    now: datetime,
    title: str,
    link: Link | None = None,
) -> str:
    """Draw a history as SVG: a row for each `shown` column, or for each known time at which it changed.

    A bar is a period with one value, with the whole value as tooltip. An open bar ends in an arrow; while the
    record is removed there is a dotted line. `link` returns the address to which a bar links, None for none.
    """
    versions = list(chain.from_iterable(lane.versions for lane in lanes))
    if not versions:
        return _document([], title, ROW)
    by_lane = any(lane.known_from for lane in lanes)
    rows = list(_rows_of_lanes(lanes, shown, columns) if by_lane else _rows_of_columns(lanes[0], shown))
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
    lanes: Sequence[Lane], shown: Sequence[str], columns: Sequence[str]
) -> Iterator[PictureRow]:
    known = time_format([lane.known_from for lane in lanes if lane.known_from])
    for lane in lanes:
        bars = [
            Bar(
                version[VALID_FROM],
                version[VALID_TO],
                ", ".join(value_text(version[name]) for name in shown),
                _all_values(version, columns),
                removal_time(lane.versions, version),
                lane.is_news(version),
            )
            for version in lane.versions
        ]
        yield PictureRow(f"known {lane.known_from:{known}}" if lane.known_from else "", bars)


def _rows_of_columns(lane: Lane, shown: Sequence[str]) -> Iterator[PictureRow]:
    for name in shown[:MOST_COLUMNS]:
        yield PictureRow(name, list(_stretches(lane, name)))
    if len(shown) > MOST_COLUMNS:
        yield PictureRow(f"… and {len(shown) - MOST_COLUMNS} more", [])


def _stretches(lane: Lane, name: str) -> Iterator[Bar]:
    """The bars of a column; adjoining versions with equal values make one bar."""
    begin: VersionRow | None = None
    for version, following in zip(lane.versions, [*lane.versions[1:], None], strict=True):
        begin = begin or version
        same = following is not None and not differ(name, following, version)
        if same and following is not None and following[VALID_FROM] == version[VALID_TO]:
            continue
        text = value_text(version[name])
        removed_at = removal_time(lane.versions, version)
        yield Bar(begin[VALID_FROM], version[VALID_TO], text, f"{name}: {text}", removed_at, column=name)
        begin = None


def _all_values(version: VersionRow, columns: Sequence[str]) -> str:
    return "\n".join(f"{name}: {value_text(version[name])}" for name in columns)


def _row(
    row: PictureRow, scale: Scale, top: float, kinds: Mapping[str, str], link: Link | None
) -> Iterator[str]:
    middle = top + BAR / 2
    yield _text(10, middle + 4, _fit(row.label, LEFT - 20), "faint", tooltip=row.label)
    for bar in row.bars:
        later = [
            each.start for each in row.bars if bar.removed_at is not None and each.start >= bar.removed_at
        ]
        left, right = _x(bar.start, scale), _x(bar.end or scale.until, scale)
        if bar.removed_at is not None:
            back = min(later, default=scale.until)
            until = f" to {back:%Y-%m-%d %H:%M:%S}" if later else ""
            ends = f'x1="{right:.1f}" y1="{middle:g}" x2="{_x(back, scale):.1f}" y2="{middle:g}"'
            line = f'<line class="away" {ends}/>'
            yield _with_title(f"gone from {bar.removed_at:%Y-%m-%d %H:%M:%S}{until}", line)
        drawn = _bar(bar, left, max(right, left + 3), top, kinds[bar.text])
        address = None if link is None else link(bar)
        yield drawn if address is None else f'<a href="{_escape_text(address)}">{drawn}</a>'


def _bar(bar: Bar, left: float, right: float, top: float, kind: str) -> str:
    until = f"to {bar.end:%Y-%m-%d %H:%M:%S}" if bar.end else "on"
    tooltip = f"{bar.tooltip}\nfrom {bar.start:%Y-%m-%d %H:%M:%S} {until}"
    tip = 9 if bar.end is None else 0
    corners = [(left, top), (right, top), (right + tip, top + BAR / 2), (right, top + BAR), (left, top + BAR)]
    places = " ".join(f"{x:.1f},{y:g}" for x, y in corners)
    news = " news" if bar.news else ""
    text = _text(left + 5, top + BAR / 2 + 4, _fit(bar.text, right - left - 8))
    return _with_title(tooltip, f'<polygon class="{kind}{news}" points="{places}"/>{text}')


def _ticks(scale: Scale, versions: Sequence[VersionRow], height: float) -> Iterator[str]:
    """A line for each start and end of a version, with its date if there is room."""
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
    """Shorten a text to the room in pixels."""
    line, letters = " ".join(text.split()), int(room / LETTER)
    return line if len(line) <= letters else f"{line[: letters - 1]}…" if letters > 1 else ""


def _text(x: float, y: float, text: str, kind: str = "", tooltip: str = "") -> str:
    title = f"<title>{_escape_text(tooltip)}</title>" if tooltip and tooltip != text else ""
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:g}">{title}{_escape_text(text)}</text>' if text else ""


def _with_title(title: str, drawn: str) -> str:
    """Add a title, which a browser shows on hover."""
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
