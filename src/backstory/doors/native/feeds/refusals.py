"""The refusals of feeds, with up to ten keys and the option that would allow them (V126)."""

from collections.abc import Callable, Mapping
from datetime import datetime

from backstory.doors.native.feeds.ordering import Ordering
from backstory.doors.native.options import ApplyRequest
from backstory.doors.native.refusals import refuse_null_keys, refuse_spoilt
from backstory.errors import Refused, bad_option, option
from backstory.model.instant import iso
from backstory.strategies.feeds.arrival import (
    CONFLICT,
    NO_KEY,
    NO_SEQUENCE,
    OUTSIDE,
    OVERLAP,
    SETTLED,
    SPOILT,
)
from backstory.strategies.feeds.terms import FeedTerms


def refuse_feed_faults(
    counts: Mapping[str, int],
    keys: Callable[[str], list[str]],
    terms: FeedTerms,
    ordering: Ordering,
    settled: tuple[datetime | None, datetime] | tuple[()],
) -> None:
    """Raise Refused for the first fault of a delivery; `keys` returns the keys of a fault."""
    faults = {name: count for name, count in counts.items() if count}
    refuse_null_keys(faults.get(NO_KEY, 0), terms.key, lambda: keys(NO_KEY))
    if number := faults.get(NO_SEQUENCE, 0):
        raise Refused(
            "null-sequence",
            f"{number} {'row has' if number == 1 else 'rows have'} no value in "
            f"{' or '.join(ordering.expressions)}.",
            "Nothing was written; give each change its time and place in the order, or leave such rows out.",
            keys(NO_SEQUENCE),
        )
    if faults.get(OUTSIDE):
        raise Refused(
            "outside-restatement",
            f"{_changes(faults[OUTSIDE])} a time outside the restated window.",
            "Nothing was written; choose a longer window, or apply these changes without `restate_from=`.",
            keys(OUTSIDE),
        )
    if OVERLAP in faults:
        raise Refused(
            "settled",
            f"The restated window overlaps the settled time between {_span(settled)}.",
            "Nothing was written; choose a window outside that time.",
        )
    if faults.get(SETTLED):
        raise _settled_error(faults[SETTLED], settled, keys(SETTLED))
    refuse_spoilt(keys(SPOILT) if faults.get(SPOILT) else [], terms.key)
    if faults.get(CONFLICT):
        raise Refused(
            "sequence-conflict",
            f"{_changes(faults[CONFLICT])} the same time and order as another change of the record, "
            "but different content.",
            "Nothing was written; order them by a further column: "
            f"{option('sequence_by', [*ordering.expressions, '…'])}.",
            keys(CONFLICT),
        )


def refuse_empty_restatement(count: int, request: ApplyRequest) -> None:
    """Raise an error for a restatement of all keys without changes, which would withdraw everything (V86)."""
    if not count and request.all_keys and request.restate_until is None:
        raise bad_option(
            "The source has no changes, so the end of the restated window is unknown.",
            f"Give the end: {option('restate_until', 'TIME')}.",
        )
    if not count and request.all_keys and not request.allow_empty:
        raise Refused(
            "empty-snapshot",
            "The source has no changes, so everything in the restated window would be withdrawn.",
            f"Nothing was written; use {option('allow_empty', value=True)} to accept it.",
        )


def _changes(number: int) -> str:
    return "1 change has" if number == 1 else f"{number} changes have"


def _settled_error(
    number: int, settled: tuple[datetime | None, datetime] | tuple[()], keys: list[str]
) -> Refused:
    return Refused(
        "settled",
        f"{_changes(number)} a time between {_span(settled)}, where changes are no longer accepted.",
        f"Nothing was written; use {option('late', 'drop')} to leave such changes out and count them.",
        keys,
    )


def _span(settled: tuple[datetime | None, datetime] | tuple[()]) -> str:
    first, last = settled or (None, None)
    return f"{'the beginning' if first is None else iso(first)} and {'' if last is None else iso(last)}"
