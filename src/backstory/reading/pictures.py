"""One record's life as an SVG picture, which needs nothing else: no script, no font, no other file."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import chain
from typing import Final

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.reading.lives import Lane, Scale, Told, differ, form_of, gone_at, value_text

WIDTH, LEFT, RIGHT = 960, 190, 24
TOP, ROW, BAR = 62, 34, 24  # where the first row begins, from row to row, and how high a bar is
LETTER: Final = 7.2  # how wide one is, at most
TICK: Final = 96  # between dates, so that they can be read
MOST: Final = 16  # rows of columns
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
    known = form_of([lane.known_from for lane in lanes if lane.known_from])
    for lane in lanes:
        bars = [
            Bar(
                version[VALID_FROM],
                version[VALID_TO],
                ", ".join(value_text(version[name]) for name in telling),
                _all(version, columns),
                gone_at(lane.versions, version),
                lane.is_news(version),
            )
            for version in lane.versions
        ]
        yield PictureRow(f"known {lane.known_from:{known}}" if lane.known_from else "", bars)


def _rows_of_columns(lane: Lane, telling: Sequence[str]) -> Iterator[PictureRow]:
    for name in telling[:MOST]:
        yield PictureRow(name, list(_stretches(lane, name)))
    if len(telling) > MOST:
        yield PictureRow(f"… and {len(telling) - MOST} more", [])


def _stretches(lane: Lane, name: str) -> Iterator[Bar]:
    """The values of a column; versions that follow each other with the same are one bar."""
    begun: Told | None = None
    for version, following in zip(lane.versions, [*lane.versions[1:], None], strict=True):
        begun = begun or version
        same = following is not None and not differ(name, following, version)
        if same and following is not None and following[VALID_FROM] == version[VALID_TO]:
            continue
        text = value_text(version[name])
        gone = gone_at(lane.versions, version)
        yield Bar(begun[VALID_FROM], version[VALID_TO], text, f"{name}: {text}", gone, column=name)
        begun = None


def _all(version: Told, columns: Sequence[str]) -> str:
    return "\n".join(f"{name}: {value_text(version[name])}" for name in columns)


def _row(
    row: PictureRow, scale: Scale, top: float, kinds: Mapping[str, str], link: Link | None
) -> Iterator[str]:
    middle = top + BAR / 2
    yield _text(10, middle + 4, _fitting(row.label, LEFT - 20), "faint", told=row.label)
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
        yield drawn if address is None else f'<a href="{_safe(address)}">{drawn}</a>'


def _bar(bar: Bar, left: float, right: float, top: float, kind: str) -> str:
    until = f"to {bar.end:%Y-%m-%d %H:%M:%S}" if bar.end else "on"
    told = f"{bar.told}\nfrom {bar.start:%Y-%m-%d %H:%M:%S} {until}"
    tip = 9 if bar.end is None else 0
    corners = [(left, top), (right, top), (right + tip, top + BAR / 2), (right, top + BAR), (left, top + BAR)]
    places = " ".join(f"{x:.1f},{y:g}" for x, y in corners)
    news = " news" if bar.news else ""
    text = _text(left + 5, top + BAR / 2 + 4, _fitting(bar.text, right - left - 8))
    return _with_title(told, f'<polygon class="{kind}{news}" points="{places}"/>{text}')


def _ticks(scale: Scale, versions: Sequence[Told], height: float) -> Iterator[str]:
    """A line where a version begins or the record is gone, with its date where there is room."""
    times = {each[name] for each in versions for name in (VALID_FROM, VALID_TO)} - {None}
    form, free = form_of(sorted(times)), 0.0
    for time in sorted(times):
        x = _x(time, scale)
        yield f'<line class="tick" x1="{x:.1f}" y1="{TOP - 12}" x2="{x:.1f}" y2="{height}"/>'
        label = f"{time:{form}}"
        if x >= free and x + len(label) * LETTER <= WIDTH:
            yield _text(x, TOP - 18, label, "faint")
            free = x + max(len(label) * LETTER + 8, TICK)


def _x(time: datetime, scale: Scale) -> float:
    return LEFT + scale.place(time, WIDTH - LEFT - RIGHT)


def _fitting(text: str, room: float) -> str:
    """As much of a text as there is room for."""
    line, letters = " ".join(text.split()), int(room / LETTER)
    return line if len(line) <= letters else f"{line[: letters - 1]}…" if letters > 1 else ""


def _text(x: float, y: float, text: str, kind: str = "", told: str = "") -> str:
    whole = f"<title>{_safe(told)}</title>" if told and told != text else ""
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:g}">{whole}{_safe(text)}</text>' if text else ""


def _with_title(title: str, drawn: str) -> str:
    """What is drawn, with a title that a browser shows on hover."""
    return f"<g><title>{_safe(title)}</title>{drawn}</g>"


def _safe(text: str) -> str:
    return escape(_NO_LETTERS.sub("\ufffd", text))


def _document(drawn: Sequence[str], title: str, height: float) -> str:
    place = f'viewBox="0 0 {WIDTH} {height:g}" width="100%"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="backstory" role="img" {place}>',
        f"<title>{_safe(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height:g}" rx="6"/>',
        _text(10, 24, _fitting(title, WIDTH - 20), "title"),
        *drawn,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
