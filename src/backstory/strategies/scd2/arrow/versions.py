"""The versions that close and begin, as Arrow tables (section 9.1)."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import ENDED, LOAD_RUN_ID, LOADED_AT, ROW_HASH, STARTED, STATE
from backstory.strategies.scd2.pair import Pair
from backstory.strategies.scd2.transitions import TRANSITIONS, Case, Now, Past, Tally
from backstory.strategies.sift.matching import Matched, taken

INSTANT = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class LoadMoment:
    """A load's instant and the id of its run."""

    instant: datetime
    run: str


def tally(found: Matched, seen: int) -> Tally:
    """The records of base and history by their cases; of those that appeared so many were `seen` before."""
    cases: Counter[Case] = Counter(
        {
            (Past.OPEN, Now.SAME): len(found.same[0]),
            (Past.OPEN, Now.OTHER): len(found.changed[0]),
            (Past.OPEN, Now.ABSENT): len(found.vanished),
            (Past.OPEN, Now.SPARED): len(found.kept),
            (Past.CLOSED, Now.PRESENT): seen,
            (Past.NOTHING, Now.PRESENT): len(found.appeared) - seen,
        }
    )
    return Tally(cases)


def closes(pair: Pair, open_: pa.Table, found: Matched, moment: LoadMoment) -> pa.Table:
    """The open versions whose record changed or vanished, whole, with their end."""
    parts = [
        _closed(taken(open_, places), pair.words[state], moment)
        for places, now in ((found.changed[1], Now.OTHER), (found.vanished, Now.ABSENT))
        if (state := TRANSITIONS[Past.OPEN, now].closes) is not None
    ]
    return pa.concat_tables(parts)


def begins(pair: Pair, live: pa.Table, found: Matched, seen: pa.Array, moment: LoadMoment) -> pa.Table:
    """The versions that begin, of the base's rows that appeared or changed, yet without keys of their own.

    `seen` are the keys of the records that had versions before and have none open.
    """
    came = taken(live, found.appeared)
    back = pc.is_in(came[pair.key], value_set=seen)
    cases = (
        (taken(live, found.changed[0]), Past.OPEN, Now.OTHER),
        (came.filter(back), Past.CLOSED, Now.PRESENT),
        (came.filter(pc.invert(back)), Past.NOTHING, Now.PRESENT),
    )
    parts = [
        _begun(pair, rows, pair.words[state], moment)
        for rows, past, now in cases
        if (state := TRANSITIONS[past, now].begins) is not None
    ]
    return pa.concat_tables(parts)


def _begun(pair: Pair, rows: pa.Table, word: str, moment: LoadMoment) -> pa.Table:
    columns = {pair.key: pair.key, **pair.mirrored, ROW_HASH: ROW_HASH}
    begun = pa.table({name: rows[source] for name, source in columns.items()})
    begun = begun.append_column(STARTED, _instants(begun, moment.instant))
    begun = begun.append_column(ENDED, pa.nulls(len(begun), INSTANT))
    begun = begun.append_column(STATE, pa.repeat(word, len(begun)))
    begun = begun.append_column(LOAD_RUN_ID, pa.repeat(moment.run, len(begun)))
    return begun.append_column(LOADED_AT, _instants(begun, moment.instant))


def _closed(rows: pa.Table, word: str, moment: LoadMoment) -> pa.Table:
    values = {
        ENDED: _instants(rows, moment.instant),
        STATE: pa.repeat(word, len(rows)),
        LOAD_RUN_ID: pa.repeat(moment.run, len(rows)),
    }
    for name, value in values.items():
        rows = rows.set_column(rows.column_names.index(name), name, value)
    return rows


def _instants(rows: pa.Table, instant: datetime) -> pa.Array:
    return pa.repeat(pa.scalar(instant, INSTANT), len(rows))
