"""A load of a dataset in a warehouse: its SQL in Spark, stage rows, table shapes and commits (section 4.5).

Each table has a property that records how its rows are hashed. `check` uses this property.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, expr

from backstory.doors.historize.load import Load, row_hash_of
from backstory.doors.historize.model import (
    LOAD_COLUMNS,
    ColumnRole,
    ModelColumn,
    ModelDataset,
    base_columns,
    user_columns,
)
from backstory.doors.historize.resolve import schema_of
from backstory.doors.historize.runs import LoadRun, dataset_key
from backstory.doors.historize.stage import (
    Stage,
    column_type,
    no_stage_column,
    no_stage_table,
    read_stage,
    refuse_stage_type,
)
from backstory.engine.deliver import commit_change
from backstory.errors import Refused
from backstory.model.change import Change, Commit, Note
from backstory.model.instant import iso
from backstory.model.layout import DELETED, FILE, POSITION, ROW_ID, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import widens
from backstory.reading.frames import current_table_rows
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import frame_of, keeps_row_ids
from backstory.stores.iceberg.literals import cast_as_shown, column, null_columns, quote
from backstory.stores.iceberg.schema import names_by_id, spark_type
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing, load
from backstory.stores.iceberg.workers import carry_errors
from backstory.stores.port import conflict, require_layout
from backstory.stores.sql import ddl
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.engine import fill_placeholders
from backstory.stores.sql.row_hashes import ROW_HASHES, RowHash, hashes_of_property, hashes_to_keep


def hashes_to_record(load: Load, table: IcebergTable, base: IcebergTable | None) -> Mapping[str, str | None]:
    """The change to the property for row hashes when a load writes rows.

    `base` is the base before the load. The property is never added to a table that already has rows, because
    the hashes of these rows are unknown. The history of such a base has no property either. A history copies
    rows of its base, so its property also has the base's hashes.
    """
    if table.shape.layout not in {Layout.BASE, Layout.HIST}:
        return {}
    (text, known), ids = _hashes_of(table), {each["name"]: each["id"] for each in table.fields}
    if known is None and (table.rows or text):
        return {}
    of_base = list[RowHash]()
    if table.shape.layout is Layout.HIST and base is not None and base.rows:
        _, recorded = _hashes_of(base)
        if recorded is None or not {column.name for hash_ in recorded for column in hash_.columns} <= {*ids}:
            return {} if text is None else {ROW_HASHES: None}
        of_base = recorded
    today = row_hash_of(schema_of(load.model, load.dataset), load.dataset)
    value = hashes_to_keep([*(known or []), *of_base, today], ids)
    return {} if value == text else {ROW_HASHES: value}


def _hashes_of(table: IcebergTable) -> tuple[str | None, list[RowHash] | None]:
    """The property for row hashes, and its hashes, or None if they are unknown."""
    text = table.properties.get(ROW_HASHES)
    return text, hashes_of_property(text, names_by_id(table.fields))


DOOR = "historize"
# No column of a model has a space in its name.
PEPPER = "secret pepper"
RECEIPT, TIMESTAMP = "backstory.receipt", "backstory.load-timestamp"
# The snapshot of the base from which a history's commit was made.
BASE = "backstory.base"


def token_of(schema: str, dataset: ModelDataset, run_id: str) -> str:
    """The token in the commits of a run (decision H6)."""
    return f"{dataset_key(schema, dataset)} {run_id}"


@dataclass(frozen=True)
class SparkWork:
    """One load of one dataset in a warehouse. `base` is its base table before the load."""

    store: IcebergStore
    load: Load
    run: LoadRun
    pepper: str
    base: IcebergTable | None = None

    def sql(self, text: str) -> SparkColumn:
        """SQL in the load's dialect as a Spark expression.

        The pepper is a column, so that its value is in no plan.
        """
        return expr(self.fill_placeholders(text, self.load.dialect, quote(PEPPER)))

    def fill_placeholders(self, text: str, dialect: Dialect, pepper: str) -> str:
        """Replace the placeholders in SQL of a dialect with the values of this run.

        `pepper` is SQL for the secret.
        """
        return fill_placeholders(text, self.run.values(dialect, pepper))

    def with_pepper(self, rows: DataFrame) -> DataFrame:
        """The rows with the pepper as a column, which `sql` needs to compute their keys."""
        return rows.crossJoin(broadcast(frame_of(self.store, pa.table({PEPPER: [self.pepper]}))))

    @cached_property
    def stage_table(self) -> IcebergTable | None:
        """The stage's table, or None if the stage is a file, is not read, or does not exist."""
        stage = None if self.run.skip_base else self.run.stage
        return None if stage is None or stage.path else load(self.store, TableName(*stage.table))

    @property
    def stage_load_columns(self) -> list[str]:
        """The load columns that the stage has."""
        table = self.stage_table
        return [] if table is None else [name for name in LOAD_COLUMNS if name in table.shape.names]

    @property
    def token(self) -> str:
        """The token in the commits of this run."""
        return token_of(self.load.schema, self.load.dataset, self.run.run_id)

    def note(self, **more: str) -> Note:
        """The note for a commit of this run."""
        return Note(DOOR, self.token, {TIMESTAMP: iso(self.run.instant), **more})

    def commit(self, table: IcebergTable | None, change: Change | None, note: Note) -> Commit | None:
        """Commit a change to one of this load's tables, without retries, because the load itself retries.

        If there are new rows, the commit also records how they are hashed.
        """
        if table is not None and change is not None and change.added is not None:
            hashes = hashes_to_record(self.load, table, self.base)
            change = replace(change, properties={**change.properties, **hashes})
        return commit_change(self.store, table, change, note, dry_run=self.run.dry_run)


# The largest stage file, in bytes, that the driver reads. An executor reads larger files.
ON_DRIVER = 64 << 20


def types_of(shape: Shape) -> dict[str, str]:
    """The columns of a shape with Spark's types."""
    return {each.name: spark_type(each.type) for each in shape.columns}


def first_of(store: IcebergStore, schema: str, names: Sequence[str]) -> IcebergTable | None:
    """The first of these tables that exists, or None."""
    return next(filter(None, (load(store, TableName(schema, name)) for name in names)), None)


def base_shape(plan: Load) -> Shape:
    """The shape of the base table. Its key consists of the business keys."""
    return _shape(plan, plan.dataset.name, base_columns(plan.dataset), Layout.BASE)


def hist_shape(plan: Load) -> Shape:
    """The shape of the history table, without retired columns."""
    return _shape(plan, plan.dataset.hist_name, plan.hist.target_columns, Layout.HIST)


def _shape(plan: Load, name: str, columns: Sequence[ModelColumn], layout: Layout) -> Shape:
    key = [each.name for each in columns if each.system_role is ColumnRole.BUSINESS_KEY and each.active]
    live = tuple(Column(each.name, column_type(each)) for each in columns if each.active)
    return Shape(TableName(plan.schema, name), live, tuple(key), layout)


def stage_rows(work: SparkWork, stage: Stage) -> DataFrame:
    """The stage's rows under the base's names and types, with the stage's load columns and the pepper.

    If the stage keeps a history or has Fivetran's deletion marks, only the current rows are read. Rows with
    Fivetran's mark are also read if the model uses the mark as its own deletion flag. Raises Refused for a
    missing table or column, and for a type that does not fit.
    """
    store = work.store
    columns = user_columns(work.load.dataset)
    if stage.path:
        return _file_rows(work, stage, columns)
    table = work.stage_table
    if table is None:
        raise no_stage_table(stage)
    stored = types_of(table.shape)
    for each in columns:
        if each.source not in stored:
            raise no_stage_column(stage, each.source)
        refuse_stage_type(stage, each.source, stored[each.source], each, work.load.dialect)
    flag = work.load.deletion_flag
    marked = flag is not None and flag.source == DELETED
    rows = (
        store.spark.table(store.sql_name(table.shape.table)) if marked else current_table_rows(store, table)
    )
    types = {each.name: rows.schema[each.source].dataType for each in columns}
    of_base = (  # times without a zone count as UTC, the zone of a load's session
        cast_as_shown(column(each.source), types[each.name], spark_type(column_type(each))).alias(each.name)
        for each in columns
    )
    return work.with_pepper(rows.select(*of_base, *map(column, work.stage_load_columns)))


def _file_rows(work: SparkWork, stage: Stage, columns: Sequence[ModelColumn]) -> DataFrame:
    assert stage.path is not None
    if not stage.path.exists() or stage.path.stat().st_size <= ON_DRIVER:
        rows = read_stage(stage, columns)
        return frame_of(work.store, rows.append_column(PEPPER, pa.repeat(work.pepper, len(rows))))
    typed = ", ".join(f"{quote(each.name)} {spark_type(column_type(each))}" for each in columns)
    once = work.store.spark.range(1, numPartitions=1)
    return work.with_pepper(once.mapInArrow(partial(_read, stage, list(columns)), typed))


def _read(stage: Stage, columns: Sequence[ModelColumn], _: Any) -> Any:
    with carry_errors():
        yield from read_stage(stage, columns).to_batches(max_chunksize=1 << 16)


@dataclass(frozen=True)
class TablePlan:
    """A table before a load, and its schema after the load.

    Nothing is written yet. `into` is the shape that the table will have. `read` makes the frame `rows`. With
    `is_preview`, `rows` contains the rows after maintenance, not the stored rows. `snapshot` is the table's
    current snapshot. If the table must be renamed, `former` is its current name.
    """

    wanted: Shape
    table: IcebergTable | None
    read: Callable[[], DataFrame]
    plan: ddl.DdlPlan[ModelColumn]
    into: Shape
    snapshot: int | None = None
    former: str | None = None
    is_preview: bool = False

    @cached_property
    def rows(self) -> DataFrame:
        """The table's rows, or no rows if there is no table.

        The columns are the wanted columns with their names and types, the table's other columns, `_file` and
        `_pos`. If rows have ids, `_row_id` is included.
        """
        return self.read()

    @property
    def ids(self) -> list[str]:
        """The name `_row_id` if rows have ids, or an empty list."""
        return [ROW_ID] if self.table is not None and keeps_row_ids(self.table) else []

    @property
    def changes(self) -> list[str]:
        """Descriptions of the schema changes."""
        name = self.wanted.table.name
        if self.table is None:
            return [f"CREATE_TABLE {name}"]
        renamed = [f"RENAME_DATASET {self.former} to {name}"] if self.former else []
        return [*renamed, *(f"{change} ({name})" for change in self.plan.changes_in_words)]

    @property
    def as_stored(self) -> bool:
        """Whether `rows` are the stored rows, in the table's current columns."""
        return not (self.is_preview or self.changes)

    @property
    def evolves(self) -> bool:
        """Whether an existing table must change its name or schema."""
        return self.table is not None and bool(self.changes)

    @property
    def has_rows(self) -> bool:
        """Whether the table has rows."""
        return self.table is not None and self.table.rows > 0


def plan_table(
    store: IcebergStore,
    wanted: Shape,
    columns: Sequence[ModelColumn],
    names: Sequence[str],
    dialect: Dialect,
) -> TablePlan:
    """The plan for a table. `names` has its current name, and its former names, the latest first.

    Raises Refused for a table with another layout, for changes that `ddl.plan_changes` refuses, and for a
    type that Iceberg cannot widen in place.
    """
    table = first_of(store, wanted.table.schema, names)
    if table is None:
        return TablePlan(wanted, None, partial(_empty_rows, store, wanted), ddl.DdlPlan(), wanted)
    require_layout(table, wanted.layout)
    plan = ddl.plan_changes(wanted.table.name, columns, types_of(table.shape), dialect)
    into = _evolve_shape(_rename_columns(table.shape, plan.renamed), plan, wanted)
    return TablePlan(
        wanted,
        table,
        partial(_rows, store, table, plan, into),
        plan,
        into,
        snapshot_of(table),
        None if table.shape.table == wanted.table else table.shape.table.name,
    )


def _empty_rows(store: IcebergStore, shape: Shape) -> DataFrame:
    """An empty frame for a table that does not exist yet. The frame includes the columns for places."""
    typed = [f"{quote(name)} {type_}" for name, type_ in types_of(shape).items()]
    return store.spark.createDataFrame([], ", ".join([*typed, f"{FILE} string", f"{POSITION} bigint"]))


def _rows(store: IcebergStore, table: IcebergTable, plan: ddl.DdlPlan[ModelColumn], into: Shape) -> DataFrame:
    with translate_faults(table.shape.table):
        rows = store.spark.table(store.sql_name(table.shape.table))
        types, stored = types_of(into), types_of(table.shape)
        names = {name: _new_name(name, plan.renamed) for name in stored}
        columns = (
            quote(new) if (old, stored[old]) == (new, types[new]) else column(old).cast(types[new]).alias(new)
            for old, new in names.items()
        )
        ids = [ROW_ID] if keeps_row_ids(table) else []
        added = (nothing.alias(name) for name, nothing in null_columns(into.columns, names.values()).items())
        return rows.select(*columns, FILE, POSITION, *ids, *added)


def _new_name(name: str, renamed: Mapping[str, str]) -> str:
    """The name of a column after these renames, applied in order."""
    for old, new in renamed.items():
        name = new if name == old else name
    return name


def apply_shape(work: SparkWork, before: TablePlan) -> IcebergTable:
    """Create, rename or evolve the table, each in one commit, and return the resulting table.

    Raises TryAgain if rows have been written to the table since the plan.
    """
    name, stored, snapshot = before.wanted.table, before.table, before.snapshot
    if stored is None:
        return _commit_shape(work, None, Change(into=before.wanted), None)[0]
    if before.former:
        renamed = Change(into=replace(stored.shape, table=name))
        stored, snapshot = _commit_shape(work, stored, renamed, snapshot)
    for old, new in before.plan.renamed.items():
        # One rename at a time, in the plan's order: a name may be free only after another rename.
        one = {old: new}
        change = Change(into=_rename_columns(stored.shape, one), renamed=one)
        stored, snapshot = _commit_shape(work, stored, change, snapshot)
    into = _evolve_shape(stored.shape, before.plan, before.wanted)
    if into != stored.shape:
        stored, snapshot = _commit_shape(work, stored, Change(into=into), snapshot)
    if snapshot_of(stored) != snapshot:
        raise conflict(name)
    return stored


def snapshot_of(table: IcebergTable) -> int | None:
    """The id of a table's snapshot, or None for a table that never had rows."""
    return None if table.newest is None else table.newest.id


def _commit_shape(
    work: SparkWork, table: IcebergTable | None, change: Change, snapshot: int | None
) -> tuple[IcebergTable, int | None]:
    """Commit a change to the shape. Returns the table after the change, and its expected snapshot."""
    assert change.into is not None
    built = work.commit(table, change, replace(work.note(), token=""))
    newest = built.snapshot_id if built else None
    return existing(work.store, change.into.table), newest or snapshot


def _rename_columns(shape: Shape, renamed: Mapping[str, str]) -> Shape:
    columns = tuple(replace(each, name=_new_name(each.name, renamed)) for each in shape.columns)
    return replace(shape, columns=columns, key=tuple(_new_name(name, renamed) for name in shape.key))


def _evolve_shape(shape: Shape, plan: ddl.DdlPlan[ModelColumn], wanted: Shape) -> Shape:
    types = {each.name: column_type(each) for each, _ in plan.widened}
    columns = []
    for each in shape.columns:
        type_ = types.get(each.name, each.type)
        if not widens(each.type, type_):
            raise Refused(
                "UNSUPPORTED_TYPE_EVOLUTION",
                f"Iceberg cannot widen {wanted.table.name}.{each.name} from {each.type} to {type_} in place.",
                "Use a new column for the new values.",
                [each.name],
            )
        columns.append(Column(each.name, type_))
    added = [Column(each.name, column_type(each)) for each in plan.added]
    return replace(wanted, columns=(*columns, *added))
