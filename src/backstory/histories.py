"""Ask histories that a model made, and keep them up: point in time, pruning, erasure (section 7)."""

from backstory.doors.historize.differences import changes, diff
from backstory.doors.historize.effective import effective
from backstory.doors.historize.histories import History, Query
from backstory.doors.historize.labels import labeled
from backstory.doors.historize.point_in_time import (
    as_of,
    as_of_run,
    current,
    frame,
    join_as_of,
    join_valid,
    timeline,
)
from backstory.doors.historize.pruning import Pruned
from backstory.doors.historize.upkeep import Upkeep

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
