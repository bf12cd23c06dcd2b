"""Checks that strings are values of a type without loss. For example, `007` is not an integer."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.values.cells import UnreadableCell
from backstory.formats.values.digits import all_kept, all_kept_single, with_points
from backstory.formats.values.texts import TextForms, parser

INT, FLOAT, BOOL, DATE = pa.int64(), pa.float64(), pa.bool_(), pa.date32()
INSTANT = pa.timestamp("us", "UTC")
_SMALL, _SINGLE, _NAIVE = pa.int32(), pa.float32(), pa.timestamp("us")

_INTEGER = r"^-?(0|[1-9]\d*)$"
# An exponent needs a dot before it or a sign: 12E3 is more likely a code than a number.
_NUMBER = r"-?(0|[1-9]\d*)(\.\d+([eE][+-]?\d+)?|[eE][+-]\d+)?|-?\.\d+"
_FINITE = rf"^({_NUMBER})$"
_ANY_FLOAT = rf"^({_NUMBER}|NaN|[+-]?Inf(inity)?)$"
# More digits than every float can keep.
_LONG_INTEGER = r"^-?\d{16,}$"
_BOOLEAN = r"^(true|True|TRUE|false|False|FALSE)$"
_FORMS = {INT: _INTEGER, FLOAT: _ANY_FLOAT, BOOL: _BOOLEAN, _SMALL: _INTEGER, _SINGLE: _ANY_FLOAT}


def needs_typed_column(type_: pa.DataType) -> bool:
    """Whether strings are checked for the type only if their column is known to have it."""
    return type_ in {_SMALL, _SINGLE, _NAIVE} or bool(pa.types.is_decimal(type_))


def all_are(cells: pa.Array, type_: pa.DataType, forms: TextForms) -> bool:
    """Whether all cells are values of the type. No cell may be NULL."""
    if forms.decimal == "," and (type_ in {FLOAT, _SINGLE} or pa.types.is_decimal(type_)):
        cells, forms = with_points(cells), replace(forms, decimal=".")
    form = _FINITE if pa.types.is_decimal(type_) else _FORMS.get(type_)
    if form is not None and not pc.all(pc.match_substring_regex(cells, form)).as_py():
        return False
    if type_ == FLOAT and not (exact_as_float(cells) and all_kept(cells)):
        return False
    if type_ == _SINGLE and not all_kept_single(cells):
        return False
    try:
        parser(pa.field("", type_), forms)(cells)
    except (UnreadableCell, pa.ArrowInvalid):
        return False
    return True


def exact_as_float(cells: pa.Array) -> bool:
    """Whether no integer is as long as an identifier. Columns with such integers stay text."""
    return not pc.any(pc.match_substring_regex(cells, _LONG_INTEGER)).as_py()
