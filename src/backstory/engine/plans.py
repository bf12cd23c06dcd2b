"""The sides of a plan, which a door passes to the runner, their parts, and the result of the plan.

If the driver can hold all rows, they are one part; otherwise parts by key are spilled. A large delivery into
an empty table is divided in the order of its rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

import numpy as np
import pyarrow as pa
import structlog

from backstory.engine.row_buffers import Spill, drain
from backstory.formats.memory import Memory, MemoryLease, TooLarge, typed_size
from backstory.model.change import RowBatches
from backstory.model.table import TableName
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.positions import positions_by_path, positions_of
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.port import Store, StoredTable
from backstory.stores.table_files import read_ahead
from backstory.strategies.keys import key_numbers, key_parts
from backstory.strategies.part_plan import PartPlan, PlanSums, Whole, as_they_are

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backstory.engine.sift import SiftTerms

# A function that returns some of the rows of tables, which must be all rows of a side in their order.
KeepRows = Callable[[Iterable[pa.Table]], Iterator[pa.Table]]
PARTS: Final = 16
# Three levels of parts are enough to fill a disk, unless most rows have the same key.
DEEPEST: Final = 3
LOG = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SideRows:
    """The rows of a side, split across several tables. Each call of `tables` reads them again."""

    schema: pa.Schema
    tables: Callable[[], Iterable[pa.Table]]


def parts_by_key(
    sides: Mapping[str, SideRows],
    key: Sequence[str],
    lease: MemoryLease,
    *,
    spills: bool = True,
    spread: bool = False,
    depth: int = 0,
) -> Iterator[Mapping[str, pa.Table]]:
    """The rows of the sides in one or more parts.

    All rows of a key are in the same part. Bytes are counted while rows are read. Rows that exceed the lease
    are spilled; with `spread` all rows are spilled. A part's rows are released when the next part is
    requested. `depth` is the number of earlier divisions. Raises TooLarge if a part of the deepest level is
    too large. Without `spills`, also raises TooLarge if the lease cannot hold all rows.
    """
    tables_by_side: dict[str, list[pa.Table]] = {name: [] for name in sides}
    reading = {name: iter(side.tables()) for name, side in sides.items()}
    try:
        if not spread and _hold(reading, tables_by_side, lease):
            yield {
                name: pa.concat_tables(
                    [side.schema.empty_table(), *tables_by_side.pop(name)]
                ).unify_dictionaries()
                for name, side in sides.items()
            }
            return
    finally:
        for name in sides:
            lease.hold(name, 0)
    if depth == DEEPEST or (depth == 0 and not spills):
        raise TooLarge
    with ExitStack() as stack:
        spill = Spill(stack)
        for name, tables in reading.items():
            for table in drain(tables_by_side[name], tables):
                _spread(spill, name, table, key, depth)
        if depth == 0:
            LOG.info("more rows than driver-memory holds: planned in parts", parts=PARTS)
        for part in range(PARTS):
            part_sides = {
                name: SideRows(side.schema, partial(spill.rows, (name, part))) for name, side in sides.items()
            }
            yield from parts_by_key(part_sides, key, lease, depth=depth + 1)
            for name in sides:
                spill.drop((name, part))


def _hold(
    reading: Mapping[str, Iterator[pa.Table]],
    tables_by_side: Mapping[str, list[pa.Table]],
    lease: MemoryLease,
) -> bool:
    """Read the sides until the lease is full. Returns whether the lease can hold all rows."""
    for name, tables in reading.items():
        size = 0
        for table in tables:
            tables_by_side[name].append(table)
            size += table.nbytes
            try:
                lease.hold(name, size)
            except TooLarge:
                return False
    return True


def _spread(spill: Spill, name: str, rows: pa.Table, key: Sequence[str], depth: int) -> None:
    """Spill rows to the parts of their keys, in their order."""
    parts = key_parts(rows, key, PARTS, salt=depth)
    order = np.argsort(parts, kind="stable")
    ends = np.searchsorted(parts[order], np.arange(PARTS + 1))
    sorted_rows = rows.take(pa.array(order))
    for part in range(PARTS):
        spill.put((name, part), sorted_rows.slice(ends[part], ends[part + 1] - ends[part]))


@dataclass(frozen=True, slots=True)
class LocalSide:
    """A side's rows that the driver reads from files or memory.

    Reading may raise Unreadable. `rows` may lack columns; `whole` adds them to some of the rows. `columns`
    returns all rows with only the named columns, in the same order; a large side must have it to be sifted.
    `select` returns the rows that a function keeps; it is set if columns are computed. `is_empty` is true
    only if nothing is stored.
    """

    rows: SideRows
    whole: Whole = as_they_are
    columns: Callable[[Sequence[str]], SideRows] | None = None
    select: Callable[[KeepRows], SideRows] | None = None
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class Side:
    """The rows of one side of a plan.

    `frame` returns a frame with the columns of `schema`, in their order. `local` returns the rows without
    Spark, or None if only Spark reads them. The argument of `local` is the side that this side meets. `size`
    is the memory in bytes that the frame's rows may need, or None to estimate it from the frame's plan.
    `count` is the approximate number of rows, or None if Spark must count them. `meets` names an earlier
    side: only rows whose key is in that side are planned. `repeatable` is true if the frame has the same rows
    whenever it is read, at little cost.
    """

    schema: pa.Schema
    frame: "Callable[[], DataFrame]"
    local: Callable[[MemoryLease, LocalSide | None], LocalSide | None] = lambda *_: None
    size: int | None = None
    count: int | None = None
    meets: str | None = None
    repeatable: bool = False


def columnar_side(
    schema: pa.Schema, read: Callable[[pa.Schema], Iterable[pa.Table]], *, is_empty: bool = False
) -> LocalSide:
    """A side whose columns can be read separately. `read` returns the rows in some of the columns."""

    def columns(names: Sequence[str]) -> SideRows:
        part = pa.schema([field for field in schema if field.name in names])
        return SideRows(part, partial(read, part))

    return LocalSide(columns(schema.names), columns=columns, is_empty=is_empty)


def empty_side(schema: pa.Schema) -> LocalSide:
    """A side without rows."""
    return columnar_side(schema, lambda _: (), is_empty=True)


# The number of steps whose rows may be in memory: rows read ahead, and rows made from them.
STEPS_HELD: Final = 16


class KeyInTwoParts(Exception):
    """Two parts had rows of the same key."""


@contextmanager
def parts_in_order(
    key: Sequence[str], sides: Mapping[str, LocalSide], memory: Memory
) -> Iterator[Iterator[Mapping[str, pa.Table]]]:
    """The rows of the first side, read once, in parts that fit into memory.

    The other sides are empty. Iterating raises KeyInTwoParts at the end if two parts have the same key, and
    TooLarge if the memory cannot hold a number for each key.
    """
    (name, delivered), *others = sides.items()
    empty_sides = {other: side.rows.schema.empty_table() for other, side in others}
    width = sum(typed_size(1, side.rows.schema.types, 0) for side in sides.values())
    count = max(1, memory.most // STEPS_HELD // width)
    with memory.lease() as lease, ThreadPoolExecutor(1) as pool:
        tables = (
            table.slice(first, count)
            for table in delivered.rows.tables()
            for first in range(0, len(table), count)
        )
        parts = ({name: rows, **empty_sides} for rows in _require_keys_once(tables, key, lease))
        yield read_ahead(pool, [lambda: parts], 1)


def _require_keys_once(
    tables: Iterator[pa.Table], key: Sequence[str], lease: MemoryLease
) -> Iterator[pa.Table]:
    numbers, size = [np.zeros(0, np.uint64)], 0
    for rows in tables:
        numbers.append(np.unique(key_numbers(rows, key)))
        lease.hold("numbers of keys", sum(part.nbytes for part in numbers))
        before, size = size, rows.nbytes
        lease.hold("parts", before + size)
        yield rows
    if len(numbers) > 2:  # noqa: PLR2004
        LOG.info("more rows than a step: planned in their order", steps=len(numbers) - 1)
    every = np.sort(np.concatenate(numbers))
    if (every[1:] == every[:-1]).any():
        raise KeyInTwoParts


RowsToWrite: TypeAlias = "pa.Table | RowBatches | DataFrame | None"


def join_rows(store: Store, *rows: RowsToWrite) -> Any:
    """Concatenate rows with the same columns. Returns None if there are no rows."""
    nonempty: list[Any] = [
        one for one in rows if one is not None and not (isinstance(one, pa.Table) and not len(one))
    ]
    if not nonempty:
        return None
    if all(isinstance(one, pa.Table) for one in nonempty):
        return pa.concat_tables(nonempty)
    if all(isinstance(one, pa.Table | RowBatches) for one in nonempty):
        return RowBatches(lambda: chain.from_iterable(map(tables_of, nonempty)))
    assert isinstance(store, IcebergStore)
    frames = [frame_of(store, one) if isinstance(one, pa.Table) else one for one in nonempty]
    return reduce(lambda one, other: one.unionByName(other), frames)


def tables_of(rows: pa.Table | RowBatches) -> Iterable[pa.Table]:
    """The driver's rows as one or more tables."""
    return rows.tables() if isinstance(rows, RowBatches) else [rows]


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """A delivery to one table, ready to be planned.

    `sides` are its rows, the delivered rows first. `plan` is a function that plans a part: rows by side, with
    all rows of the part's keys. The function is sent to tasks. Its second argument is a function that
    completes the rows of a side that lacks columns. `kinds` are the columns of the planned rows, by kind.
    `key` divides the rows into parts. Without a key, any rows may be planned together.

    `first` plans rows for an empty table in their order, and `first_in_tasks` plans them as frames. Each
    returns None if the full plan is needed. With `sift`, a large delivery plans only rows that may differ
    between the sides. `only_tasks` excludes the driver. `checkpointed` is true if the table changes while the
    rows are read. In tasks, a file is represented by a number made with the `salt`.
    """

    store: Store
    table: TableName
    sides: Mapping[str, Side]
    key: Sequence[str]
    kinds: Mapping[str, pa.Schema]
    plan: Callable[[Mapping[str, pa.Table], Whole], PartPlan]
    first: Callable[[Mapping[str, LocalSide], MemoryLease], "PlanResult | None"] | None = None
    first_in_tasks: Callable[[ExitStack], "PlanResult | None"] | None = None
    sift: "SiftTerms | None" = None
    only_tasks: bool = False
    checkpointed: bool = False
    salt: int = field(default_factory=lambda: uuid4().time_low)

    @property
    def spark_store(self) -> IcebergStore:
        """The store that Spark reads. Raises TooLarge if only the driver can read the store."""
        if not isinstance(self.store, IcebergStore):
            raise TooLarge
        return self.store


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The result of the plans of all parts: their sums, and rows by kind, or None without such rows.

    Rows that tasks planned are frames. They contain numbers, made for the `tasks`' terms, instead of the
    files' paths.
    """

    sums: PlanSums
    rows_by_kind: Mapping[str, RowsToWrite]
    tasks: PlanTerms | None = None

    def rows(self, kind: str) -> RowsToWrite:
        """The rows of one kind, or None if the plan has no such rows."""
        return self.rows_by_kind[kind]

    def places(self, kind: str, table: StoredTable) -> Any:
        """The positions of the stored rows of one kind, as a Change needs them, or None without such rows."""
        rows = self.rows_by_kind[kind]
        if self.tasks is None or rows is None or isinstance(rows, RowBatches):
            return rows
        positions = positions_of(rows, self.sums.added[kind])
        return positions_by_path(self.tasks.spark_store, table.shape.table, positions, self.tasks.salt)
