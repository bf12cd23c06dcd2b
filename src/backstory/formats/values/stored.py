"""Conversion of a file's typed values to a column's type, as if they were text (section 3.4).

The leniency of a door lists the losses that its specification allows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.rows import arrow_type
from backstory.formats.values.cells import (
    UnreadableCell,
    finish,
    first_failing,
    parse,
    parse_rounding,
    parser_type,
    rounded_to,
)
from backstory.formats.values.exactly import in_utc
from backstory.formats.values.same import cast_same
from backstory.model.types import TEXT_KINDS, ColumnType, Kind

# Digits of a second beyond the microsecond.
_FINER: Final = r"\.\d{6}\d*[1-9]"
_TIMES: Final = {Kind.NAIVE_TIME, Kind.UTC_DATETIME, Kind.NAIVE_DATETIME}


@dataclass(frozen=True, slots=True)
class Leniency:
    """Whether decimals may be rounded half-even to the column's scale, and times cut to the microsecond.

    Any other loss is refused, because two different values would become the same value (E1).
    """

    rounds: bool = False
    cuts: bool = False


# The sender converts a delivery's decimals to doubles (F18), and its times are cut (F6).
DELIVERED: Final = Leniency(rounds=True, cuts=True)
EXACT: Final = Leniency()


def parse_leniently(text: pa.Array, type_: ColumnType, leniency: Leniency) -> tuple[pa.Array, int]:
    """The cells as values of the type, and the number of rounded cells.

    Raises UnreadableCell for an invalid cell.
    """
    if type_.kind in _TIMES and not leniency.cuts:
        row = pc.index(pc.match_substring_regex(text, _FINER), pa.scalar(True)).as_py()
        if row >= 0:
            raise UnreadableCell(row)
    return parse_rounding(text, type_) if leniency.rounds else (parse(text, type_), 0)


_t: Final = pa.types
_DAYS: Final = frozenset({Kind.NAIVE_DATE, Kind.NAIVE_DATETIME, Kind.UTC_DATETIME})


def from_stored(cells: pa.Array, type_: ColumnType, leniency: Leniency) -> tuple[pa.Array, int]:
    """The cells as values of the column's type, and the number of rounded decimals (F18).

    Strings are read as in CSV. Numbers stay equal. In a text column, a number, a day or an id becomes its
    printed form. Raises UnreadableCell for the first cell without such a value, or of an incompatible type.
    """
    cells = bare(cells)
    if _t.is_null(cells.type):
        return pa.nulls(len(cells), arrow_type(type_)), 0
    if isinstance(cells.type, pa.UuidType) and type_.kind is Kind.STRING:
        cells = pa.array([value and str(value) for value in cells.to_pylist()], pa.string())
    if _t.is_string(cells.type):
        return parse_leniently(cells, type_, leniency)
    if not _may_be(cells.type, type_):
        raise UnreadableCell(0)
    if type_.kind is Kind.DECIMAL and _t.is_floating(cells.type):
        # Use the number's shortest string, which a CSV file would contain.
        return parse_leniently(_attempt(cells, lambda part: part.cast(pa.string())), type_, leniency)
    if type_.kind is Kind.DECIMAL and _t.is_decimal(cells.type) and leniency.rounds:
        return rounded_to(cells, type_)
    if type_.kind in TEXT_KINDS:
        return parse_leniently(_attempt(cells, lambda part: part.cast(pa.string())), type_, leniency)
    return _attempt(cells, lambda part: _convert_cells(part, type_, leniency)), 0


def bare(cells: pa.Array) -> pa.Array:
    """The cells without dictionary encoding, JSON type or large offsets."""
    if _t.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if isinstance(cells.type, pa.JsonType):
        cells = cells.storage
    if _t.is_large_string(cells.type) or _t.is_string_view(cells.type):
        return cells.cast(pa.string())
    return cells.cast(pa.binary()) if _is_bytes(cells.type) else cells


def _may_be(stored: pa.DataType, type_: ColumnType) -> bool:
    """Whether the stored type is in the column's family of types. Numbers and days are different families."""
    is_day = _t.is_date(stored) or _t.is_timestamp(stored)
    if type_.kind is Kind.NAIVE_TIME:
        return bool(_t.is_time(stored))
    if type_.kind is Kind.NAIVE_DATETIME and _t.is_timestamp(stored):
        return stored.tz is None
    if type_.kind in _DAYS:
        return bool(is_day)
    if type_.kind is Kind.BINARY:
        return bool(_t.is_binary(stored))
    is_number = any(test(stored) for test in (_t.is_integer, _t.is_floating, _t.is_decimal, _t.is_boolean))
    return is_number or (type_.kind in TEXT_KINDS and bool(is_day or _t.is_binary(stored)))


def _is_bytes(type_: pa.DataType) -> bool:
    large = _t.is_large_binary(type_) or _t.is_binary_view(type_)
    return bool(large or (_t.is_fixed_size_binary(type_) and not _t.is_decimal(type_)))


def _attempt(cells: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    try:
        return convert(cells)
    except pa.ArrowInvalid:
        raise UnreadableCell(first_failing(cells, convert)) from None


def _convert_cells(cells: pa.Array, type_: ColumnType, leniency: Leniency) -> pa.Array:
    if type_.kind is Kind.BINARY:
        return cells
    if type_.kind not in _DAYS:
        narrow = pa.int16() if type_.kind is Kind.SHORT else arrow_type(type_)
        return cast_same(cells, narrow).cast(arrow_type(type_))
    if _t.is_timestamp(cells.type) and cells.type.unit == "ns" and leniency.cuts:
        # Floor to the microsecond, because a cast rounds up before 1970.
        cells = pc.floor_temporal(in_utc(cells), unit="microsecond")
    return finish(pa.chunked_array([cast_same(cells, parser_type(type_))]), type_).combine_chunks()
