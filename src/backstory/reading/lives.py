"""One record's history: its versions, when each was known, and the changes from one to the next."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from backstory.model.layout import VALID_FROM, VALID_TO

KNOWN_FROM: Final = "known_from"
KNOWN_TO: Final = "known_to"
SNAPSHOT: Final = "snapshot_id"
AXES: Final = (VALID_FROM, VALID_TO, KNOWN_FROM, KNOWN_TO, SNAPSHOT)

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
VersionRow = Mapping[str, Any]


def shown_name(name: str) -> str:
    """A user's own `valid_from` is read as `valid_from_src`."""
    return f"{name}_src" if name in {VALID_FROM, VALID_TO} else name


@dataclass(frozen=True, slots=True)
class Lane:
    """The history as known from one recorded time to another; both are None if nothing records them."""

    versions: Sequence[VersionRow]
    known_from: datetime | None = None
    known_to: datetime | None = None

    def is_news(self, version: VersionRow) -> bool:
        """Whether a version is known since the beginning of this lane."""
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
    known = [each for each in statements if _holds(each, known_at)]
    return sorted(known, key=lambda each: each[VALID_FROM])


def _holds(statement: VersionRow, known_at: datetime | None) -> bool:
    start, end = statement.get(KNOWN_FROM), statement.get(KNOWN_TO)
    if known_at is None:
        return end is None
    return (start is None or start <= known_at) and (end is None or end > known_at)


def changing_columns(versions: Sequence[VersionRow], columns: Sequence[str]) -> list[str]:
    """The columns that have more than one value in the history."""
    return [name for name in columns if any(differ(name, each, versions[0]) for each in versions)]


def differ(name: str, one: VersionRow, other: VersionRow) -> bool:
    """Whether two versions differ in a column; NaN equals NaN, within nested values too (V16)."""
    return one[name] != other[name] and repr(one[name]) != repr(other[name])


def removal_time(versions: Sequence[VersionRow], version: VersionRow) -> datetime | None:
    """When the record was removed after a version; None if a version follows at once or it still exists."""
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
    """A value as text for people; control characters, which could move a terminal's cursor, are replaced."""
    return "–" if value is None else _CONTROLS.sub("\ufffd", str(value))


@dataclass(frozen=True, slots=True)
class Scale:
    """The valid axis of a drawing, from the first start to its end."""

    first: datetime
    until: datetime

    @classmethod
    def of(cls, versions: Sequence[VersionRow], now: datetime) -> "Scale":
        """The axis that contains all these versions, and now."""
        times = [each[name] for each in versions for name in (VALID_FROM, VALID_TO) if each[name]]
        return cls(min(times), max(now, *times))

    def place(self, time: datetime, width: float) -> float:
        """The distance of a time from the left end of an axis of this width."""
        span = (self.until - self.first).total_seconds() or 1
        return min(max((time - self.first).total_seconds() / span * width, 0), width)

    def labels(self) -> tuple[str, str]:
        """The two ends of the axis as text: years, months, days or seconds, as needed to differ."""
        ends = self.first, self.until
        for form in ("%Y", "%Y-%m", "%Y-%m-%d"):
            left, right = (f"{end:{form}}" for end in ends)
            if left != right:
                return left, right
        left, right = (f"{end:%Y-%m-%d %H:%M:%S}" for end in ends)
        return left, right


def time_format(times: Sequence[datetime]) -> str:
    """The format in which different instants look different: to days, seconds or microseconds."""
    distinct = len(set(times))
    for form in ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S"):
        if len({f"{time:{form}}" for time in times}) == distinct:
            return form
    return "%Y-%m-%d %H:%M:%S.%f"
