"""Rows that are searched for by the values of columns: which files, row groups and rows may be such."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from backstory.stores.iceberg.search_bounds import SearchBounds, bounds_of_value, search_bounds
from backstory.stores.metadata.bounds import bounds_of, partitions_of
from backstory.stores.metadata.columns import Values
from backstory.stores.metadata.row_groups import OF_INSTANTS, Field, Statistics, bounds_of_instants
from backstory.stores.metadata.values import scalar

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from backstory.stores.metadata.bounds import PartitionsOfValue


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

    def chosen(self, rows: pa.Table) -> Values:
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
