"""What a base makes of its history, as Arrow tables: the versions that close and begin (section 9.1)."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import ENDED, LOAD_RUN_ID, LOADED_AT, ROW_HASH, STARTED, STATE
from backstory.model.places import FILE, POSITION
from backstory.strategies.matching import Matches, pair_rows, side_codes, take_rows
from backstory.strategies.part_plan import PartPlan
from backstory.strategies.scd2.parts import (
    APPEARED,
    BEGINS,
    BEGINS_EARLY,
    CHANGED,
    DELETED,
    EARLIER_DATE,
    ENDS,
    ENDS_EARLY,
    GOES,
    INTERRUPTED,
    LIVE_TWICE,
    NEVER_BEGAN,
    NO_HASH,
    NO_KEY,
    OPEN_TWICE,
    SEEN,
    counts_of,
    refused_part,
    sample,
)
from backstory.strategies.scd2.repeats import one_each, with_key_of_others
from backstory.strategies.scd2.terms import IN_SCOPE, OPEN, LoadTerms
from backstory.strategies.scd2.transitions import TRANSITIONS, Case, Now, Past, State, Tally

INSTANT = pa.timestamp("us", "UTC")


def _nobody() -> pa.Array:
    return pa.array([], pa.string())


@dataclass(frozen=True, slots=True)
class Earlier:
    """Keys of records by what the history has of them beside open versions.

    `seen` have versions that ended, archived ones too, `interrupted` one that this very load ended as
    changed, and `later` one that begins at or ends after the load's instant.
    """

    seen: pa.Array = field(default_factory=_nobody)
    interrupted: pa.Array = field(default_factory=_nobody)
    later: pa.Array = field(default_factory=_nobody)


def earlier_columns(terms: LoadTerms) -> list[str]:
    """The columns that are asked of versions that ended; times count where the load is late."""
    return [terms.key, *((STARTED, ENDED, STATE) if terms.late else ())]


def earlier_of(terms: LoadTerms, versions: pa.Table) -> Earlier:
    """What these versions, which all ended, say of their records."""
    keys = versions[terms.key]
    if not terms.late:
        return Earlier(pc.unique(keys).cast(pa.string()))
    instant = pa.scalar(terms.instant, INSTANT)
    changed = pc.equal(versions[STATE], terms.words[State.CHANGED])
    own = pc.and_(pc.equal(versions[ENDED], instant), changed)
    after = pc.or_(pc.greater_equal(versions[STARTED], instant), pc.greater(versions[ENDED], instant))
    own, after = (
        pc.unique(keys.filter(pc.fill_null(each, False))).cast(pa.string()) for each in (own, after)
    )
    return Earlier(pc.unique(keys).cast(pa.string()), own, after)


def plan_history(
    terms: LoadTerms, live: pa.Table, open_: pa.Table, whole: Callable[[pa.Table], pa.Table]
) -> PartPlan:
    """The versions of a part that end, and the rows of the base that begin some.

    `live` are the rows of the base that count, `whole` gives all columns of some open versions.
    """
    codes = side_codes(live, open_, [terms.key])
    repeats = codes.repeats
    one, unlike = one_each(terms, live, repeats[0])
    faults = {
        NO_KEY: _lacking(live, terms.key),
        NO_HASH: _lacking(live, ROW_HASH),
        LIVE_TWICE: unlike,
        OPEN_TWICE: whole(with_key_of_others(open_, terms.key, repeats[1])),
        NEVER_BEGAN: whole(_lacking(open_, STARTED)),
    }
    if refused := refused_part(terms, faults):
        return refused
    codes = codes if one is live else side_codes(one, open_, [terms.key])
    matches = pair_rows(one, open_, codes, [ROW_HASH], open_[IN_SCOPE])
    ends = whole(take_rows(open_, pa.concat_arrays([matches.changed[1], matches.vanished])))
    changed, vanished = ends.slice(0, len(matches.changed[1])), ends.slice(len(matches.changed[1]))
    beginning = one.select(list(dict.fromkeys([terms.key, *terms.mirrored.values(), ROW_HASH])))
    rows = {
        CHANGED: take_rows(beginning, matches.changed[0]),
        APPEARED: take_rows(beginning, matches.appeared),
        ENDS: closes(terms, changed, vanished),
        GOES: ends.select([FILE, POSITION]),
    }
    early = refused_part(terms, _early(terms, one, open_, matches, ends)) or PartPlan()
    kinds = {CHANGED: rows[CHANGED], APPEARED: rows[APPEARED], DELETED: vanished}
    samples = {kind: sample(terms, each) for kind, each in kinds.items()}
    return PartPlan(rows, counts_of(OPEN, matches, one, open_), samples) + early


def _lacking(rows: pa.Table, name: str) -> pa.Table:
    return rows.filter(rows[name].is_null()) if rows[name].null_count else rows.slice(0, 0)


def _early(
    terms: LoadTerms, one: pa.Table, open_: pa.Table, matches: Matches, ends: pa.Table
) -> dict[str, pa.Table]:
    """Rows effective before the version that they change, and versions that would end too early."""
    found = {}
    if terms.late:
        early = pc.greater_equal(ends[STARTED], pa.scalar(terms.instant, INSTANT))
        found[ENDS_EARLY] = ends.filter(pc.fill_null(early, False))
    if terms.dated is not None:
        now, before = matches.changed
        early = pc.less(one[terms.dated].take(now), open_[terms.dated].take(before))
        found[EARLIER_DATE] = take_rows(one, now).filter(pc.fill_null(early, False))
    return found


def plan_begins(terms: LoadTerms, changed: pa.Table, appeared: pa.Table, earlier: Earlier) -> PartPlan:
    """The versions that rows of the base begin, which have no keys yet, and what their records' pasts are."""
    rows = {BEGINS: begins(terms, changed, appeared, earlier)}
    return PartPlan(rows) + pasts_of(terms, changed, appeared, earlier)


def pasts_of(terms: LoadTerms, changed: pa.Table, appeared: pa.Table, earlier: Earlier) -> PartPlan:
    """How many records that appear have a past; and those that may not begin a version so early (P5)."""
    counts = {past: int(mask.sum()) for past, mask in _by_past(terms, appeared, earlier).items()}
    begun = pa.concat_tables([changed, appeared])
    early = {BEGINS_EARLY: begun.filter(pc.is_in(begun[terms.key], value_set=earlier.later))}
    found = PartPlan(counts={SEEN: counts[Past.CLOSED], INTERRUPTED: counts[Past.INTERRUPTED]})
    return found + (refused_part(terms, early) or PartPlan())


def tally(sizes: tuple[int, int, int, int, int], seen: int, interrupted: int = 0) -> Tally:
    """The records of base and history by their cases; so many of those that appeared have a past.

    `sizes` are the records that appeared, changed, vanished, vanished out of scope, and are the same.
    """
    appeared, changed, vanished, kept, same = sizes
    cases: Counter[Case] = Counter(
        {
            (Past.OPEN, Now.SAME): same,
            (Past.OPEN, Now.OTHER): changed,
            (Past.OPEN, Now.ABSENT): vanished,
            (Past.OPEN, Now.SPARED): kept,
            (Past.INTERRUPTED, Now.PRESENT): interrupted,
            (Past.CLOSED, Now.PRESENT): seen,
            (Past.NOTHING, Now.PRESENT): appeared - seen - interrupted,
        }
    )
    return Tally(cases)


def closes(terms: LoadTerms, changed: pa.Table, vanished: pa.Table) -> pa.Table:
    """The open versions whose record changed or vanished, given whole, with their end."""
    sides = ((changed, Now.OTHER), (vanished, Now.ABSENT))
    return pa.concat_tables(
        _closed(terms, rows, terms.words[state])
        for rows, now in sides
        if (state := TRANSITIONS[Past.OPEN, now].closes) is not None
    )


def begins(terms: LoadTerms, changed: pa.Table, appeared: pa.Table, earlier: Earlier) -> pa.Table:
    """The versions that begin, of the base's rows that changed or appeared, yet without keys of their own."""
    pasts = _by_past(terms, appeared, earlier)
    cases = [
        (changed, Past.OPEN, Now.OTHER),
        *((take_rows(appeared, np.flatnonzero(mask)), past, Now.PRESENT) for past, mask in pasts.items()),
    ]
    return pa.concat_tables(
        _begun(terms, rows, terms.words[state])
        for rows, past, now in cases
        if (state := TRANSITIONS[past, now].begins) is not None
    )


def _by_past(terms: LoadTerms, appeared: pa.Table, earlier: Earlier) -> dict[Past, np.ndarray]:
    """Which records that appear have which past."""
    keys = appeared[terms.key]
    own, seen = (np.asarray(pc.is_in(keys, value_set=each)) for each in (earlier.interrupted, earlier.seen))
    return {Past.INTERRUPTED: own, Past.CLOSED: seen & ~own, Past.NOTHING: ~seen & ~own}


def _begun(terms: LoadTerms, rows: pa.Table, word: str) -> pa.Table:
    columns = {terms.key: terms.key, **terms.mirrored, ROW_HASH: ROW_HASH}
    begun = pa.table({name: rows[source] for name, source in columns.items()})
    begun = begun.append_column(STARTED, _instants(terms, begun))
    begun = begun.append_column(ENDED, pa.nulls(len(begun), INSTANT))
    begun = begun.append_column(STATE, pa.repeat(word, len(begun)))
    begun = begun.append_column(LOAD_RUN_ID, pa.repeat(terms.run, len(begun)))
    return begun.append_column(LOADED_AT, _instants(terms, begun))


def _closed(terms: LoadTerms, rows: pa.Table, word: str) -> pa.Table:
    rows = rows.drop_columns([name for name in (FILE, POSITION, IN_SCOPE) if name in rows.column_names])
    values = {
        ENDED: _instants(terms, rows),
        STATE: pa.repeat(word, len(rows)),
        LOAD_RUN_ID: pa.repeat(terms.run, len(rows)),
    }
    for name, value in values.items():
        rows = rows.set_column(rows.column_names.index(name), name, value)
    return rows


def _instants(terms: LoadTerms, rows: pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(terms.instant, INSTANT), len(rows))
