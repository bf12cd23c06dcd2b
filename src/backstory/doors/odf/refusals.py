"""What a delivery is refused for, in words, with up to ten keys and the remedy (sections 2.3 to 2.6)."""

from collections.abc import Mapping
from typing import Final

from backstory.doors.odf.manifest.merge import ChangelogStream, OnLate, Snapshot, UpsertStream
from backstory.doors.odf.querying import keeps_order
from backstory.doors.odf.work import Head, Work
from backstory.errors import Refused, UsageError
from backstory.model.guards import exceeds
from backstory.model.instant import iso
from backstory.strategies.events.happened import Happened
from backstory.strategies.events.terms import (
    ABSENT,
    CONFLICTING,
    KNOWN_CONFLICT,
    NULL_KEY,
    NULL_SEQUENCE,
    PRESENT,
    TOO_MANY_RETRACTED,
    UNLIKE,
    UNPAIRED,
    WRONG_OP,
    EventTerms,
    Strategy,
)

# What it is, and what to do.
PROBLEMS: Final[Mapping[str, tuple[str, str]]] = {
    NULL_KEY: (
        "have no value in the primary key",
        "Nothing was written; filter them in preprocess, or choose another primaryKey.",
    ),
    WRONG_OP: (
        "have an operation that the strategy does not know",
        "Nothing was written; 0 and 3 add, 1 removes, and in a changelog 2 begins a correction.",
    ),
    NULL_SEQUENCE: ("have no value in sequenceColumn", "Nothing was written; give each row a value there."),
    CONFLICTING: (
        "share a primary key with a row of different content",
        "Nothing was written; widen the primaryKey, or keep one of the rows in preprocess.",
    ),
    KNOWN_CONFLICT: (
        "have a known primary key but different content",
        "Nothing was written; onConflict: ignore drops such rows, correct (with encoding: op) corrects.",
    ),
    PRESENT: ("add a record that exists already (V3)", "Nothing was written; send -C and +C to change it."),
    ABSENT: (
        "retract or correct a record that does not exist (V4)",
        "Nothing was written; send what is missing.",
    ),
    UNLIKE: (
        "retract or correct a record that has changed since (V4)",
        "Nothing was written; -R and -C must repeat the stored record, event time included.",
    ),
    UNPAIRED: (
        "are a -C or +C without its other half next to it (V5)",
        "Nothing was written; send both, one after the other.",
    ),
}
MANY: Final = 0.5


def refuse_problems(found: Happened, name: str) -> None:
    """Raises Refused for the first problem that rows of the file `name` have."""
    for problem, (what, remedy) in PROBLEMS.items():
        if count := found.problems[problem]:
            rows = f"{count} row{'' if count == 1 else 's'} of {name}"
            raise Refused(problem, f"{rows} {what}.", remedy, found.keys(problem))


def refuse_retractions(found: Happened, terms: EventTerms) -> list[str]:
    """A warning where a snapshot retracts more than half; Refused where it retracts more than it may."""
    gone, counts = found.counts["retracted"], found.counts
    if terms.strategy is not Strategy.SNAPSHOT or not gone:
        return []
    stored = gone + counts["corrected"] + counts["unchanged"]
    told = f"The snapshot retracts {gone} of {stored} records."
    if terms.max_retract is not None and exceeds(gone, terms.max_retract, stored):
        raise Refused(
            TOO_MANY_RETRACTED,
            told,
            f"Nothing was written; maxRetract is {terms.max_retract:g}. Raise it if these records are "
            "really gone.",
            found.retracted(),
        )
    return [told] if exceeds(gone, MANY, stored) else []


def refuse_late(work: Work, head: Head) -> list[str]:
    """A warning for a snapshot that is older than the last one; Refused where the manifest says so.

    One that is pushed without a time is of its run's: others may have come while it waited for them.
    """
    merge, time, last = work.source.merge, work.fetched.event_time, head.snapshot_time
    if time is None and work.after is None:
        time, last = work.run.system_time, head.system_time
    if not isinstance(merge, Snapshot) or time is None or last is None or time >= last:
        return []
    told = f"The snapshot of {iso(time)} is older than the last one, of {iso(last)}."
    if merge.on_late_snapshot is OnLate.ERROR:
        raise Refused("late-snapshot", told, "Ingest snapshots in order, or set onLateSnapshot: warn.")
    return [told]


def refuse_lost_order(work: Work) -> None:
    """Upserts and changelogs go by the order of arrival, which a query may lose (D13)."""
    merge = work.source.merge
    ordered = isinstance(merge, UpsertStream) and merge.sequence_column
    if work.source.preprocess is None or ordered or not isinstance(merge, UpsertStream | ChangelogStream):
        return
    if work.frame is not None and not keeps_order(work.frame):
        raise UsageError(
            "arrival-order-lost",
            "The query of preprocess changes the order of the rows.",
            "Only select and filter rows, or name a sequenceColumn (UpsertStream).",
        )
