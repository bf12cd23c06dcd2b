"""Arrow tables and pandas frames of callers, in columns of the types that tables have."""

from typing import Any

import pyarrow as pa

from backstory.errors import Refused
from backstory.formats.values.cells import UnreadableCell
from backstory.formats.values.exactly import exactly, plain_type


def of_pandas(frame: Any) -> pa.Table:
    """The rows of a pandas frame without its index; Refused for columns that Arrow makes none of."""
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as stop:
        why = str(stop.args[-1] if stop.args else stop).rstrip(".")  # behind the value stands the column
        raise Refused(
            "unreadable-frame", f"{why}.", "Nothing was written; give each column values of one type."
        ) from None


def of_arrow(rows: pa.Table) -> pa.Table:
    """The rows with each column of a type of ours; Refused for one that no table has."""
    columns = [_column(field, rows.column(place)) for place, field in enumerate(rows.schema)]
    return pa.Table.from_arrays(columns, names=rows.column_names)


def _column(field: pa.Field, values: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = plain_type(field.type, naive=True)
    if type_ is None:
        raise Refused(
            "unsupported-type",
            f"{field.name} is of type {field.type}, which no table can store.",
            "Nothing was written; cast it, or leave it out.",
            [field.name],
        )
    if type_ == field.type:
        return values
    try:
        ours = pa.field(field.name, type_)
        return pa.chunked_array([exactly(chunk, ours) for chunk in values.chunks], type_)
    except (pa.ArrowInvalid, UnreadableCell):
        raise Refused(
            "unreadable-value",
            f"The column {field.name} ({field.type}) has a value that {type_} cannot hold exactly.",
            "Nothing was written; fix it at the source.",
            [field.name],
        ) from None
