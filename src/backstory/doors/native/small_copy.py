"""A copy that the driver can hold: its rows and the table's are read and planned as Arrow.

What is too large, of an instant of which something is known already, or not to be told apart here is compared
by frames, and so is one with which all stored rows are written anew; both are held to one rule.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.comparing import CopySides
from backstory.doors.native.copy_rows import copy_rows
from backstory.doors.native.receipts import COUNTS
from backstory.doors.native.refusals import keys_of_rows
from backstory.doors.native.tally import ComparedCopy, SnapshotTally
from backstory.doors.native.writing import change_of, field_ids
from backstory.errors import MAX_KEYS
from backstory.formats.digest import digest
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.change import Change
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.copies.arrow import Copied, comparable, copied, rows_that_come, rows_that_go
from backstory.strategies.copies.plan import APPEARING, RENEWED
from backstory.strategies.scd2.arrow.matching import taken
from backstory.strategies.scd2.plan import CHANGED, VANISHED


def compared_here(sides: CopySides, lease: MemoryLease) -> ComparedCopy | None:
    """The copy compared by the driver; None where frames must: the lease cannot hold it, or see above."""
    terms = sides.terms
    here = terms.in_order and comparable(terms) and not sides.evolved.retyped
    rows = copy_rows(sides, lease) if here else None
    if rows is None:
        return None
    try:
        closes = sides.asked.deletes == "close"
        copy = copied(terms, rows.delivered, rows.open, rows.whole, rows.closed, closes=closes)
    except (TooLarge, Unreadable):
        return None
    if copy is None:
        return None
    met = _tally(sides, copy)
    return ComparedCopy(
        met,
        len(copy.delivered),
        lambda: digest(copy.delivered),
        lambda *kinds: _keys(sides, _kinds(copy), kinds),
        lambda name: keys_of_rows(sides.store, copy.losing(name), sides.terms.key),
        lambda: _change(sides, copy, met),
    )


def _tally(sides: CopySides, copy: Copied) -> SnapshotTally:
    found, dry_run = copy.found, sides.asked.dry_run
    reopened, changed = pc.sum(copy.back).as_py() or 0, len(found.changed[0])
    numbers = (len(found.appeared) - reopened, changed, len(found.vanished), reopened, len(found.same[0]))
    return SnapshotTally(
        dict(zip(COUNTS, numbers, strict=True)),
        len(found.same[0]) + changed + len(found.vanished),
        losses=copy.losses,
        likeness=copy.likeness,
        keys=_keys_of_outcomes(sides, copy) if dry_run and not found.nothing else {},
        columns=copy.driving if dry_run else {},
    )


def _kinds(copy: Copied) -> dict[str, pa.Table]:
    """The rows of the records that appear, change with a version, are renewed without one, or go."""
    found, delivered = copy.found, copy.delivered
    return {
        APPEARING: taken(delivered, found.appeared),
        CHANGED: taken(delivered, found.changed[0].filter(copy.anew)),
        RENEWED: taken(delivered, found.changed[0].filter(pc.invert(copy.anew))),
        VANISHED: taken(copy.open, found.vanished),
    }


def _keys(sides: CopySides, rows: Mapping[str, pa.Table], kinds: Iterable[str]) -> list[str]:
    """Up to ten keys of the rows of these kinds."""
    told = (keys_of_rows(sides.store, rows[kind], sides.terms.key) for kind in kinds)
    return [key for keys in told for key in keys][:MAX_KEYS]


def _keys_of_outcomes(sides: CopySides, copy: Copied) -> dict[str, list[str]]:
    rows = _kinds(copy)
    rows |= {
        "reopened": rows[APPEARING].filter(copy.back),
        "new": rows[APPEARING].filter(pc.invert(copy.back)),
    }
    told = {"new": ["new"], "changed": [CHANGED, RENEWED], "closed": [VANISHED], "reopened": ["reopened"]}
    return {outcome: _keys(sides, rows, kinds) for outcome, kinds in told.items()}


def _change(sides: CopySides, copy: Copied, met: SnapshotTally) -> Change | None:
    place = sides.place
    marks = place.remembers and place.mark is None
    come = rows_that_come(copy, field_ids(sides) if marks else None, marks=marks)
    gone = rows_that_go(copy)
    return change_of(sides, met.counts, come if len(come) else None, gone if len(gone) else None)
