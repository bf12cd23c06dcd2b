"""What a rewind takes back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backstory.model.change import DOOR, TOKEN
from backstory.model.instant import iso
from backstory.model.receipt import Receipt
from backstory.stores.iceberg.snapshots import IcebergSnapshot

OUTCOMES = ("taken_back", "moved", "returned")


@dataclass(frozen=True, slots=True, repr=False)
class Rewound(Receipt):
    """What a rewind takes back, or took back where it was `applied`.

    `counts` are rows by outcome, `commits` those that are taken back, newest first; `keys` are up to ten of
    the records that change, and `recorded_at` is when the table learnt of the rewind (layout `versions`).
    `also` are the tables that go back with it.
    """

    table: str
    time: str
    applied: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)
    recorded_at: str | None = None
    snapshot_id: int | None = None
    also: list[dict[str, Any]] = field(default_factory=list)


def commit_fields(snapshot: IcebergSnapshot) -> dict[str, Any]:
    """A commit as receipts show it."""
    return {
        "snapshot_id": snapshot.id,
        "committed_at": iso(snapshot.committed_at),
        "door": snapshot.get_property(DOOR),
        "token": snapshot.get_property(TOKEN),
    }
