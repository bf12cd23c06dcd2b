"""Rows that are searched for by the values of columns: which files, row groups and rows may be such.

What a manifest tells of the values in a data file: which files cannot have a value that is looked for.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.instant import EPOCH
from backstory.stores.iceberg.search_bounds import SearchBounds, bounds_of_value, search_bounds
from backstory.stores.metadata.parquet_files import OF_INSTANTS, Field, Statistics, Values, bounds_of_instants
from backstory.stores.metadata.values import scalar

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

# Where a hash or a prefix of a value is partitioned by, only the same value's own partition may have it.
_OF_VALUES: Final = ("bucket", "truncate", "identity")


@dataclass(frozen=True, slots=True)
class ValueBounds:
    """The least and the greatest value of a column of a file, as statistics of a row group name them."""

    min: Any
    max: Any
    null_count: int | None


def bounds_of(file: "DataFile", field: Field) -> ValueBounds | None:
    """The bounds of a column; None where the manifest tells none that are read here.

    Those of texts and bytes may be cut off: the least is then a beginning, the greatest a beginning that is
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
    """A whole number; one that was an int before it was a long has four bytes."""
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
def _reader(told: str) -> Callable[[bytes], Any] | None:
    """How a bound of a type of Iceberg's is read; None where that is not known."""
    if not told.startswith("decimal("):
        return _READERS.get(told)
    scale = int(told.rstrip(")").rpartition(",")[2])
    return lambda bound: Decimal(f"{int.from_bytes(bound, 'big', signed=True)}E-{scale}")


@dataclass(frozen=True, slots=True)
class PartitionsOfValue:
    """The partitions, by the number of their spec and their values, in which a record's rows lie.

    `wanted` has for each spec the places of values in a partition, and the values that they must have.
    """

    wanted: Mapping[int, Sequence[tuple[int, Any]]]

    def may_be_in(self, partition: tuple[int, Sequence[Any]]) -> bool:
        """Whether rows of the record may lie in a partition."""
        spec, values = partition
        return all(values[place] == value for place, value in self.wanted.get(spec, ()))


def partitions_of(
    specs: Sequence[Mapping[str, Any]], fields: Sequence[Field], values: Mapping[str, Any]
) -> PartitionsOfValue:
    """Where the rows lie that have these values, by the specs of a table's metadata."""
    known = {each["id"]: (each["type"], values[each["name"]]) for each in fields if each["name"] in values}
    return PartitionsOfValue(
        {
            spec["spec-id"]: [
                (place, _transform(each["transform"], *known[each["source-id"]]))
                for place, each in enumerate(spec["fields"])
                if each["source-id"] in known
                and _is_transformable(each["transform"], known[each["source-id"]][0])
            ]
            for spec in specs
        }
    )


def _is_transformable(transform: str, type_: Any) -> bool:
    """Whether values of this type of Iceberg can be transformed here as the partitions' are."""
    return type_ in {"int", "long", "string"} and transform.partition("[")[0] in _OF_VALUES


def _transform(transform: str, type_: str, value: Any) -> Any:
    from pyiceberg.transforms import parse_transform
    from pyiceberg.types import LongType, StringType

    return parse_transform(transform).transform(StringType() if type_ == "string" else LongType())(value)


if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


class Search(Protocol):
    """What is searched for in a column."""

    @property
    def bounds(self) -> SearchBounds | None:
        """The values as bounds, by which files are skipped; None where bounds cannot decide."""

    def rows(self, values: Values) -> Values:
        """Which of the values are searched for; NULL counts as no."""


@dataclass(frozen=True, slots=True)
class EqualTo:
    """One value; NaN is NaN, and 0.0 is -0.0."""

    value: Any

    @property
    def bounds(self) -> SearchBounds | None:
        """The value, as bounds are compared with it."""
        return bounds_of_value(self.value)

    def rows(self, values: Values) -> Values:
        """Those that are equal."""
        if isinstance(self.value, float) and math.isnan(self.value):
            return pc.is_nan(values)
        return pc.equal(values, scalar(self.value, values.type))


@dataclass(frozen=True, slots=True)
class Between:
    """The values from `least` to `greatest`, both among them; with `null` NULL too. None is no border."""

    least: Any = None
    greatest: Any = None
    null: bool = False

    @property
    def bounds(self) -> SearchBounds | None:
        """The span; None where a border is missing whose type has no last value."""
        least, greatest = self.least, self.greatest
        if isinstance(greatest if least is None else least, datetime):
            zone = (greatest if least is None else least).tzinfo
            least = datetime.min.replace(tzinfo=zone) if least is None else least
            greatest = datetime.max.replace(tzinfo=zone) if greatest is None else greatest
        if least is None or greatest is None or isinstance(least, float):
            return None
        return SearchBounds([least], [greatest], null=self.null, exact=False)

    def rows(self, values: Values) -> Values:
        """Those that are in the span."""
        found: Values | None = None
        for border, compare in ((self.least, pc.greater_equal), (self.greatest, pc.less_equal)):
            if border is not None:
                inside = compare(values, scalar(border, values.type))
                found = inside if found is None else pc.and_(found, inside)
        if found is None:
            found = pc.is_valid(values)
        return pc.or_kleene(pc.is_null(values), found) if self.null else found


@dataclass(frozen=True, slots=True)
class OneOf:
    """Any of some values; NULL is none of them."""

    values: pa.Array | pa.ChunkedArray

    @property
    def bounds(self) -> SearchBounds | None:
        """The values, as bounds are compared with them."""
        return search_bounds(self.values)

    def rows(self, values: Values) -> Values:
        """Those that are one of them."""
        return pc.is_in(values, value_set=self.values.cast(values.type), skip_nulls=True)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Rows that have in one at least of these columns what is searched for there."""

    columns: Mapping[str, Search]


# Rows that have it in each of the columns, or in any of them.
Searches = Mapping[str, Search] | AnyOf


@dataclass(frozen=True, slots=True)
class RowSearch:
    """The rows that have what is searched for in these columns, called by the names in `fields`.

    `any_of` says whether one of the columns is enough.
    """

    columns: Mapping[str, Search]
    fields: Sequence[Field]
    bounds: Mapping[str, SearchBounds]
    partitions: "PartitionsOfValue"
    any_of: bool = False

    def may_be_in_file(self, file: "DataFile", partition: Any) -> bool:
        """Whether such rows may lie in a file, as its manifest tells of it."""
        if not self.partitions.may_be_in(partition):
            return False
        fields = {each["name"]: each for each in self.fields}
        return self._may_have(lambda name: bounds_of(file, fields[name]))

    def may_have(self, statistics: Statistics) -> bool:
        """Whether a row group of these statistics may have such rows."""
        types = {each["name"]: each["type"] for each in self.fields}

        def bounds_in(name: str) -> Any:
            found = statistics(name)
            plain = found is None or types[name] not in OF_INSTANTS
            return found if plain else bounds_of_instants(found, types[name])

        return self._may_have(bounds_in)

    def _may_have(self, bounds: Statistics) -> bool:
        enough = any if self.any_of else all
        return enough(
            name not in self.bounds or self.bounds[name].may_be_in(bounds(name)) for name in self.columns
        )

    def choose(self, rows: pa.Table) -> Values:
        """Which of the rows are such."""
        combine = pc.or_kleene if self.any_of else pc.and_
        return reduce(combine, (each.rows(rows[name]) for name, each in self.columns.items()))


def search_rows(told: Mapping[str, Any], fields: Sequence[Field], searches: Searches) -> RowSearch:
    """The search in a table of this metadata, whose columns were of these fields."""
    any_of = isinstance(searches, AnyOf)
    columns = searches.columns if isinstance(searches, AnyOf) else searches
    sure = {} if any_of else columns
    values = {name: each.value for name, each in sure.items() if isinstance(each, EqualTo)}
    partitions = partitions_of(told.get("partition-specs") or [], fields, values)
    asked = [each for each in fields if each["name"] in columns]
    bounds = {name: bounds for name, each in columns.items() if (bounds := each.bounds) is not None}
    return RowSearch(columns, asked, bounds, partitions, any_of)
