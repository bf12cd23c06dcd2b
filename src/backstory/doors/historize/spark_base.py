"""Load a base table on Spark: the stage against what is stored, one join, one commit (section 3.7)."""

import time
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from backstory.doors.historize.columns import business_keys, foreign_keys, user_columns
from backstory.doors.historize.model import Role
from backstory.doors.historize.preflight import KEYS_CHANGED
from backstory.doors.historize.receipts import Step
from backstory.doors.historize.scopes import increment_scope
from backstory.doors.historize.spark_tables import base_shape, empty_rows, stage_rows, synchronised
from backstory.doors.historize.spark_work import SparkWork
from backstory.errors import Refused
from backstory.model.table import Shape
from backstory.strategies.actions import FILE, POSITION
from backstory.strategies.full_state.plan import APPEARED, CHANGED, KEPT, VANISHED, Outcomes, outcomes
from backstory.tables.faults import translated
from backstory.tables.literals import absent, column, quoted
from backstory.tables.positions import positions_of
from backstory.tables.replace import replace_rows
from backstory.tables.store import StoredTable, load

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def load_base(work: SparkWork) -> "tuple[DataFrame | None, list[Step], list[str]]":
    """Bring the stage into the base: its steps and schema changes.

    A dry run writes nothing and also gives the rows that the base would have. Raises Refused for a
    stage that cannot be a base: NULL and repeated keys, no rows at all.
    """
    began = time.monotonic()
    the = work.load
    if work.run.stage is None:
        raise Refused(
            "BASE_NOT_LOADED",
            f"{the.dataset.name} has no stage input.",
            "Give it an input, or take the base as it stands with --skip-base.",
        )
    shape, changes = base_shape(the), list[str]()
    staged = _staged(work)
    if not work.run.dry_run:
        former = the.dataset.former_names
        changes = synchronised(work.store, shape, the.base_columns, former, the.dialect)
    table = load(work.store, shape.table)
    stored = _stored(work, table, shape)
    with (
        translated(shape.table),
        outcomes(staged, stored, the.dataset.key, _differs(work), _scope(work), _nulls(work)) as found,
    ):
        _refuse(work, staged, stored, found)
        if not work.run.dry_run and not found.nothing and table is not None:
            _commit(work, table, found)
        took = round((time.monotonic() - began) * 1000)
        steps = [
            Step("base_delete", found.vanished),
            Step("base_replace", found.changed),
            Step("base_insert", found.appeared + found.changed, took),
        ]
    return _after(work, staged, stored) if work.run.dry_run else None, steps, changes


def _staged(work: SparkWork) -> "DataFrame":
    """The stage's rows as rows of the base, keys and hashes computed."""
    assert work.run.stage is not None
    rows, brought = stage_rows(work.store, work.run.stage, work.load)
    values = work.load.base_values("s", brought)
    staged = work.peppered(rows, "s").select(*(work.sql(sql).alias(name) for name, sql in values.items()))
    if work.load.dataset.historization.duplicate_keys == "reject":
        return staged
    return work.collapsed(staged)


def _stored(work: SparkWork, table: StoredTable | None, shape: Shape) -> "DataFrame":
    if table is None:
        return empty_rows(work.store, shape)
    rows = work.store.spark.table(work.store.sql_name(shape.table))
    # A dry run does not add the columns that the model has more.
    rows = rows.withColumns(absent(shape.columns, table.shape.names))
    return rows.select(*map(quoted, shape.names), FILE, POSITION)


def _differs(work: SparkWork) -> "Column":
    """Whether a row is not the stored one, load columns aside."""
    from pyspark.sql.functions import col

    compared = [*user_columns(work.load.dataset), *foreign_keys(work.load.dataset)]
    names = [*(each.name for each in compared), Role.ROW_HASH]
    pairs = [(col(f"r.{quoted(name)}"), col(f"v.{quoted(name)}")) for name in names]
    return reduce(or_, (~left.eqNullSafe(right) for left, right in pairs))


def _scope(work: SparkWork) -> "Column | None":
    """Which stored rows go when the stage does not have them; None for all."""
    from pyspark.sql.functions import lit

    the = work.load
    if not the.deletes_base:
        return lit(False)
    scope = (
        work.sql(increment_scope(the.model, the.dataset, the.dialect, "v") or "TRUE")
        if the.delete_scope
        else None
    )
    soft = the.dataset.historization.soft_delete
    if soft is None or soft.on_delete == "delete":
        return scope
    live = work.sql("TRUE" + the.live("v"))
    return live if scope is None else scope & live


def _nulls(work: SparkWork) -> "dict[str, Column]":
    """For each column that is never NULL, the rows where it is."""
    columns = user_columns(work.load.dataset)
    return {each.name: column(each.name).isNull() for each in columns if not each.nullable}


def _refuse(work: SparkWork, staged: "DataFrame", stored: "DataFrame", found: Outcomes) -> None:
    dataset = work.load.dataset
    keys = {each.name for each in business_keys(dataset)}
    for name, count in found.failed.items():
        if count:
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


def _refuse_moved(work: SparkWork, found: Outcomes) -> None:
    """Refuse records that only seem to come and go, because their keys are made in another way now."""
    from pyspark.sql.functions import col

    names = [each.name for each in business_keys(work.load.dataset)]
    came = found.actions.where(column("action") == APPEARED).select("r").alias("came")
    went = found.actions.where(column("action").isin(VANISHED, KEPT)).select("v").alias("went")
    same = (col(f"came.r.{quoted(name)}").eqNullSafe(col(f"went.v.{quoted(name)}")) for name in names)
    if keys := work.keys(came.join(went, reduce(and_, same), "left_semi"), "r."):
        work.refuse("KEYS_CHANGED", KEYS_CHANGED, keys)


def _commit(work: SparkWork, table: StoredTable, found: Outcomes) -> None:
    actions = found.actions.where(column("action").isin(APPEARED, CHANGED, VANISHED))
    come = actions.where(column("action") != VANISHED).select("r.*")
    flagged = _flagged(work, actions.where(column("action") == VANISHED).select("v.*"))
    if flagged is not None:
        come = come.unionByName(flagged.drop(FILE, POSITION))
    come = come.withColumns(absent(table.shape.columns, come.columns))
    gone = actions.where(column("action") != APPEARED).select(f"v.{FILE}", f"v.{POSITION}")
    positions = positions_of(gone, found.changed + found.vanished)
    counts = {"inserted": found.appeared, "changed": found.changed, "deleted": found.vanished}
    replace_rows(work.store, table, positions, come, work.note(counts))


def _flagged(work: SparkWork, vanished: "DataFrame") -> "DataFrame | None":
    """Rows that vanished, as rows with the flag, where deletions are flags (section 7.3)."""
    from pyspark.sql.functions import lit

    soft = work.load.dataset.historization.soft_delete
    if soft is None or soft.on_delete == "delete":
        return None
    values = {soft.column: lit(soft.deleted_values[0]).cast(vanished.schema[soft.column].dataType)}
    if soft.deleted_at:
        values[soft.deleted_at] = work.sql("{{ load_timestamp }}")
    return vanished.withColumns(values)


def _after(work: SparkWork, staged: "DataFrame", stored: "DataFrame") -> "DataFrame":
    """The rows that the base would have."""
    from pyspark.sql.functions import lit

    scope = _scope(work)
    if scope is None:
        return staged
    missing = stored.join(staged.select(quoted(work.load.dataset.key)), work.load.dataset.key, "left_anti")
    kept = missing.alias("v").where(~scope.eqNullSafe(lit(True))).select("v.*").drop(FILE, POSITION)
    after = staged.unionByName(kept)
    flagged = _flagged(work, missing.alias("v").where(scope).select("v.*"))
    return after if flagged is None else after.unionByName(flagged.drop(FILE, POSITION))
