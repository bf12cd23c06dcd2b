"""A feed planned, wherever that was done."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backstory.doors.native.feeds.logs import LogProgress


@dataclass(frozen=True, slots=True)
class PlannedFeed:
    """What a feed makes of its table: `keys` gives up to ten keys of an outcome.

    `gone` are places of stored rows, `come` the rows to write, both None for none; `added` is their number.
    `content` is a number made of the events, `log` how far their log is known with them.
    """

    counts: Mapping[str, int]
    keys: Callable[[str], list[str]]
    taken_back: int
    gone: Any
    come: Any
    added: int
    content: int
    log: LogProgress | None = None
