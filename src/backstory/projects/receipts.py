"""What a run did: a receipt for each declaration, and what it says of its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from backstory.errors import BackstoryError, Refused, TryAgain, UsageError
from backstory.model.receipt import Receipt

Status = Literal["begun", "changed", "unchanged", "refused", "failed", "blocked", "stopped"]
# What the next run with `--failed` does again.
UNDONE: Final = ("refused", "failed", "blocked", "stopped")
WELL: Final = ("changed", "unchanged")


@dataclass(frozen=True, slots=True, repr=False)
class RunReceipt(Receipt):
    """One declaration in a run.

    `counts` are rows by outcome, `files` those that were taken; `seconds` is the time it took, `stages` what
    of it reading, planning and committing did; `way` says where it was planned, `driver` or `tasks`. A
    `blocked` one was not begun, for the one that it is `blocked_by` did not end well; a `stopped` one not
    because the run was ended before. A `begun` one has no end on record. `parts` are the receipts of a
    model's or a manifest's datasets.
    """

    name: str
    kind: str
    status: Status
    run_id: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    schema_changes: Sequence[str] = ()
    files: Sequence[str] = ()
    started_at: datetime | None = None
    seconds: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    way: str | None = None
    attempts: int = 1
    blocked_by: str | None = None
    error: BackstoryError | None = None
    parts: Sequence[Mapping[str, Any]] = ()

    @property
    def exit_code(self) -> int:
        """That of its error; of what was not begun because the run ended, that of `TryAgain`."""
        return TryAgain.exit_code if self.status == "stopped" else super(RunReceipt, self).exit_code


def status_of(error: BackstoryError) -> Status:
    """Refused, where a person must do something; failed, where the same may succeed later."""
    return "refused" if isinstance(error, Refused | UsageError) else "failed"
