"""A manifest's merge section as the terms of the strategies."""

from collections.abc import Sequence

from backstory.doors.odf.manifest.merge import (
    Append,
    ChangelogStream,
    Ledger,
    Merge,
    Snapshot,
    UpsertStream,
    Validation,
)
from backstory.strategies.events.terms import EventEncoding, EventTerms, Strategy


def terms_of(merge: Merge, time: str, encoding: EventEncoding | None, *, timed: bool) -> EventTerms:
    """The terms; `time` names the event-time column, and `timed` says whether the source supplies it."""
    if isinstance(merge, Append):
        return EventTerms(Strategy.APPEND, encoding=encoding)
    listed = merge.primary_key.index(time) if time in merge.primary_key else None
    key = tuple(name for name in merge.primary_key if name != time)
    common = {"key": key, "time_at": listed, "time_required": listed is not None, "encoding": encoding}
    match merge:
        case Ledger():
            counts = timed and merge.event_time_in_key
            found = EventTerms(
                Strategy.LEDGER,
                **{**common, "time_at": 0 if listed is None and counts else listed},  # type: ignore[arg-type]
                on_conflict=merge.on_conflict,
            )
        case Snapshot():
            watched = merge.compare_columns or None  # an empty list watches all columns too
            found = EventTerms(
                Strategy.SNAPSHOT,
                **common,  # type: ignore[arg-type]
                compare=None if watched is None else _without(watched, time),
                compare_time=watched is None or time in watched,
                max_retract=merge.max_retract,
            )
        case UpsertStream():
            found = EventTerms(Strategy.UPSERT, **common, sequence=merge.sequence_column)  # type: ignore[arg-type]
        case ChangelogStream():
            strict = merge.validation is Validation.STRICT
            found = EventTerms(Strategy.CHANGELOG, **common, strict=strict)  # type: ignore[arg-type]
    return found


def key_of(merge: Merge) -> tuple[str, ...]:
    """The primary key, none for Append."""
    return () if isinstance(merge, Append) else merge.primary_key


def _without(names: Sequence[str], name: str) -> tuple[str, ...]:
    return tuple(each for each in names if each != name)
