"""Load a history on Spark: what a MERGE would make, in one commit of its own (sections 9.1 and 9.3).

The base is joined once with the open versions. What the join finds is planned on exactly the table
that it is committed to: versions that close are written anew with their end, versions that begin are
added, and a deletion vector takes the old rows away.
"""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from backstory.doors.historize.maintenance import rehashed, relabelled, relabels
from backstory.doors.historize.model import Role
from backstory.doors.historize.receipts import HistoryReceipt, Outcome, Step, iso
from backstory.doors.historize.scopes import hist_scope
from backstory.doors.historize.spark_tables import empty_rows, hist_shape
from backstory.doors.historize.spark_versions import (
    AGAIN,
    HEALED,
    KEY,
    beginning,
    closing,
    column_of,
    versions,
)
from backstory.doors.historize.spark_work import SparkWork
from backstory.model.instant import EPOCH, parse_instant
from backstory.model.table import Shape, TableName
from backstory.strategies.actions import FILE, POSITION
from backstory.strategies.full_state.plan import APPEARED, CHANGED, VANISHED, Outcomes, outcomes
from backstory.tables.conditions import change_where
from backstory.tables.faults import translated
from backstory.tables.literals import absent, column, quoted
from backstory.tables.positions import positions_of
from backstory.tables.replace import replace_rows
from backstory.tables.store import Store, StoredTable, existing, load

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NEWEST = "backstory.newest"


def newest_of(store: Store, table: StoredTable) -> datetime | None:
    """No start or end in the history is later: told by the last load, else by the bounds of its files."""
    from pyspark.sql.functions import max as greatest
    from pyspark.sql.functions import unix_micros

    snapshot = table.iceberg.currentSnapshot()
    if snapshot is None:
        return None
    told = snapshot.summary().get(NEWEST)
    if told:
        return parse_instant(told)
    files = store.spark.table(store.sql_name(table.shape.table, "files"))
    bounds = [unix_micros(f"readable_metrics.{role}.upper_bound") for role in (Role.STARTED, Role.ENDED)]
    micros = [each for each in files.agg(*map(greatest, bounds)).collect()[0] if each is not None]
    if table.rows and not micros:
        # Iceberg keeps no bounds for the columns at the end of a wide table.
        rows = store.spark.table(store.sql_name(table.shape.table))
        ends = [greatest(unix_micros(column(role))) for role in (Role.STARTED, Role.ENDED)]
        micros = [each for each in rows.agg(*ends).collect()[0] if each is not None]
    return EPOCH + timedelta(microseconds=max(micros)) if micros else None


def maintain(work: SparkWork) -> None:
    """Make open versions' hashes anew, or give states other labels, where the run asks for it."""
    if work.run.rehash:
        _update(work, _open(), Role.ROW_HASH, rehashed(work.load))
    if work.run.relabel is not None:
        pairs = relabels(work.run.relabel, work.load.labels)
        _update(work, column(Role.STATE).isin(list(pairs)), Role.STATE, relabelled(work.load, pairs))


def _update(work: SparkWork, where: "Column", name: str, value: str) -> None:
    table = existing(work.store, hist_shape(work.load).table)
    change_where(
        work.store,
        table,
        where,
        lambda rows: rows.alias("h").withColumn(name, work.sql(value)),
        replace(work.note({}), token=""),
    )


def load_history(
    work: SparkWork,
    base: "DataFrame | None",
    before: Outcome,
    finished: Callable[[Outcome], HistoryReceipt],
) -> Outcome:
    """Bring the base's state into the history; `base` has its rows where none were written.

    `finished` makes the receipt that the commit carries. Raises Refused with the codes of section 3.6.
    """
    began = time.monotonic()
    shape = hist_shape(work.load)
    table = load(work.store, shape.table)
    newest = None if table is None else newest_of(work.store, table)
    late = newest is not None and newest >= work.run.instant
    live, open_ = _live(work, base), _open_versions(work, table, shape)
    checks = {
        "NULL_KEY": column(work.load.dataset.key).isNull(),
        "NULL_ROW_HASH": column(Role.ROW_HASH).isNull(),
    }
    with (
        translated(shape.table),
        outcomes(
            _compared(work, live), open_, work.load.dataset.key, _changed(), _scope(work), checks
        ) as found,
    ):
        _refuse(work, live, open_, found)
        begun = beginning(work, found, table, late=late)
        if table is not None and late:
            _refuse_late(work, found, begun, table)
        outcome = _told(found, begun, before, began)
        if work.run.dry_run:
            return replace(outcome, keys=_sample(work, found))
        if found.nothing:
            return outcome
        assert table is not None
        newest = max(filter(None, (newest, work.run.instant)))
        more = {"backstory.receipt": json.dumps(finished(outcome).to_dict()), NEWEST: iso(newest)}
        come, closes = versions(work, live, begun, table), found.changed + found.vanished
        gone = found.actions.where(column("action").isin(CHANGED, VANISHED))
        positions = positions_of(gone.select(f"v.{FILE}", f"v.{POSITION}"), closes)
        come = come.unionByName(closing(work, found, table)) if closes else come
        count = found.appeared + found.changed + closes
        version = replace_rows(
            work.store, table, positions, come, work.note(outcome.counts, **more), count=count
        )
    return replace(outcome, version=str(version))


def _open() -> "Column":
    return column(Role.ENDED).isNull()


def _live(work: SparkWork, base: "DataFrame | None") -> "DataFrame":
    """The base's rows that are not flagged as deleted, with the columns that a version takes."""
    the = work.load
    if base is None:
        base = work.store.spark.table(work.store.sql_name(TableName(the.schema, the.dataset.name)))
    rows = base.alias("r")
    if flag := the.live("r"):
        rows = rows.where(work.sql(f"TRUE{flag}"))
    names = [the.dataset.key, *(each.input or each.name for each in the.mirrored), Role.ROW_HASH]
    rows = rows.select(*(column(name) for name in names))
    if the.dataset.historization.duplicate_keys == "reject":
        return rows
    return work.collapsed(rows)


def _compared(work: SparkWork, live: "DataFrame") -> "DataFrame":
    """What the join moves of the base: keys and hashes, and what a refusal or a dry run tells."""
    dating = work.load.dataset.historization.effective_dating
    names = [work.load.dataset.key, Role.ROW_HASH]
    return live if dating or work.run.dry_run else live.select(*map(quoted, names))


def _open_versions(work: SparkWork, table: StoredTable | None, shape: Shape) -> "DataFrame":
    """The open versions, with what the join needs of them and their place."""
    if table is None:
        return empty_rows(work.store, shape)
    rows = work.store.spark.table(work.store.sql_name(shape.table))
    rows = rows.withColumns(absent(shape.columns, table.shape.names)).where(_open())
    rules = work.load.dataset.historization
    names = [work.load.dataset.key, Role.ROW_HASH, Role.STARTED]
    if rules.delete_scope or rules.effective_dating or work.run.dry_run:
        names = shape.names
    return rows.select(*map(quoted, names), FILE, POSITION)


def _changed() -> "Column":
    from pyspark.sql.functions import col

    return ~col(f"r.{Role.ROW_HASH}").eqNullSafe(col(f"v.{Role.ROW_HASH}"))


def _scope(work: SparkWork) -> "Column | None":
    from pyspark.sql.functions import lit

    if not work.load.closes_deleted:
        return lit(False)
    scope = hist_scope(work.load.dataset, work.load.hist, work.load.dialect, "v")
    return work.sql(scope) if scope else None


def _refuse(work: SparkWork, live: "DataFrame", open_: "DataFrame", found: Outcomes) -> None:
    """P1 to P4, P6, P7."""
    dataset, rules = work.load.dataset, work.load.dataset.historization
    conditions = {"NULL_KEY": dataset.key, "NULL_ROW_HASH": Role.ROW_HASH}
    for code, name in conditions.items():
        if found.failed[code]:
            keys = work.keys(live.where(column(name).isNull()))
            work.refuse(code, f"{found.failed[code]} rows of the base have no {name}.", keys)
    if found.repeats_delivered and (repeated := work.repeated(live)):
        work.refuse("DUPLICATE_KEY", f"Rows of the base share {dataset.key}.", repeated)
    if found.repeats_stored and (repeated := _repeated_open(work, open_)):
        work.refuse("MULTIPLE_OPEN", "Keys have more than one open version.", repeated)
    if not found.delivered and found.stored and not rules.allow_empty_snapshot:
        work.refuse("EMPTY_SNAPSHOT", f"The base {dataset.name} is empty.")
    if rules.max_delete_ratio is not None and found.vanished > rules.max_delete_ratio * found.stored:
        told = f"{found.vanished} of {found.stored} open versions would be closed as deleted."
        work.refuse("MASS_DELETE", told, _keys_of(work, found, VANISHED))
    dating = rules.effective_dating
    if dating and dating.late_policy == "reject":
        early = column("action") == CHANGED
        early &= column_of("r", dating.column) < column_of("v", dating.column)
        if keys := work.keys(found.actions.where(early), "r."):
            work.refuse("LATE_EFFECTIVE", f"Changed rows have an earlier {dating.column} than before.", keys)


def _repeated_open(work: SparkWork, open_: "DataFrame") -> list[str]:
    key = work.load.dataset.key
    twice = open_.groupBy(quoted(key)).count().where(column("count") > 1).select(quoted(key))
    return _business_keys(work, twice)


def _keys_of(work: SparkWork, found: Outcomes, *outcome: str) -> list[str]:
    """Business keys of stored versions with an outcome."""
    keys = found.actions.where(column("action").isin(*outcome))
    return _business_keys(work, keys.select(column_of("v", work.load.dataset.key)))


def _business_keys(work: SparkWork, keys: "DataFrame") -> list[str]:
    rows = work.store.spark.table(work.store.sql_name(hist_shape(work.load).table))
    return work.keys(rows.join(keys.limit(100), work.load.dataset.key, "left_semi"))


def _refuse_late(work: SparkWork, found: Outcomes, begun: "DataFrame", table: StoredTable) -> None:
    """P5, where the history knows an instant at or after the load's."""
    instant = work.sql("{{ load_timestamp }}")
    told = "Versions begin or end at or after the load's timestamp."
    early = found.actions.where(column_of("v", Role.STARTED) >= instant).where(
        column("action").isin(CHANGED, VANISHED)
    )
    if keys := _business_keys(work, early.select(column_of("v", work.load.dataset.key))):
        work.refuse("NON_MONOTONIC_TIMESTAMP", told, keys)
    rows = work.store.spark.table(work.store.sql_name(table.shape.table))
    later = rows.where((column(Role.STARTED) >= instant) | (column(Role.ENDED) > instant))
    named = begun.select(column(KEY).alias(work.load.dataset.key))
    if keys := work.keys(later.join(named, work.load.dataset.key, "left_semi")):
        work.refuse("NON_MONOTONIC_TIMESTAMP", told, keys)


def _told(found: Outcomes, begun: "DataFrame", before: Outcome, began: float) -> Outcome:
    """The records by what became of them, and the steps as the four of section 3.3."""
    again = healed = 0
    if found.appeared:
        flags = begun.where(column(AGAIN) | column(HEALED)).groupBy(quoted(HEALED)).count().collect()
        again = sum(row["count"] for row in flags if not row[HEALED])
        healed = sum(row["count"] for row in flags if row[HEALED])
    new = found.appeared - healed
    counts = {
        "new": new - again,
        "changed": found.changed + healed,
        "deleted": found.vanished,
        "reappeared": again,
        "unchanged": found.same,
    }
    took = round((time.monotonic() - began) * 1000)
    steps = [
        Step("close_changed", found.changed),
        Step("close_deleted", found.vanished),
        Step("insert_changed", found.changed + healed),
        Step("insert_new", new),
        Step("merge", found.changed * 2 + found.vanished + found.appeared, took),
    ]
    return replace(before, counts=counts, steps=[*before.steps, *steps], base=found.delivered)


def _sample(work: SparkWork, found: Outcomes) -> dict[str, list[str]]:
    """Up to ten business keys of each outcome, for a dry run."""
    sides = {"new": (APPEARED, "r."), "changed": (CHANGED, "r."), "deleted": (VANISHED, "v.")}
    return {
        outcome: work.keys(found.actions.where(column("action") == action), side)
        for outcome, (action, side) in sides.items()
    }
