"""A table that keeps the versions of records, for every door and store."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from backstory.errors import Refused
from backstory.model.instant import iso
from backstory.model.layout import HIST_SUFFIX, KEY_SUFFIX, Span
from backstory.model.table import Column, Shape

ARCHIVE_SUFFIX = "_archive"


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels for the states of versions."""

    new: str = "new"
    changed: str = "changed"
    deleted: str = "deleted"
    reappeared: str = "new"


@dataclass(frozen=True, slots=True)
class Dating:
    """The column that contains the time from which a version is true, and the precision of the time."""

    column: str
    granularity: Literal["timestamp", "date"] = "timestamp"


@dataclass(frozen=True, slots=True)
class Archive:
    """The table of pruned versions. By default, it has the columns of the history."""

    name: str
    columns: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class History:
    """A table with versions: its shape, its labels and marks, and its archive.

    `own` are the columns that are not the user's. By default, these are the layout's columns. `references`
    are columns with keys of other tables. `labels` are stored, and views show `shown_labels` instead.
    Versions that ended before `whole_since` may be in the `archive`.
    """

    shape: Shape
    own: frozenset[str] | None = None
    labels: Labels = Labels()
    references: frozenset[str] = frozenset()
    former_names: tuple[str, ...] = ()
    archive: Archive | None = None
    whole_since: datetime | None = None
    shown_labels: Labels | None = None
    dating: Dating | None = None

    @property
    def name(self) -> str:
        """The name of the table in its schema."""
        return self.shape.table.name

    @property
    def archive_name(self) -> str:
        """The name of the table of pruned versions, whether or not the table exists."""
        return self.archive.name if self.archive else f"{self.name}{ARCHIVE_SUFFIX}"

    @property
    def span(self) -> Span:
        """The columns that contain the start and the end of a version. The layout must have them."""
        span = self.shape.layout.span
        assert span is not None
        return span

    @property
    def version_key(self) -> str:
        """The column that identifies a version."""
        return f"{self.name}{KEY_SUFFIX}"

    @property
    def record_key(self) -> str:
        """The single column that identifies a record.

        `shape.key` has the columns by which people identify it.
        """
        return f"{self.name.removesuffix(HIST_SUFFIX)}{KEY_SUFFIX}"

    @property
    def user_columns(self) -> list[Column]:
        """The columns of the source."""
        if self.own is None:
            return self.shape.user_columns
        return [column for column in self.shape.columns if column.name not in self.own]

    @property
    def attributes(self) -> list[Column]:
        """The user's columns outside the key."""
        return [column for column in self.user_columns if column.name not in self.shape.key]

    def require_unpruned(self, instant: datetime) -> datetime:
        """Return the instant, if no version that was valid then can have been pruned.

        Raises Refused otherwise.
        """
        if self.whole_since and instant < self.whole_since:
            raise Refused(
                "PRUNED",
                f"{self.name} was pruned up to {iso(self.whole_since)}.",
                f"Ask for a later time; {self.name}_all also has the archived versions.",
            )
        return instant
