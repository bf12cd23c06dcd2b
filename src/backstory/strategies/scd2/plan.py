"""The versions that close and begin, as Arrow tables (section 9.1)."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import ENDED, LOAD_RUN_ID, LOADED_AT, ROW_HASH, STARTED, STATE
from backstory.strategies.scd2.pair import Pair
from backstory.strategies.scd2.transitions import TRANSITIONS, Case, Now, Past, Tally

INSTANT = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class LoadMoment:
    """A load's instant and the id of its run."""

    instant: datetime
    run: str


def tally(sizes: tuple[int, int, int, int, int], seen: int) -> Tally:
    """The records of base and history by their cases; of those that appeared so many were `seen` before.

    `sizes` are the records that appeared, changed, vanished, vanished out of scope, and are the same.
    """
    appeared, changed, vanished, kept, same = sizes
    cases: Counter[Case] = Counter(
        {
            (Past.OPEN, Now.SAME): same,
            (Past.OPEN, Now.OTHER): changed,
            (Past.OPEN, Now.ABSENT): vanished,
            (Past.OPEN, Now.SPARED): kept,
            (Past.CLOSED, Now.PRESENT): seen,
            (Past.NOTHING, Now.PRESENT): appeared - seen,
        }
    )
    return Tally(cases)


def closes(pair: Pair, changed: pa.Table, vanished: pa.Table, moment: LoadMoment) -> pa.Table:
    """The open versions whose record changed or vanished, given whole, with their end."""
    sides = ((changed, Now.OTHER), (vanished, Now.ABSENT))
    return pa.concat_tables(
        _closed(rows, pair.words[state], moment)
        for rows, now in sides
        if (state := TRANSITIONS[Past.OPEN, now].closes) is not None
    )


def begins(pair: Pair, changed: pa.Table, appeared: pa.Table, seen: pa.Array, moment: LoadMoment) -> pa.Table:
    """The versions that begin, of the base's rows that changed or appeared, yet without keys of their own.

    `seen` are the keys of the records that had versions before and have none open.
    """
    back = pc.is_in(appeared[pair.key], value_set=seen)
    cases = (
        (changed, Past.OPEN, Now.OTHER),
        (appeared.filter(back), Past.CLOSED, Now.PRESENT),
        (appeared.filter(pc.invert(back)), Past.NOTHING, Now.PRESENT),
    )
    return pa.concat_tables(
        _begun(pair, rows, pair.words[state], moment)
        for rows, past, now in cases
        if (state := TRANSITIONS[past, now].begins) is not None
    )


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
