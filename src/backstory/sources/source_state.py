"""What a source said of its state when it was ingested: the next pull asks what came after (5.1)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

ETAG: Final = "odf/etag"
LAST_MODIFIED: Final = "odf/last-modified"


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of a source: `kind` is `odf/etag` or `odf/last-modified`.

    The value of `odf/etag` is a tag as the server wrote it or the mark of a glob's last file; that of
    `odf/last-modified` is an instant, written by `written`.
    """

    kind: str
    value: str
    source_name: str = "default"

    def to_dict(self) -> dict[str, str]:
        """The state as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "SourceState":
        """The state that `to_dict` gave; KeyError if it is not one."""
        return cls(str(saved["kind"]), str(saved["value"]), str(saved.get("source_name", "default")))


def of_kind(state: SourceState | None, kind: str) -> str | None:
    """The state's value if it is of this kind: a source that was replaced may have left another."""
    return state.value if state is not None and state.kind == kind else None


def written(instant: datetime) -> str:
    """The instant as a state holds it: ISO 8601 in UTC, with milliseconds."""
    utc = instant.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(timespec="milliseconds") + "Z"


def rounded(nanoseconds: int) -> datetime:
    """The instant that lies so many nanoseconds after 1970, rounded to a millisecond."""
    milliseconds = (nanoseconds + 500_000) // 1_000_000
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
