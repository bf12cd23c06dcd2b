"""Queries and upkeep of a model's histories: past states, joins, pruning and erasure (section 7)."""

from backstory.doors.historize.upkeep import Upkeep
from backstory.reading.history_queries import (
    Query,
    as_of,
    as_of_run,
    changes,
    current,
    diff,
    effective,
    frame,
    join_as_of,
    join_valid,
    labeled,
    timeline,
)
from backstory.reading.history_queries import StoredHistory as History
from backstory.upkeep.model_histories import Pruned

__all__ = [
    "History",
    "Pruned",
    "Query",
    "Upkeep",
    "as_of",
    "as_of_run",
    "changes",
    "current",
    "diff",
    "effective",
    "frame",
    "join_as_of",
    "join_valid",
    "labeled",
    "timeline",
]
