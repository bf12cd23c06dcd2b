"""Load a base table on Spark: the stage against what is stored, one join, one commit (section 3.7)."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from backstory.doors.historize.collisions import differing, same_hash, warn_of_collisions
from backstory.doors.historize.columns import business_keys, foreign_keys, user_columns
from backstory.doors.historize.maintenance import rehashed
from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.preflight import KEYS_CHANGED
from backstory.doors.historize.receipts import LoadOutcome, LoadStep
from backstory.doors.historize.scopes import increment_scope
from backstory.doors.historize.spark_standing import TablePlan
from backstory.doors.historize.spark_tables import base_shape, stage_rows
from backstory.doors.historize.spark_work import SparkWork
from backstory.errors import Refused
from backstory.model.change import Change
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.stores.iceberg.conditions import change_where
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import absent, column, quoted
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.store import StoredTable, existing
from backstory.stores.sql.columns import Datatype
from backstory.strategies.scd2.frames.cases import side
from backstory.strategies.sift.join import APPEARED, CHANGED, KEPT, VANISHED, Outcomes, outcomes
from backstory.strategies.sift.plan import Compared

LONGER = "longer: "
GONE_FILE, GONE_POSITION = "gone file", "gone position"

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class PlannedBase:
    """A base load that nothing speaks against: its steps, and what it makes of the table.

    `nothing` says that the base is the stage's already; `counts` are its rows by what becomes of them.
    """

    steps: Sequence[LoadStep]
    nothing: bool
    counts: Mapping[str, int]
    change: Callable[[StoredTable], Change]

    def commit(self, work: SparkWork, table: StoredTable) -> None:
        """Write what changes, in one commit; none if nothing does."""
        change = None if self.nothing else replace(self.change(table), counts=self.counts)
        work.commit(table, change, work.note())


def base_plan(
    found: Outcomes | Compared, change: Callable[[StoredTable], Change], began: float
) -> PlannedBase:
    """The plan of a comparison of stage and base, which began at this second."""
    appeared, changed, vanished, *_ = found.sizes
    took = round((time.monotonic() - began) * 1000)
    steps = [
        LoadStep("base_delete", vanished),
        LoadStep("base_replace", changed),
        LoadStep("base_insert", appeared + changed, took),
    ]
    counts = {"inserted": appeared, "changed": changed, "deleted": vanished}
    return PlannedBase(steps, found.nothing, counts, change)


def with_base(loaded: LoadOutcome, planned: PlannedBase) -> LoadOutcome:
    """What a load did, the base's part added."""
    written = sum(step.rows for step in planned.steps)
    return replace(loaded, steps=[*loaded.steps, *planned.steps], changed_base=written)


def maintain_base(work: SparkWork) -> None:
    """Make the hashes of all rows anew where the run asks for it: a delta brings some of them only."""
    if work.run.rehash_base:
        table = existing(work.store, base_shape(work.load).table)
        every = column(work.load.dataset.key).isNotNull()
        change = change_where(work.store, table, every, lambda rows: _rehashed(work, rows))
        work.commit(table, change, replace(work.note(), token=""))


def maintained_base(work: SparkWork, before: TablePlan) -> TablePlan:
    """The rows with the hashes that they are about to have."""
    return replace(before, read=lambda: _rehashed(work, before.rows)) if work.run.rehash_base else before


def _rehashed(work: SparkWork, rows: "DataFrame") -> "DataFrame":
    return rows.alias("b").withColumn(ColumnRole.ROW_HASH, work.sql(rehashed(work.load, "b")))


@contextmanager
def planned_base(work: SparkWork, before: TablePlan) -> "Iterator[tuple[PlannedBase, DataFrame]]":
    """Compare the stage with the base; nothing is written. Beside the plan the rows that the base will have.

    Raises Refused for a stage that cannot be a base: NULL and repeated keys, no rows at all.
    """
    began = time.monotonic()
    load = work.load
    if work.run.stage is None:
        raise Refused(
            "BASE_NOT_LOADED",
            f"{load.dataset.name} has no stage input.",
            "Set its input, or use `skip_base=True` to keep the base as it is.",
        )
    with translate_faults(before.wanted.table):
        staged = staged_rows(work)
        stored = before.rows.select(*map(quoted, before.wanted.names), FILE, POSITION, *before.ids)
        differs, scope, nulls = _differs(work), base_scope(work), broken(work)
        unseen = _unseen(work)
        with outcomes(staged, stored, load.dataset.key, differs, scope, nulls, tallies=unseen) as found:
            _refuse(work, staged, stored, found)
            warn_of_collisions(load, found.tallies)
            plan = base_plan(found, lambda table: _change(work, table, found), began)
            yield plan, _after(work, stored, found)


def staged_rows(work: SparkWork) -> "DataFrame":
    """The stage's rows as rows of the base, keys and hashes computed."""
    assert work.run.stage is not None
    rows, brought = stage_rows(work.store, work.run.stage, work.load, work.secret)
    values = work.load.base_values("s", brought)
    staged = rows.alias("s").select(*(work.sql(sql).alias(name) for name, sql in values.items()))
    if work.load.dataset.historization.duplicate_keys == "reject":
        return staged
    return work.collapsed(staged)


def _differs(work: SparkWork) -> "Column":
    """Whether a row is not the stored one, load columns aside."""
    from pyspark.sql.functions import col

    compared = [*user_columns(work.load.dataset), *foreign_keys(work.load.dataset)]
    names = [*(each.name for each in compared), ColumnRole.ROW_HASH]
    pairs = [(col(f"r.{quoted(name)}"), col(f"v.{quoted(name)}")) for name in names]
    return reduce(or_, (~left.eqNullSafe(right) for left, right in pairs))


def base_scope(work: SparkWork) -> "Column | None":
    """Which stored rows go when the stage does not have them; None for all."""
    from pyspark.sql.functions import lit

    load = work.load
    if not load.deletes_base:
        return lit(False)
    scope = (
        work.sql(increment_scope(load.model, load.dataset, load.dialect, "v") or "TRUE")
        if load.delete_scope
        else None
    )
    soft = load.dataset.historization.soft_delete
    if soft is None or soft.on_delete == "delete":
        return scope
    live = work.sql("TRUE" + load.live("v"))
    return live if scope is None else scope & live


def broken(work: SparkWork) -> "dict[str, Column]":
    """For each column that is never NULL, or has a length, the rows that break that."""
    from pyspark.sql.functions import length

    columns = user_columns(work.load.dataset)
    nulls = {each.name: column(each.name).isNull() for each in columns if not each.nullable}
    texts = [each for each in columns if each.datatype is Datatype.STRING and each.max_length]
    return nulls | {LONGER + each.name: length(column(each.name)) > (each.max_length or 0) for each in texts}


def _refuse(work: SparkWork, staged: "DataFrame", stored: "DataFrame", found: Outcomes) -> None:
    dataset = work.load.dataset
    keys = {each.name for each in business_keys(dataset)}
    for name, count in found.failed.items():
        if count and name.startswith(LONGER):
            bare = name.removeprefix(LONGER)
            keys_ = work.keys(staged.where(broken(work)[name]))
            work.refuse("VALUE_TOO_LONG", f"{bare} is too long in {count} rows of the stage.", keys_)
        elif count:
            code = "NULL_KEY" if name in keys else "NULL_VALUE"
            told = f"{name} is NULL in {count} rows of the stage."
            work.refuse(code, told, work.keys(staged.where(column(name).isNull())))
    if found.repeats_delivered and (repeated := work.repeated(staged)):
        work.refuse("DUPLICATE_KEY", "Rows of the stage share a business key.", repeated)
    if found.repeats_stored and (repeated := work.repeated(stored)):
        work.refuse("DUPLICATE_KEY", f"Rows of the base share {dataset.key}.", repeated)
    if found.appeared and (found.vanished or found.kept):
        _refuse_moved(work, found)
    full = work.load.deletes_base and not work.load.delete_scope
    allowed = dataset.historization.allow_empty_snapshot
    if full and found.stored and not found.delivered and not allowed:
        work.refuse("EMPTY_SNAPSHOT", f"The stage of {dataset.name} is empty.")


def _unseen(work: SparkWork) -> "dict[str, Column]":
    """For each column the changed records that have another text of it under one hash."""
    alike = (column("action") == CHANGED) & work.sql(same_hash(work.load, "r", "v"))
    return {name: alike & work.sql(sql) for name, sql in differing(work.load, "r", "v").items()}


def _refuse_moved(work: SparkWork, found: Outcomes) -> None:
    """Refuse records that only seem to come and go, because their keys are made in another way now."""
    from pyspark.sql.functions import col

    names = [each.name for each in business_keys(work.load.dataset)]
    arrived = found.actions.where(column("action") == APPEARED).select("r").alias("came")
    went = found.actions.where(column("action").isin(VANISHED, KEPT)).select("v").alias("went")
    same = (col(f"came.r.{quoted(name)}").eqNullSafe(col(f"went.v.{quoted(name)}")) for name in names)
    if keys := work.keys(arrived.join(went, reduce(and_, same), "left_semi"), "r."):
        work.refuse("KEYS_CHANGED", KEYS_CHANGED, keys)


def _change(work: SparkWork, table: StoredTable, found: Outcomes) -> Change:
    come = _coming(work, found)
    come = come.withColumns(absent(table.shape.columns, come.columns))
    gone = found.actions.where(column("action").isin(CHANGED, VANISHED)).select(f"v.{FILE}", f"v.{POSITION}")
    positions = positions_of(gone, found.changed + found.vanished)
    return Change(gone=positions, come=come)


def _coming(work: SparkWork, found: Outcomes) -> "DataFrame":
    """The rows that the base gets: new and changed ones, and those that only get the flag; with their ids."""
    from pyspark.sql.functions import lit

    ids = [f"v.{ROW_ID}"] if ROW_ID in found.actions.select("v.*").columns else []
    come = found.actions.where(column("action").isin(APPEARED, CHANGED)).select("r.*", *ids)
    soft = work.load.dataset.historization.soft_delete
    if soft is None or soft.on_delete == "delete":
        return come
    flagged = found.actions.where(column("action") == VANISHED).select("v.*").drop(FILE, POSITION)
    values = {soft.column: lit(soft.deleted_values[0]).cast(flagged.schema[soft.column].dataType)}
    if soft.deleted_at:
        values[soft.deleted_at] = work.sql("{{ load_timestamp }}")
    return come.unionByName(flagged.withColumns(values))


def _after(work: SparkWork, stored: "DataFrame", found: Outcomes) -> "DataFrame":
    """The rows that the base will have: what stays of it, and what comes."""
    if found.nothing:
        return stored.drop(FILE, POSITION, ROW_ID)
    gone = found.actions.where(column("action").isin(CHANGED, VANISHED))
    gone = gone.select(side("v", FILE).alias(GONE_FILE), side("v", POSITION).alias(GONE_POSITION))
    here = (column(FILE) == column(GONE_FILE)) & (column(POSITION) == column(GONE_POSITION))
    stays = stored.join(gone, here, "left_anti").drop(FILE, POSITION)
    return stays.unionByName(_coming(work, found)).drop(ROW_ID)
