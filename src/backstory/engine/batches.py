"""A batch of files as a delivery: planned on the driver, or by the same plan in Spark's tasks.

The files of all kinds form one side of the plan. Each row has its kind, file and place, and a bit for each
column, which is set if the value is known. The table's columns are numbered on both sides, so that their
names never collide with the added columns.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import collect_list, lit, unix_micros
from pyspark.sql.functions import min as least

from backstory.engine.deliver import Plan, deliver
from backstory.engine.plans import LocalSide, PlanTerms, Side, SideRows
from backstory.engine.runner import run_plan
from backstory.engine.staging import ShippedFile, ship_files
from backstory.formats.batch_file import BatchFile
from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import MemoryLease
from backstory.formats.rows import Mended, Rows, log_mended, with_mended
from backstory.model.change import Change, Commit, Note
from backstory.model.layout import END, FILE, POSITION, ROW_ID, START, Layout
from backstory.model.table import Shape, TableName
from backstory.model.types import ColumnType
from backstory.observe import time_stage
from backstory.spark.versions import persist_on_disk
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import with_row_ids
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.slice import PLACE, may_be_touched
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.iceberg.workers import carry_errors, freeze_imports
from backstory.stores.port import DISORDER, Store, StoredTable, require_layout
from backstory.stores.tables import existing, read_slice
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan, Whole
from backstory.strategies.versions import OUT_OF_ORDER, refuse_broken_versions

DELIVERED, SLICE = "delivered", "stored rows"
_PLACE: Final = {"kind": pa.int8(), "file": pa.int32(), "row": pa.int64(), "known": pa.binary()}
_SPARK_PLACE: Final = "kind tinyint, file int, row bigint, known binary, mended string"


class Shipment(Protocol):
    """The files of a delivery, which are read on the driver or in Spark's tasks."""

    @property
    def types(self) -> Mapping[str, ColumnType]:
        """The types of the table's columns, by name."""

    @property
    def key(self) -> Sequence[str]:
        """The key of the delivery's rows."""

    @property
    def keeps_history(self) -> bool:
        """Whether rows are versions with a start and an end."""

    @property
    def parts(self) -> list[tuple[str, BatchFile]]:
        """Every file with its kind."""

    def decode(self, lease: MemoryLease) -> dict[str, Rows]:
        """All rows at once, by kind. Rows of every kind have the key.

        Raises Refused for unreadable rows, and TooLarge if there is not enough memory.
        """

    def stream(self, kind: str, file: BatchFile) -> Iterator[Rows]:
        """The rows of one file in parts, with every column of the table."""

    def plan(self, rows: Mapping[str, Rows], stored: pa.Table) -> PartPlan:
        """The plan that applies rows, by kind, to the stored rows with their keys."""


@dataclass
class BatchSides:
    """A batch and its table as sides of a plan.

    Rows that Spark keeps are released with `kept`. Once the rows are read, `mended` has the repairs that
    readers made to values. Versions that ended before the rows' first instant are not read.
    """

    store: Store
    table: StoredTable
    batch: Shipment
    kept: ExitStack
    mended: Mended = field(default_factory=Mended)
    _since: int | None = None

    def terms(self) -> PlanTerms:
        """The batch, ready to be planned."""
        batch, shape = self.batch, self.table.shape
        names = _names(batch)
        types = arrow_schema(batch.types)
        numbered = [pa.field(names[column.name], column.type) for column in types]
        ids = pa.field(ROW_ID, pa.int64())
        sides = {
            DELIVERED: Side(
                pa.schema([*_PLACE.items(), *numbered]), self._rows_frame, self._rows_here, repeatable=True
            ),
            SLICE: Side(
                pa.schema([*numbered, *PLACE, ids]),
                self._slice_frame,
                self._slice_here,
                count=self.table.rows,
                meets=DELIVERED,
            ),
        }
        orderly = shape if batch.keeps_history and not self.table.disorderly else None
        kinds = {REMOVED: PLACE, ADDED: pa.schema([*types, ids])}
        plan = partial(_plan_part, batch, orderly)
        key = [names[name] for name in batch.key]
        return PlanTerms(self.store, shape.table, sides, key, kinds, plan)

    @cached_property
    def _files(self) -> list[ShippedFile]:
        assert isinstance(self.store, IcebergStore)
        return self.kept.enter_context(ship_files(self.store, self.batch.parts))

    def _rows_here(self, _lease: MemoryLease, _met: LocalSide | None) -> LocalSide:
        # The rows are counted again when they are divided into parts.
        with time_stage("decode"), self.store.memory.lease() as lease:
            decoded = self.batch.decode(lease)
        self.mended = sum((rows.mended for rows in decoded.values()), Mended())
        schema = pa.schema([*_PLACE.items(), *arrow_schema(self.batch.types)])
        nonempty = [(kind, rows) for kind, rows in decoded.items() if rows.count]
        tables = [_with_places(self.batch, kind, 0, 0, rows).cast(schema) for kind, rows in nonempty]
        names = _names(self.batch)
        whole = pa.concat_tables([schema.empty_table(), *tables])
        whole = whole.rename_columns([*_PLACE, *names.values()])
        instants = (whole[names[name]].cast(pa.int64()) for name in _instants(self.batch))
        self._since = self._first(pc.min(column).as_py() for column in instants)
        return LocalSide(SideRows(whole.schema, lambda: [whole]))

    def _slice_here(self, _lease: MemoryLease, met: LocalSide | None) -> LocalSide | None:
        if met is None:
            return None
        names, key = _names(self.batch), list(self.batch.key)
        tables = (rows.select([names[name] for name in key]) for rows in met.rows.tables())
        keys = pa.concat_tables(tables).rename_columns(key)
        with time_stage("slice"):
            stored = read_slice(self.store, self.table, keys, self._since)
        rows = stored.rename_columns([names.get(name, name) for name in stored.column_names])
        return LocalSide(SideRows(rows.schema, lambda: [rows]))

    def _first(self, instants: Iterable[int | None]) -> int | None:
        """The first instant in microseconds. None means that all versions are read."""
        known = [instant for instant in instants if instant is not None]
        return None if self.table.disorderly else min(known, default=None)

    def _rows_frame(self) -> DataFrame:
        """A frame with every row of every file. One task reads each file.

        The first row of a part lists the repairs of the part.
        """
        assert isinstance(self.store, IcebergStore)
        batch, files, names = self.batch, self._files, _names(self.batch)
        numbers = self.store.spark.range(len(files), numPartitions=max(len(files), 1))
        declared = ", ".join(f"{names[name]} {spark_type(type_)}" for name, type_ in batch.types.items())
        rows = numbers.mapInArrow(partial(_decode, batch, files), f"{_SPARK_PLACE}, {declared}")
        rows = persist_on_disk(rows)
        self.kept.callback(rows.unpersist)
        with time_stage("decode"):
            instants, self.mended = _facts(rows, batch)
        self._since = self._first(instants)
        return rows.drop("mended")

    def _slice_frame(self) -> DataFrame:
        """The stored rows, without versions that ended before the first instant of the batch."""
        assert isinstance(self.store, IcebergStore)
        assert isinstance(self.table, IcebergTable)
        frame = self.store.spark.table(self.store.sql_name(self.table.shape.table))
        frame = with_row_ids(self.table, frame)
        if self._since is not None:
            frame = frame.where(may_be_touched(self._since))
        ids = column(ROW_ID) if ROW_ID in frame.columns else lit(None).cast("bigint")
        return frame.select(*map(column, self.batch.types), column(FILE), column(POSITION), ids)


def _names(batch: Shipment) -> dict[str, str]:
    return {name: f"c{number}" for number, name in enumerate(batch.types)}


def _instants(batch: Shipment) -> Sequence[str]:
    """The columns with the instants of the rows."""
    return (START, END) if batch.keeps_history else ()


def _kinds(batch: Shipment) -> list[str]:
    """The kinds of file in the batch. A row contains the index of its kind in this list."""
    return list(dict.fromkeys(kind for kind, _ in batch.parts))


def _with_places(batch: Shipment, kind: str, file: int, first: int, rows: Rows) -> pa.Table:
    """Add columns for the kind, file and place of each row; `first` is the place of the first row."""
    count, schema = rows.count, arrow_schema(batch.types)
    whole = rows.align(schema)
    place = {
        "kind": pa.repeat(pa.scalar(_kinds(batch).index(kind), pa.int8()), count),
        "file": pa.repeat(pa.scalar(file, pa.int32()), count),
        "row": pa.array(np.arange(first, first + count)),
        "known": _pack_flags(whole.known),
    }
    return pa.table([*place.values(), *whole.values.columns], names=[*place, *schema.names])


def _decode(
    batch: Shipment, files: Sequence[ShippedFile], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    freeze_imports()
    for number in (number for part in numbers for number in part["id"].to_pylist()):
        first = 0
        with carry_errors(), files[number].open_file() as file:
            for rows in batch.stream(files[number].kind, file):
                table = _with_places(batch, files[number].kind, number, first, rows)
                mended = [[*about, values] for about, values in rows.mended.items()]
                repairs = [json.dumps(mended) if mended else None, *[None] * (rows.count - 1)][: rows.count]
                table = table.add_column(len(_PLACE), "mended", pa.array(repairs, pa.string()))
                first += rows.count
                names = [*_PLACE, "mended", *_names(batch).values()]
                yield from table.rename_columns(names).to_batches()


def _pack_flags(known: pa.Table) -> pa.Array:
    """One bit for each column in each row, or NULL if all columns of all rows are known."""
    if all(pc.all(column).as_py() for column in known.columns):
        return pa.nulls(known.num_rows, pa.binary())
    bits = np.packbits(np.column_stack([np.asarray(column) for column in known.columns]), axis=1)
    buffer = pa.py_buffer(np.ascontiguousarray(bits).tobytes())
    packed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(bits.shape[1]), len(bits), [None, buffer])
    return packed.cast(pa.binary())


def _unpack_flags(packed: pa.ChunkedArray, names: Sequence[str]) -> pa.Table:
    if packed.null_count == len(packed):
        return pa.table([pa.repeat(pa.scalar(True), len(packed))] * len(names), names=list(names))
    width = (len(names) + 7) // 8
    joined = b"".join(pc.fill_null(packed, b"\xff" * width).to_pylist())
    bits = np.frombuffer(joined, np.uint8).reshape(-1, width)
    flags = np.unpackbits(bits, axis=1, count=len(names)).astype(bool)
    return pa.table([pa.array(flags[:, place]) for place in range(len(names))], names=list(names))


def _facts(rows: DataFrame, batch: Shipment) -> tuple[Sequence[int | None], Mended]:
    """The earliest start and end in microseconds, and all repairs of values."""
    names = _names(batch)
    aggregates = [collect_list(column("mended")).alias("mended")]
    aggregates += [unix_micros(least(column(names[name]))).alias(name) for name in _instants(batch)]
    texts, *instants = rows.agg(*aggregates).collect()[0]
    mended = Mended()
    for *about, values in (repair for part in texts for repair in json.loads(part)):
        mended[tuple(about)] += values
    return instants, mended


def _plan_part(
    batch: Shipment, orderly: Shape | None, sides: Mapping[str, pa.Table], _whole: Whole
) -> PartPlan:
    """Plan the rows of some keys. Raises Refused if their stored versions are inconsistent."""
    named = {number: name for name, number in _names(batch).items()}
    stored = sides[SLICE]
    stored = stored.rename_columns([named.get(name, name) for name in stored.column_names])
    refuse_broken_versions(stored, orderly)
    planned = batch.plan(_by_kind(batch, sides[DELIVERED]), stored)
    added = planned.rows[ADDED]
    if ROW_ID not in added.column_names:
        added = added.append_column(ROW_ID, pa.nulls(len(added), pa.int64()))
    return replace(planned, rows={**planned.rows, ADDED: added})


def _by_kind(batch: Shipment, rows: pa.Table) -> dict[str, Rows]:
    """The rows by kind, in the order of their files."""
    schema, kinds = arrow_schema(batch.types), _kinds(batch)
    places = [np.asarray(rows[name]) for name in ("row", "file", "kind")]
    order = np.lexsort(places)
    if not (order[1:] > order[:-1]).all():
        rows, places = rows.take(pa.array(order)), [place[order] for place in places]
    kind = places[-1]
    edges = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), len(kind)] if len(kind) else []
    rows_by_kind: dict[str, Rows] = {}
    for start, stop in pairwise(edges):
        part = rows.slice(start, stop - start)
        values = part.select(list(_names(batch).values())).rename_columns(schema.names).cast(schema)
        rows_by_kind[kinds[kind[start]]] = Rows(values, _unpack_flags(part["known"], schema.names))
    return rows_by_kind


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The files that a door delivers for one table, which has one of the given layouts.

    `token` returns a digest by which a repeated delivery is recognized. `read` returns the files as rows of
    the table, and raises Refused if they do not fit the table.
    """

    table: TableName
    door: str
    layouts: Sequence[Layout]
    files: Sequence[BatchFile]
    token: Callable[[StoredTable], str]
    read: Callable[[StoredTable], Shipment]


def deliver_batch(store: Store, delivered: BatchFiles) -> Commit:
    """Load the files into their table: one commit, or none if nothing changes.

    A delivery whose token is the newest token of the table is a repetition, and writes nothing.
    """
    return deliver(store, [delivered.table], partial(_open_plan, delivered))


@contextmanager
def _open_plan(delivered: BatchFiles, store: Store) -> Iterator[Plan[Commit]]:
    """Read and plan the files, on the driver or in Spark's tasks."""
    table = require_layout(existing(store, delivered.table), *delivered.layouts)
    with ExitStack() as stack:
        with ExitStack() as reading:
            for file in delivered.files:
                reading.enter_context(file.refuse_changes())
            with time_stage("digest"):
                note = Note(delivered.door, delivered.token(table))
            if note.token == table.newest_token:
                yield Plan(table, None, note, lambda _: Commit(None, {}))
                return
            sides = BatchSides(store, table, delivered.read(table), stack)
            with time_stage("plan"), translate_faults(delivered.table):
                planned = stack.enter_context(run_plan(sides.terms()))
        sums = planned.sums
        disorder = sums.counts.pop(OUT_OF_ORDER, 0)
        counts = with_mended(sums.counts, sides.mended)

        def receipt(committed: Commit | None) -> Commit:
            log_mended(sides.mended)
            return Commit(None if committed is None else committed.snapshot_id, counts)

        change = None
        if sums.added[REMOVED] or sums.added[ADDED]:
            marks = {DISORDER: "true"} if disorder else {}
            removed, added = planned.places(REMOVED, table), planned.rows(ADDED)
            change = Change(counts, removed, added, properties=marks)
        yield Plan(table, change, note, receipt)
