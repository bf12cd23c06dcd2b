"""Rows that no plan could place are refused, with the file and the row."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import Refused
from backstory.files.rows import Rows
from backstory.model.column import END, START


def refuse_unplaceable(kind: str, file: str, rows: Rows, key: Sequence[str], needed: str | None) -> None:
    """Raises Refused for the first row of a file that names no key or lacks what its kind needs.

    `kind` is earliest, replace, update or delete; `needed` is the instant that each row must give.
    An update row without `_fivetran_start` may close a version but change no value.
    """
    required = [*key, *([needed] if needed else [])]
    for name in required:
        if name not in rows.values.column_names:
            raise Refused(
                "missing-column",
                f"{file}: the {kind} file lacks the column {name}.",
                "Nothing was written; send the batch again with that column.",
            )
    for name in key:
        _refuse(file, name, pc.invert(rows.known[name]), "the key is marked unmodified")
    if kind == "replace":
        for name in rows.known.column_names:
            _refuse(file, name, pc.invert(rows.known[name]), "a replaced row is given whole")
    if needed and kind != "update":
        _refuse(file, needed, rows.values[needed].is_null(), "the instant is missing")
    if needed and kind == "update":
        _refuse_update(file, rows, key, needed)


def _refuse_update(file: str, rows: Rows, key: Sequence[str], needed: str) -> None:
    if START in rows.values.column_names:
        startless = np.asarray(rows.values[START].is_null())
    else:
        startless = np.ones(rows.count, bool)
    endless = np.asarray(rows.values[needed].is_null())
    _refuse(file, END, pa.array(~startless & endless), "the end is missing")
    for name in rows.known.column_names:
        if name not in key and not name.startswith("_fivetran_"):
            changed = startless & np.asarray(rows.known[name])
            _refuse(file, name, pa.array(changed), f"a value changes but {START} is missing")


def _refuse(file: str, column: str, wrong: pa.Array | pa.ChunkedArray, why: str) -> None:
    if not pc.any(wrong).as_py():
        return
    row = int(np.flatnonzero(np.asarray(wrong))[0]) + 1
    raise Refused(
        "unplaceable-row",
        f"{file}, row {row}, column {column}: {why}.",
        "Nothing was written; send the batch again with whole rows.",
    )
