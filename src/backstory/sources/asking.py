"""What a fetch needs besides its step of the manifest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from backstory.sources.retries import Policy
from backstory.sources.source_state import SourceState

# The stages that `progress` names, in the words that the user sees (section 4.2).
CHECKING: Final = "Checking for updates"
DOWNLOADING: Final = "Downloading data"

# What is told of a source without a state.
PASSED_OVER: Final = (
    "later pulls skip it unless they may fetch uncacheable sources, or the manifest says `refetch: always`."
)

Progress = Callable[[str, int, int | None], None]


def silent(_stage: str, _done: int, _total: int | None) -> None:
    """A progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class Asking:
    """What a fetch is told: when, where, and what the dataset knows of its source.

    Attributes:
        system_time: the run's instant, aware.
        folder: what relative paths are relative to: the manifest's folder.
        cache: the folder for this dataset's downloads; made when there is one to keep.
        environment: what templates are filled from.
        state: what the dataset's newest commit says of the source.
        asked_before: whether the dataset has what this source gave, all of it or a part.
        complete: whether it has all that the source had when it was asked last.
        seen: the paths (`Fetched.spelled`) of the globs' files whose rows the dataset has.
        refetch: do not use a download that was kept.
        fetch_uncacheable: ask also a source that cannot say whether it changed.
        progress: told the stage, the bytes so far, and of how many if that is known.
        retry: how often and after what waits an unreachable server is asked again.
        unpacked_limit: how many bytes an answer that came compressed may have; None: as many as elsewhere.
    """

    system_time: datetime
    folder: Path
    cache: Path
    environment: Mapping[str, str]
    state: SourceState | None = None
    asked_before: bool = False
    complete: bool = False
    seen: frozenset[str] = frozenset()
    refetch: bool = False
    fetch_uncacheable: bool = False
    progress: Progress = silent
    retry: Policy = field(default_factory=Policy)
    unpacked_limit: int | None = None
