"""What orders the changes of a table: expressions and their types, as the table keeps them (V13, V45)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from backstory.doors.native.feeds.local_times import takes_side
from backstory.doors.native.feeds.options import FeedRequest
from backstory.doors.native.request import bad_option
from backstory.errors import Refused, UsageError
from backstory.model.remembered import ORDERED_BY, SEQUENCE
from backstory.model.types import ColumnType, Kind

# The part of a place in a log that says which log it is, of those that a table had.
LOG_NUMBER: Final = "log"


@dataclass(frozen=True, slots=True)
class Ordering:
    """The expressions, the time first, and the types of the further ones.

    Of messages of a `log` the further ones are their place in it; the number of the log goes before them.
    """

    expressions: tuple[str, ...]
    types: tuple[ColumnType, ...]
    log: bool = False

    @property
    def memory_part(self) -> tuple[tuple[str, ColumnType], ...]:
        """The part of what rows remember that holds further values; none without any (V2)."""
        number = ((LOG_NUMBER, ColumnType(Kind.LONG)),) if self.log else ()
        parts = (*number, *((f"s{place}", type_) for place, type_ in enumerate(self.types, 1)))
        return ((SEQUENCE, ColumnType(Kind.STRUCT, parts=parts)),) if parts else ()

    def as_property(self) -> str:
        """As the table keeps it."""
        types = ["TIMESTAMP", *map(str, self.types)]
        pairs = zip(self.expressions, types, strict=True)
        return json.dumps([{"expression": each, "type": type_} for each, type_ in pairs], ensure_ascii=False)


def stored_expressions(properties: Mapping[str, str]) -> tuple[str, ...] | None:
    """The expressions that a table keeps; None for one that had no feed yet."""
    kept = properties.get(ORDERED_BY)
    return None if kept is None else tuple(each["expression"] for each in json.loads(kept))


def stored_types(properties: Mapping[str, str]) -> list[ColumnType]:
    """The types of the further values that a table keeps; none for one that had no feed yet."""
    return [ColumnType.parse(each["type"]) for each in json.loads(properties.get(ORDERED_BY, "[]"))[1:]]


def chosen_expressions(properties: Mapping[str, str], request: FeedRequest) -> tuple[str, ...]:
    """The table's expressions, else those that are given; Refused where they contradict each other."""
    kept = stored_expressions(properties)
    given = None if request.sequence_by is None else tuple(map(str, request.sequence_by))
    if kept is None and given is None:
        raise bad_option(
            "The order of the changes is unknown.",
            "Name what orders them with `sequence_by=`: the time of the change first.",
        )
    if kept is not None and given is not None and len(kept) == len(given):
        pairs = zip(kept, given, strict=True)
        kept = tuple(new if takes_side(old, new) else old for old, new in pairs)
    if kept is not None and given is not None and given != kept:
        raise Refused(
            "settings-changed",
            f"The changes of this table are ordered by {', '.join(kept)}, but {', '.join(given)} is given.",
            "Nothing was written; omit `sequence_by=`, because the table keeps it, or use another table.",
        )
    return kept or given or ()


def refuse_other_types(properties: Mapping[str, str], ordering: Ordering) -> None:
    """Raise Refused where further values come in other types than before: their order would be another."""
    kept = properties.get(ORDERED_BY)
    if kept is None:
        return
    pairs = zip(json.loads(kept), json.loads(ordering.as_property()), strict=True)
    first = next(((old, new) for old, new in pairs if old["type"] != new["type"]), None)
    if first is None:
        return
    raise Refused(
        "type-changed",
        f"{first[0]['expression']} orders changes as {first[0]['type']} in the table, "
        f"and is of type {first[1]['type']} in this delivery.",
        "Nothing was written; cast it to the table's type at the source.",
        [first[0]["expression"]],
    )


def ordered_type(expression: str, type_: ColumnType) -> ColumnType:
    """The type in which further values are kept; UsageError for what has no order."""
    if not type_.flat:
        raise UsageError(
            "bad-option", f"{expression} is nested, and orders nothing.", "Use its parts in `sequence_by=`."
        )
    return type_


def ordering_of(expressions: Sequence[str], types: Sequence[ColumnType], *, log: bool = False) -> Ordering:
    """The order by these expressions, whose further ones are of these types."""
    return Ordering(
        tuple(expressions),
        tuple(ordered_type(*each) for each in zip(expressions[1:], types, strict=True)),
        log,
    )
