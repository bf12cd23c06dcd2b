"""Rows that no plan could place are refused, with the file and the row."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import Refused
from backstory.formats.rows import Rows
from backstory.model.layout import END, PREFIX, START


@dataclass(frozen=True, slots=True)
class _Place:
    file: str
    first: int


def refuse_unplaceable(
    kind: str, file: str, rows: Rows, key: Sequence[str], needed: str | None, first: int = 0
) -> None:
    """Raises Refused for the first row of a file that names no key or lacks what its kind needs.

    `kind` is earliest, replace, update or delete; `needed` is the instant that each row must give;
    `first` is how many rows of the file came before these.
    A replaced version needs an end, too: without one nothing tells whether it is still true.
    An update row without `_fivetran_start` may close a version but change no value.
    """
    instants = [] if needed is None else [needed, END] if kind == "replace" else [needed]
    required = [*key, *instants]
    for name in required:
        if name not in rows.values.column_names:
            raise Refused(
                "missing-column",
                f"{file}: the {kind} file lacks the column {name}.",
                "Nothing was written; send the batch again with that column.",
            )
    place = _Place(file, first)
    for name in key:
        _refuse(place, name, pc.invert(rows.known[name]), "the key is marked unmodified")
    if kind == "replace":
        for name in rows.known.column_names:
            _refuse(place, name, pc.invert(rows.known[name]), "a replaced row must be complete")
    if kind != "update":
        for name in instants:
            _refuse(place, name, rows.values[name].is_null(), "the time is missing")
    if needed and kind == "update":
        _refuse_update(place, rows, key, needed)


def _refuse_update(place: "_Place", rows: Rows, key: Sequence[str], needed: str) -> None:
    if START in rows.values.column_names:
        startless = np.asarray(rows.values[START].is_null())
    else:
        startless = np.ones(rows.count, bool)
    endless = np.asarray(rows.values[needed].is_null())
    _refuse(place, END, pa.array(~startless & endless), "the end is missing")
    for name in rows.known.column_names:
        if name not in key and not name.startswith(PREFIX):
            changed = startless & np.asarray(rows.known[name])
            _refuse(place, name, pa.array(changed), f"a value changes but {START} is missing")


def _refuse(place: "_Place", column: str, wrong: pa.Array | pa.ChunkedArray, why: str) -> None:
    if not pc.any(wrong).as_py():
        return
    row = place.first + int(np.flatnonzero(np.asarray(wrong))[0]) + 1
    raise Refused(
        "unplaceable-row",
        f"{place.file}, row {row}, column {column}: {why}.",
        "Nothing was written; send the batch again with complete rows.",
    )
