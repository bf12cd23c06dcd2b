"""The plan of a load by key, as Arrow tables: a base mirrors its stage, and its history records changes.

Stage, base and open versions are joined once. Records of different keys are independent. A plan runs on the
driver, over all rows or in parts, and in Spark's tasks (sections 3.6, 3.7 and 9.1).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_binary, is_floating

from backstory.formats.delivered import in_schema
from backstory.model.layout import (
    ENDED,
    FILE,
    LOAD_RUN_ID,
    LOADED_AT,
    POSITION,
    ROW_HASH,
    ROW_ID,
    STARTED,
    STATE,
)
from backstory.strategies.keys import key_codes
from backstory.strategies.matching import Matches, pair_rows, side_codes, take_rows
from backstory.strategies.part_plan import PartPlan, Whole, as_they_are, refused_part
from backstory.strategies.scd2 import terms as scd2
from backstory.strategies.scd2.transitions import TRANSITIONS, Case, Now, Past, State, Tally
from backstory.strategies.values import alike


def unseen_changes(
    terms: scd2.LoadTerms, staged: pa.Table, stored: pa.Table, changed: tuple[pa.Array, pa.Array]
) -> Mapping[str, int]:
    """For each column that differs, the number of changed rows whose hash is the same (section 2.4).

    `changed` has the indexes of these rows on both sides.
    """
    if not terms.unsure or not len(changed[0]):
        return {}
    names = [ROW_HASH, *terms.unsure]
    sides = zip((staged, stored), changed, strict=True)
    now, before = (take_rows(rows.select(names), places) for rows, places in sides)
    same = pa.array(alike(now[ROW_HASH], before[ROW_HASH]))
    now, before = now.filter(same), before.filter(same)
    counts = {
        name: int((~_same_text(now[name], before[name], scale)).sum()) for name, scale in terms.unsure.items()
    }
    return {f"{scd2.UNSEEN}{name}": count for name, count in counts.items() if count}


def _same_text(now: pa.ChunkedArray, before: pa.ChunkedArray, scale: int | None) -> np.ndarray:
    same = alike(now, before)
    if scale is None:
        return same
    unit = Decimal(1).scaleb(-scale)
    for place in np.flatnonzero(~same):
        values = (now[place].as_py(), before[place].as_py())
        if None not in values:
            one, other = (Decimal(repr(value)).quantize(unit, ROUND_HALF_UP) for value in values)
            same[place] = one == other
    return same


def keep_one_per_key(terms: scd2.LoadTerms, rows: pa.Table, repeats: np.ndarray) -> tuple[pa.Table, pa.Table]:
    """One row for each key, and the rows that share a key without being duplicates (P3, section 3.6).

    `repeats` marks rows whose key occurs more than once. If the load collapses identical rows, one live row
    is kept: the row whose strings sort first. A row that is flagged as deleted is not a duplicate of a live
    row.
    """
    again = rows_that_share_keys(rows, terms.key, repeats)
    if not len(again) or not terms.collapses:
        return rows, again
    if len(unlike := _conflicting_rows(terms, again)):
        return rows, unlike
    alone = pa.array(~repeats | np.asarray(rows[terms.key].is_null()))
    return pa.concat_tables([rows.filter(alone), _least_rows(terms, again)]), again.slice(0, 0)


def rows_that_share_keys(rows: pa.Table, key: str, repeats: np.ndarray) -> pa.Table:
    """The rows that `repeats` marks, except rows with a NULL key."""
    if not repeats.any():
        return rows.slice(0, 0)
    return rows.filter(pa.array(repeats & np.asarray(rows[key].is_valid())))


def _conflicting_rows(terms: scd2.LoadTerms, rows: pa.Table) -> pa.Table:
    """The live rows whose key has several hashes or business keys. Different keys may have the same hash."""
    live = rows.filter(pc.fill_null(rows[scd2.LIVE], False)) if scd2.LIVE in rows.column_names else rows
    states = live.group_by(list(dict.fromkeys([terms.key, *terms.business, ROW_HASH]))).aggregate([])
    several = pc.value_counts(states[terms.key].combine_chunks())
    several = several.field("values").filter(pc.greater(several.field("counts"), 1))
    return live.filter(pc.is_in(live[terms.key], value_set=several))


def _least_rows(terms: scd2.LoadTerms, rows: pa.Table) -> pa.Table:
    (codes,), _ = key_codes([rows.select([terms.key])], [terms.key])
    excluded = {scd2.LIVE, LOAD_RUN_ID, LOADED_AT}
    dead = [pc.invert(pc.fill_null(rows[scd2.LIVE], False))] if scd2.LIVE in rows.column_names else []
    texts = [_text(rows[name]) for name in rows.column_names if name not in excluded]
    columns = [pa.array(codes), *dead, *texts]
    names = [str(number) for number in range(len(columns))]
    order = pc.sort_indices(pa.table(columns, names=names), [(name, "ascending") for name in names])
    firsts = np.unique(codes[np.asarray(order)], return_index=True)[1]
    return rows.take(order.take(pa.array(firsts)))


def _text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    as_it_is = is_floating(values.type) or is_binary(values.type)
    return values if as_it_is else values.cast(pa.string())


_EXTRA_COLUMNS = (scd2.IN_SCOPE, FILE, POSITION, ROW_ID)


def plan_base(terms: scd2.LoadTerms, staged: pa.Table, stored: pa.Table) -> tuple[PartPlan, pa.Table | None]:
    """The rows to add to and remove from a part of a base, and its live rows after that.

    A refused part has no live rows. If rows are flagged instead of deleted, `stored` must have
    all columns.
    """
    codes = side_codes(staged, stored, [terms.key])
    repeats = codes.repeats
    one, unlike = keep_one_per_key(terms, staged, repeats[0])
    again = rows_that_share_keys(stored, terms.key, repeats[1])
    faults = {**_invalid_rows(terms, staged), scd2.STAGE_TWICE: unlike, scd2.BASE_TWICE: again}
    if refused := refused_part(faults, partial(scd2.sample, terms)):
        return refused, None
    codes = codes if one is staged else side_codes(one, stored, [terms.key])
    matches = pair_rows(one, stored, codes, terms.compared, stored[scd2.IN_SCOPE])
    goes = pa.concat_arrays([matches.changed[1], matches.vanished])
    counts = Counter(scd2.counts_of(scd2.BASE, matches, one, stored))
    counts.update(unseen_changes(terms, one, stored, matches.changed))
    added, removed = matches.appeared[:0], matches.vanished[:0]
    if not terms.first:  # with another pepper or profile, all records seem to be replaced by new records
        added, removed = matches.appeared, pa.concat_arrays([matches.vanished, matches.kept])
    rows = {
        scd2.BASE_ADDED: _incoming_rows(one, stored, matches),
        scd2.BASE_REMOVED: scd2.places_of(stored, goes),
        scd2.ADDED_KEYS: take_rows(one.select(terms.business), added),
        scd2.REMOVED_KEYS: take_rows(stored.select(terms.business), removed),
    }
    if terms.flag is not None:
        rows[scd2.FLAGGED] = _flag_rows(terms, terms.flag, take_rows(stored, matches.vanished))
    return PartPlan(rows, counts), _live_rows_after(terms, one, stored, matches)


def _invalid_rows(terms: scd2.LoadTerms, staged: pa.Table) -> Mapping[str, pa.Table]:
    """The rows of a stage that break a rule of a column: an unexpected NULL, or a string that is too long."""
    nulls = {name: staged[name].is_null() for name in terms.needed if staged[name].null_count}
    long = {
        name: pc.fill_null(pc.greater(pc.utf8_length(staged[name]), most), False)
        for name, most in terms.lengths.items()
    }
    return {
        **{f"{scd2.NULL}{name}": staged.filter(wrong) for name, wrong in nulls.items()},
        **{
            f"{scd2.LONG}{name}": staged.filter(wrong)
            for name, wrong in long.items()
            if pc.any(wrong).as_py()
        },
    }


def _incoming_rows(one: pa.Table, stored: pa.Table, matches: Matches) -> pa.Table:
    """The stage's rows that are new or changed. Changed rows keep their row ids."""
    rows, (changed, before) = one.drop_columns([scd2.LIVE]), matches.changed
    appeared, replacing = take_rows(rows, matches.appeared), take_rows(rows, changed)
    if ROW_ID in stored.column_names:
        replacing = replacing.append_column(ROW_ID, stored[ROW_ID].take(before))
        appeared = appeared.append_column(ROW_ID, pa.nulls(len(appeared), pa.int64()))
    return pa.concat_tables([appeared, replacing])


def _flag_rows(terms: scd2.LoadTerms, flag: scd2.Flag, rows: pa.Table) -> pa.Table:
    """The rows with the deletion flag set. They stay in the base."""
    values = {flag.column: flag.value} | ({flag.at: terms.instant} if flag.at else {})
    for name, value in values.items():
        typed = pa.array([value]).cast(rows.schema.field(name).type)
        rows = rows.set_column(rows.column_names.index(name), name, pa.repeat(typed[0], len(rows)))
    return rows.drop_columns([FILE, POSITION, scd2.LIVE, scd2.IN_SCOPE])


def _live_rows_after(terms: scd2.LoadTerms, one: pa.Table, stored: pa.Table, matches: Matches) -> pa.Table:
    """The rows of the base after the load, except rows flagged as deleted."""
    names = [name for name in one.column_names if name in stored.column_names and name not in _EXTRA_COLUMNS]
    new = take_rows(one.select(names), pa.concat_arrays([matches.appeared, matches.changed[0]]))
    stays = np.zeros(len(stored), bool)
    stays[np.concatenate([matches.same[1], matches.kept])] = True
    rows = stored.select(names)
    rows = pa.concat_tables([new, rows if stays.all() else rows.filter(pa.array(stays))])
    live = pc.fill_null(rows[scd2.LIVE], False)
    rows = rows if pc.all(live).as_py() else rows.filter(live)
    if terms.flag is not None and terms.flag.live:
        rows = pa.concat_tables([rows, take_rows(stored.select(names), matches.vanished)])
    return rows


INSTANT = pa.timestamp("us", "UTC")


def _no_keys() -> pa.Array:
    return pa.array([], pa.string())


@dataclass(frozen=True, slots=True)
class PastKeys:
    """Keys of records, grouped by the closed versions that they have.

    `seen`: records with closed or archived versions. `interrupted`: records with a version that this load
    closed as changed. `later`: records with a version that starts at or ends after the load's instant.
    """

    seen: pa.Array = field(default_factory=_no_keys)
    interrupted: pa.Array = field(default_factory=_no_keys)
    later: pa.Array = field(default_factory=_no_keys)


def earlier_columns(terms: scd2.LoadTerms) -> list[str]:
    """The columns of closed versions that a plan needs.

    The times of closed versions are needed only if the load is late.
    """
    return [terms.key, *((STARTED, ENDED, STATE) if terms.late else ())]


def past_keys_of(terms: scd2.LoadTerms, versions: pa.Table) -> PastKeys:
    """The keys of these closed versions, by case."""
    keys = versions[terms.key]
    if not terms.late:
        return PastKeys(pc.unique(keys).cast(pa.string()))
    instant = pa.scalar(terms.instant, INSTANT)
    changed = pc.equal(versions[STATE], terms.words[State.CHANGED])
    own = pc.and_(pc.equal(versions[ENDED], instant), changed)
    after = pc.or_(pc.greater_equal(versions[STARTED], instant), pc.greater(versions[ENDED], instant))
    own, after = (
        pc.unique(keys.filter(pc.fill_null(each, False))).cast(pa.string()) for each in (own, after)
    )
    return PastKeys(pc.unique(keys).cast(pa.string()), own, after)


def plan_history(
    terms: scd2.LoadTerms, live: pa.Table, open_: pa.Table, whole: Callable[[pa.Table], pa.Table]
) -> PartPlan:
    """The versions of a part that end, and the base rows that begin versions.

    `live` has the live rows of the base. `whole` returns all columns of some open versions.
    """
    codes = side_codes(live, open_, [terms.key])
    repeats = codes.repeats
    one, unlike = keep_one_per_key(terms, live, repeats[0])
    faults = {
        scd2.NO_KEY: _rows_without(live, terms.key),
        scd2.NO_HASH: _rows_without(live, ROW_HASH),
        scd2.LIVE_TWICE: unlike,
        scd2.OPEN_TWICE: whole(rows_that_share_keys(open_, terms.key, repeats[1])),
        scd2.NEVER_BEGAN: whole(_rows_without(open_, STARTED)),
    }
    if refused := refused_part(faults, partial(scd2.sample, terms)):
        return refused
    codes = codes if one is live else side_codes(one, open_, [terms.key])
    matches = pair_rows(one, open_, codes, [ROW_HASH], open_[scd2.IN_SCOPE])
    ends = whole(take_rows(open_, pa.concat_arrays([matches.changed[1], matches.vanished])))
    changed, vanished = ends.slice(0, len(matches.changed[1])), ends.slice(len(matches.changed[1]))
    beginning = one.select(list(dict.fromkeys([terms.key, *terms.mirrored.values(), ROW_HASH])))
    rows = {
        scd2.CHANGED: take_rows(beginning, matches.changed[0]),
        scd2.APPEARED: take_rows(beginning, matches.appeared),
        scd2.ENDS: closed_versions(terms, changed, vanished),
        scd2.HIST_REMOVED: ends.select([FILE, POSITION]),
    }
    early = _early_rows(terms, one, open_, matches, ends)
    kinds = {scd2.CHANGED: rows[scd2.CHANGED], scd2.APPEARED: rows[scd2.APPEARED], scd2.DELETED: vanished}
    samples = {kind: scd2.sample(terms, each) for kind, each in kinds.items()}
    return PartPlan(rows, scd2.counts_of(scd2.OPEN, matches, one, open_), samples) + early


def _rows_without(rows: pa.Table, name: str) -> pa.Table:
    return rows.filter(rows[name].is_null()) if rows[name].null_count else rows.slice(0, 0)


def _early_rows(
    terms: scd2.LoadTerms, one: pa.Table, open_: pa.Table, matches: Matches, ends: pa.Table
) -> PartPlan:
    """Versions that would end too early, and rows that are effective before the version that they change."""
    faults = {}
    if terms.late:
        early = pc.greater_equal(ends[STARTED], pa.scalar(terms.instant, INSTANT))
        faults[scd2.ENDS_EARLY] = ends.filter(pc.fill_null(early, False))
    if terms.dated is not None:
        now, before = matches.changed
        early = pc.less(one[terms.dated].take(now), open_[terms.dated].take(before))
        faults[scd2.EARLIER_DATE] = take_rows(one, now).filter(pc.fill_null(early, False))
    return refused_part(faults, partial(scd2.sample, terms)) or PartPlan()


def plan_begins(terms: scd2.LoadTerms, changed: pa.Table, appeared: pa.Table, earlier: PastKeys) -> PartPlan:
    """The versions that begin with rows of the base, without version keys, and the counts of `pasts_of`."""
    rows = {scd2.BEGINS: begun_versions(terms, changed, appeared, earlier)}
    return PartPlan(rows) + pasts_of(terms, changed, appeared, earlier)


def pasts_of(terms: scd2.LoadTerms, changed: pa.Table, appeared: pa.Table, earlier: PastKeys) -> PartPlan:
    """The number of appearing records with a past, and the records whose version begins too early (P5)."""
    counts = {past: int(mask.sum()) for past, mask in _masks_by_past(terms, appeared, earlier).items()}
    begun = pa.concat_tables([changed, appeared])
    early = {scd2.BEGINS_EARLY: begun.filter(pc.is_in(begun[terms.key], value_set=earlier.later))}
    part = PartPlan(counts={scd2.SEEN: counts[Past.CLOSED], scd2.INTERRUPTED: counts[Past.INTERRUPTED]})
    return part + (refused_part(early, partial(scd2.sample, terms)) or PartPlan())


def tally(sizes: tuple[int, int, int, int, int], seen: int, interrupted: int = 0) -> Tally:
    """The records of base and history by case.

    `sizes` counts the records that appeared, changed, vanished, vanished out of scope, and stayed the same.
    Of the records that appeared, `seen` counts those whose past is `Past.CLOSED`, and `interrupted` those
    whose past is `Past.INTERRUPTED`.
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


def closed_versions(terms: scd2.LoadTerms, changed: pa.Table, vanished: pa.Table) -> pa.Table:
    """The open versions of records that changed or vanished, with all columns and their new end."""
    sides = ((changed, Now.OTHER), (vanished, Now.ABSENT))
    return pa.concat_tables(
        _close_versions(terms, rows, terms.words[state])
        for rows, now in sides
        if (state := TRANSITIONS[Past.OPEN, now].closes) is not None
    )


def begun_versions(
    terms: scd2.LoadTerms, changed: pa.Table, appeared: pa.Table, earlier: PastKeys
) -> pa.Table:
    """The versions that begin, made from rows of the base that changed or appeared. They have no keys yet."""
    pasts = _masks_by_past(terms, appeared, earlier)
    cases = [
        (changed, Past.OPEN, Now.OTHER),
        *((take_rows(appeared, np.flatnonzero(mask)), past, Now.PRESENT) for past, mask in pasts.items()),
    ]
    return pa.concat_tables(
        _begin_versions(terms, rows, terms.words[state])
        for rows, past, now in cases
        if (state := TRANSITIONS[past, now].begins) is not None
    )


def _masks_by_past(terms: scd2.LoadTerms, appeared: pa.Table, earlier: PastKeys) -> dict[Past, np.ndarray]:
    """For each past, a mask of the appearing records."""
    keys = appeared[terms.key]
    own, seen = (np.asarray(pc.is_in(keys, value_set=each)) for each in (earlier.interrupted, earlier.seen))
    return {Past.INTERRUPTED: own, Past.CLOSED: seen & ~own, Past.NOTHING: ~seen & ~own}


def _begin_versions(terms: scd2.LoadTerms, rows: pa.Table, word: str) -> pa.Table:
    columns = {terms.key: terms.key, **terms.mirrored, ROW_HASH: ROW_HASH}
    begun = pa.table({name: rows[source] for name, source in columns.items()})
    begun = begun.append_column(STARTED, _instants(terms, begun))
    begun = begun.append_column(ENDED, pa.nulls(len(begun), INSTANT))
    begun = begun.append_column(STATE, pa.repeat(word, len(begun)))
    begun = begun.append_column(LOAD_RUN_ID, pa.repeat(terms.run, len(begun)))
    return begun.append_column(LOADED_AT, _instants(terms, begun))


def _close_versions(terms: scd2.LoadTerms, rows: pa.Table, word: str) -> pa.Table:
    rows = rows.drop_columns([name for name in (FILE, POSITION, scd2.IN_SCOPE) if name in rows.column_names])
    values = {
        ENDED: _instants(terms, rows),
        STATE: pa.repeat(word, len(rows)),
        LOAD_RUN_ID: pa.repeat(terms.run, len(rows)),
    }
    for name, value in values.items():
        rows = rows.set_column(rows.column_names.index(name), name, value)
    return rows


def _instants(terms: scd2.LoadTerms, rows: pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(terms.instant, INSTANT), len(rows))


def plan_load(
    terms: scd2.LoadTerms,
    sides: Mapping[str, pa.Table],
    whole: Whole = as_they_are,
) -> PartPlan:
    """The rows of base and history to add and remove, counts, and faults.

    Without a stage, the base stays as it is. `whole` returns all columns of some open versions.
    """
    if scd2.STAGED in sides:
        part, live = plan_base(terms, sides[scd2.STAGED], sides[scd2.BASE])
    else:
        base = sides[scd2.BASE]
        part, live = PartPlan(), base.filter(pc.fill_null(base[scd2.LIVE], False))
    return part if live is None else part + plan_history(terms, live, sides[scd2.OPEN], whole)


def plan_part(
    terms: scd2.LoadTerms,
    kinds: Mapping[str, pa.Schema],
    sides: Mapping[str, pa.Table],
    whole: Whole = as_they_are,
) -> PartPlan:
    """The plan of `plan_load` with the columns of the tables.

    Rows for both tables are stored once (`BOTH`).
    """
    part = plan_load(terms, sides, whole)
    rows = dict(part.rows)
    if _all_begin_versions(rows):
        del rows[scd2.APPEARED]
        rows[scd2.BOTH] = rows.pop(scd2.BASE_ADDED)
    shaped = {kind: in_schema(each, kinds[kind]) for kind, each in rows.items() if kind not in scd2.PLACES}
    return replace(part, rows={**rows, **shaped})


def _all_begin_versions(rows: Mapping[str, pa.Table]) -> bool:
    """Whether the rows added to the base are exactly the rows that begin versions."""
    added, appeared = rows.get(scd2.BASE_ADDED), rows.get(scd2.APPEARED)
    if added is None or appeared is None or not len(added) or len(added) != len(appeared):
        return False
    same = {*appeared.column_names} <= {*added.column_names}
    return same and bool(added.select(appeared.column_names).equals(appeared))


def plan_beginnings(
    terms: scd2.LoadTerms, schema: pa.Schema, sides: Mapping[str, pa.Table], _whole: Whole
) -> PartPlan:
    """The versions that rows of the base begin, in the columns of `schema`.

    The side `EARLIER` is optional.
    """
    rows = sides[scd2.BEGINNING]
    appears, rows = rows[scd2.APPEARS], rows.drop_columns([scd2.APPEARS])
    earlier = past_keys_of(terms, sides[scd2.EARLIER]) if scd2.EARLIER in sides else PastKeys()
    part = plan_begins(terms, rows.filter(pc.invert(appears)), rows.filter(appears), earlier)
    return replace(part, rows={scd2.BEGINS: in_schema(part.rows[scd2.BEGINS], schema)})
