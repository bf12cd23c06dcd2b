"""Queries and upkeep of a model's histories: past states, joins, pruning and erasure (section 7)."""

from backstory.doors.historize.upkeep import Upkeep
from backstory.reading.databases.history_queries import (
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
from backstory.reading.databases.stored_history import Query
from backstory.reading.databases.stored_history import StoredHistory as History
from backstory.upkeep.pruning import Pruned

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
