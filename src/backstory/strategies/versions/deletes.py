"""Step 4 of section 5.2: a delete closes the version that was true at its time."""

from dataclasses import dataclass

import numpy as np

from backstory.model.instant import MILLISECOND
from backstory.strategies.keys import Codes
from backstory.strategies.versions.spans import FALSE, TRUE, Versions


@dataclass(frozen=True, slots=True)
class Deletes:
    """Delete rows: the code of the key, and the end that they set."""

    code: Codes
    end: np.ndarray


def close(versions: Versions, deletes: Deletes) -> tuple[Versions, int]:
    """The versions with the deletes applied, and how many deletes found nothing to close.

    `versions` are sorted by key and start. Deletes go by ascending end; one closes its version if
    that is active or ends at or after the delete less a millisecond.
    """
    target = _targets(versions, deletes)
    order = np.lexsort((deletes.end, target))
    order = order[target[order] >= 0]
    instant, end = target[order], deletes.end[order]
    head = np.ones(len(instant), bool)
    head[1:] = instant[1:] != instant[:-1]
    open_ = (versions.active[instant] == TRUE) | (versions.end[instant] >= end - MILLISECOND)
    late = np.zeros(len(instant), bool)
    late[1:] = end[1:] - end[:-1] > MILLISECOND
    applied = _before_first(np.where(head, ~open_, late), head)

    new_end, new_active = versions.end.copy(), versions.active.copy()
    new_end[instant[applied]] = end[applied]
    new_active[instant[applied]] = FALSE
    missed = len(deletes.code) - int(np.count_nonzero(applied))
    return versions.ended(new_end, new_active), missed


def _targets(versions: Versions, deletes: Deletes) -> np.ndarray:
    """For each delete the version of its key with the greatest start at or before it, or -1.

    Starts and ends are compared as whole milliseconds.
    """
    count = versions.count
    code = np.concatenate([versions.code, deletes.code])
    time = np.concatenate([versions.start, deletes.end]) // MILLISECOND
    is_delete = np.arange(len(code)) >= count
    order = np.lexsort((np.arange(len(code)), is_delete, time, code))
    seen = np.maximum.accumulate(np.where(is_delete[order], -1, order))
    target = np.full(len(code), -1)
    target[order] = seen
    target = target[count:]
    found = target >= 0
    found[found] = versions.code[target[found]] == deletes.code[found]
    return np.where(found, target, -1)


def _before_first(stop: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Within each group that a head begins, the rows before the first stop."""
    stops = np.cumsum(stop)
    starts = np.flatnonzero(head)
    before = stops[starts] - stop[starts]
    return stops - np.repeat(before, np.diff(np.append(starts, len(stop)))) == 0
