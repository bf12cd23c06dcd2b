"""The plan of a load by key, as Arrow tables: a base mirrors its stage, and its history records changes.

Stage, base and open versions are joined once. Records of different keys are independent. A load is planned on
the driver, whole or in parts, or in Spark's tasks. Its terms and results are plain data, which can be sent to
tasks and back (sections 3.6, 3.7 and 9.1).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_binary, is_floating

from backstory.errors import MAX_KEYS
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
from backstory.model.values import key_text
from backstory.strategies.keys import key_codes
from backstory.strategies.part_plan import PartPlan, PlanSums, Whole, as_they_are, refused_part
from backstory.strategies.scd2.transitions import TRANSITIONS, WORDS, Case, Now, Past, State, Tally
from backstory.strategies.values import Matches, alike, pair_rows, side_codes, take_rows, with_row_ids

# The sides of a load.
STAGED, BASE, OPEN = "staged", "base", "open versions"
# Sides of the second plan: the base's rows that begin versions, and closed versions, including archived
# versions.
BEGINNING, EARLIER = "beginning", "earlier versions"
# Flags of a row. No column of a model has a space in its name.
LIVE, IN_SCOPE, APPEARS = "is live", "in scope", "appears"


@dataclass(frozen=True, slots=True)
class Flag:
    """The deletion flag of a base row that is missing from the stage: the values of a flagged row, by column.

    With `live`, the row still counts as a record of the history.
    """

    values: Mapping[str, Any]
    live: bool = False


@dataclass(frozen=True, slots=True)
class LoadTerms:
    """The columns of a load, its rules and its instant.

    * `key`: the column of the record's key in base and history; `business`: its business keys.
    * `mirrored`: the history's columns, each with its column in the base.
    * `words`: the states as they are stored.
    * `compared`: columns whose changes count as a change of the base's row.
    * `needed`: columns that must not be NULL in the stage; `lengths`: the maximum length of strings.
    * `unsure`: columns whose changes a hash may miss; for floats, with the number of hashed digits.
    * `collapses`: whether identical rows of the stage count as one.
    * `dated`: the column of the effective date, which must not decrease.
    * `flag`: the flag of rows that are missing from the stage, or None if they are deleted.
    * `late`: whether the history has a start or end at the load's instant or later.
    * `first`: whether there is no base yet.
    * `filled`: the mirrored columns that a history may gain while hashes stay the same.
    """

    key: str
    business: tuple[str, ...]
    mirrored: Mapping[str, str]
    instant: datetime
    run: str
    words: Mapping[State, str] = field(default_factory=lambda: WORDS)
    compared: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    lengths: Mapping[str, int] = field(default_factory=dict)
    unsure: Mapping[str, int | None] = field(default_factory=dict)
    collapses: bool = False
    dated: str | None = None
    flag: Flag | None = None
    late: bool = False
    first: bool = False
    filled: Mapping[str, str] = field(default_factory=dict)


# Kinds of rows: rows that are added to the base, and its own rows that get a flag; the base's rows that begin
# versions; versions that end, and versions that begin, still without keys; places of rows that are removed.
BASE_ADDED, FLAGGED, BASE_REMOVED = "base added", "flagged", "base removed"
CHANGED, APPEARED, ENDS, BEGINS, HIST_REMOVED = "changed", "appeared", "ends", "begins", "history removed"
PLACES: Final = (BASE_REMOVED, HIST_REMOVED)
# Rows that are both added to the base and begin versions, if this is true for all rows. They are stored once.
BOTH: Final = "base added and appeared"
# The business keys of records that are added to the base, and of records missing from its stage.
ADDED_KEYS, REMOVED_KEYS = "added keys", "removed keys"
# Faults for which a load is refused, as counts and keys: of a column of the stage, and of rows.
NULL, LONG = "null ", "long "
STAGE_TWICE, BASE_TWICE = "stage twice", "base twice"
NO_KEY, NO_HASH, LIVE_TWICE, OPEN_TWICE = "no key", "no hash", "live twice", "open twice"
NEVER_BEGAN: Final = "never began"
EARLIER_DATE, ENDS_EARLY, BEGINS_EARLY = "earlier date", "ends early", "begins early"
# Records that changed while their hash stayed the same, by column.
UNSEEN: Final = "unseen "
# Records that appear and had versions before, and records whose change an interrupted load had begun.
SEEN, INTERRUPTED = "seen before", "interrupted before"
DELETED: Final = "deleted"
# The column of samples.
_TEXT: Final = "key"
# Up to ten keys are sampled from this many rows.
SAMPLED_ROWS: Final = 100


class CountedMatch(NamedTuple):
    """The number of records by outcome, in the order of `Matches.sizes`, and the row counts of both sides."""

    appeared: int = 0
    changed: int = 0
    vanished: int = 0
    kept: int = 0
    same: int = 0
    delivered: int = 0
    stored: int = 0

    @property
    def nothing(self) -> bool:
        """Whether nothing changes."""
        return not (self.appeared or self.changed or self.vanished)

    def counts(self, side: str) -> dict[str, int]:
        """The match as counts of a plan."""
        return {f"{side} {name}": count for name, count in self._asdict().items()}


def counted_match(side: str, counts: Mapping[str, int]) -> CountedMatch:
    """The match of all parts together, computed from their counts."""
    return CountedMatch(*(counts.get(f"{side} {name}", 0) for name in CountedMatch._fields))


def sample(terms: LoadTerms, rows: pa.Table) -> pa.Table:
    """A few keys of the rows, as a table for `PartPlan.samples`."""
    return pa.table({_TEXT: pa.array(few_keys(terms, rows), pa.string())})


def sampled_keys(sums: PlanSums, kind: str) -> list[str]:
    """The sampled keys of one kind, sorted."""
    return sorted({*sums.samples[kind][_TEXT].to_pylist()}) if kind in sums.samples else []


def few_keys(terms: LoadTerms, rows: pa.Table) -> list[str]:
    """Up to ten business keys of the rows."""
    few = rows.select(list(terms.business)).slice(0, SAMPLED_ROWS).to_pylist()
    return list(dict.fromkeys(key_text(terms.business, list(row.values())) for row in few))[:MAX_KEYS]


def places_of(rows: pa.Table, indices: pa.Array) -> pa.Table:
    """The file and position of the rows with these indexes."""
    return take_rows(rows.select([FILE, POSITION]), indices)


def unseen_changes(
    terms: LoadTerms, staged: pa.Table, stored: pa.Table, changed: tuple[pa.Array, pa.Array]
) -> Mapping[str, int]:
    """The number of rows that changed while their hash stayed the same, by changed column (section 2.4).

    `changed` has the indexes of the changed rows on both sides.
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
    return {f"{UNSEEN}{name}": count for name, count in counts.items() if count}


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


def keep_one_per_key(terms: LoadTerms, rows: pa.Table, repeats: np.ndarray) -> tuple[pa.Table, pa.Table]:
    """One row for each key, and the rows that share a key without being duplicates (P3, section 3.6).

    `repeats` marks rows whose key occurs more than once. If the load collapses identical rows, one live row
    is kept: the row whose strings sort first. A row that is flagged as deleted is dropped if its key has a
    live row.
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


def _conflicting_rows(terms: LoadTerms, rows: pa.Table) -> pa.Table:
    """The live rows whose key has several row hashes, or several business keys with the same hash."""
    live = rows.filter(pc.fill_null(rows[LIVE], False)) if LIVE in rows.column_names else rows
    states = live.group_by(list(dict.fromkeys([terms.key, *terms.business, ROW_HASH]))).aggregate([])
    several = pc.value_counts(states[terms.key].combine_chunks())
    several = several.field("values").filter(pc.greater(several.field("counts"), 1))
    return live.filter(pc.is_in(live[terms.key], value_set=several))


def _least_rows(terms: LoadTerms, rows: pa.Table) -> pa.Table:
    (codes,), _ = key_codes([rows.select([terms.key])], [terms.key])
    excluded = {LIVE, LOAD_RUN_ID, LOADED_AT}
    dead = [pc.invert(pc.fill_null(rows[LIVE], False))] if LIVE in rows.column_names else []
    values = (rows[name] for name in rows.column_names if name not in excluded)
    texts = [
        each if is_floating(each.type) or is_binary(each.type) else each.cast(pa.string()) for each in values
    ]
    columns = [pa.array(codes), *dead, *texts]
    names = [str(number) for number in range(len(columns))]
    order = pc.sort_indices(pa.table(columns, names=names), [(name, "ascending") for name in names])
    firsts = np.unique(codes[np.asarray(order)], return_index=True)[1]
    return rows.take(order.take(pa.array(firsts)))


_EXTRA_COLUMNS = (IN_SCOPE, FILE, POSITION, ROW_ID)


def plan_base(terms: LoadTerms, staged: pa.Table, stored: pa.Table) -> tuple[PartPlan, pa.Table | None]:
    """The rows to add to and remove from a part of a base, and the live rows that result.

    If the part is refused, None replaces the live rows. If rows are flagged instead of deleted, `stored` must
    have all columns.
    """
    codes = side_codes(staged, stored, [terms.key])
    repeats = codes.repeats
    one, unlike = keep_one_per_key(terms, staged, repeats[0])
    again = rows_that_share_keys(stored, terms.key, repeats[1])
    faults = {**_invalid_rows(terms, staged), STAGE_TWICE: unlike, BASE_TWICE: again}
    if refused := refused_part(faults, partial(sample, terms)):
        return refused, None
    codes = codes if one is staged else side_codes(one, stored, [terms.key])
    matches = pair_rows(one, stored, codes, terms.compared, stored[IN_SCOPE])
    goes = pa.concat_arrays([matches.changed[1], matches.vanished])
    counts = Counter(CountedMatch(*matches.sizes, len(one), len(stored)).counts(BASE))
    counts.update(unseen_changes(terms, one, stored, matches.changed))
    added, removed = matches.appeared[:0], matches.vanished[:0]
    if not terms.first:  # with another pepper or profile, all records seem to be replaced by new records
        added, removed = matches.appeared, pa.concat_arrays([matches.vanished, matches.kept])
    rows = {
        BASE_ADDED: _incoming_rows(one, stored, matches),
        BASE_REMOVED: places_of(stored, goes),
        ADDED_KEYS: take_rows(one.select(terms.business), added),
        REMOVED_KEYS: take_rows(stored.select(terms.business), removed),
    }
    if terms.flag is not None:
        rows[FLAGGED] = _with_values(take_rows(stored, matches.vanished), terms.flag.values)
    return PartPlan(rows, counts), _live_rows_after(terms, one, stored, matches)


def _invalid_rows(terms: LoadTerms, staged: pa.Table) -> Mapping[str, pa.Table]:
    """The rows of a stage that break a rule of a column: an unexpected NULL, or a string that is too long."""
    nulls = {name: staged[name].is_null() for name in terms.needed if staged[name].null_count}
    long = {
        name: pc.fill_null(pc.greater(pc.utf8_length(staged[name]), most), False)
        for name, most in terms.lengths.items()
    }
    return {
        **{f"{NULL}{name}": staged.filter(wrong) for name, wrong in nulls.items()},
        **{f"{LONG}{name}": staged.filter(wrong) for name, wrong in long.items() if pc.any(wrong).as_py()},
    }


def _incoming_rows(one: pa.Table, stored: pa.Table, matches: Matches) -> pa.Table:
    """The stage's rows that are new or changed. Changed rows keep their row ids."""
    rows, (changed, before) = one.drop_columns([LIVE]), matches.changed
    incoming = take_rows(rows, pa.concat_arrays([matches.appeared, changed]))
    return with_row_ids(incoming, stored, np.concatenate([np.full(len(matches.appeared), -1), before]))


def _with_values(rows: pa.Table, values: Mapping[str, Any]) -> pa.Table:
    """The stored rows with these values in all rows, without places and flags."""
    for name, value in values.items():
        typed = pa.array([value]).cast(rows.schema.field(name).type)
        rows = rows.set_column(rows.column_names.index(name), name, pa.repeat(typed[0], len(rows)))
    return rows.drop_columns([name for name in (FILE, POSITION, LIVE, IN_SCOPE) if name in rows.column_names])


def _live_rows_after(terms: LoadTerms, one: pa.Table, stored: pa.Table, matches: Matches) -> pa.Table:
    """The rows of the base after the load, except rows flagged as deleted."""
    names = [name for name in one.column_names if name in stored.column_names and name not in _EXTRA_COLUMNS]
    new = take_rows(one.select(names), pa.concat_arrays([matches.appeared, matches.changed[0]]))
    stays = np.zeros(len(stored), bool)
    stays[np.concatenate([matches.same[1], matches.kept])] = True
    rows = stored.select(names)
    rows = pa.concat_tables([new, rows if stays.all() else rows.filter(pa.array(stays))])
    live = pc.fill_null(rows[LIVE], False)
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
    closed as changed. `later`: records with a version that starts at or after the load's instant, or ends
    after it.
    """

    seen: pa.Array = field(default_factory=_no_keys)
    interrupted: pa.Array = field(default_factory=_no_keys)
    later: pa.Array = field(default_factory=_no_keys)


def earlier_columns(terms: LoadTerms) -> list[str]:
    """The columns of closed versions that a plan needs.

    The times of closed versions are needed only if the load is late.
    """
    return [terms.key, *((STARTED, ENDED, STATE) if terms.late else ())]


def past_keys_of(terms: LoadTerms, versions: pa.Table) -> PastKeys:
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
    terms: LoadTerms, live: pa.Table, open_: pa.Table, whole: Callable[[pa.Table], pa.Table]
) -> PartPlan:
    """The versions of a part that end, and the base rows that begin versions.

    `live` has the live rows of the base. `whole` returns all columns of some open versions.
    """
    codes = side_codes(live, open_, [terms.key])
    repeats = codes.repeats
    one, unlike = keep_one_per_key(terms, live, repeats[0])
    faults = {
        NO_KEY: _rows_without(live, terms.key),
        NO_HASH: _rows_without(live, ROW_HASH),
        LIVE_TWICE: unlike,
        OPEN_TWICE: whole(rows_that_share_keys(open_, terms.key, repeats[1])),
        NEVER_BEGAN: whole(_rows_without(open_, STARTED)),
    }
    if refused := refused_part(faults, partial(sample, terms)):
        return refused
    codes = codes if one is live else side_codes(one, open_, [terms.key])
    matches = _with_filled(terms, one, open_, pair_rows(one, open_, codes, [ROW_HASH], open_[IN_SCOPE]))
    ends = whole(take_rows(open_, pa.concat_arrays([matches.changed[1], matches.vanished])))
    changed, vanished = ends.slice(0, len(matches.changed[1])), ends.slice(len(matches.changed[1]))
    beginning = one.select(list(dict.fromkeys([terms.key, *terms.mirrored.values(), ROW_HASH])))
    rows = {
        CHANGED: take_rows(beginning, matches.changed[0]),
        APPEARED: take_rows(beginning, matches.appeared),
        ENDS: closed_versions(terms, changed, vanished),
        HIST_REMOVED: ends.select([FILE, POSITION]),
    }
    early = _early_rows(terms, one, open_, matches, ends)
    kinds = {CHANGED: rows[CHANGED], APPEARED: rows[APPEARED], DELETED: vanished}
    samples = {kind: sample(terms, each) for kind, each in kinds.items()}
    counts = CountedMatch(*matches.sizes, len(one), len(open_)).counts(OPEN)
    return PartPlan(rows, counts, samples) + early


def _with_filled(terms: LoadTerms, one: pa.Table, open_: pa.Table, matches: Matches) -> Matches:
    """The matches, with the records as changed that fill a column of their open version."""
    now, before = matches.same
    fills = np.zeros(len(now), bool)
    for name, source in terms.filled.items():
        has = pc.and_(one[source].is_valid().take(now), open_[name].is_null().take(before))
        fills |= np.asarray(has)
    if not fills.any():
        return matches
    filled, same = (tuple(each.filter(pa.array(mask)) for each in matches.same) for mask in (fills, ~fills))
    changed = tuple(map(pa.concat_arrays, zip(matches.changed, filled, strict=True)))
    return replace(matches, changed=changed, same=same)


def _rows_without(rows: pa.Table, name: str) -> pa.Table:
    return rows.filter(rows[name].is_null()) if rows[name].null_count else rows.slice(0, 0)


def _early_rows(
    terms: LoadTerms, one: pa.Table, open_: pa.Table, matches: Matches, ends: pa.Table
) -> PartPlan:
    """Versions that would end too early, and rows that are effective before the version that they change."""
    faults = {}
    if terms.late:
        early = pc.greater_equal(ends[STARTED], pa.scalar(terms.instant, INSTANT))
        faults[ENDS_EARLY] = ends.filter(pc.fill_null(early, False))
    if terms.dated is not None:
        changed, stood = take_rows(one, matches.changed[0]), take_rows(open_, matches.changed[1])
        effective, before = changed[terms.dated], stood[terms.dated]  # without a value, since the start (7.1)
        effective = pc.coalesce(effective, pa.scalar(terms.instant, INSTANT).cast(effective.type))
        before = pc.coalesce(before, stood[STARTED].cast(before.type))
        faults[EARLIER_DATE] = changed.filter(pc.fill_null(pc.less(effective, before), False))
    return refused_part(faults, partial(sample, terms)) or PartPlan()


def pasts_of(terms: LoadTerms, rows: pa.Table, appear: np.ndarray, earlier: PastKeys) -> PartPlan:
    """The number of appearing records with a past, and the records whose version begins too early (P5).

    `rows` of the base begin versions. The mask `appear` is false for rows of changed records.
    """
    masks = _masks_by_past(terms, rows, appear, earlier)
    early = {BEGINS_EARLY: rows.filter(pc.is_in(rows[terms.key], value_set=earlier.later))}
    seen, interrupted = (int(masks[past].sum()) for past in (Past.CLOSED, Past.INTERRUPTED))
    part = PartPlan(counts={SEEN: seen, INTERRUPTED: interrupted})
    return part + (refused_part(early, partial(sample, terms)) or PartPlan())


def tally(match: CountedMatch, seen: int, interrupted: int = 0) -> Tally:
    """The number of records of base and history by case.

    Of the records that appeared, `seen` counts those whose past is `Past.CLOSED`, and `interrupted` those
    whose past is `Past.INTERRUPTED`.
    """
    cases: Counter[Case] = Counter(
        {
            (Past.OPEN, Now.SAME): match.same,
            (Past.OPEN, Now.OTHER): match.changed,
            (Past.OPEN, Now.ABSENT): match.vanished,
            (Past.OPEN, Now.SPARED): match.kept,
            (Past.INTERRUPTED, Now.PRESENT): interrupted,
            (Past.CLOSED, Now.PRESENT): seen,
            (Past.NOTHING, Now.PRESENT): match.appeared - seen - interrupted,
        }
    )
    return Tally(cases)


def closed_versions(terms: LoadTerms, changed: pa.Table, vanished: pa.Table) -> pa.Table:
    """The open versions of records that changed or vanished, with all columns and their new end."""
    sides = ((changed, Now.OTHER), (vanished, Now.ABSENT))
    return pa.concat_tables(
        _with_values(rows, {ENDED: terms.instant, STATE: terms.words[state], LOAD_RUN_ID: terms.run})
        for rows, now in sides
        if (state := TRANSITIONS[Past.OPEN, now].closes) is not None
    )


def begun_versions(terms: LoadTerms, rows: pa.Table, appear: np.ndarray, earlier: PastKeys) -> pa.Table:
    """The versions that begin with rows of the base, as in `pasts_of`. They have no keys yet."""
    return pa.concat_tables(
        _begin_versions(terms, take_rows(rows, np.flatnonzero(mask)), terms.words[state])
        for past, mask in _masks_by_past(terms, rows, appear, earlier).items()
        if (state := TRANSITIONS[past, Now.OTHER if past is Past.OPEN else Now.PRESENT].begins) is not None
    )


def _masks_by_past(
    terms: LoadTerms, rows: pa.Table, appear: np.ndarray, earlier: PastKeys
) -> dict[Past, np.ndarray]:
    """For each past, a mask of the rows."""
    keys = rows[terms.key]
    own, seen = (np.asarray(pc.is_in(keys, value_set=each)) for each in (earlier.interrupted, earlier.seen))
    pasts = {Past.INTERRUPTED: own, Past.CLOSED: seen & ~own, Past.NOTHING: ~seen & ~own}
    return {Past.OPEN: ~appear, **{past: mask & appear for past, mask in pasts.items()}}


def _begin_versions(terms: LoadTerms, rows: pa.Table, word: str) -> pa.Table:
    columns = {terms.key: terms.key, **terms.mirrored, ROW_HASH: ROW_HASH}
    instants = pa.repeat(pa.scalar(terms.instant, INSTANT), len(rows))
    lifetime = {
        STARTED: instants,
        ENDED: pa.nulls(len(rows), INSTANT),
        STATE: pa.repeat(word, len(rows)),
        LOAD_RUN_ID: pa.repeat(terms.run, len(rows)),
        LOADED_AT: instants,
    }
    return pa.table({name: rows[source] for name, source in columns.items()} | lifetime)


def plan_load(terms: LoadTerms, sides: Mapping[str, pa.Table], whole: Whole = as_they_are) -> PartPlan:
    """The rows of base and history to add and remove, counts, and faults.

    Without a stage, the base stays as it is. `whole` returns all columns of some open versions.
    """
    if STAGED in sides:
        part, live = plan_base(terms, sides[STAGED], sides[BASE])
    else:
        part, live = PartPlan(), sides[BASE].filter(pc.fill_null(sides[BASE][LIVE], False))
    return part if live is None else part + plan_history(terms, live, sides[OPEN], whole)


def plan_part(
    terms: LoadTerms,
    kinds: Mapping[str, pa.Schema],
    sides: Mapping[str, pa.Table],
    whole: Whole = as_they_are,
) -> PartPlan:
    """The plan of `plan_load`, with rows in the schemas `kinds`.

    If all rows that are added to the base begin versions, they are stored once (`BOTH`).
    """
    part = plan_load(terms, sides, whole)
    rows = dict(part.rows)
    if _all_begin_versions(rows):
        del rows[APPEARED]
        rows[BOTH] = rows.pop(BASE_ADDED)
    shaped = {kind: in_schema(each, kinds[kind]) for kind, each in rows.items() if kind not in PLACES}
    return replace(part, rows={**rows, **shaped})


def _all_begin_versions(rows: Mapping[str, pa.Table]) -> bool:
    """Whether the rows added to the base are exactly the rows that begin versions."""
    added, appeared = rows.get(BASE_ADDED), rows.get(APPEARED)
    if added is None or appeared is None or not len(added) or len(added) != len(appeared):
        return False
    same = {*appeared.column_names} <= {*added.column_names}
    return same and bool(added.select(appeared.column_names).equals(appeared))


def plan_beginnings(
    terms: LoadTerms, schema: pa.Schema, sides: Mapping[str, pa.Table], _whole: Whole
) -> PartPlan:
    """The versions that rows of the base begin, in the columns of `schema`, and the counts of `pasts_of`.

    The versions have no keys yet. The side `EARLIER` is optional.
    """
    rows = sides[BEGINNING]
    appear, rows = np.asarray(rows[APPEARS]), rows.drop_columns([APPEARS])
    earlier = past_keys_of(terms, sides[EARLIER]) if EARLIER in sides else PastKeys()
    begun = in_schema(begun_versions(terms, rows, appear, earlier), schema)
    return PartPlan({BEGINS: begun}) + pasts_of(terms, rows, appear, earlier)
