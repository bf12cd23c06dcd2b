"""The options of `pull` and `ingest`, for Python calls and for the commands."""

from datetime import date
from typing import Literal

from backstory.engine.run_context import RemarkOptions

InputFormat = Literal["csv", "json", "ndjson", "geojson", "ndgeojson", "parquet", "esrishapefile"]


class RunOptions(RemarkOptions, total=False):
    """The options that `pull` and `ingest` have in common, in addition to the options of commits.

    Attributes:
        system_time: The time of the run, ISO 8601, for repeatable runs. Default: now.
        run_id: Name of the run; a file that this run has already ingested is skipped.
        dry_run: Print the counts that the run would report, and write nothing.
    """

    system_time: str | date | None
    run_id: str | None
    dry_run: bool


class PullOptions(RunOptions, total=False):
    """The options of `pull`.

    Attributes:
        fetch_uncacheable: Also fetch from sources that do not report whether they changed.
        refetch: Fetch a Url again, even if it is unchanged or an earlier run kept its download.
        set_watermark: Raise the watermark to this time, without contacting the source.
    """

    fetch_uncacheable: bool
    refetch: bool
    set_watermark: str | date | None
