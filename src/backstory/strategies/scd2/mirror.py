"""What a stage makes of its base, as Arrow tables: a base mirrors its stage (section 3.7)."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.strategies.matching import Matches, pair_rows, side_codes, take_rows
from backstory.strategies.part_plan import PartPlan
from backstory.strategies.scd2.parts import (
    BASE_GOES,
    BASE_TWICE,
    CAME,
    COMES,
    FLAGGED,
    LONG,
    NULL,
    STAGE_TWICE,
    WENT,
    counts_of,
    places_of,
    refused_part,
)
from backstory.strategies.scd2.repeats import one_each, with_key_of_others
from backstory.strategies.scd2.terms import BASE, IN_SCOPE, LIVE, Flag, LoadTerms
from backstory.strategies.scd2.unseen import unseen_changes

_BESIDE = (IN_SCOPE, FILE, POSITION, ROW_ID)


def plan_base(terms: LoadTerms, staged: pa.Table, stored: pa.Table) -> tuple[PartPlan, pa.Table | None]:
    """The rows that a part of a base gets and loses, and the live rows that it has then; none if refused.

    Where rows are flagged instead of deleted, stored rows have all columns.
    """
    codes = side_codes(staged, stored, [terms.key])
    repeats = codes.repeats
    one, unlike = one_each(terms, staged, repeats[0])
    again = with_key_of_others(stored, terms.key, repeats[1])
    if refused := refused_part(terms, {**_broken(terms, staged), STAGE_TWICE: unlike, BASE_TWICE: again}):
        return refused, None
    codes = codes if one is staged else side_codes(one, stored, [terms.key])
    matches = pair_rows(one, stored, codes, terms.compared, stored[IN_SCOPE])
    goes = pa.concat_arrays([matches.changed[1], matches.vanished])
    counts = Counter(counts_of(BASE, matches, one, stored))
    counts.update(unseen_changes(terms, one, stored, matches.changed))
    came, went = matches.appeared[:0], matches.vanished[:0]
    if not terms.first:  # then a record may only seem to come, because keys are made in another way
        came, went = matches.appeared, pa.concat_arrays([matches.vanished, matches.kept])
    rows = {
        COMES: _coming(one, stored, matches),
        BASE_GOES: places_of(stored, goes),
        CAME: take_rows(one.select(terms.business), came),
        WENT: take_rows(stored.select(terms.business), went),
    }
    if terms.flag is not None:
        rows[FLAGGED] = _flagged(terms, terms.flag, take_rows(stored, matches.vanished))
    return PartPlan(rows, counts), _live_after(terms, one, stored, matches)


def _broken(terms: LoadTerms, staged: pa.Table) -> Mapping[str, pa.Table]:
    """The rows of a stage that break a rule of a column: NULL where none may be, a text that is too long."""
    nulls = {name: staged[name].is_null() for name in terms.needed if staged[name].null_count}
    long = {
        name: pc.fill_null(pc.greater(pc.utf8_length(staged[name]), most), False)
        for name, most in terms.lengths.items()
    }
    return {
        **{f"{NULL}{name}": staged.filter(wrong) for name, wrong in nulls.items()},
        **{f"{LONG}{name}": staged.filter(wrong) for name, wrong in long.items() if pc.any(wrong).as_py()},
    }


def _coming(one: pa.Table, stored: pa.Table, matches: Matches) -> pa.Table:
    """The stage's rows that are new or others, the latter with the ids that they keep."""
    rows, (changed, before) = one.drop_columns([LIVE]), matches.changed
    appeared, came = take_rows(rows, matches.appeared), take_rows(rows, changed)
    if ROW_ID in stored.column_names:
        came = came.append_column(ROW_ID, stored[ROW_ID].take(before))
        appeared = appeared.append_column(ROW_ID, pa.nulls(len(appeared), pa.int64()))
    return pa.concat_tables([appeared, came])


def _flagged(terms: LoadTerms, flag: Flag, rows: pa.Table) -> pa.Table:
    """The rows, which stay and only get the flag."""
    values = {flag.column: flag.value} | ({flag.at: terms.instant} if flag.at else {})
    for name, value in values.items():
        typed = pa.array([value]).cast(rows.schema.field(name).type)
        rows = rows.set_column(rows.column_names.index(name), name, pa.repeat(typed[0], len(rows)))
    return rows.drop_columns([FILE, POSITION, LIVE, IN_SCOPE])


def _live_after(terms: LoadTerms, one: pa.Table, stored: pa.Table, matches: Matches) -> pa.Table:
    """The rows that the base will have and that are not flagged as deleted."""
    names = [name for name in one.column_names if name in stored.column_names and name not in _BESIDE]
    came = take_rows(one.select(names), pa.concat_arrays([matches.appeared, matches.changed[0]]))
    stays = np.zeros(len(stored), bool)
    stays[np.concatenate([matches.same[1], matches.kept])] = True
    rows = stored.select(names)
    rows = pa.concat_tables([came, rows if stays.all() else rows.filter(pa.array(stays))])
    live = pc.fill_null(rows[LIVE], False)
    rows = rows if pc.all(live).as_py() else rows.filter(live)
    if terms.flag is not None and terms.flag.live:
        rows = pa.concat_tables([rows, take_rows(stored.select(names), matches.vanished)])
    return rows
