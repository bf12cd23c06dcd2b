"""How a delivery joins what is stored (section 1.8, with the extensions of decision O14)."""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from backstory.doors.odf.manifest.part import ByKind, Part, cased, worded
from backstory.strategies.events.terms import EventEncoding, OnConflict


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


class Merging(Part):
    """What all strategies share; None is the strategy's own encoding."""

    encoding: Annotated[EventEncoding, worded(EventEncoding)] | None = None


class Append(Merging):
    """Every delivered row is added."""

    kind: Annotated[Literal["Append"], cased("Append")] = "Append"


class Ledger(Merging):
    """Events; those with a new key are added."""

    kind: Annotated[Literal["Ledger"], cased("Ledger")] = "Ledger"
    primary_key: Key
    event_time_in_key: bool = True
    on_conflict: Annotated[OnConflict, worded(OnConflict)] = OnConflict.IGNORE


class Snapshot(Merging):
    """Full copies, whose changes are added; the last four fields belong to older versions (R11)."""

    kind: Annotated[Literal["Snapshot"], cased("Snapshot")] = "Snapshot"
    primary_key: Key
    compare_columns: tuple[str, ...] | None = None
    max_retract: Annotated[float, Field(ge=0, le=1)] | None = None
    on_late_snapshot: Annotated[OnLate, worded(OnLate)] = OnLate.WARN
    observation_column: str | None = None
    obsv_added: str | None = None
    obsv_changed: str | None = None
    obsv_removed: str | None = None


class UpsertStream(Merging):
    """Rows in the order of their arrival: the last one of each key counts."""

    kind: Annotated[Literal["UpsertStream"], cased("UpsertStream")] = "UpsertStream"
    primary_key: Key
    sequence_column: str | None = None


class ChangelogStream(Merging):
    """Events that say what they add, retract and correct."""

    kind: Annotated[Literal["ChangelogStream"], cased("ChangelogStream")] = "ChangelogStream"
    primary_key: Key
    validation: Annotated[Validation, worded(Validation)] = Validation.STRICT


Merge = Annotated[Append | Ledger | Snapshot | UpsertStream | ChangelogStream, ByKind("merge")]


def encoding_of(merge: Merge) -> EventEncoding | None:
    """How the events of a source say what happened; None if all of them are additions and say nothing."""
    if merge.encoding is not None:
        return merge.encoding
    if isinstance(merge, Snapshot):
        return EventEncoding.OBSERVED
    return EventEncoding.OP if isinstance(merge, UpsertStream | ChangelogStream) else None
