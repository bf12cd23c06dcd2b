"""What rows of a feed mean: its table keeps which delete, which cells are unmodified, what is not stored.

Who delivers again without these options would else store deletes as updates, and NULL where nothing was said.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from backstory.doors.native.feeds.options import FeedRequest
from backstory.stores.iceberg.store import StoredTable

FEED: Final = "backstory.feed"
_CONDITIONS: Final = ("apply_as_deletes", "apply_as_truncates")
_OPTIONS: Final = (*_CONDITIONS, "ignore_nulls", "columns_to_update", "unmodified", "drop")
# Of these a delivery may have one alone (V50).
BESIDE: Final = "backstory: "  # no column of a source is called so
_EITHER: Final = frozenset(["ignore_nulls", "columns_to_update"])
_TEXT: Final = re.compile(r"'(?:[^'\\]|\\.)*'")
_WORD: Final = re.compile(r"`([^`]+)`|(\w+)")


def with_stored_meaning(
    request: FeedRequest, properties: Mapping[str, str], names: Sequence[str]
) -> FeedRequest:
    """The request with what the table keeps in the place of options that are not given.

    What is about columns that the delivery does not have, whose `names` these are, says nothing of it. The
    messages of an envelope say themselves what they mean.
    """
    if request.is_unwrapped:
        return request
    stored = _stored(properties, _chosen_options(request))
    said = {name: _of_delivery(name, value, names) for name, value in stored.items()}
    return replace(request, **{name: value for name, value in said.items() if value is not None})


def with_stored_envelope(request: FeedRequest, properties: Mapping[str, str]) -> FeedRequest:
    """The request with the envelope that the table keeps, and with what it keeps of its messages."""
    stored = json.loads(properties.get(FEED, "{}"))
    kept = stored.get("envelope")
    if kept is None or request.envelope not in {None, kept}:
        return request
    drop = stored.get("drop")
    return replace(
        request,
        envelope=kept,
        unmodified=request.unmodified or stored.get("unmodified"),
        drop=frozenset(drop) if request.drop is None and drop else request.drop,
    )


def unmodified_text(request: FeedRequest, table: StoredTable | None) -> str | None:
    """The text of cells that leave their column as it was; None where there is none, and in an envelope."""
    if request.envelope is not None:
        return None
    return with_stored_meaning(request, {} if table is None else table.properties, ()).unmodified


def meaning_property(request: FeedRequest, properties: Mapping[str, str]) -> dict[str, str]:
    """What the table keeps from now on: options that are given take the place of former ones.

    Expressions that are columns of Spark have no text, and are not kept.
    """
    if request.is_unwrapped:
        return _kept_of_envelope(request)
    given = _chosen_options(request)
    texts = {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in given.items()
        if name not in _CONDITIONS or isinstance(value, str)
    }
    if not texts:
        return {}
    return {FEED: json.dumps({**_stored(properties, given), **texts}, ensure_ascii=False, sort_keys=True)}


def _kept_of_envelope(request: FeedRequest) -> dict[str, str]:
    """What the table keeps of messages: their envelope, its placeholder, and columns that are not stored."""
    own = f"{request.envelope}: "
    drop = sorted(name for name in request.drop or () if not name.startswith((own, BESIDE)))
    kept = {"envelope": request.envelope, "unmodified": request.unmodified, "drop": drop or None}
    said = {name: value for name, value in kept.items() if value is not None}
    return {FEED: json.dumps(said, ensure_ascii=False, sort_keys=True)}


def _chosen_options(request: FeedRequest) -> dict[str, Any]:
    return {name: value for name in _OPTIONS if (value := getattr(request, name)) is not None}


def _stored(properties: Mapping[str, str], given: Collection[str]) -> dict[str, Any]:
    """What the table keeps, without what is given, or contradicts what is."""
    left_out = {*given, *(_EITHER if _EITHER & set(given) else ())}
    stored = json.loads(properties.get(FEED, "{}"))
    return {name: value for name, value in stored.items() if name not in left_out}


def _of_delivery(name: str, value: Any, names: Sequence[str]) -> Any:
    """What an option that the table keeps says of a delivery with these columns; None for nothing."""
    if name in _CONDITIONS:
        words = {quoted or bare for quoted, bare in _WORD.findall(_TEXT.sub("", value))}
        return value if words & set(names) else None
    if name == "columns_to_update":
        return value if value in names else None
    return frozenset(value) & set(names) if isinstance(value, list) else value
