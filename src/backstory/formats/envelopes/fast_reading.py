"""Payloads of one schema, all at once: Arrow's reader of JSON, where it is as strict as ours."""

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

_BLOCK = 1 << 24  # the bytes that are read together; no payload may be longer


def read_at_once(texts: Sequence[str], wire: pa.DataType) -> pa.Array | None:
    """The payloads as structs of the type, or None where the slow reader has to say what they are.

    Arrow refuses what ours does: names twice, digits that a type does not hold, fields that the type does
    not have. But it reads NaN and infinite floats, and two objects on a line as two rows.
    """
    if not all(map(_is_line, texts)):
        return None
    try:
        rows = pj.read_json(
            io.BytesIO("\n".join(texts).encode()),
            read_options=pj.ReadOptions(block_size=_BLOCK),
            parse_options=pj.ParseOptions(pa.schema(list(wire)), unexpected_field_behavior="error"),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeEncodeError):
        return None
    # As no text is empty, each has one object if there are as many.
    if rows.num_rows != len(texts) or rows.schema.names != wire.names:
        return None
    built = pa.concat_arrays(rows.to_struct_array().chunks)
    return built if built.type == wire and _finite(built) else None


def _is_line(text: str) -> bool:
    return text[:1] == "{" and text[-1:] == "}" and "\n" not in text and "\r" not in text


def _finite(values: pa.Array) -> bool:
    """Whether all floats are numbers."""
    if pa.types.is_struct(values.type):
        return all(map(_finite, values.flatten()))
    if pa.types.is_list(values.type):
        return _finite(values.flatten())
    return not pa.types.is_floating(values.type) or bool(pc.all(pc.is_finite(values), min_count=0).as_py())
