"""The options of `maintain` for Python calls and the command."""

from dataclasses import dataclass
from datetime import date, datetime

from backstory.engine.run_context import RemarkOptions


class MaintainOptions(RemarkOptions, total=False):
    """The options of `maintain`, in addition to the options of commits.

    Attributes:
        settle_before: Delete the rows that native tables keep for late copies and changes at or before this
            time. Older copies and changes are refused from then on.
        known_from: Delete earlier states of native tables. `known_at=` then starts at this time.
        dry_run: Show the changes, and write nothing.
    """

    settle_before: str | date | None
    known_from: str | date | None
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """The time up to which to settle a table's memory, and the time from which to keep its earlier states."""

    settle_before: datetime | None = None
    known_from: datetime | None = None
