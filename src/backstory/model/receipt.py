"""What a delivery did."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Receipt:
    """The table, its rows by outcome, and the commit; `snapshot_id` is None without a commit."""

    table: str
    counts: Mapping[str, int] = field(default_factory=dict)
    snapshot_id: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields, as `--output json` prints them."""
        return asdict(self)
