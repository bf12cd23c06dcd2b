"""How a delivery joins what is stored (section 1.8, with the extensions of decision O14).

A manifest's merge section as the terms of the strategies.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from backstory.doors.odf.manifest.part import ByKind, ManifestPart, any_case, any_case_of
from backstory.strategies.events.terms import EventEncoding, EventTerms, OnConflict, Strategy


class OnLate(StrEnum):
    """What a snapshot does that is older than the last one."""

    WARN = "warn"
    ERROR = "error"


class Validation(StrEnum):
    """How closely a changelog is looked at."""

    STRICT = "strict"
    SCHEMA = "schema"


Key = tuple[str, ...]

# The column of the observed encoding.
OBSERVED: Final = "observed"


class MergeStrategy(ManifestPart):
    """What all strategies share; None is the strategy's own encoding."""

    encoding: Annotated[EventEncoding, any_case_of(EventEncoding)] | None = None


class Append(MergeStrategy):
    """Every delivered row is added."""

    kind: Annotated[Literal["Append"], any_case("Append")] = "Append"


class Ledger(MergeStrategy):
    """Events; those with a new key are added."""

    kind: Annotated[Literal["Ledger"], any_case("Ledger")] = "Ledger"
    primary_key: Key
    event_time_in_key: bool = True
    on_conflict: Annotated[OnConflict, any_case_of(OnConflict)] = OnConflict.IGNORE


class Snapshot(MergeStrategy):
    """Full copies, whose changes are added; the last four fields belong to older versions (R11)."""

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
    """Events that say what they add, retract and correct."""

    kind: Annotated[Literal["ChangelogStream"], any_case("ChangelogStream")] = "ChangelogStream"
    primary_key: Key
    validation: Annotated[Validation, any_case_of(Validation)] = Validation.STRICT


Merge = Annotated[Append | Ledger | Snapshot | UpsertStream | ChangelogStream, ByKind("merge")]


def encoding_of(merge: Merge) -> EventEncoding | None:
    """How the events of a source say what happened; None if all of them are additions and say nothing."""
    if merge.encoding is not None:
        return merge.encoding
    if isinstance(merge, Snapshot):
        return EventEncoding.OBSERVED
    return EventEncoding.OP if isinstance(merge, UpsertStream | ChangelogStream) else None


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
                compare=None if watched is None else _names_without(watched, time),
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


def _names_without(names: Sequence[str], name: str) -> tuple[str, ...]:
    return tuple(each for each in names if each != name)
