"""Rows of one key: which of them are one record's, and the one that stays of these (P3, section 3.6)."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_binary, is_floating

from backstory.model.layout import LOAD_RUN_ID, LOADED_AT, ROW_HASH
from backstory.strategies.keys import key_codes
from backstory.strategies.scd2.terms import LIVE, LoadTerms


def one_each(terms: LoadTerms, rows: pa.Table, repeats: np.ndarray) -> tuple[pa.Table, pa.Table]:
    """One row of each key, and the rows that share a key and are not one; `repeats` are those that share one.

    Identical rows are one where the load collapses them: then the one that is live stays, of several the one
    with the least texts. A row that is flagged as deleted is no duplicate of one that is live.
    """
    again = with_key_of_others(rows, terms.key, repeats)
    if not len(again) or not terms.collapses:
        return rows, again
    if len(unlike := _unlike(terms, again)):
        return rows, unlike
    alone = pa.array(~repeats | np.asarray(rows[terms.key].is_null()))
    return pa.concat_tables([rows.filter(alone), _least(terms, again)]), again.slice(0, 0)


def with_key_of_others(rows: pa.Table, key: str, repeats: np.ndarray) -> pa.Table:
    """The rows that are `repeats` of a key; NULL is none."""
    if not repeats.any():
        return rows.slice(0, 0)
    return rows.filter(pa.array(repeats & np.asarray(rows[key].is_valid())))


def _unlike(terms: LoadTerms, rows: pa.Table) -> pa.Table:
    """The live rows whose key has several hashes or business keys: hashes of keys may collide."""
    live = rows.filter(pc.fill_null(rows[LIVE], False)) if LIVE in rows.column_names else rows
    states = live.group_by(list(dict.fromkeys([terms.key, *terms.business, ROW_HASH]))).aggregate([])
    several = pc.value_counts(states[terms.key].combine_chunks())
    several = several.field("values").filter(pc.greater(several.field("counts"), 1))
    return live.filter(pc.is_in(live[terms.key], value_set=several))


def _least(terms: LoadTerms, rows: pa.Table) -> pa.Table:
    (codes,), _ = key_codes([rows.select([terms.key])], [terms.key])
    beside = {LIVE, LOAD_RUN_ID, LOADED_AT}
    dead = [pc.invert(pc.fill_null(rows[LIVE], False))] if LIVE in rows.column_names else []
    texts = [_text(rows[name]) for name in rows.column_names if name not in beside]
    columns = [pa.array(codes), *dead, *texts]
    names = [str(number) for number in range(len(columns))]
    order = pc.sort_indices(pa.table(columns, names=names), [(name, "ascending") for name in names])
    firsts = np.unique(codes[np.asarray(order)], return_index=True)[1]
    return rows.take(order.take(pa.array(firsts)))


def _text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    as_it_is = is_floating(values.type) or is_binary(values.type)
    return values if as_it_is else values.cast(pa.string())
