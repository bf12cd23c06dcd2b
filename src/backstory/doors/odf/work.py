"""What one delivery of a source brings, and the dataset that it meets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backstory.doors.odf.chain import Block, canonical, sha3
from backstory.doors.odf.dataset import Source
from backstory.doors.odf.fetch.fetched import Fetched
from backstory.doors.odf.log_table import newest_block
from backstory.doors.odf.manifest.events import SetPollingSource
from backstory.doors.odf.registry import Registered
from backstory.model.instant import parse_instant
from backstory.tables.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def unseen(_stage: str) -> None:
    """The stages of a delivery that nobody watches."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one call does to datasets: when, as which run, whether in earnest; `stage` hears what goes on."""

    system_time: datetime
    run_id: str | None = None
    dry_run: bool = False
    allow_commands: bool = False
    stage: Callable[[str], None] = unseen


@dataclass(frozen=True, slots=True)
class Work:
    """A file that was read, for a dataset.

    `frame` is its rows after preprocess, None where not even their columns are known. `declared` says
    that the manifest names the columns, `content` is a digest of a changelog's file, and `dataset`
    gives the dataset as it stands.
    """

    store: Store
    source: Source
    fetched: Fetched
    run: Run
    frame: "DataFrame | None"
    declared: bool
    content: str | None
    dataset: Callable[[], Registered]

    @property
    def source_name(self) -> str:
        """The name of a push source; a polling source is called `default`."""
        return getattr(self.source, "source_name", "default")

    @property
    def token(self) -> str | None:
        """What makes a repeated run recognisable; each file of a run has its own (R81)."""
        run = self.run.run_id
        return None if run is None else f"{run} {self.source_name} {self.fetched.name}"


def fetch_hash(source: Source) -> str | None:
    """What tells the fetch step of a polling source from another; None for a push source."""
    if not isinstance(source, SetPollingSource):
        return None
    step = source.fetch.model_dump(mode="json", by_alias=True)
    return sha3(canonical(step))


@dataclass(frozen=True, slots=True)
class Head:
    """A dataset as its newest commit left it."""

    block: Block | None = None

    @property
    def event(self) -> Mapping[str, Any]:
        """What that commit says of itself."""
        return self.block.event if self.block else {}

    def state_of(self, source: Source) -> dict[str, str] | None:
        """What the source said of itself, if it is still the same one."""
        same = self.event.get("fetch") == fetch_hash(source)
        return self.event.get("source_state") if same else None

    @property
    def next_offset(self) -> int:
        """The offset that the next row gets."""
        end, before = self.event.get("end"), self.event.get("prev_offset")
        last = before if end is None else end
        return 0 if last is None else int(last) + 1

    @property
    def watermark(self) -> datetime | None:
        """The greatest event time so far; a day's is its midnight."""
        told = self.event.get("watermark")
        return parse_instant(told) if told else None

    def watermark_after(self, newest: datetime | None) -> datetime | None:
        """The watermark once rows up to an event time have come: it never goes back."""
        return max(filter(None, (self.watermark, newest)), default=None)

    @property
    def system_time(self) -> datetime | None:
        """The system time of the newest commit."""
        return self.block.system_time if self.block else None


def head_of(store: Store, the: Registered) -> Head:
    """The head of a dataset, also of one that is not there yet."""
    return Head(None if the.table is None else newest_block(store, the.table))


@dataclass(frozen=True, slots=True)
class Meeting:
    """A delivery and the dataset that it meets, as it stands now; `now` is the commit's system time."""

    work: Work
    the: Registered
    head: Head
    now: datetime
