"""A table of a warehouse as it is, and as it will be when a load has updated its schema."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from backstory.doors.historize.model import ModelColumn
from backstory.doors.historize.spark_tables import empty_rows
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.stage import column_type
from backstory.errors import Refused
from backstory.model.change import Change
from backstory.model.layout import FILE, POSITION, ROW_ID
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import widens
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import keeps_row_ids
from backstory.stores.iceberg.literals import column, null_columns, quote
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import Store, StoredTable, existing, load
from backstory.stores.port import require_layout
from backstory.stores.refusals import conflict
from backstory.stores.sql import ddl
from backstory.stores.sql.dialect import Dialect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class TablePlan:
    """A table before a load, as the load will leave its schema; nothing is written yet.

    `read` makes the frame of its `rows`, which `becomes` says are not the stored ones. `changes` tells what
    must change.
    """

    wanted: Shape
    columns: Sequence[ModelColumn]
    table: StoredTable | None
    read: "Callable[[], DataFrame]"
    plan: ddl.DdlPlan[ModelColumn]
    snapshot: int | None = None
    former: str | None = None
    new_shape: Shape | None = None
    is_preview: bool = False

    @cached_property
    def rows(self) -> "DataFrame":
        """Its rows; none if there is no such table.

        They have the wanted columns under their names and types, those that only the table has, `_file`,
        `_pos` and, where rows have ids, `_row_id`.
        """
        return self.read()

    @property
    def ids(self) -> list[str]:
        """`_row_id`, where rows have ids."""
        return [ROW_ID] if self.table is not None and keeps_row_ids(self.table) else []

    @property
    def into(self) -> Shape:
        """The shape that the table will have."""
        return self.new_shape or self.wanted

    @property
    def changes(self) -> list[str]:
        """What must change, in words."""
        name = self.wanted.table.name
        if self.table is None:
            return [f"CREATE_TABLE {name}"]
        moved = [f"RENAME_DATASET {self.former} to {name}"] if self.former else []
        return [*moved, *(f"{change} ({name})" for change in self.plan.changes_in_words)]

    @property
    def as_stored(self) -> bool:
        """Whether the rows are those that are stored, in the table's own columns."""
        return not (self.is_preview or self.changes)

    @property
    def evolves(self) -> bool:
        """Whether a table that is there must change."""
        return self.table is not None and bool(self.changes)

    @property
    def filled(self) -> bool:
        """Whether the table has rows."""
        return self.table is not None and self.table.rows > 0


def plan_table(
    store: Store,
    wanted: Shape,
    columns: Sequence[ModelColumn],
    former: Sequence[str],
    dialect: Dialect,
    allowed: Callable[[ddl.DdlPlan[ModelColumn]], None] = lambda _: None,
) -> TablePlan:
    """The table under its name or a former one.

    Raises Refused for a table of another layout, for what a plan refuses, for a type that Iceberg cannot
    widen in place, and for what `allowed` refuses.
    """
    names = [wanted.table, *(TableName(wanted.table.schema, name) for name in former)]
    table = next(filter(None, (load(store, name) for name in names)), None)
    if table is None:
        return TablePlan(wanted, columns, None, partial(empty_rows, store, wanted), ddl.DdlPlan())
    require_layout(table, wanted.layout)
    types = {each.name: spark_type(each.type) for each in table.shape.columns}
    plan = ddl.plan_changes(wanted.table.name, columns, types, dialect)
    allowed(plan)
    into = _evolve_shape(_rename_columns(table.shape, plan.renamed), plan, wanted)
    snapshot = table.iceberg.currentSnapshot()
    return TablePlan(
        wanted,
        columns,
        table,
        partial(_rows, store, table, plan, into),
        plan,
        None if snapshot is None else int(snapshot.snapshotId()),
        None if table.shape.table == wanted.table else table.shape.table.name,
        into,
    )


def _rows(store: Store, table: StoredTable, plan: ddl.DdlPlan[ModelColumn], into: Shape) -> "DataFrame":
    with translate_faults(table.shape.table):
        rows = store.spark.table(store.sql_name(table.shape.table))
        types = {each.name: spark_type(each.type) for each in into.columns}
        found = {each.name: spark_type(each.type) for each in table.shape.columns}
        now = {name: _new_name(name, plan.renamed) for name in found}
        kept = (
            quote(new) if (old, found[old]) == (new, types[new]) else column(old).cast(types[new]).alias(new)
            for old, new in now.items()
        )
        ids = [ROW_ID] if keeps_row_ids(table) else []
        added = (nothing.alias(name) for name, nothing in null_columns(into.columns, now.values()).items())
        return rows.select(*kept, FILE, POSITION, *ids, *added)


def _new_name(name: str, renamed: Mapping[str, str]) -> str:
    """What a column is called after the renames, which are made in order."""
    for old, new in renamed.items():
        name = new if name == old else name
    return name


def apply_shape(work: SparkWork, before: TablePlan) -> StoredTable:
    """Create, rename or evolve the table, each in one commit, and give it.

    Raises TryAgain if rows were written to it since it was looked at.
    """
    name, stored, snapshot = before.wanted.table, before.table, before.snapshot
    if stored is None:
        return _commit_shape(work, None, Change(into=before.wanted), None)[0]
    if before.former:
        renamed = Change(into=replace(stored.shape, table=name))
        stored, snapshot = _commit_shape(work, stored, renamed, snapshot)
    for old, new in before.plan.renamed.items():
        # One at a time, in the plan's order: a name may be free only after another rename.
        one = {old: new}
        change = Change(into=_rename_columns(stored.shape, one), renamed=one)
        stored, snapshot = _commit_shape(work, stored, change, snapshot)
    into = _evolve_shape(stored.shape, before.plan, before.wanted)
    if into != stored.shape:
        stored, snapshot = _commit_shape(work, stored, Change(into=into), snapshot)
    newest = stored.iceberg.currentSnapshot()
    if (None if newest is None else int(newest.snapshotId())) != snapshot:
        raise conflict(name)
    return stored


def _commit_shape(
    work: SparkWork, table: StoredTable | None, change: Change, snapshot: int | None
) -> tuple[StoredTable, int | None]:
    """The table after the change, and the snapshot that it should have then."""
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
