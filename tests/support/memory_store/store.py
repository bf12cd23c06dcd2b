"""Tables in memory: columns by number, rows as Arrow tables, every snapshot kept.

A table's rows are never changed in place, so a loaded table does not change.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import Memory
from backstory.model.change import TOKEN
from backstory.model.instant import MILLISECOND
from backstory.model.layout import ACTIVE, END, FILE, POSITION, START
from backstory.model.table import Shape, TableName
from backstory.stores.port import DISORDER

PLENTY = 1 << 40
_FILE = "memory"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit of rows: its id, and the properties from its writer."""

    id: int
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """The rows after a commit, with numbered columns, and the commit's properties."""

    snapshot: Snapshot
    rows: pa.Table


@dataclass(frozen=True, slots=True, eq=False)
class TableState:
    """A table after any commit, which equals only itself.

    A column keeps its number under another name, and no other column ever has it.
    """

    shape: Shape
    numbers: Mapping[str, int]
    newest_number: int
    schema_id: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, int] = field(default_factory=dict)
    history: tuple[WrittenRows, ...] = ()
    current: WrittenRows | None = None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the columns."""
        return arrow_schema({each.name: each.type for each in self.shape.columns})

    @property
    def content(self) -> pa.Table:
        """Every row with the present columns, with NULL for columns newer than the row."""
        if self.current is None:
            return self.schema.empty_table()
        rows = self.current.rows
        columns = [
            rows[str(self.numbers[each.name])].cast(each.type)
            if str(self.numbers[each.name]) in rows.column_names
            else pa.nulls(rows.num_rows, each.type)
            for each in self.schema
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """A table in its loaded state."""

    state: TableState

    @property
    def shape(self) -> Shape:
        """Its columns, key and layout."""
        return self.state.shape

    @property
    def schema_id(self) -> int:
        """The number of the state of its columns."""
        return self.state.schema_id

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return 0 if self.state.current is None else int(self.state.current.rows.num_rows)

    @property
    def foreign_writes(self) -> Sequence[str]:
        """None, because no other program can access it."""
        return ()

    @property
    def disorderly(self) -> bool:
        """Whether a sender delivered overlapping versions of a key."""
        return self.state.properties.get(DISORDER) == "true"

    @property
    def newest_token(self) -> str | None:
        """The token of the newest commit of rows."""
        return None if self.state.current is None else self.state.current.snapshot.properties.get(TOKEN)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's own properties, as set by commits."""
        return self.state.properties

    @property
    def tags(self) -> Mapping[str, int]:
        """Names for snapshots."""
        return self.state.tags

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """Every commit of rows, oldest first."""
        return [written.snapshot for written in self.state.history]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryStore:
    """Tables by name. `memory` limits deliveries, by default to nothing."""

    catalog: str = "memory"
    memory: Memory = field(default_factory=lambda: Memory(PLENTY))
    states: dict[TableName, TableState] = field(default_factory=dict, repr=False)
    lock: threading.RLock = field(default_factory=threading.RLock)
    numbers: Any = field(default_factory=lambda: count(1))

    @property
    def description(self) -> str:
        """Empty, because it has neither a warehouse nor an origin."""
        return ""


def load(store: MemoryStore, table: TableName) -> MemoryTable | None:
    """The present table, or None."""
    state = store.states.get(table)
    return None if state is None else MemoryTable(state)


def tables(store: MemoryStore, schema: str | None = None) -> list[TableName]:
    """Every table of the store or of one of its schemas, sorted."""
    return sorted(name for name in list(store.states) if schema in {None, name.schema})


def rows_of(_store: MemoryStore, table: MemoryTable) -> pa.Table:
    """Every row of the table."""
    return table.state.content


def read_slice(_store: MemoryStore, table: MemoryTable, keys: pa.Table, since: int | None = None) -> pa.Table:
    """The rows of these keys, with `_file` and `_pos`; without versions that ended before `since`."""
    rows = table.state.content
    wanted = set(_values(keys))
    named = pa.array([key in wanted for key in _values(rows.select(keys.column_names))], pa.bool_())
    if since is not None:
        named = pc.and_(named, _may_be_touched(rows, since))
    places = pa.array(range(rows.num_rows), pa.int64())
    files = pa.array([_FILE] * rows.num_rows, pa.string())
    return rows.append_column(FILE, files).append_column(POSITION, places).filter(named)


def _values(rows: pa.Table) -> list[tuple[object, ...]]:
    columns = [[_exactly(value) for value in column.to_pylist()] for column in rows.columns]
    return list(zip(*columns, strict=True))


def _exactly(value: object) -> object:
    """A value in a form in which NaN equals itself."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _may_be_touched(rows: pa.Table, since: int) -> pa.ChunkedArray:
    """Versions that are active, end at `since` or at most a millisecond before it, or start at it or later."""
    instant = pa.timestamp("us", tz="UTC")
    ends = pc.greater_equal(rows[END], pa.scalar(since - MILLISECOND, instant))
    starts = pc.greater_equal(rows[START], pa.scalar(since, instant))
    return pc.fill_null(pc.or_kleene(pc.or_kleene(rows[ACTIVE], ends), starts), False)
