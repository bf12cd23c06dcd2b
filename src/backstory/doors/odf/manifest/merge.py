"""The merge section of a manifest, and its terms (section 1.8, with the extensions of decision O14)."""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from backstory.doors.odf.manifest.part import ByKind, ManifestPart, any_case, any_case_of
from backstory.strategies.events.terms import EventEncoding, EventTerms, OnConflict, Strategy


class OnLate(StrEnum):
    """How to treat a snapshot that is older than the last one."""

    WARN = "warn"
    ERROR = "error"


class Validation(StrEnum):
    """How strictly a changelog is checked."""

    STRICT = "strict"
    SCHEMA = "schema"


Key = tuple[str, ...]

# The column of the observed encoding.
OBSERVED: Final = "observed"


class MergeStrategy(ManifestPart):
    """The field that all strategies share; None is the strategy's default encoding."""

    encoding: Annotated[EventEncoding, any_case_of(EventEncoding)] | None = None


class Append(MergeStrategy):
    """Every delivered row is added."""

    kind: Annotated[Literal["Append"], any_case("Append")] = "Append"


class Ledger(MergeStrategy):
    """Events; rows with a new key are added."""

    kind: Annotated[Literal["Ledger"], any_case("Ledger")] = "Ledger"
    primary_key: Key
    event_time_in_key: bool = True
    on_conflict: Annotated[OnConflict, any_case_of(OnConflict)] = OnConflict.IGNORE


class SnapshotMerge(MergeStrategy):
    """Full copies; their changes are added. The last four fields belong to older versions (R11)."""

    kind: Annotated[Literal["Snapshot"], any_case("Snapshot")] = "Snapshot"
    primary_key: Key
    compare_columns: tuple[str, ...] | None = None
    max_retract: Annotated[float, Field(ge=0, le=1)] | None = None
    on_late_snapshot: Annotated[OnLate, any_case_of(OnLate)] = OnLate.WARN
    observation_column: str | None = None
    obsv_added: str | None = None
    obsv_changed: str | None = None
    obsv_removed: str | None = None


class UpsertStream(MergeStrategy):
    """Rows in the order of their arrival: the last one of each key counts."""

    kind: Annotated[Literal["UpsertStream"], any_case("UpsertStream")] = "UpsertStream"
    primary_key: Key
    sequence_column: str | None = None


class ChangelogStream(MergeStrategy):
    """Events with their operations: additions, retractions and corrections."""

    kind: Annotated[Literal["ChangelogStream"], any_case("ChangelogStream")] = "ChangelogStream"
    primary_key: Key
    validation: Annotated[Validation, any_case_of(Validation)] = Validation.STRICT


Merge = Annotated[Append | Ledger | SnapshotMerge | UpsertStream | ChangelogStream, ByKind("merge")]


def encoding_of(merge: Merge) -> EventEncoding | None:
    """The encoding in which the table stores operations, or None if all events are additions."""
    if merge.encoding is not None:
        return merge.encoding
    if isinstance(merge, SnapshotMerge):
        return EventEncoding.OBSERVED
    return EventEncoding.OP if isinstance(merge, UpsertStream | ChangelogStream) else None


def terms_of(merge: Merge, time: str, encoding: EventEncoding | None, *, timed: bool) -> EventTerms:
    """The terms of a merge.

    `time` is the event-time column. `timed` is whether the source supplies the event time.
    """
    if isinstance(merge, Append):
        return EventTerms(Strategy.APPEND, encoding=encoding)
    position = merge.primary_key.index(time) if time in merge.primary_key else None
    key = tuple(name for name in merge.primary_key if name != time)
    common = {"key": key, "time_at": position, "time_required": position is not None, "encoding": encoding}
    match merge:
        case Ledger():
            time_counts = timed and merge.event_time_in_key
            terms = EventTerms(
                Strategy.LEDGER,
                **{**common, "time_at": 0 if position is None and time_counts else position},  # type: ignore[arg-type]
                on_conflict=merge.on_conflict,
            )
        case SnapshotMerge():
            watched = merge.compare_columns or None  # an empty list also means all columns
            terms = EventTerms(
                Strategy.SNAPSHOT,
                **common,  # type: ignore[arg-type]
                compare=None if watched is None else tuple(name for name in watched if name != time),
                compare_time=watched is None or time in watched,
                max_retract=merge.max_retract,
            )
        case UpsertStream():
            terms = EventTerms(Strategy.UPSERT, **common, sequence=merge.sequence_column)  # type: ignore[arg-type]
        case ChangelogStream():
            strict = merge.validation is Validation.STRICT
            terms = EventTerms(Strategy.CHANGELOG, **common, strict=strict)  # type: ignore[arg-type]
    return terms


def key_of(merge: Merge) -> tuple[str, ...]:
    """The columns of the primary key, or an empty tuple for Append."""
    return () if isinstance(merge, Append) else merge.primary_key
