"""Rows that are searched for by the values of columns: which files, row groups and rows may be such."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from backstory.stores.iceberg.search_bounds import SearchBounds, bounds_of_value
from backstory.stores.metadata.bounds import bounds_of, partitions_of
from backstory.stores.metadata.columns import Values
from backstory.stores.metadata.row_groups import Field, Statistics
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
class UpTo:
    """NULL, and all values up to one; `least` is the least of them."""

    least: Any
    greatest: Any

    @property
    def bounds(self) -> SearchBounds | None:
        """The span."""
        return SearchBounds([self.least], [self.greatest], null=True, exact=False)

    def rows(self, values: Values) -> Values:
        """Those that are NULL or in the span."""
        return pc.or_kleene(pc.is_null(values), pc.less_equal(values, scalar(self.greatest, values.type)))


@dataclass(frozen=True, slots=True)
class RowSearch:
    """The rows that have what is searched for in each of these columns, called by the names in `fields`."""

    columns: Mapping[str, Search]
    fields: Sequence[Field]
    bounded: Sequence[tuple[Field, SearchBounds]]
    partitions: "PartitionsOfValue"

    def may_be_in_file(self, file: "DataFile", partition: Any) -> bool:
        """Whether such rows may lie in a file, as its manifest tells of it."""
        if not self.partitions.may_be_in(partition):
            return False
        return all(sought.may_be_in(bounds_of(file, each)) for each, sought in self.bounded)

    def may_have(self, statistics: Statistics) -> bool:
        """Whether a row group of these statistics may have such rows."""
        return all(sought.may_be_in(statistics(each["name"])) for each, sought in self.bounded)

    def chosen(self, rows: pa.Table) -> Values:
        """Which of the rows are such."""
        return reduce(pc.and_, (each.rows(rows[name]) for name, each in self.columns.items()))


def search_rows(told: Mapping[str, Any], fields: Sequence[Field], columns: Mapping[str, Search]) -> RowSearch:
    """The search in a table of this metadata, whose columns were of these fields."""
    values = {name: each.value for name, each in columns.items() if isinstance(each, EqualTo)}
    partitions = partitions_of(told.get("partition-specs") or [], fields, values)
    asked = [each for each in fields if each["name"] in columns]
    looked_for = ((each, columns[each["name"]].bounds) for each in asked)
    bounded = [(each, sought) for each, sought in looked_for if sought is not None]
    return RowSearch(columns, asked, bounded, partitions)
