"""What the cells of a column are, all of them looked at (B18, B20).

A column is what every cell of it is without loss: `007` and a number of twenty digits stay texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.values.cells import UnreadableCell
from backstory.formats.values.float_digits import all_kept
from backstory.formats.values.texts import TimeFormats, parser

INTEGER = r"^-?(0|[1-9]\d*)$"
# An exponent needs a dot or a sign beside it: 12E3 is rather a code than a number.
_NUMBER = r"-?(0|[1-9]\d*)(\.\d+([eE][+-]?\d+)?|[eE][+-]\d+)?|-?\.\d+"
FLOAT = rf"^({_NUMBER}|NaN|[+-]?Inf(inity)?)$"
# More digits than a float surely keeps.
LONG_INTEGER = r"^-?\d{16,}$"
BOOLEAN = r"^(true|True|TRUE|false|False|FALSE)$"

_INT, _FLOAT, _BOOL, _DATE = pa.int64(), pa.float64(), pa.bool_(), pa.date32()
_INSTANT = pa.timestamp("us", "UTC")
# The first of these that all cells are is the column's type.
_TYPES = [_INT, _FLOAT, _BOOL, _DATE, _INSTANT]


@dataclass(slots=True)
class Guesses:
    """What the columns may still be; `look` at all their cells, then ask for the `schema`."""

    names: Sequence[str]
    times: TimeFormats
    _left: list[list[pa.DataType]] = field(init=False)
    _seen: list[bool] = field(init=False)
    _told: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self._left = [list(_TYPES) for _ in self.names]
        self._seen = [False for _ in self.names]
        self._told = [False for _ in self.names]

    def look(self, cells: pa.Table) -> None:
        """Strike the types that a cell of the table is not; its columns are in the names' order."""
        for place, column in enumerate(cells.columns):
            some = column.combine_chunks().drop_null()
            full = some.filter(pc.not_equal(some, ""))
            self._seen[place] |= len(some) > 0
            if len(full):
                self._told[place] = True
                self._left[place] = _left(full, self._left[place], self.times)

    def schema(self, known: Mapping[str, pa.Field] = MappingProxyType({})) -> pa.Schema:
        """The columns, all optional: one without a single value is of type null, one of empty texts text.

        A column that may be of its `known` type is of that.

        An empty text tells nothing beside values: it is their NULL, unless they are texts (O27).
        """
        fields = []
        for name, left, seen, told in zip(self.names, self._left, self._seen, self._told, strict=True):
            may_be = [*left, pa.string()] if told else [pa.string()]
            wanted = known[name].type if name in known else None
            kept = wanted if wanted in may_be else may_be[0]
            fields.append(pa.field(name, kept if seen else pa.null()))
        return pa.schema(fields)


def _left(cells: pa.Array, types: Sequence[pa.DataType], times: TimeFormats) -> list[pa.DataType]:
    """Those of the types that all cells are."""
    for place, type_ in enumerate(types):
        if _all_are(cells, type_, times):
            if type_ == _INT:
                return [_INT, *([_FLOAT] if _FLOAT in types and _exact_as_float(cells) else [])]
            return [type_, *(other for other in types[place + 1 :] if _all_are(cells, other, times))]
    return []


def _all_are(cells: pa.Array, type_: pa.DataType, times: TimeFormats) -> bool:
    # One cell tells most of what a column is not.
    return _are(cells[:1], type_, times) and _are(cells, type_, times)


def _are(cells: pa.Array, type_: pa.DataType, times: TimeFormats) -> bool:
    if type_ in _FORMS and not pc.all(pc.match_substring_regex(cells, _FORMS[type_])).as_py():
        return False
    if type_ == _FLOAT and not (_exact_as_float(cells) and all_kept(cells)):
        return False
    try:
        parser(pa.field("", type_), times)(cells)
    except (UnreadableCell, pa.ArrowInvalid):
        return False
    return True


def _exact_as_float(cells: pa.Array) -> bool:
    """Whether no integer among them is one of an identifier's length: such columns stay text."""
    return not pc.any(pc.match_substring_regex(cells, LONG_INTEGER)).as_py()


_FORMS = {_INT: INTEGER, _FLOAT: FLOAT, _BOOL: BOOLEAN}
