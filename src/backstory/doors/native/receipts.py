"""What a snapshot did, or would do.

What a feed did, or would do (V58, V120, V125).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from backstory.doors.native.evolution import EvolvedShape
from backstory.doors.native.options import ApplyRequest, bad_option
from backstory.errors import option
from backstory.formats.file_columns import comma_notes
from backstory.model.receipt import Receipt
from backstory.model.table import TableName

# In their order; disjoint (V36).
COPY_COUNTS: Final = ("new", "changed", "closed", "reopened", "unchanged")


@dataclass(frozen=True, slots=True, repr=False)
class DeliveryReceipt(Receipt):
    """The table, what it counts by outcome, and the commit, which may be None with its time.

    `warnings` say what other programs did to the table since the delivery before.
    """

    table: str
    counts: Mapping[str, int]
    schema_changes: Sequence[str] = ()
    recorded_at: str | None = None
    snapshot_id: int | None = None
    warnings: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Its fields; warnings only where there are any."""
        values = Receipt.to_dict(self)
        return values if self.warnings else {name: values[name] for name in values if name != "warnings"}


@dataclass(frozen=True, slots=True, repr=False)
class DeliveryPlan(Receipt):
    """What a delivery would do (V120): `keys` are up to ten of each outcome.

    `columns` counts by the columns that differ: of a copy the records that change, of a feed the versions
    that begin. `taken_back` are the statements that the table would not make any more. `warnings` say what
    other programs did to the table since the delivery before, and which columns of a copy lose values.
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
    """What a snapshot did to the records of its table."""


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotPlan(DeliveryPlan):
    """What a snapshot would do to them."""


def schema_changes(
    evolved: EvolvedShape,
    renames: Mapping[str, str],
    with_commas: Collection[str],
    absences: Sequence[str],
    undo: str = "",
) -> list[str]:
    """What becomes of the columns, and what may have been meant otherwise.

    `renames` are the likely new names of columns that are missing, `absences` are columns that went away, in
    words, and `undo` is the command that takes the delivery back.
    New columns `with_commas` are texts that would be numbers if a comma were the decimal point.
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
    """The columns whose type is not known, in words."""
    return [
        f"column {name} is left out: all its values are empty, so its type is unknown"
        for name in evolved.left_out
    ]


# In their order: the first five are disjoint and count the delivered events, the others overlap with them.
FEED_COUNTS: Final = (
    *("began", "ended", "silent", "duplicate", "too_late"),
    *("late", "partial", "mismatched", "raised"),
)


@dataclass(frozen=True, slots=True, repr=False)
class FeedReceipt(DeliveryReceipt):
    """What a feed did: its events by outcome."""


@dataclass(frozen=True, slots=True, repr=False)
class FeedPlan(DeliveryPlan):
    """What a feed would do with its events."""


def answer_without_changes(into: TableName, request: ApplyRequest) -> FeedReceipt | FeedPlan:
    """The answer to messages of which none is a change (V59); UsageError for a restatement of all keys."""
    if request.all_keys:
        raise bad_option(
            "None of the messages is a change, so nothing says what orders those that would be taken back.",
            "Give at least one change of the time that is restated.",
        )
    counts = dict.fromkeys(FEED_COUNTS, 0)
    return FeedPlan(str(into), counts, {}, {}, [], 0) if request.dry_run else FeedReceipt(str(into), counts)
