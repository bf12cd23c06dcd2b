"""Searches for rows by the values of columns: the files, row groups and rows that may match.

Files and row groups are skipped by the bounds and partitions in manifests and footers.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.instant import EPOCH
from backstory.stores.metadata.parquet_files import (
    OF_INSTANTS,
    Field,
    Statistics,
    ValueBounds,
    Values,
    bounds_of_instants,
)
from backstory.stores.metadata.values import scalar

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


# Up to this many values are searched for one by one in row groups. For more values, the range is used.
MANY: Final = 10_000
# Iceberg skips files by lists of up to this many values.
LISTED: Final = 200


@dataclass(frozen=True, slots=True)
class SearchBounds:
    """The values of a column that a search accepts, as ascending spans.

    `null` is true if NULL is one of them. Iceberg can skip files by `exact` values, whose string and order
    are the same everywhere.
    """

    least: Sequence[Any]
    greatest: Sequence[Any]
    null: bool
    exact: bool

    def may_be_in(self, statistics: Any) -> bool:
        """Whether a row group with these statistics, or without statistics, may have one of the values."""
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


# With these partition transforms, a value is in only one partition of a spec.
_OF_VALUES: Final = ("bucket", "truncate", "identity")


def bounds_of(file: "DataFile", field: Field) -> ValueBounds | None:
    """The bounds of a column, or None if the manifest lacks them or does not support the type.

    Bounds of strings and bytes may be truncated. The lower bound is then a prefix, and the upper bound is
    greater than all values.
    """
    read, number = _reader(str(field["type"])), field["id"]
    lower, upper = file.lower_bounds, file.upper_bounds
    if lower is None or upper is None:
        return None
    least, most = lower.get(number), upper.get(number)
    if read is None or least is None or most is None:
        return None
    try:
        return ValueBounds(read(least), read(most), (file.null_value_counts or {}).get(field["id"]))
    except (ValueError, OverflowError):
        return None


def _whole(bound: bytes) -> int:
    """An integer. If it was written as int before the column became long, it has four bytes."""
    return int.from_bytes(bound, "little", signed=True)


_READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "int": _whole,
    "long": _whole,
    "string": bytes.decode,
    "binary": bytes,
    "boolean": lambda bound: bound != b"\x00",
    "date": lambda bound: date.fromordinal(EPOCH.toordinal() + _whole(bound)),
    "timestamptz": lambda bound: EPOCH + timedelta(microseconds=_whole(bound)),
    "timestamp": lambda bound: EPOCH.replace(tzinfo=None) + timedelta(microseconds=_whole(bound)),
}


@cache
def _reader(type_: str) -> Callable[[bytes], Any] | None:
    """A function that reads a bound of an Iceberg type, or None for an unsupported type."""
    if not type_.startswith("decimal("):
        return _READERS.get(type_)
    scale = int(type_.rstrip(")").rpartition(",")[2])
    return lambda bound: Decimal(f"{int.from_bytes(bound, 'big', signed=True)}E-{scale}")


# For each spec id, the indexes of values in a partition that may contain a record's rows, and these values.
Partitions = Mapping[int, Sequence[tuple[int, Any]]]


def partitions_of(
    specs: Sequence[Mapping[str, Any]], fields: Sequence[Field], values: Mapping[str, Any]
) -> Partitions:
    """The partitions of rows with these values, according to the specs in a table's metadata."""
    from pyiceberg.transforms import parse_transform
    from pyiceberg.types import LongType, StringType

    known = {
        field["id"]: (StringType() if field["type"] == "string" else LongType(), values[field["name"]])
        for field in fields
        if field["name"] in values and field["type"] in ("int", "long", "string")
    }
    partitions: dict[int, list[tuple[int, Any]]] = {}
    for spec in specs:
        partitions[spec["spec-id"]] = []
        for place, part in enumerate(spec["fields"]):
            if part["source-id"] in known and part["transform"].partition("[")[0] in _OF_VALUES:
                type_, value = known[part["source-id"]]
                value_there = parse_transform(part["transform"]).transform(type_)(value)
                partitions[spec["spec-id"]].append((place, value_there))
    return partitions


def may_be_in_partition(wanted: Partitions, partition: tuple[int, Sequence[Any]]) -> bool:
    """Whether a partition, given by its spec id and values, may contain rows of the record."""
    spec, values = partition
    return all(values[place] == value for place, value in wanted.get(spec, ()))


class Search(Protocol):
    """A search in a column."""

    @property
    def bounds(self) -> SearchBounds | None:
        """The wanted values as bounds, which exclude files, or None if bounds cannot decide."""

    def rows(self, values: Values) -> Values:
        """A mask of the matching values. NULL does not match."""


@dataclass(frozen=True, slots=True)
class EqualTo:
    """One value. NaN equals NaN, and 0.0 equals -0.0."""

    value: Any

    @property
    def bounds(self) -> SearchBounds | None:
        """The value as bounds, or None if bounds cannot decide."""
        return bounds_of_value(self.value)

    def rows(self, values: Values) -> Values:
        """A mask of the equal values."""
        if isinstance(self.value, float) and math.isnan(self.value):
            return pc.is_nan(values)
        return pc.equal(values, scalar(self.value, values.type))


@dataclass(frozen=True, slots=True)
class Between:
    """The values from `least` to `greatest`, inclusive. None means no limit. `null` includes NULL."""

    least: Any = None
    greatest: Any = None
    null: bool = False

    @property
    def bounds(self) -> SearchBounds | None:
        """The span as bounds, or None if a limit is missing and the type has no last value."""
        least, greatest = self.least, self.greatest
        if isinstance(greatest if least is None else least, datetime):
            zone = (greatest if least is None else least).tzinfo
            least = datetime.min.replace(tzinfo=zone) if least is None else least
            greatest = datetime.max.replace(tzinfo=zone) if greatest is None else greatest
        if least is None or greatest is None or isinstance(least, float):
            return None
        return SearchBounds([least], [greatest], null=self.null, exact=False)

    def rows(self, values: Values) -> Values:
        """A mask of the values in the span."""
        mask: Values | None = None
        for border, compare in ((self.least, pc.greater_equal), (self.greatest, pc.less_equal)):
            if border is not None:
                inside = compare(values, scalar(border, values.type))
                mask = inside if mask is None else pc.and_(mask, inside)
        if mask is None:
            mask = pc.is_valid(values)
        return pc.or_kleene(pc.is_null(values), mask) if self.null else mask


@dataclass(frozen=True, slots=True)
class OneOf:
    """Any of several values. NULL does not match."""

    values: pa.Array | pa.ChunkedArray

    @property
    def bounds(self) -> SearchBounds | None:
        """The values as bounds, or None if bounds cannot decide."""
        return search_bounds(self.values)

    def rows(self, values: Values) -> Values:
        """A mask of the values that are among the wanted values."""
        return pc.is_in(values, value_set=self.values.cast(values.type), skip_nulls=True)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Rows that match in at least one of these columns."""

    columns: Mapping[str, Search]


# Rows that match in each of the columns, or in any of them.
Searches = Mapping[str, Search] | AnyOf


@dataclass(frozen=True, slots=True)
class RowSearch:
    """A search for rows that match in these columns, which have the names in `fields`.

    If `any_of` is true, a match in one column is enough.
    """

    columns: Mapping[str, Search]
    fields: Sequence[Field]
    bounds: Mapping[str, SearchBounds]
    partitions: Partitions
    any_of: bool = False

    def may_be_in_file(self, file: "DataFile", partition: Any) -> bool:
        """Whether a file may contain matching rows, according to its manifest."""
        if not may_be_in_partition(self.partitions, partition):
            return False
        fields = {field["name"]: field for field in self.fields}
        return self._may_have(lambda name: bounds_of(file, fields[name]))

    def may_have(self, statistics: Statistics) -> bool:
        """Whether a row group with these statistics may contain matching rows."""
        types = {field["name"]: field["type"] for field in self.fields}

        def bounds_in(name: str) -> Any:
            bounds = statistics(name)
            plain = bounds is None or types[name] not in OF_INSTANTS
            return bounds if plain else bounds_of_instants(bounds, types[name])

        return self._may_have(bounds_in)

    def _may_have(self, bounds: Statistics) -> bool:
        enough = any if self.any_of else all
        return enough(
            name not in self.bounds or self.bounds[name].may_be_in(bounds(name)) for name in self.columns
        )

    def choose(self, rows: pa.Table) -> Values:
        """A mask of the matching rows."""
        combine = pc.or_kleene if self.any_of else pc.and_
        return reduce(combine, (search.rows(rows[name]) for name, search in self.columns.items()))


def search_rows(metadata: Mapping[str, Any], fields: Sequence[Field], searches: Searches) -> RowSearch:
    """A search in a table with this metadata, in columns with these fields."""
    any_of = isinstance(searches, AnyOf)
    columns = searches.columns if isinstance(searches, AnyOf) else searches
    sure = {} if any_of else columns
    values = {name: search.value for name, search in sure.items() if isinstance(search, EqualTo)}
    partitions = partitions_of(metadata.get("partition-specs") or [], fields, values)
    searched = [field for field in fields if field["name"] in columns]
    bounds = {name: bounds for name, search in columns.items() if (bounds := search.bounds) is not None}
    return RowSearch(columns, searched, bounds, partitions, any_of)
