"""Ask histories that a model made, and keep them up: point in time, pruning, erasure (section 7)."""

from backstory.doors.historize.upkeep import Upkeep
from backstory.reading.statements.differences import changes, diff
from backstory.reading.statements.effective import effective
from backstory.reading.statements.joins import join_as_of, join_valid
from backstory.reading.statements.labels import labeled
from backstory.reading.statements.point_in_time import as_of, as_of_run, current, frame, timeline
from backstory.reading.statements.stored_history import Query
from backstory.reading.statements.stored_history import StoredHistory as History
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
