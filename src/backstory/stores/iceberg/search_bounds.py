"""Values that are looked for in a column: which files and row groups may have one of them."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

# So many values are looked for one by one in row groups; of more only the least and the greatest.
MANY: Final = 10_000
# Iceberg passes over files by lists of up to so many values.
LISTED: Final = 200


@dataclass(frozen=True, slots=True)
class SearchBounds:
    """Values of a column, one of which rows must have, as spans in their order; NULL may be one of them.

    Iceberg can pass over files by the `exact` ones, which have one text for all.
    """

    least: Sequence[Any]
    greatest: Sequence[Any]
    null: bool
    exact: bool

    def may_be_in(self, statistics: Any) -> bool:
        """Whether a row group of these statistics may have one of the values; None tell nothing."""
        if statistics is None or (self.null and statistics.null_count != 0):
            return True
        if not self.least:
            return False
        if type(statistics.min) is not type(self.least[0]):
            return True
        place = bisect_left(self.greatest, statistics.min)
        return place < len(self.least) and bool(self.least[place] <= statistics.max)

    def condition(self, name: str) -> Any:
        """The same of a column of files, as Iceberg's JSON has it; None where it cannot be told."""
        if not self.exact or not self.least:
            return None
        if self.least is self.greatest and len(self.least) <= LISTED:
            found = {"type": "in", "term": name, "values": [_json_value(each) for each in self.least]}
        else:
            lower = {"type": "gt-eq", "term": name, "value": _json_value(self.least[0])}
            found = all_of(lower, lower | {"type": "lt-eq", "value": _json_value(self.greatest[-1])})
        return any_of(is_null(name), found) if self.null else found


def search_bounds(values: pa.Array | pa.ChunkedArray) -> SearchBounds | None:
    """The bounds to search these values by; None for floats, as bounds say nothing of NaN."""
    if pa.types.is_floating(values.type):
        return None
    distinct, null = pc.unique(values.drop_null()), bool(values.null_count)
    if len(distinct) > MANY:
        bounds = pc.min_max(distinct).as_py()
        return SearchBounds([bounds["min"]], [bounds["max"]], null, _is_exact(values.type))
    each = sorted(distinct.to_pylist())
    return SearchBounds(each, each, null, _is_exact(values.type))


def bounds_of_value(value: Any) -> SearchBounds | None:
    """The same for one value that is not NULL."""
    return None if isinstance(value, float) else SearchBounds([value], [value], null=False, exact=False)


def is_null(name: str) -> Any:
    """That a column has no value, as Iceberg's JSON has it."""
    return {"type": "is-null", "term": name}


def all_of(*conditions: Any) -> Any:
    """All of the conditions, as Iceberg's JSON has them; None where none is told."""
    told = [each for each in conditions if each is not None]
    return reduce(lambda a, b: {"type": "and", "left": a, "right": b}, told) if told else None


def any_of(*conditions: Any) -> Any:
    """One of the conditions, as Iceberg's JSON has them."""
    return reduce(lambda a, b: {"type": "or", "left": a, "right": b}, conditions)


def _is_exact(type_: pa.DataType) -> bool:
    """Whether Iceberg, Parquet and Python have one order of the values, and one text for each."""
    return pa.types.is_integer(type_) or pa.types.is_string(type_) or pa.types.is_date32(type_)


def _json_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value
