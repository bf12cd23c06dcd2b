"""`repair`: the smallest repair of a broken history, in one commit that records it (V117, V118)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from pyspark.sql.functions import expr
from pyspark.sql.types import ByteType, StringType, StructField, StructType

from backstory.engine.deliver import Plan, deliver
from backstory.errors import UsageError
from backstory.model.change import NOTHING, Change, Commit, Note
from backstory.model.instant import EPOCH, iso
from backstory.model.layout import FILE, POSITION, ROW_ID, Layout
from backstory.model.receipt import Receipt
from backstory.model.table import TableName
from backstory.model.versions_layout import RECORDED
from backstory.reading.lifetimes import KINDS_OF_INSTANTS, SPARK
from backstory.spark.versions import arrow_of, persist_on_disk
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_with_ids
from backstory.stores.iceberg.literals import column, quote
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.stores.iceberg.workers import map_batches
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.port import DISORDER, TableLike
from backstory.upkeep.checking import misfits, readable, require_known_layout
from backstory.upkeep.laws import checks
from backstory.upkeep.laws.checks import ACT, ADD, REMOVE, REPORT, REPORTED, STAY, MendTally
from backstory.upkeep.laws.queries import query_of_rows
from backstory.upkeep.laws.terms import PREFIX, Law, LawTerms

Table = TypeVar("Table", bound=TableLike)
# The property of a repairing commit: broken laws, and counts of records and rows. It never contains a key or
# a value.
REPAIR: Final = "backstory.repair"
DOOR: Final = "native"
REMEDIES: Final[Mapping[Layout, str]] = {
    Layout.ODF: "A log is append-only: take it back with `backstory rewind`, or add the dataset "
    "again and pull.",
    Layout.ODF_LOG: "It is derived from the dataset's commits: drop it, and the next pull writes it again.",
}


@dataclass(frozen=True, slots=True, repr=False)
class Repair(Receipt):
    """The result of a repair, or its plan.

    `counts` are the rows `dropped` and `rewritten`, `laws` are the violations of each law, and `keys` is the
    number of records. `samples` has up to ten records before and after. `left` are the laws that are still
    broken, with keys.
    """

    table: str
    applied: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    laws: Mapping[str, int] = field(default_factory=dict)
    keys: int = 0
    samples: Sequence[Mapping[str, Any]] = ()
    left: Mapping[str, Sequence[str]] = field(default_factory=dict)
    snapshot_id: int | None = None


def repair(store: IcebergStore, table: TableName, *, apply: bool = False) -> Repair:
    """Plan the repair of a table. If `apply` is true, commit it. A healthy table needs no commit.

    Healthy records keep their bytes and row ids, and repaired rows keep their ids. The commit's property
    `backstory.repair` contains the broken laws and the number of repaired records and rows. Raises UsageError
    for event logs and tables without versions, which cannot be repaired.
    """
    return deliver(store, [table], partial(_open_repair, table=table, apply=apply))


def repair_small(files: TableReader) -> Repair:
    """An empty repair for a small table without broken rows. Raises Unreadable for any other table."""
    table = _require_mendable(files.table)
    if checks.broken_in_files(files):
        raise Unreadable("rows to mend")
    return _summarize(table, MendTally())


@contextmanager
def _open_repair(store: IcebergStore, table: TableName, *, apply: bool) -> Iterator[Plan[Repair]]:
    """A plan that repairs the table's broken records, computed in Spark's tasks."""
    stored = _require_mendable(existing(store, table))
    terms = checks.terms_in_table(store, stored)
    rows, names = _rows(store, stored, terms)
    suspects = checks.find_suspects(rows, query_of_rows(terms))
    laws = [name for name in suspects.columns if name.startswith(PREFIX)]
    suspects = suspects.select(*map(quote, [*names, *laws]))
    acts = persist_on_disk(
        map_batches(suspects, partial(checks.mend_records, terms, names), _schema(suspects, names))
    )
    try:
        with translate_faults(table):
            records = arrow_of(acts.where(column(ACT) == REPORT).select(quote(REPORTED)))
        tally = MendTally()
        for text in records[REPORTED].to_pylist():
            tally.add(json.loads(text))
        after = acts.where(column(ACT).isin(STAY, ADD)).drop(ACT, REPORTED)
        left = checks.broken_in_frame(after, terms) if tally.laws else {}
        about = _summarize(stored, tally, {law: keys for law, (_, keys) in left.items()})
        summary = {"laws": about.laws, "keys": about.keys, **about.counts}
        note = Note(DOOR, "", {REPAIR: json.dumps(summary), **_recorded_property(terms)})
        yield Plan(stored, _change(stored, acts, about), note, partial(_receipt, about), dry_run=not apply)
    finally:
        acts.unpersist()


def _receipt(about: Repair, committed: Commit | None) -> Repair:
    snapshot = None if committed is None else committed.snapshot_id
    return replace(about, applied=committed is not None, snapshot_id=snapshot)


def _summarize(table: TableLike, tally: MendTally, left: Mapping[str, Sequence[str]] = NOTHING) -> Repair:
    """The receipt of a repair that is not applied yet."""
    # No repair of rows corrects properties and columns.
    wrong = sorted(set(misfits(table)))
    left = {**left, **({Law.PROPERTIES.value: wrong} if wrong else {})}
    counts = {name: tally.counts[name] for name in ("dropped", "rewritten")}
    name, laws = str(table.shape.table), dict(tally.laws)
    return Repair(name, False, counts, laws, tally.counts["keys"], tally.samples, left)


def _require_mendable(table: Table) -> Table:
    """The table, if its rows can be repaired. Raises UsageError otherwise."""
    table = require_known_layout(table)
    name, layout = table.shape.table, table.shape.layout
    if layout.span is None:
        raise UsageError(
            "no-repair",
            f"{name} has the layout {layout}, for which no repair is known.",
            REMEDIES.get(layout, "Load its rows again from the source."),
        )
    if not readable(table):
        raise UsageError(
            "no-repair",
            f"{name} lacks properties or columns of its layout: {', '.join(dict.fromkeys(misfits(table)))}.",
            "Restore the columns and properties first.",
        )
    return table


def _rows(store: IcebergStore, table: IcebergTable, terms: LawTerms) -> tuple[Any, list[str]]:
    """All rows with their places and any row ids, and the names of these columns.

    The rows also have their recorded times, by which a repair chooses between versions.
    """
    rows = rows_with_ids(store, table)
    ids = [ROW_ID] if ROW_ID in rows.columns else []
    rows = rows.withColumns({FILE: column(FILE), POSITION: column(POSITION)})
    span = table.shape.layout.span
    written = span and table.shape.column(span.written)
    if written and written.type.kind in KINDS_OF_INSTANTS and not terms.remembers:
        micros = SPARK.micros_in(table.shape, written.name)
        rows = rows.withColumn(f"{PREFIX}written", expr(micros))
    return rows, [*table.shape.names, FILE, POSITION, *ids]


def _schema(frame: Any, names: Sequence[str]) -> Any:
    stored = [StructField(name, frame.schema[name].dataType) for name in names]
    return StructType([StructField(ACT, ByteType()), StructField(REPORTED, StringType()), *stored])


def _change(table: IcebergTable, acts: Any, about: Repair) -> Change | None:
    """The change to the rows, which also removes the mark of disorder if no law remains broken."""
    orderly = table.disorderly and not set(about.left) - {Law.PROPERTIES.value}
    properties: Mapping[str, None] = {DISORDER: None} if orderly else NOTHING
    if not any(about.counts.values()):
        return Change(properties=properties, snapshot=True) if orderly else None
    ids = [ROW_ID] if ROW_ID in acts.columns else []
    removed = acts.where(column(ACT) == REMOVE).select(FILE, POSITION)
    added = acts.where(column(ACT) == ADD).select(*map(quote, [*table.shape.names, *ids]))
    counts, rewritten = about.counts, about.counts["rewritten"]
    return Change(counts, removed, added if rewritten else None, properties=properties, expected=rewritten)


def _recorded_property(terms: LawTerms) -> Mapping[str, str]:
    """The recorded time of a commit on a native table (V10). A repair does not write it to any row (V118)."""
    after = EPOCH + timedelta(microseconds=(terms.newest or 0) + 1)
    return {RECORDED: iso(max(datetime.now(UTC), after))} if terms.remembers else NOTHING
