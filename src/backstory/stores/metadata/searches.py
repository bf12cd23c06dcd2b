"""Searches for rows by the values of columns: the files, row groups and rows that may match.

Files and row groups are skipped by the bounds and partitions in manifests and footers.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from functools import cache, cached_property, reduce
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
    widens,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


# Up to this many values are searched for one by one in row groups. For more values, the range is used.
MANY: Final = 10_000
# Up to this many values are searched for by their partitions.
LISTED: Final = 200


# With these partition transforms, a value is in only one partition of a spec.
_OF_VALUES: Final = ("bucket", "truncate", "identity")


INSTANT_BYTES: Final = 8


def bounds_of(file: "DataFile", field: Field) -> ValueBounds | None:
    """The bounds of a column, or None if the manifest lacks them or does not support the type.

    Bounds of strings and bytes may be truncated. The lower bound is then a prefix, and the upper bound is
    greater than all values. If all values are NULL, both bounds are None.
    """
    read, number = _reader(str(field["type"])), field["id"]
    nulls = (file.null_value_counts or {}).get(number)
    if nulls is not None and nulls == file.record_count:
        return ValueBounds(None, None, nulls)
    least, most = ((bounds or {}).get(number) for bounds in (file.lower_bounds, file.upper_bounds))
    if read is None or least is None or most is None:
        return None
    try:
        return ValueBounds(read(least), read(most), nulls)
    except (ValueError, OverflowError):
        return None


def _whole(bound: bytes) -> int:
    """The integer in a bound. A long has four bytes if it was written when the column was an int."""
    return int.from_bytes(bound, "little", signed=True)


def _micros(bound: bytes) -> timedelta:
    """The time since 1970 in a bound. Raises ValueError for days, written before a date became an instant."""
    if len(bound) != INSTANT_BYTES:
        raise ValueError(f"{len(bound)} bytes are no instant")
    return timedelta(microseconds=_whole(bound))


_READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "int": _whole,
    "long": _whole,
    "string": bytes.decode,
    "binary": bytes,
    "boolean": lambda bound: bound != b"\x00",
    "date": lambda bound: date.fromordinal(EPOCH.toordinal() + _whole(bound)),
    "timestamptz": lambda bound: EPOCH + _micros(bound),
    "timestamp": lambda bound: EPOCH.replace(tzinfo=None) + _micros(bound),
}


@cache
def _reader(type_: str) -> Callable[[bytes], Any] | None:
    """A function that reads a bound of an Iceberg type, or None for an unsupported type."""
    if not type_.startswith("decimal("):
        return _READERS.get(type_)
    scale = int(type_.rstrip(")").rpartition(",")[2])
    return lambda bound: Decimal(f"{int.from_bytes(bound, 'big', signed=True)}E-{scale}")


# For each spec id, the indexes of values in a partition that may contain the rows, and the possible values.
Partitions = Mapping[int, Sequence[tuple[int, Collection[Any]]]]


def partitions_of(
    specs: Iterable[Mapping[str, Any]], fields: Iterable[Field], values: Mapping[str, Collection[Any]]
) -> Partitions:
    """The partitions that may have rows with one of these values in each column, by the table's specs."""
    from pyiceberg.transforms import parse_transform
    from pyiceberg.types import LongType, StringType

    known = {
        field["id"]: (StringType() if field["type"] == "string" else LongType(), values[field["name"]])
        for field in fields
        if field["name"] in values and field["type"] in ("int", "long", "string")
    }
    partitions: dict[int, list[tuple[int, Collection[Any]]]] = {}
    for spec in specs:
        partitions[spec["spec-id"]] = []
        for place, part in enumerate(spec["fields"]):
            if part["source-id"] in known and part["transform"].partition("[")[0] in _OF_VALUES:
                type_, column_values = known[part["source-id"]]
                transform = parse_transform(part["transform"]).transform(type_)
                partitions[spec["spec-id"]].append((place, {*map(transform, column_values)}))
    return partitions


def may_be_in_partition(wanted: Partitions, partition: tuple[int, Sequence[Any]]) -> bool:
    """Whether a partition, given by its spec id and values, may contain the rows."""
    spec, values = partition
    return all(values[place] in possible for place, possible in wanted.get(spec, ()))


class Search(Protocol):
    """A search in a column."""

    def may_match(self, bounds: Any) -> bool:
        """Whether rows with these bounds of the column may match.

        `bounds` is None if the bounds are unknown. If all values are NULL, `min` and `max` are None.
        """

    def rows(self, values: Values) -> Values:
        """A mask of the matching values."""


def _is_bounded(bounds: Any, value: Any) -> bool:
    """Whether bounds can exclude a value. They cannot for a float, because they do not cover NaN."""
    return type(bounds.min) is type(value) and not isinstance(value, float)


@dataclass(frozen=True, slots=True)
class EqualTo:
    """A search for one value. NaN equals NaN, and 0.0 equals -0.0. NULL does not match."""

    value: Any

    def may_match(self, bounds: Any) -> bool:
        """Whether the value is within the bounds."""
        if bounds is None or bounds.min is None:
            return bounds is None
        return not _is_bounded(bounds, self.value) or bool(bounds.min <= self.value <= bounds.max)

    def rows(self, values: Values) -> Values:
        """A mask of the equal values."""
        if isinstance(self.value, float) and math.isnan(self.value):
            return pc.is_nan(values)
        return pc.equal(values, pa.scalar(self.value, values.type))


@dataclass(frozen=True, slots=True)
class Between:
    """A search for values from `least` to `greatest`, inclusive. None is no limit. `null` includes NULL."""

    least: Any = None
    greatest: Any = None
    null: bool = False

    def may_match(self, bounds: Any) -> bool:
        """Whether the span and the bounds overlap."""
        if bounds is None or (self.null and bounds.null_count != 0):
            return True
        if bounds.min is None:
            return False
        is_before = _is_bounded(bounds, self.least) and bounds.max < self.least
        is_after = _is_bounded(bounds, self.greatest) and bounds.min > self.greatest
        return not is_before and not is_after

    def rows(self, values: Values) -> Values:
        """A mask of the values in the span."""
        mask: Values | None = None
        for border, compare in ((self.least, pc.greater_equal), (self.greatest, pc.less_equal)):
            if border is not None:
                inside = compare(values, pa.scalar(border, values.type))
                mask = inside if mask is None else pc.and_(mask, inside)
        if mask is None:
            mask = pc.is_valid(values)
        return pc.or_kleene(pc.is_null(values), mask) if self.null else mask


@dataclass(frozen=True)
class OneOf:
    """A search for any of several values, which may include NULL."""

    values: pa.Array | pa.ChunkedArray

    @cached_property
    def _spans(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """The starts and ends of the spans that contain the values, in ascending order."""
        distinct = pc.unique(self.values.drop_null())
        if len(distinct) > MANY:
            span = pc.min_max(distinct).as_py()
            return [span["min"]], [span["max"]]
        ordered = sorted(distinct.to_pylist())
        return ordered, ordered

    def may_match(self, bounds: Any) -> bool:
        """Whether one of the values is within the bounds."""
        if bounds is None or (self.values.null_count and bounds.null_count != 0):
            return True
        starts, ends = self._spans
        if bounds.min is None or not starts:
            return False
        if not _is_bounded(bounds, starts[0]):
            return True
        place = bisect_left(ends, bounds.min)
        return place < len(starts) and bool(starts[place] <= bounds.max)

    def rows(self, values: Values) -> Values:
        """A mask of the values that are among the wanted values, whose type may be wider."""
        if widens(values.type, self.values.type):
            values = values.cast(self.values.type)
        return pc.is_in(values, value_set=self.values.cast(values.type))


@dataclass(frozen=True, slots=True)
class IsNull:
    """A search for NULL."""

    def may_match(self, bounds: Any) -> bool:
        """Whether the column may contain NULL."""
        return bounds is None or bounds.null_count != 0

    def rows(self, values: Values) -> Values:
        """A mask of the NULL values."""
        return pc.is_null(values)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A search for rows that match in at least one of these columns."""

    columns: Mapping[str, Search]


# Rows that match in each of the columns, or in any of them.
Searches = Mapping[str, Search] | AnyOf


@dataclass(frozen=True, slots=True)
class RowSearch:
    """A search for rows that match in each of these columns, or in any of them. `fields` are by name."""

    columns: Mapping[str, Search]
    fields: Mapping[str, Field]
    partitions: Partitions
    any_of: bool = False

    def may_be_in_file(self, file: "DataFile", partition: Any) -> bool:
        """Whether a file may contain matching rows, according to its manifest."""
        if not may_be_in_partition(self.partitions, partition):
            return False
        return self._may_match(lambda name: bounds_of(file, self.fields[name]))

    def may_have(self, statistics: Statistics) -> bool:
        """Whether a row group with these statistics may contain matching rows."""

        def bounds_in(name: str) -> Any:
            bounds, type_ = statistics(name), self.fields[name]["type"]
            return bounds if bounds is None or type_ not in OF_INSTANTS else bounds_of_instants(bounds, type_)

        return self._may_match(bounds_in)

    def _may_match(self, bounds: Statistics) -> bool:
        enough = any if self.any_of else all
        return enough(search.may_match(bounds(name)) for name, search in self.columns.items())

    def choose(self, rows: pa.Table) -> Values:
        """A mask of the matching rows."""
        combine = pc.or_kleene if self.any_of else pc.and_
        return reduce(combine, (search.rows(_column(rows, name)) for name, search in self.columns.items()))


def _column(rows: pa.Table, name: str) -> Values:
    """The values of a column, or of the part of a struct with a path."""
    if name in rows.column_names:
        return rows[name]
    struct, *parts = name.split(".")
    return pc.struct_field(rows[struct], parts)


def search_rows(specs: Iterable[Mapping[str, Any]], fields: Sequence[Field], searches: Searches) -> RowSearch:
    """A search in a table with these partition specs and fields. `a.b` names a part of a struct."""
    any_of = isinstance(searches, AnyOf)
    columns = searches.columns if isinstance(searches, AnyOf) else searches
    values: dict[str, Collection[Any]] = {}
    for name, search in ({} if any_of else columns).items():
        if isinstance(search, EqualTo):
            values[name] = [search.value]
        elif isinstance(search, OneOf) and len(search.values) <= LISTED:
            values[name] = search.values.to_pylist()
    partitions = partitions_of(specs, fields, values)
    return RowSearch(columns, {name: _field(fields, name) for name in columns}, partitions, any_of)


def _field(fields: Sequence[Field], name: str) -> Field:
    """The field with a name, or the part of a struct with a path."""
    by_name = {field["name"]: field for field in fields}
    if name in by_name:
        return by_name[name]
    struct, _, part = name.partition(".")
    return _field(by_name[struct]["type"]["fields"], part)
