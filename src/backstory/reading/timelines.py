"""The timeline of one record: versions for programs, and drawings for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from backstory.errors import UsageError, bad_option, option
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.table import TableName
from backstory.reading.drawings import Link, draw_lanes, picture
from backstory.reading.lifetimes import STATED_FROM, STATED_TO
from backstory.reading.lives import (
    AXES,
    KNOWN_FROM,
    KNOWN_TO,
    SNAPSHOT,
    Lane,
    VersionRow,
    changing_columns,
    lanes,
    statements_at,
)

Axis = Literal["valid", "both"]
NOTHING = "There is no version of this record."


@dataclass(frozen=True)
class Timeline:
    """The history of one record. It is printed as a drawing in text, and shown as a picture in a notebook.

    `versions` have the user's columns, `valid_from` and `valid_to` (NULL: still true), `known_from` and
    `known_to` (NULL: still stated). `snapshot_id` identifies the commit, unless its snapshot has expired. On
    `axis` both, these are all statements ever made, at most one for each instant and known time. Otherwise
    they are the versions known now, or at the requested known time, and do not overlap.
    """

    versions: Sequence[VersionRow]
    columns: Sequence[str]
    axis: Axis = "valid"
    title: str = ""

    @property
    def lanes(self) -> list[Lane]:
        """A lane for each known time at which the history changed; on axis `valid`, one lane."""
        return lanes(self.versions) if self.axis == "both" else [Lane(self.versions)]

    def __str__(self) -> str:
        return self.draw()

    def draw(self, width: int | None = None) -> str:
        """The drawing as text, in lines of at most `width` characters.

        It shows the columns that change. For a record with one version, it shows all columns.
        """
        return "\n".join(draw_lanes(self.lanes, self._drawn_columns, datetime.now(UTC), width)) or NOTHING

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
    """The timeline of the record with this key. `commits` are snapshot ids by their recorded time."""
    statements: Sequence[VersionRow] = [_with_axes(each, commits) for each in rows]
    versions = sorted(statements if axis == "both" else statements_at(statements, known_at), key=_sort_key)
    columns = [name for name in (versions[0] if versions else ()) if name not in {*key, *AXES}]
    first = versions[0] if versions else {}  # its key is shown: Python widens a float of 32 bits
    title = " ".join([str(table), *(f"{name}={first.get(name, value)}" for name, value in key.items())])
    return Timeline(versions, columns, axis, title)


def _with_axes(statement: VersionRow, commits: Mapping[datetime, int]) -> dict[str, Any]:
    """The values, then the times and the snapshot id; a user's own `known_from` becomes `known_from_src`."""
    rest = dict(statement)
    valid = {name: rest.pop(name) for name in (VALID_FROM, VALID_TO)}
    known = {KNOWN_FROM: rest.pop(STATED_FROM, None), KNOWN_TO: rest.pop(STATED_TO, None)}
    values = {f"{name}_src" if name in AXES else name: value for name, value in rest.items()}
    known_from = known[KNOWN_FROM]
    return values | valid | known | {SNAPSHOT: commits.get(known_from) if known_from else None}


def _sort_key(statement: VersionRow) -> tuple[Any, ...]:
    return statement[VALID_FROM], (statement.get(KNOWN_FROM) is not None, statement.get(KNOWN_FROM))


def require_axis(axis: str, known_at: object = None) -> None:
    """Raise UsageError for an unknown axis, or for a known time on axis `both`."""
    valid, both = option("axis", "valid"), option("axis", "both")
    if axis not in get_args(Axis):
        raise bad_option(f"`axis=` must be valid or both, not {axis!r}.", f"Use {valid} or {both}.")
    if axis == "both" and known_at is not None:
        raise bad_option(f"{both} already shows every known time.", "Omit `known_at=`, or `axis=`.")
