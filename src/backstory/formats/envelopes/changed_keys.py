"""Updates that change a record's key: the end of one record, and the beginning of another."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.envelopes.joint_types import as_type, joint_column
from backstory.formats.envelopes.parsing import AFTER, BEFORE, KEY, OP
from backstory.formats.envelopes.structs import fields_of


def end_changed_keys(
    columns: dict[str, pa.Array], places: np.ndarray, key: Sequence[str], name: str
) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The events, and before each update of the `key` a delete of the old one.

    Debezium does so itself for the key that it knows, which need not be the table's. The image before is
    then that of the delete. `places` are the messages that the events come from.
    """
    before, after = (fields_of(columns.get(each, pa.nulls(len(places)))) for each in (BEFORE, AFTER))
    if not key or any(each not in before or each not in after for each in key):
        return columns, places
    known, same = pc.equal(columns[OP], "u"), pa.repeat(pa.scalar(True), len(places))
    for each in key:
        type_ = joint_column(each, [before[each].type, after[each].type], name)
        old, new = as_type(before[each], type_), as_type(after[each], type_)
        known = pc.and_(known, old.is_valid())
        same = pc.and_(same, pc.fill_null(_equal(old, new), False))
    changed = pc.and_(known, pc.invert(same)).to_numpy(zero_copy_only=False)
    if not changed.any():
        return columns, places
    rows = np.repeat(np.arange(len(places)), 1 + changed)
    ends = np.append(rows[1:] == rows[:-1], False)
    begins = pa.array(np.append(False, ends[:-1]))
    events = {each: part.take(pa.array(rows)) for each, part in columns.items()}
    events[OP] = pc.if_else(pa.array(ends), "d", events[OP])
    events[BEFORE] = _blanked(events[BEFORE], begins)
    if KEY in events:
        events[KEY] = _blanked(events[KEY], pa.array(ends))
    return events, places[rows]


def _equal(old: pa.Array, new: pa.Array) -> pa.Array:
    if pa.types.is_nested(old.type) or pa.types.is_null(old.type):  # Arrow compares none of these
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return pa.array([one == other for one, other in pairs], pa.bool_())
    return pc.equal(old, new)


def _blanked(structs: pa.Array, mask: pa.Array) -> pa.Array:
    """The structs, NULL where the mask is true."""
    return pc.if_else(mask, pa.scalar(None, structs.type), structs)
