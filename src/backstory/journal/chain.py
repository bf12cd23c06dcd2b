"""The chain of a dataset: one block for each commit, with the hash of the previous block (section 6.5).

Blocks are stored in the properties of the dataset's snapshots. A change of a block changes its hash, and so
invalidates every later block.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha3_256
from types import NoneType
from typing import Any, Final

from backstory.errors import UsageError, Violated
from backstory.model.instant import iso, parse_instant
from backstory.stores.iceberg.snapshots import ancestry
from backstory.stores.iceberg.store import IcebergTable

ADD_DATA: Final = "AddData"
OFFSETS_IN: Final = ("start", "end", "prev_offset")  # the JSON keys for offsets in an event

PREFIX: Final = "backstory.odf."
SEQUENCE: Final = PREFIX + "sequence"
PREVIOUS: Final = PREFIX + "previous-block"
BLOCK: Final = PREFIX + "block"
SYSTEM_TIME: Final = PREFIX + "system-time"
KIND: Final = PREFIX + "event-kind"
EVENT: Final = PREFIX + "event"
# Parts of the event, repeated for programs that read a table's commits.
OFFSETS: Final = PREFIX + "offsets"
WATERMARK: Final = PREFIX + "watermark"
SOURCE_STATE: Final = PREFIX + "source-state"
RUN_ID: Final = PREFIX + "run-id"
PROPERTIES: Final = (
    *(SEQUENCE, PREVIOUS, BLOCK, SYSTEM_TIME, KIND, EVENT),
    *(OFFSETS, WATERMARK, SOURCE_STATE, RUN_ID),
)


@dataclass(frozen=True, slots=True)
class Block:
    """The record of one commit. `previous` is the hash of the previous block, or None for the first block."""

    sequence: int
    previous: str | None
    system_time: datetime
    kind: str
    event: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """The SHA3-256 of the block's canonical JSON, in hexadecimal digits."""
        content = {
            "sequence_number": self.sequence,
            "prev_block_hash": self.previous,
            "system_time": iso(self.system_time),
            "event_kind": self.kind,
            "event": self.event,
        }
        return sha3(canonical(content))

    @property
    def offsets(self) -> tuple[int, int] | None:
        """The first and the last offset of the commit's rows, or None if it has no rows."""
        start, end = self.event.get("start"), self.event.get("end")
        return None if start is None or end is None else (start, end)

    def properties(self) -> dict[str, str]:
        """The properties of the commit's snapshot (R83)."""
        state = self.event.get("source_state")
        values = (
            *(str(self.sequence), self.previous, self.hash, iso(self.system_time), self.kind),
            canonical(self.event),
            ",".join(map(str, self.offsets or ())),
            self.event.get("watermark"),
            None if state is None else canonical(state),
            self.event.get("run_id"),
        )
        return {name: value or "" for name, value in zip(PROPERTIES, values, strict=True)}


def from_properties(summary: Mapping[str, str]) -> Block | None:
    """The block in a snapshot's properties, or None if the snapshot is not a commit of a dataset.

    Raises Violated if the properties are not a valid block.
    """
    sequence = summary.get(SEQUENCE)
    if sequence is None:
        return None
    try:
        return Block(
            int(sequence),
            summary.get(PREVIOUS) or None,
            parse_instant(summary.get(SYSTEM_TIME, "")),
            summary.get(KIND, ADD_DATA),
            event_of(summary.get(EVENT, "")),
        )
    except (ValueError, UsageError):
        raise Violated(
            "broken-block",
            f"The properties of the commit with block number {sequence} cannot be read.",
            "Somebody changed the table's metadata; restore it from a backup.",
        ) from None


def event_of(text: str) -> dict[str, Any]:
    """Parse an event from JSON. Raises ValueError if the string is not an event."""
    event = json.loads(text)
    if not isinstance(event, dict) or any(
        type(event.get(name)) not in {int, NoneType} for name in OFFSETS_IN
    ):
        raise ValueError(text)
    return event


def snapshots(table: IcebergTable) -> Iterator[dict[str, str]]:
    """The properties of the table's commits that have blocks, newest first.

    Other snapshots, such as compactions, are skipped. The result ends at the first expired snapshot.
    """
    return block_properties(snapshot.get_property for snapshot in ancestry(table))


def block_properties(commits: Iterable[Callable[[str], str | None]]) -> Iterator[dict[str, str]]:
    """The properties of each commit that has a block.

    A commit is given as a function that returns a property by name.
    """
    for property_of in commits:
        if property_of(SEQUENCE) is not None:
            properties = ((name, property_of(name)) for name in PROPERTIES)
            yield {name: value for name, value in properties if value is not None}


def walk(table: IcebergTable) -> Iterator[Block]:
    """The blocks of the table's snapshots, newest first, each parsed when it is needed."""
    return read_blocks(snapshots(table))


def read_blocks(commits: Iterable[Mapping[str, str]]) -> Iterator[Block]:
    """The blocks in the properties of commits, each parsed when it is needed."""
    return (block for properties in commits if (block := from_properties(properties)) is not None)


def blocks(table: IcebergTable) -> list[Block]:
    """The blocks of the table's snapshots, newest first."""
    return list(walk(table))


def schema_hash(columns: Sequence[tuple[str, str]]) -> str:
    """The hash of columns, independent of their order.

    A column is a name and a type in the form of Spark's `simpleString`.
    """
    return sha3(canonical(dict(columns)))


def canonical(value: Any) -> str:
    """A value as JSON with sorted keys, no spaces and the fewest escapes.

    Half of a surrogate pair, which a file name can contain, is escaped, because it has no UTF-8 form.
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_json_value
    )
    return text.encode("utf-8", "backslashreplace").decode()


def sha3(text: str) -> str:
    """The SHA3-256 of a string, in hexadecimal digits."""
    return sha3_256(text.encode()).hexdigest()


def _json_value(value: object) -> object:
    """Convert instants to strings, and mappings to dictionaries, for `json`."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(type(value).__name__)
