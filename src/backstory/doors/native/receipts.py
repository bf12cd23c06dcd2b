"""The receipts and plans of snapshots and feeds (V36, V58, V120, V125)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from backstory.doors.native.evolution import EvolvedShape
from backstory.doors.native.options import ApplyRequest
from backstory.errors import bad_option, option
from backstory.formats.reading import comma_notes
from backstory.model.receipt import IF_ANY, Receipt

# The outcomes of records in a copy, disjoint and in this order (V36).
COPY_COUNTS: Final = ("new", "changed", "closed", "reopened", "unchanged")

# The outcomes of events, in this order. The first five are disjoint; the others overlap with them.
FEED_COUNTS: Final = (
    *("began", "ended", "silent", "duplicate", "too_late"),
    *("late", "partial", "mismatched", "raised"),
)


@dataclass(frozen=True, slots=True, repr=False)
class DeliveryReceipt(Receipt):
    """The table, the counts by outcome, and the commit.

    Without a commit, both the commit and its time are None. `warnings` report writes by other programs
    since the previous delivery.
    """

    table: str
    counts: Mapping[str, int]
    schema_changes: Sequence[str] = ()
    recorded_at: str | None = None
    snapshot_id: int | None = None
    warnings: Sequence[str] = field(default=(), metadata=IF_ANY)


@dataclass(frozen=True, slots=True, repr=False)
class DeliveryPlan(Receipt):
    """The plan of a delivery in a dry run (V120). `keys` has up to ten keys for each outcome.

    `columns` maps each differing column to the number of changed records (copy) or new versions (feed).
    `taken_back` is the number of statements that would be withdrawn. `warnings` report writes by other
    programs since the previous delivery, and columns of a copy that lose values.
    """

    table: str
    counts: Mapping[str, int]
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    columns: Mapping[str, int] = field(default_factory=dict)
    schema_changes: Sequence[str] = ()
    taken_back: int = 0
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotReceipt(DeliveryReceipt):
    """The receipt of a snapshot: its records by outcome."""


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotPlan(DeliveryPlan):
    """The plan of a snapshot: its records by outcome."""


def schema_changes(
    evolved: EvolvedShape,
    renames: Mapping[str, str],
    with_commas: Collection[str],
    absences: Sequence[str],
    undo: str = "",
) -> list[str]:
    """The changes to columns as lines, with questions about likely renames.

    `renames` maps missing columns to their likely new names. `absences` are lines about missing columns, and
    `undo` is the command that undoes the delivery. `with_commas` are columns whose strings are numbers with
    decimal commas.
    """
    anew = ["all rows are rewritten"] if evolved.retyped else []
    after = f", after `{undo}` with {option('apply', value=True)}" if undo else ""
    asking = [
        f"column {new} has the values of {old}: renamed? {option('rename', {old: new})}{after}"
        for old, new in renames.items()
    ]
    new = {column.name for column in evolved.delivered} if evolved.stored is None else evolved.added
    commas = comma_notes(new.intersection(with_commas))
    return [*evolved.changes, *anew, *absences, *asking, *columns_left_out(evolved), *commas]


def columns_left_out(evolved: EvolvedShape) -> list[str]:
    """Lines about the columns that are omitted because their type is unknown."""
    return [
        f"column {name} is left out: all its values are empty, so its type is unknown"
        for name in evolved.left_out
    ]


@dataclass(frozen=True, slots=True, repr=False)
class FeedReceipt(DeliveryReceipt):
    """The receipt of a feed: its events by outcome."""


@dataclass(frozen=True, slots=True, repr=False)
class FeedPlan(DeliveryPlan):
    """The plan of a feed: its events by outcome."""


def answer_without_changes(request: ApplyRequest, foreign: Sequence[str] = ()) -> FeedReceipt | FeedPlan:
    """The receipt or plan of a feed without changes (V59). Raises UsageError if all keys are restated."""
    if request.all_keys:
        raise bad_option(
            "No message is a change, so the order of the changes to withdraw is unknown.",
            "Deliver at least one change in the restated window.",
        )
    table, counts = str(request.into), dict.fromkeys(FEED_COUNTS, 0)
    if request.dry_run:
        return FeedPlan(table, counts, warnings=foreign)
    return FeedReceipt(table, counts, warnings=foreign)
