"""One record's history: its versions, when each was known, and its drawings as text and as SVG.

A drawing has a bar for each version. The SVG document is self-contained.
"""

import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final, Literal, get_args

from backstory.errors import Refused, UsageError, bad_option, option
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.table import TableName
from backstory.model.values import cell_text
from backstory.reading.lifetimes import STATED_FROM, STATED_TO

KNOWN_FROM: Final = "known_from"
KNOWN_TO: Final = "known_to"
SNAPSHOT: Final = "snapshot_id"
AXES: Final = (VALID_FROM, VALID_TO, KNOWN_FROM, KNOWN_TO, SNAPSHOT)

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
VersionRow = Mapping[str, Any]


def shown_name(name: str) -> str:
    """The name that a reader sees. A user's own `valid_from` becomes `valid_from_src`."""
    return f"{name}_src" if name in {VALID_FROM, VALID_TO} else name


def name_beside(own: Collection[str], name: str, names: Collection[str]) -> str:
    """The name of a user's column in a result that also has `own` columns.

    A user's own `known_from` becomes `known_from_src`. `names` are all of the user's columns.
    """
    shown = name
    while shown in own or (shown != name and shown in names):
        shown = f"{shown}_src"
    return shown


@dataclass(frozen=True, slots=True)
class Lane:
    """The history as known from one recorded time to another.

    If the layout does not record these times, both are None.
    """

    versions: Sequence[VersionRow]
    known_from: datetime | None = None
    known_to: datetime | None = None

    def is_news(self, version: VersionRow) -> bool:
        """Whether a version first became known at the beginning of this lane."""
        return self.known_from is not None and version[KNOWN_FROM] == self.known_from


def lanes(statements: Sequence[VersionRow]) -> list[Lane]:
    """A lane for each recorded time at which the history changed, oldest first (native.md V97)."""
    times = {each[name] for each in statements for name in (KNOWN_FROM, KNOWN_TO)} - {None}
    if not times:
        return [Lane(statements)] if statements else []
    known = sorted(times)
    return [
        Lane(statements_at(statements, time), time, following)
        for time, following in zip(known, [*known[1:], None], strict=True)
    ]


def statements_at(statements: Sequence[VersionRow], known_at: datetime | None = None) -> list[VersionRow]:
    """The statements that were known at a recorded time, by default now, sorted by their start."""

    def holds(statement: VersionRow) -> bool:
        start, end = statement.get(KNOWN_FROM), statement.get(KNOWN_TO)
        if known_at is None:
            return end is None
        return (start is None or start <= known_at) and (end is None or end > known_at)

    return sorted(filter(holds, statements), key=lambda each: each[VALID_FROM])


def changing_columns(versions: Sequence[VersionRow], columns: Sequence[str]) -> list[str]:
    """The columns that have more than one value in the history."""
    return [name for name in columns if any(differ(name, each, versions[0]) for each in versions)]


def differ(name: str, one: VersionRow, other: VersionRow) -> bool:
    """Whether two versions differ in a column. NaN equals NaN, even within nested values (V16)."""
    return one[name] != other[name] and repr(one[name]) != repr(other[name])


def removal_time(versions: Sequence[VersionRow], version: VersionRow) -> datetime | None:
    """The time at which the record was removed after a version.

    Returns None if the next version follows at once, or if the record still exists.
    """
    end: datetime | None = version[VALID_TO]
    return None if any(other[VALID_FROM] == end for other in versions) else end


def describe_change(before: VersionRow | None, version: VersionRow, columns: Sequence[str]) -> str:
    """Describe how a version differs from the one before: `capital: Astana → Nur-Sultan`."""
    if before is None:
        return ", ".join(f"{name}: {value_text(version[name])}" for name in columns)
    changed = [name for name in columns if differ(name, before, version)]
    other = sum(differ(name, before, version) for name in version if name not in {*columns, *AXES})
    texts = [f"{name}: {value_text(before[name])} → {value_text(version[name])}" for name in changed]
    if other:
        texts.append(f"{other} other column{'s' if other > 1 else ''}")
    return ", ".join(texts) or "the same again"


def value_text(value: object) -> str:
    """A value as text for people. Control characters, which could move a terminal's cursor, are replaced."""
    return _CONTROLS.sub("\ufffd", cell_text(value, "–"))


@dataclass(frozen=True, slots=True)
class Scale:
    """The valid axis of a drawing, from the first time to the last."""

    first: datetime
    until: datetime

    @classmethod
    def of(cls, versions: Sequence[VersionRow], now: datetime) -> "Scale":
        """The axis that contains all these versions and the present."""
        times = _valid_times(versions)
        return cls(min(times), max(now, *times))

    def place(self, time: datetime, width: float) -> float:
        """The distance of a time from the left end of an axis of this width."""
        span = (self.until - self.first).total_seconds() or 1
        return min(max((time - self.first).total_seconds() / span * width, 0), width)

    def labels(self) -> tuple[str, str]:
        """The two ends of the axis as text: in years, months, days or seconds, so that the texts differ."""
        left, right = "", ""
        for form in ("%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%d %H:%M:%S"):
            left, right = (f"{end:{form}}" for end in (self.first, self.until))
            if left != right:
                break
        return left, right


def _valid_times(versions: Sequence[VersionRow]) -> list[datetime]:
    """The starts and ends of versions."""
    return [each[name] for each in versions for name in (VALID_FROM, VALID_TO) if each[name]]


def time_format(times: Sequence[datetime]) -> str:
    """The shortest format in which different instants look different: to the day, second or microsecond."""
    distinct = len(set(times))
    for form in ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S"):
        if len({f"{time:{form}}" for time in times}) == distinct:
            return form
    return "%Y-%m-%d %H:%M:%S.%f"


# The width of text bars in letters, first in general, then in lines that are narrower than `WIDE`.
BARS_WIDTH, NARROW_WIDTH = 48, 20
WIDE = 110
BAR_SIGN, OPEN_SIGN, GONE_SIGN, AWAY_SIGN = "█", "▶", "╳", "┄"
NEW_SIGN: Final = "+ "


def draw_lanes(
    lanes: Sequence[Lane], columns: Sequence[str], now: datetime, width: int | None = None
) -> list[str]:
    """Draw lanes as lines of text: each version's start, its bar, and its changed `columns`.

    The lines of a lane follow the time at which it became known. `+` marks the versions that were new then.
    The time axis extends from the first start to `now`. An open version ends in an arrow. A removed record
    has a line without a bar. With a narrow `width`, bars are shorter and the changes are wrapped.
    """
    versions = list(chain.from_iterable(lane.versions for lane in lanes))
    if not versions:
        return []
    scale, form = Scale.of(versions, now), time_format(_valid_times(versions))
    known = time_format([lane.known_from for lane in lanes if lane.known_from])
    room = BARS_WIDTH if width is None or width >= WIDE else NARROW_WIDTH
    margin = len(NEW_SIGN) if any(lane.known_from for lane in lanes) else 0
    dates = len(f"{scale.first:{form}}") + 2
    left, right = scale.labels()
    lines = [f"{'':{margin + dates}}{left}{right:>{max(room - len(left), len(right) + 2)}}"]
    for lane in lanes:
        if lane.known_from is not None:
            until = f" to {lane.known_to:{known}}" if lane.known_to else ""
            content = "" if lane.versions else ": nothing"
            lines.append(f"known from {lane.known_from:{known}}{until}{content}")
        for mark, time, place, bar, change in _text_bars(lane, columns, scale, room):
            line = f"{mark:{margin}}{time:{form}}  {' ' * place}{bar:<{room + 1 - place}}  {change}"
            lines += [line] if width is None else _wrap(line, margin + dates + room + 3, width)
    return lines


def _text_bars(
    lane: Lane, columns: Sequence[str], scale: Scale, room: int
) -> Iterator[tuple[str, datetime, int, str, str]]:
    """The mark, date, position, bar and text of each line of a lane."""

    def place(time: datetime) -> int:
        return round(scale.place(time, room))

    for before, version in zip([None, *lane.versions], lane.versions, strict=False):
        start, end = version[VALID_FROM], version[VALID_TO]
        left, mark = place(start), NEW_SIGN if lane.is_news(version) else ""
        right = max(place(end or scale.until), left + 1)
        bar = BAR_SIGN * (right - left - 1) + (OPEN_SIGN if end is None else BAR_SIGN)
        yield mark, start, left, bar, describe_change(before, version, columns)
        removed_at = removal_time(lane.versions, version)
        if removed_at is not None:
            later = (each[VALID_FROM] for each in lane.versions if each[VALID_FROM] > removed_at)
            away = AWAY_SIGN * (place(min(later, default=removed_at)) - right - 1)
            yield "", removed_at, right, GONE_SIGN + away, "gone"


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
    """A period with one value. An open period has no end. `removed_at` is set if a removal follows."""

    start: datetime
    end: datetime | None
    text: str
    tooltip: str
    removed_at: datetime | None = None
    news: bool = False
    column: str = ""


# A row of the picture: a label and bars.
PictureRow = tuple[str, Sequence[Bar]]


def picture(
    lanes: Sequence[Lane],
    shown: Sequence[str],
    columns: Sequence[str],
    now: datetime,
    title: str,
    link: Link | None = None,
) -> str:
    """Draw a history as SVG: a row for each `shown` column, or for each known time with a change.

    A bar is a period with one value, and its tooltip has the whole value. An open bar ends in an arrow. A
    dotted line shows that the record was removed. `link` returns the address to which a bar links, or None.
    """
    versions = list(chain.from_iterable(lane.versions for lane in lanes))
    if not versions:
        return _document([], title, ROW)
    if any(lane.known_from for lane in lanes):
        rows = list(_rows_of_lanes(lanes, shown, columns))
    else:
        rows = [(name, list(_stretches(lanes[0], name))) for name in shown[:MOST_COLUMNS]]
        if len(shown) > MOST_COLUMNS:
            rows.append((f"… and {len(shown) - MOST_COLUMNS} more", []))
    height = TOP + len(rows) * ROW
    scale = Scale.of(versions, now)
    drawn = [*_ticks(scale, versions, height)]
    kinds: dict[str, str] = {}
    for number, (label, bars) in enumerate(rows):
        for bar in bars:
            kinds.setdefault(bar.text, KINDS[len(kinds) % len(KINDS)])
        drawn += _row(label, bars, scale, TOP + number * ROW, kinds, link)
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
                "\n".join(f"{name}: {value_text(version[name])}" for name in columns),
                removal_time(lane.versions, version),
                lane.is_news(version),
            )
            for version in lane.versions
        ]
        yield f"known {lane.known_from:{known}}" if lane.known_from else "", bars


def _stretches(lane: Lane, name: str) -> Iterator[Bar]:
    """The bars of a column. Adjoining versions with equal values make one bar."""
    begin: VersionRow | None = None
    for version, following in zip_longest(lane.versions, lane.versions[1:]):
        begin = begin or version
        if following and following[VALID_FROM] == version[VALID_TO] and not differ(name, following, version):
            continue
        text = value_text(version[name])
        removed_at = removal_time(lane.versions, version)
        yield Bar(begin[VALID_FROM], version[VALID_TO], text, f"{name}: {text}", removed_at, column=name)
        begin = None


def _row(
    label: str, bars: Sequence[Bar], scale: Scale, top: float, kinds: Mapping[str, str], link: Link | None
) -> Iterator[str]:
    middle = top + BAR / 2
    yield _text(10, middle + 4, _fit(label, LEFT - 20), "faint", tooltip=label)
    for bar in bars:
        later = [each.start for each in bars if bar.removed_at is not None and each.start >= bar.removed_at]
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
    times = sorted(set(_valid_times(versions)))
    form, free = time_format(times), 0.0
    for time in times:
        x = _x(time, scale)
        yield f'<line class="tick" x1="{x:.1f}" y1="{TOP - 12}" x2="{x:.1f}" y2="{height}"/>'
        label = f"{time:{form}}"
        if x >= free and x + len(label) * LETTER <= WIDTH:
            yield _text(x, TOP - 18, label, "faint")
            free = x + max(len(label) * LETTER + 8, TICK)


def _x(time: datetime, scale: Scale) -> float:
    return LEFT + scale.place(time, WIDTH - LEFT - RIGHT)


def _fit(text: str, room: float) -> str:
    """Shorten a text to fit into `room` pixels."""
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


Axis = Literal["valid", "both"]
NOTHING = "There is no version of this record."


@dataclass(frozen=True)
class Timeline:
    """The history of one record. It is printed as a drawing in text, and shown as a picture in a notebook.

    `versions` have the user's columns, `valid_from` and `valid_to` (NULL: still true), `known_from` and
    `known_to` (NULL: still stated). `snapshot_id` identifies the commit, unless its snapshot has expired. On
    `axis` both, these are all statements ever made, at most one for each instant and known time. Otherwise
    they are the versions as known now or at the requested time, which do not overlap.
    """

    versions: Sequence[VersionRow]
    columns: Sequence[str]
    axis: Axis = "valid"
    title: str = ""

    @property
    def lanes(self) -> list[Lane]:
        """A lane for each known time at which the history changed, or one lane on axis `valid`."""
        return lanes(self.versions) if self.axis == "both" else [Lane(self.versions)]

    def __str__(self) -> str:
        return self.draw()

    def draw(self, width: int | None = None) -> str:
        """The drawing as text, in lines of at most `width` characters.

        The drawing shows the columns that change, or all columns if none changes.
        """
        return "\n".join(draw_lanes(self.lanes, self._drawn_columns, datetime.now(UTC), width)) or NOTHING

    drawn = draw  # the method's first name, which programs still call

    def svg(self, link: Link | None = None) -> str:
        """The drawing as one self-contained SVG document for light and dark mode.

        `link` returns the address to which a bar links.
        """
        now = datetime.now(UTC)
        return picture(self.lanes, self._drawn_columns, self.columns, now, self.title or NOTHING, link)

    def save(self, file: str | Path) -> None:
        """Write the SVG document to a file. Raises UsageError if it cannot be written."""
        try:
            Path(file).write_text(self.svg(), encoding="utf-8")
        except OSError as stop:
            raise UsageError(
                "no-file", f"{file} cannot be written: {stop.strerror}.", "Name another file."
            ) from None

    def _repr_html_(self) -> str:
        return self.svg()

    @property
    def _drawn_columns(self) -> Sequence[str]:
        return changing_columns(self.versions, self.columns) or self.columns


def timeline_of(
    table: TableName,
    key: Mapping[str, object],
    rows: Sequence[VersionRow],
    commits: Mapping[datetime, int],
    axis: Axis = "valid",
    known_at: datetime | None = None,
) -> Timeline:
    """The timeline of the record with this key. `commits` are snapshot ids by their recorded time.

    Raises Refused for a version that has no start, or times outside the years 1 to 9999.
    """
    times = [each[VALID_FROM] for each in rows] + [each[VALID_TO] for each in rows if each[VALID_TO]]
    if any(time is None or isinstance(time, str) for time in times):
        raise Refused(
            "no-timeline",
            f"A version of this record in {table} has no start, or a time outside the years 1 to 9999.",
            "Correct the time in the program that wrote it. `export` writes all versions as they are.",
        )
    statements: Sequence[VersionRow] = [_with_axes(each, commits) for each in rows]
    versions = sorted(
        statements if axis == "both" else statements_at(statements, known_at),
        key=lambda each: (each[VALID_FROM], each[KNOWN_FROM] is not None, each[KNOWN_FROM]),
    )
    columns = [name for name in (versions[0] if versions else ()) if name not in {*key, *AXES}]
    first = versions[0] if versions else {}  # its key is shown, because Python widens a 32-bit float
    title = " ".join([str(table), *(f"{name}={first.get(name, value)}" for name, value in key.items())])
    return Timeline(versions, columns, axis, title)


def _with_axes(statement: VersionRow, commits: Mapping[datetime, int]) -> dict[str, Any]:
    """The values, times and snapshot id."""
    rest = dict(statement)
    valid_from, valid_to = rest.pop(VALID_FROM), rest.pop(VALID_TO)
    known_from, known_to = rest.pop(STATED_FROM, None), rest.pop(STATED_TO, None)
    values = {name_beside(AXES, name, rest): value for name, value in rest.items()}
    own = (valid_from, valid_to, known_from, known_to, commits.get(known_from) if known_from else None)
    return values | dict(zip(AXES, own, strict=True))


def require_axis(axis: str, known_at: object = None) -> None:
    """Raise UsageError for an unknown axis, or for a known time on axis `both`."""
    valid, both = option("axis", "valid"), option("axis", "both")
    if axis not in get_args(Axis):
        raise bad_option(f"`axis=` must be valid or both, not {axis!r}.", f"Use {valid} or {both}.")
    if axis == "both" and known_at is not None:
        raise bad_option(f"{both} already shows every known time.", "Omit `known_at=`, or `axis=`.")
