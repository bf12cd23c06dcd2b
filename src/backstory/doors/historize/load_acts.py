"""What the plan of a bucket of records decides, as rows of Spark's: those that go and come, and counts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from backstory.formats.rows import arrow_type
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.schema import Shape
from backstory.model.types import ColumnType
from backstory.stores.iceberg.frames import side_rows
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.workers import carrying
from backstory.strategies.scd2.load import plan_load
from backstory.strategies.scd2.parts import (
    BASE_GOES,
    BEGINS,
    CAME,
    COMES,
    ENDS,
    FLAGGED,
    GOES,
    WENT,
    LoadPart,
    sum_of,
)
from backstory.strategies.scd2.terms import EARLIER, LoadTerms

COUNTED: Final = "counted"
# Columns of the tables are numbered, so that no name of theirs meets one of these.
_HEAD: Final = {
    "kind": pa.string(),
    "counts": pa.string(),
    "file": pa.int64(),
    "position": pa.int64(),
    "id": pa.int64(),
}
_ACT: Final = "kind string, counts string, file bigint, position bigint, id bigint"
OF_BASE, OF_HISTORY, PLACES = (COMES, FLAGGED, CAME, WENT), (ENDS, BEGINS), (GOES, BASE_GOES)


@dataclass(frozen=True, slots=True)
class Acts:
    """How acts are written: the columns of base and history, and each side of a bucket.

    `sides` have the columns that they are in a bucket's rows, and their own names and types.
    """

    base: Shape
    hist: Shape
    sides: Mapping[str, tuple[Sequence[str], pa.Schema]]

    def numbered(self, kind: str) -> dict[str, str]:
        """The columns of the table that rows of a kind are of, by their names in acts."""
        shape, letter = (self.base, "b") if kind in OF_BASE else (self.hist, "h")
        return {f"{letter}{number}": each.name for number, each in enumerate(shape.columns)}

    @property
    def _columns(self) -> dict[str, ColumnType]:
        sides = (("b", self.base), ("h", self.hist))
        return {
            f"{letter}{number}": each.type
            for letter, shape in sides
            for number, each in enumerate(shape.columns)
        }

    @property
    def schema(self) -> str:
        """The columns of acts, as Spark's."""
        return ", ".join([_ACT, *(f"{name} {spark_type(type_)}" for name, type_ in self._columns.items())])

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The same as Arrow's."""
        return {**_HEAD, **{name: arrow_type(type_) for name, type_ in self._columns.items()}}


def plan_bucket(terms: LoadTerms, acts: Acts, rows: pa.Table) -> pa.Table:
    """The acts of a bucket of records, all of whose sides are in these rows."""
    sides = {
        side: side_rows(rows, side, shared, schema.names).cast(schema)
        for side, (shared, schema) in acts.sides.items()
    }
    sides.setdefault(EARLIER, pa.schema([(terms.key, pa.string())]).empty_table())
    with carrying():
        return _written(acts, plan_load(terms, sides))


def _written(acts: Acts, part: LoadPart) -> pa.Table:
    counts = json.dumps([dict(part.counts), {kind: list(keys) for kind, keys in part.keys.items()}])
    tables = [_as_acts(acts, {"kind": COUNTED, "counts": counts}, 1)]
    for kind, rows in part.rows.items():
        if kind in PLACES:
            values = {"kind": kind, "file": rows[FILE], "position": rows[POSITION]}
        elif kind in OF_BASE or kind in OF_HISTORY:
            there = set(rows.column_names)
            ids = {"id": rows[ROW_ID]} if ROW_ID in there else {}
            named = {number: rows[name] for number, name in acts.numbered(kind).items() if name in there}
            values = {"kind": kind, **ids, **named}
        else:
            continue
        tables.append(_as_acts(acts, values, len(rows)))
    return pa.concat_tables(tables)


def _as_acts(acts: Acts, values: Mapping[str, Any], count: int) -> pa.Table:
    """Rows with all columns of acts; a value that is not one for each row is that of all."""
    columns = []
    for name, type_ in acts.types.items():
        value = values.get(name)
        if value is None:
            value = pa.nulls(count, type_)
        elif not isinstance(value, pa.ChunkedArray):
            value = pa.repeat(pa.scalar(value, type_), count)
        columns.append(value.cast(type_))
    return pa.table(columns, names=list(acts.types))


def sums_of(counts: Iterable[str]) -> LoadPart:
    """The counts and keys of all buckets."""
    return sum_of(LoadPart({}, *json.loads(each)) for each in counts)
