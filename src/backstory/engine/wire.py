"""The one form in which plans of Spark's tasks reach the driver: rows by kind, and sums.

A column of the form is shared by all kinds of rows that have a column of its type, so that most columns of a
row are not empty. Its name is a number: no column of a table has a name that Spark takes for it.
"""

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from backstory.model.places import FILE
from backstory.spark.versions import arrow_of
from backstory.strategies.part_plan import PartPlan, PlanSums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

KIND, SUMS = "kind", "sums"
# The number of the rows that hold the sums of a part.
SUM: Final = -1
ROWS_IN_BATCH: Final = 1 << 16


def with_numbered_files(schema: pa.Schema) -> pa.Schema:
    """The columns of rows in tasks, where files are numbers."""
    if FILE not in schema.names:
        return schema
    return schema.set(schema.get_field_index(FILE), pa.field(FILE, pa.int64()))


def names_by_type(types: Sequence[pa.DataType]) -> list[str]:
    """A name for each column by its type; two of one type have two names."""
    seen: Counter[str] = Counter()
    names = []
    for type_ in types:
        seen[str(type_)] += 1
        names.append(f"{type_} {seen[str(type_)]}")
    return names


@dataclass(frozen=True)
class Wire:
    """Rows of these kinds, each of which has its own columns."""

    kinds: Mapping[str, pa.Schema]

    @cached_property
    def _schemas(self) -> dict[str, pa.Schema]:
        return {kind: with_numbered_files(schema) for kind, schema in self.kinds.items()}

    @cached_property
    def _shared(self) -> dict[str, tuple[str, pa.DataType]]:
        """The names of shared columns, and their types, by type and number of the column."""
        both = {
            name: type_
            for schema in self._schemas.values()
            for name, type_ in zip(names_by_type(schema.types), schema.types, strict=True)
        }
        return {name: (f"c{place}", type_) for place, (name, type_) in enumerate(both.items())}

    def columns(self, kind: str) -> list[str]:
        """The shared columns of a kind's rows, in the order of its own."""
        return [self._shared[name][0] for name in names_by_type(self._schemas[kind].types)]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the form."""
        head = [(KIND, pa.int32()), (SUMS, pa.binary())]
        return pa.schema([*head, *self._shared.values()])

    @property
    def spark_schema(self) -> "StructType":
        """The same as Spark's."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.schema, prefer_timestamp_ntz=True)

    def encode(self, plan: PartPlan) -> Iterator[pa.RecordBatch]:
        """The plan of a part."""
        sums = PlanSums()
        sums.add(plan)
        for number, (kind, schema) in enumerate(self._schemas.items()):
            if (rows := plan.rows.get(kind)) is not None and len(rows):
                values = rows.select(schema.names).cast(schema).columns
                columns = dict(zip(self.columns(kind), values, strict=True))
                yield from self._batches(number, len(rows), columns)
        yield from self._batches(SUM, 1, {SUMS: pa.array([_packed(sums)], pa.binary())})

    def _batches(
        self, number: int, count: int, columns: Mapping[str, pa.ChunkedArray | pa.Array]
    ) -> Iterator[pa.RecordBatch]:
        there = {KIND: pa.repeat(pa.scalar(number, pa.int32()), count), **columns}
        values = [there.get(each.name, pa.nulls(count, each.type)) for each in self.schema]
        yield from pa.table(values, schema=self.schema).to_batches(max_chunksize=ROWS_IN_BATCH)

    def rows(self, answers: "DataFrame", kind: str) -> "DataFrame":
        """The rows of a kind, under their own names."""
        from pyspark.sql.functions import col

        number = [*self.kinds].index(kind)
        rows = answers.where(col(KIND) == number).select(*self.columns(kind))
        return rows.toDF(*self.kinds[kind].names)

    def sums(self, answers: "DataFrame") -> list[PlanSums]:
        """The sums of each part."""
        from pyspark.sql.functions import col

        packed = arrow_of(answers.where(col(KIND) == SUM).select(SUMS))
        return [_unpacked(each) for each in packed[SUMS].to_pylist()]


def _packed(sums: PlanSums) -> bytes:
    samples = {}
    for kind, rows in sums.samples.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        samples[kind] = sink.getvalue().to_pybytes()
    return pickle.dumps((dict(sums.counts), samples, dict(sums.greatest), dict(sums.added)))


def _unpacked(packed: bytes) -> PlanSums:
    counts, samples, greatest, added = pickle.loads(packed)  # noqa: S301 - written by a task of ours
    tables = {kind: pa.ipc.open_stream(each).read_all() for kind, each in samples.items()}
    return PlanSums(Counter(counts), tables, greatest, Counter(added))
