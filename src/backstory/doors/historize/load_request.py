"""What a caller asks of a load."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What a caller asks of a load.

    `hash_change` decides what a switched hash profile means: `version` lets every record have a new
    version, `rehash` computes the open versions' hashes anew. `relabel` gives stored states the
    model's labels. `allow_empty` and `max_delete_ratio` override the model's guards once.
    """

    dataset: str | None = None
    run_id: str | None = None
    load_timestamp: str | datetime | None = None
    skip_base: bool = False
    dry_run: bool = False
    allow_empty: bool = False
    max_delete_ratio: float | None = None
    hash_change: str | None = None
    relabel: bool = False
