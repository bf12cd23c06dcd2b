"""Bounds of the values in a search. They show which files and row groups may have one of the values."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

# Up to this many values are searched for one by one in row groups. For more values, the range is used.
MANY: Final = 10_000
# Iceberg skips files by lists of up to this many values.
LISTED: Final = 200


@dataclass(frozen=True, slots=True)
class SearchBounds:
    """The values of a column that a search accepts, as ascending spans.

    `null` is true if NULL is one of them. Iceberg can skip files by `exact` values, which have the same
    string and order everywhere.
    """

    least: Sequence[Any]
    greatest: Sequence[Any]
    null: bool
    exact: bool

    def may_be_in(self, statistics: Any) -> bool:
        """Whether a row group with these statistics may have one of the values.

        True if there are no statistics.
        """
        if statistics is None or (self.null and statistics.null_count != 0):
            return True
        if not self.least:
            return False
        if type(statistics.min) is not type(self.least[0]):
            return True
        place = bisect_left(self.greatest, statistics.min)
        return place < len(self.least) and bool(self.least[place] <= statistics.max)

    def condition(self, name: str) -> Any:
        """The condition on a column that lets Iceberg skip files, in its JSON form, or None."""
        if not self.exact or not self.least:
            return None
        if self.least is self.greatest and len(self.least) <= LISTED:
            values = {"type": "in", "term": name, "values": [_json_value(value) for value in self.least]}
        else:
            lower = {"type": "gt-eq", "term": name, "value": _json_value(self.least[0])}
            values = all_of(lower, lower | {"type": "lt-eq", "value": _json_value(self.greatest[-1])})
        return any_of(is_null(name), values) if self.null else values


def search_bounds(values: pa.Array | pa.ChunkedArray) -> SearchBounds | None:
    """The bounds of these values, or None for floats, because bounds do not cover NaN."""
    if pa.types.is_floating(values.type):
        return None
    distinct, null = pc.unique(values.drop_null()), bool(values.null_count)
    if len(distinct) > MANY:
        bounds = pc.min_max(distinct).as_py()
        return SearchBounds([bounds["min"]], [bounds["max"]], null, _is_exact(values.type))
    ordered = sorted(distinct.to_pylist())
    return SearchBounds(ordered, ordered, null, _is_exact(values.type))


def bounds_of_value(value: Any) -> SearchBounds | None:
    """The bounds of one value that is not NULL, or None for a float."""
    return None if isinstance(value, float) else SearchBounds([value], [value], null=False, exact=False)


def is_null(name: str) -> Any:
    """The condition that a column is NULL, in Iceberg's JSON form."""
    return {"type": "is-null", "term": name}


def all_of(*conditions: Any) -> Any:
    """The conjunction of the conditions that are not None, in Iceberg's JSON form, or None."""
    present = [condition for condition in conditions if condition is not None]
    return reduce(lambda a, b: {"type": "and", "left": a, "right": b}, present) if present else None


def any_of(*conditions: Any) -> Any:
    """The disjunction of conditions, in Iceberg's JSON form."""
    return reduce(lambda a, b: {"type": "or", "left": a, "right": b}, conditions)


def _is_exact(type_: pa.DataType) -> bool:
    """Whether Iceberg, Parquet and Python agree on the order of the type's values and on their strings."""
    return pa.types.is_integer(type_) or pa.types.is_string(type_) or pa.types.is_date32(type_)


def _json_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value
