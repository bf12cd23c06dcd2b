"""A record's life as it is answered: statements for programs, drawings for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from backstory.errors import UsageError, option
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.table import TableName
from backstory.reading.lives import (
    AXES,
    KNOWN_FROM,
    KNOWN_TO,
    SNAPSHOT,
    STATED_FROM,
    STATED_TO,
    Lane,
    VersionRow,
    changing_columns,
    lanes,
    statements_at,
)

if TYPE_CHECKING:
    from backstory.reading.drawings import Link

Axis = Literal["valid", "both"]
NOTHING = "There is no version of this record."


@dataclass(frozen=True)
class Timeline:
    """One record's life; printed, it draws itself, and in a notebook as a picture.

    `versions` have the user's columns, `valid_from` and `valid_to` (NULL: still true), `known_from` and
    `known_to` (NULL: still told) and the `snapshot_id` of the commit that said so, while it is there. They do
    not overlap. On `axis` both they are all that ever was told, and at most one for each instant and known
    time; else what the table says now, or said at the known time that was asked for.
    """

    versions: Sequence[VersionRow]
    columns: Sequence[str]
    axis: Axis = "valid"
    title: str = ""

    @property
    def lanes(self) -> list[Lane]:
        """The life by the known times at which it changed; by one alone where these are not asked for."""
        return lanes(self.versions) if self.axis == "both" else [Lane(self.versions)]

    def __str__(self) -> str:
        return self.draw()

    def draw(self, width: int | None = None) -> str:
        """The drawing, in lines of so many letters at most; it tells of the columns that ever change.

        Of a record of one version it tells all.
        """
        from backstory.reading.drawings import draw_lanes

        return "\n".join(draw_lanes(self.lanes, self._telling, datetime.now(UTC), width)) or NOTHING

    def svg(self, link: "Link | None" = None) -> str:
        """The same as a picture: one SVG document that needs nothing else, readable in light and dark.

        With `link` each bar leads to the address that it gives.
        """
        from backstory.reading.drawings import picture

        now = datetime.now(UTC)
        return picture(self.lanes, self._telling, self.columns, now, self.title or NOTHING, link)

    def save(self, file: str | Path) -> None:
        """Write the picture into a file; UsageError if it cannot be written."""
        try:
            Path(file).write_text(self.svg(), encoding="utf-8")
        except OSError as stop:
            raise UsageError(
                "no-file", f"{file} cannot be written: {stop.strerror}.", "Name another file."
            ) from None

    def _repr_html_(self) -> str:
        return self.svg()

    @property
    def _telling(self) -> Sequence[str]:
        return changing_columns(self.versions, self.columns) or self.columns


def timeline_of(
    table: TableName,
    key: Mapping[str, object],
    found: Sequence[VersionRow],
    commits: Mapping[datetime, int],
    axis: Axis = "valid",
    known_at: datetime | None = None,
) -> Timeline:
    """The life of the record with this key; `commits` are those that told it, by the recorded time."""
    stated: Sequence[VersionRow] = [_with_axes(each, commits) for each in found]
    told = sorted(stated if axis == "both" else statements_at(stated, known_at), key=_sort_key)
    columns = [name for name in (told[0] if told else ()) if name not in {*key, *AXES}]
    shown = told[0] if told else {}  # a float of 32 bits is not what Python makes of it
    title = " ".join([str(table), *(f"{name}={shown.get(name, value)}" for name, value in key.items())])
    return Timeline(told, columns, axis, title)


def _with_axes(statement: VersionRow, commits: Mapping[datetime, int]) -> dict[str, Any]:
    """The values, then the axes; a user's own `known_from` is read as `known_from_src`."""
    found = dict(statement)
    valid = {name: found.pop(name) for name in (VALID_FROM, VALID_TO)}
    known = {KNOWN_FROM: found.pop(STATED_FROM, None), KNOWN_TO: found.pop(STATED_TO, None)}
    values = {f"{name}_src" if name in AXES else name: value for name, value in found.items()}
    told = known[KNOWN_FROM]
    return values | valid | known | {SNAPSHOT: commits.get(told) if told else None}


def _sort_key(statement: VersionRow) -> tuple[Any, ...]:
    return statement[VALID_FROM], (statement.get(KNOWN_FROM) is not None, statement.get(KNOWN_FROM))


def require_axis(axis: str, known_at: object = None) -> None:
    """Raise UsageError for an axis that is none, or one that a known time contradicts."""
    valid, both = option("axis", "valid"), option("axis", "both")
    if axis not in get_args(Axis):
        raise UsageError(
            "bad-option", f"`axis=` must be valid or both, not {axis!r}.", f"Use {valid} or {both}."
        )
    if axis == "both" and known_at is not None:
        raise UsageError(
            "bad-option", f"{both} already shows every known time.", "Omit `known_at=`, or `axis=`."
        )
