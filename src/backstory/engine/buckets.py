"""A delivery too large for the driver: decoded, planned and written by Spark's tasks.

Each task decodes a file. The rows are then parted by a hash of their key into buckets of a bounded
size, and each bucket is planned with the stored rows of its keys, by the plan that the driver has
for small deliveries. What gathers on the driver is a few numbers for each bucket, and positions of
stored rows packed as bitmaps.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.engine.outcome import Outcome
from backstory.engine.shipping import Shipped, ship_files
from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import MemoryLease
from backstory.formats.rows import Rows
from backstory.formats.values.mended import Mended
from backstory.formats.wrapping.batch_file import BatchFile
from backstory.model.layout import END, START
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.schema import Shape
from backstory.model.types import ColumnType
from backstory.observe.metrics import timed
from backstory.spark.on_disk import persist_on_disk
from backstory.stores.iceberg.buckets import plan_buckets
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.lineage import with_row_ids
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.slice import may_be_touched
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.iceberg.workers import carrying
from backstory.strategies.actions import Actions
from backstory.strategies.versions.spoilt import refuse_spoilt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REMOVED, ADDED, TOLD = 0, 1, 2
# Columns of the table are numbered here, so that no name of theirs can meet one of ours.
_PLACE = "kind tinyint, file int, row bigint, known binary, mended string"
_ACT = "act tinyint, file string, position bigint, id bigint, told string"


class Decoded(Protocol):
    """Decoded rows: what they can touch, and what they make of that."""

    @property
    def keys(self) -> pa.Table:
        """The key columns of every row, repeated keys included."""

    @property
    def since(self) -> int | None:
        """Versions that ended before this instant (microseconds) play no part; None reads all."""

    @property
    def mended(self) -> Mended:
        """What the readers did to values that did not quite fit."""

    def plan(self, stored: pa.Table) -> Actions:
        """The actions, given the slice of the table."""


class Shipment(Protocol):
    """The files of a delivery, which can be read here or where Spark runs."""

    @property
    def types(self) -> Mapping[str, ColumnType]:
        """The table's columns."""

    @property
    def key(self) -> Sequence[str]:
        """The key that the delivery's rows go by."""

    @property
    def keeps_history(self) -> bool:
        """Whether rows are versions with a start and an end."""

    @property
    def parts(self) -> list[tuple[str, BatchFile]]:
        """Every file with its kind."""

    def decode(self, lease: MemoryLease) -> Decoded:
        """All rows at once; raises Refused for what cannot be read, TooLarge for more than fits."""

    def stream(self, kind: str, file: BatchFile) -> Iterator[Rows]:
        """The rows of one file, some at a time, with every column of the table."""

    def change(self, rows: Mapping[str, Rows]) -> Decoded:
        """What the rows of each kind mean."""


@contextmanager
def plan_in_buckets(store: Store, table: StoredTable, batch: Shipment) -> Iterator[Outcome]:
    """What the batch makes of the table, without its rows ever being on the driver."""
    with translate_faults(table.shape.table), ship_files(store, batch.parts) as files, ExitStack() as kept:
        rows = persist_on_disk(_decoded(store, batch, files))
        kept.callback(rows.unpersist)
        with timed("decode"):
            count, start, end, mended = _facts(rows, batch)
        named = [instant for instant in (start, end) if instant is not None]
        since = None if table.disorderly else min(named, default=None)
        stored = _stored(store, table, batch, rows, since)
        orderly = table.shape if batch.keeps_history and not table.disorderly else None
        acts = persist_on_disk(_planned(rows, stored, batch, orderly, count))
        kept.callback(acts.unpersist)
        yield _outcome(batch, acts, mended)


def _names(batch: Shipment) -> dict[str, str]:
    return {name: f"c{number}" for number, name in enumerate(batch.types)}


def _kinds(batch: Shipment) -> list[str]:
    """The kinds of file that the batch has, by the numbers that rows carry."""
    return list(dict.fromkeys(kind for kind, _ in batch.parts))


def _columns(batch: Shipment) -> str:
    return ", ".join(f"{_names(batch)[name]} {spark_type(type_)}" for name, type_ in batch.types.items())


def _decoded(store: Store, batch: Shipment, files: Sequence[Shipped]) -> "DataFrame":
    """Every row of every file with its kind, file, place and what of it is known; a task for each file.

    The first row of a part says what was mended in it.
    """
    numbers = store.spark.range(len(files), numPartitions=max(len(files), 1))
    return numbers.mapInArrow(partial(_decode, batch, files), f"{_PLACE}, {_columns(batch)}")


def _decode(
    batch: Shipment, files: Sequence[Shipped], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    kinds = _kinds(batch)
    for number in (number for part in numbers for number in part["id"].to_pylist()):
        first = 0
        with carrying(), files[number].opened() as file:
            for rows in batch.stream(files[number].kind, file):
                count = rows.count
                place = {
                    "kind": pa.repeat(pa.scalar(kinds.index(files[number].kind), pa.int8()), count),
                    "file": pa.repeat(pa.scalar(number, pa.int32()), count),
                    "row": pa.array(np.arange(first, first + count)),
                    "known": _packed(rows.known),
                    "mended": pa.array([_as_json(rows.mended), *[None] * (count - 1)][:count], pa.string()),
                }
                table = pa.table(
                    [*place.values(), *rows.values.columns], names=[*place, *_names(batch).values()]
                )
                first += count
                yield from table.to_batches()


def _as_json(mended: Mended) -> str | None:
    return json.dumps([[*about, values] for about, values in mended.items()]) if mended else None


def _packed(known: pa.Table) -> pa.Array:
    """For each row a bit for each column."""
    bits = np.packbits(np.column_stack([np.asarray(column) for column in known.columns]), axis=1)
    buffer = pa.py_buffer(np.ascontiguousarray(bits).tobytes())
    packed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(bits.shape[1]), len(bits), [None, buffer])
    return packed.cast(pa.binary())


def _unpacked(packed: pa.ChunkedArray, names: Sequence[str]) -> pa.Table:
    width = (len(names) + 7) // 8
    joined = b"".join(packed.to_pylist())
    bits = np.frombuffer(joined, np.uint8).reshape(-1, width)
    flags = np.unpackbits(bits, axis=1, count=len(names)).astype(bool)
    return pa.table([pa.array(flags[:, place]) for place in range(len(names))], names=list(names))


def _facts(rows: "DataFrame", batch: Shipment) -> tuple[int, int | None, int | None, Mended]:
    """The count of rows, the least start and end in microseconds, and all that was mended."""
    from pyspark.sql.functions import collect_list, count, lit, unix_micros
    from pyspark.sql.functions import min as least

    names = _names(batch)
    found = [count(lit(1)).alias("count"), collect_list(column("mended")).alias("mended")]
    if batch.keeps_history:
        found += [unix_micros(least(column(names[name]))).alias(name) for name in (START, END)]
    count_, told, *instants = rows.agg(*found).collect()[0]
    mended = Mended()
    for *about, values in (each for part in told for each in json.loads(part)):
        mended[tuple(about)] += values
    start, end = instants or (None, None)
    return count_, start, end, mended


def _stored(
    store: Store, table: StoredTable, batch: Shipment, rows: "DataFrame", since: int | None
) -> "DataFrame":
    """The stored rows of the batch's keys, with their file, position and id."""
    from pyspark.sql.functions import lit

    frame = with_row_ids(table, store.spark.table(store.sql_name(table.shape.table)))
    if ROW_ID not in frame.columns:
        frame = frame.withColumn(ROW_ID, lit(None).cast("bigint"))
    if since is not None:
        frame = frame.where(may_be_touched(since))
    names = _names(batch)
    numbered = [column(name).alias(number) for name, number in names.items()]
    place = [column(FILE).alias("file"), column(POSITION).alias("position"), column(ROW_ID).alias("id")]
    frame = frame.select(*place, *numbered)
    keys = rows.select(*(column(names[name]).alias(f"k{names[name]}") for name in batch.key)).distinct()
    same = [frame[names[name]].eqNullSafe(keys[f"k{names[name]}"]) for name in batch.key]
    return frame.join(keys, reduce(and_, same), "left_semi")


def _planned(
    rows: "DataFrame", stored: "DataFrame", batch: Shipment, orderly: Any, count: int
) -> "DataFrame":
    key = [column(_names(batch)[name]) for name in batch.key]
    sides = [(rows.drop("mended"), key), (stored, key)]
    return plan_buckets(sides, count, partial(_plan_bucket, batch, orderly), f"{_ACT}, {_columns(batch)}")


def _plan_bucket(batch: Shipment, orderly: Shape | None, rows: pa.Table, stored: pa.Table) -> pa.Table:
    names, schema = _names(batch), arrow_schema(batch.types)
    place = pa.schema({FILE: pa.string(), POSITION: pa.int64(), ROW_ID: pa.int64()})
    numbered = ["file", "position", "id", *names.values()]
    whole = pa.schema([*place, *schema])
    slice_ = whole.empty_table()  # a bucket without stored rows may come without their columns
    if stored.num_columns:
        slice_ = stored.select(numbered).rename_columns(whole.names).cast(whole)
    with carrying():
        refuse_spoilt(slice_, orderly)
        actions = batch.change(_by_kind(batch, rows)).plan(slice_)
    told = {"counts": dict(actions.counts), "disorder": actions.disorder}
    told |= {"changes": actions.removed.num_rows + actions.added.num_rows}
    return _acts(actions, json.dumps(told), schema, list(names.values()))


def _by_kind(batch: Shipment, rows: pa.Table) -> dict[str, Rows]:
    """The rows of a bucket by kind, each in the order of its files."""
    schema = arrow_schema(batch.types)
    found: dict[str, Rows] = {}
    if not rows.num_rows:
        return found
    rows = rows.sort_by([("file", "ascending"), ("row", "ascending")])
    for number, kind in enumerate(_kinds(batch)):
        part = rows.filter(pc.equal(rows["kind"], number))
        values = part.select(list(_names(batch).values())).rename_columns(schema.names).cast(schema)
        found[kind] = Rows(values, _unpacked(part["known"], schema.names))
    return found


def _acts(actions: Actions, told: str, schema: pa.Schema, numbered: Sequence[str]) -> pa.Table:
    """The actions of a bucket as rows: stored ones that go, new ones, and one that tells of them."""
    gone, come = actions.removed.num_rows, actions.added.num_rows
    act = np.repeat(np.array([REMOVED, ADDED, TOLD], np.int8), [gone, come, 1])
    none, ids = pa.nulls(come + 1, pa.string()), actions.added[ROW_ID]
    columns: list[Any] = [
        pa.array(act),
        pa.chunked_array([*actions.removed[FILE].chunks, none], pa.string()),
        pa.chunked_array([*actions.removed[POSITION].chunks, pa.nulls(come + 1, pa.int64())], pa.int64()),
        pa.chunked_array([pa.nulls(gone, pa.int64()), *ids.chunks, pa.nulls(1, pa.int64())], pa.int64()),
        pa.chunked_array([pa.nulls(gone + come, pa.string()), pa.array([told])], pa.string()),
    ]
    for field in schema:
        values = [pa.nulls(gone, field.type), *actions.added[field.name].chunks, pa.nulls(1, field.type)]
        columns.append(pa.chunked_array(values, field.type))
    return pa.table(columns, names=["act", "file", "position", "id", "told", *numbered])


def _outcome(batch: Shipment, acts: "DataFrame", mended: Mended) -> Outcome:
    with timed("plan"):
        told = [json.loads(row.told) for row in acts.where(column("act") == TOLD).select("told").collect()]
    counts: Counter[str] = Counter()
    for bucket in told:
        counts.update(bucket["counts"])
    removed = acts.where(column("act") == REMOVED)
    removed = removed.select(column("file").alias(FILE), column("position").alias(POSITION))
    added = acts.where(column("act") == ADDED)
    numbered = [column(number).alias(name) for name, number in _names(batch).items()]
    added = added.select(*numbered, column("id").alias(ROW_ID))
    return Outcome(
        removed,
        added,
        counts,
        changes=any(bucket["changes"] for bucket in told),
        disorder=any(bucket["disorder"] for bucket in told),
        mended=mended,
    )
