"""A table that keeps the versions of records, whichever door writes it and wherever it stands."""

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
    """The words for the states of versions."""

    new: str = "new"
    changed: str = "changed"
    deleted: str = "deleted"
    reappeared: str = "new"


@dataclass(frozen=True, slots=True)
class Dating:
    """The column that says from when on a version is true in the world, and how exactly."""

    column: str
    granularity: Literal["timestamp", "date"] = "timestamp"


@dataclass(frozen=True, slots=True)
class Archive:
    """The table of what was pruned; without `columns` it has those of the history."""

    name: str
    columns: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class History:
    """A table with versions: its shape, the words and marks in it, and what was taken out of it.

    `own` are the columns that are not the user's, by default those of the layout; `references` hold keys of
    other tables. `labels` are stored, `shown_labels` are what a view shows instead. Before `whole_since`
    versions may be gone, into the `archive`.
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
        """The name of the table of what was pruned, whether it is there or not."""
        return self.archive.name if self.archive else f"{self.name}{ARCHIVE_SUFFIX}"

    @property
    def span(self) -> Span:
        """The columns from which and up to which a version was true; there must be such columns."""
        span = self.shape.layout.span
        assert span is not None
        return span

    @property
    def version_key(self) -> str:
        """The column that tells versions apart."""
        return f"{self.name}{KEY_SUFFIX}"

    @property
    def record_key(self) -> str:
        """The one column that tells records apart; `shape.key` has those by which people know them."""
        return f"{self.name.removesuffix(HIST_SUFFIX)}{KEY_SUFFIX}"

    @property
    def user_columns(self) -> list[Column]:
        """The columns that the source sent."""
        if self.own is None:
            return self.shape.user_columns
        return [each for each in self.shape.columns if each.name not in self.own]

    @property
    def attributes(self) -> list[Column]:
        """The user's columns that are none of the key."""
        return [each for each in self.user_columns if each.name not in self.shape.key]

    def require_unpruned(self, instant: datetime) -> datetime:
        """The same instant; Refused if versions that were valid then may have been pruned."""
        if self.whole_since and instant < self.whole_since:
            raise Refused(
                "PRUNED",
                f"{self.name} was pruned up to {iso(self.whole_since)}.",
                f"Ask for a later time; {self.name}_all also has the archived versions.",
            )
        return instant
