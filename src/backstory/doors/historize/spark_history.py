"""Load a history on Spark: what a MERGE would make, in one commit of its own (sections 9.1 and 9.3).

The base is joined once with the open versions. What the join finds is planned on exactly the table
that it is committed to: versions that close are written anew with their end, versions that begin are
added, and a deletion vector takes the old rows away.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.preflight import mass_delete
from backstory.doors.historize.receipts import HistoryReceipt, LoadOutcome, LoadStep
from backstory.doors.historize.scopes import hist_scope
from backstory.doors.historize.spark_maintenance import maintained
from backstory.doors.historize.spark_standing import TablePlan
from backstory.doors.historize.spark_tables import base_shape
from backstory.doors.historize.spark_versions import beginning, closing, versions
from backstory.doors.historize.spark_work import BASE, RECEIPT, SparkWork
from backstory.model.change import NOTHING, Change
from backstory.model.instant import EPOCH, iso, parse_instant
from backstory.model.places import FILE, POSITION
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.positions import positions_of
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.strategies.scd2.frames.cases import KEY, side
from backstory.strategies.scd2.frames.count import tally
from backstory.strategies.scd2.transitions import State, Tally
from backstory.strategies.sift.join import APPEARED, CHANGED, VANISHED, Outcomes, outcomes

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
    known = snapshot.summary().get(NEWEST)
    if known:
        return parse_instant(known)
    files = store.spark.table(store.sql_name(table.shape.table, "files"))
    bounds = [
        unix_micros(f"readable_metrics.{role}.upper_bound") for role in (ColumnRole.STARTED, ColumnRole.ENDED)
    ]
    micros = [each for each in files.agg(*map(greatest, bounds)).collect()[0] if each is not None]
    if table.rows and not micros:
        # Iceberg keeps no bounds for the columns at the end of a wide table.
        rows = store.spark.table(store.sql_name(table.shape.table))
        ends = [greatest(unix_micros(column(role))) for role in (ColumnRole.STARTED, ColumnRole.ENDED)]
        micros = [each for each in rows.agg(*ends).collect()[0] if each is not None]
    return EPOCH + timedelta(microseconds=max(micros)) if micros else None


@dataclass(frozen=True, slots=True)
class PlannedHistory:
    """A history load that nothing speaks against, and what it makes of the table.

    `nothing` says that the history tells of the base already; `newest` is the latest instant that it knows.
    """

    outcome: LoadOutcome
    nothing: bool
    newest: datetime | None
    change: Callable[[StoredTable], Change]

    def commit(
        self,
        work: SparkWork,
        table: StoredTable,
        finished: Callable[[LoadOutcome], HistoryReceipt],
        properties: Mapping[str, None] = NOTHING,
    ) -> LoadOutcome:
        """Write what changes, in one commit that carries the receipt; none if nothing does.

        `properties` of the table change in the same commit.
        """
        outcome = self.outcome
        if self.nothing:
            return outcome
        newest = max(filter(None, (self.newest, work.run.instant)))
        more = {RECEIPT: json.dumps(finished(outcome).to_dict()), NEWEST: iso(newest)}
        made_from = existing(work.store, base_shape(work.load).table).iceberg.currentSnapshot()
        if made_from is not None and not work.run.skip_base:  # who made a base may make it anew
            more[BASE] = str(made_from.snapshotId())
        change = replace(self.change(table), properties=properties)
        built = work.commit(table, change, work.note(**more))
        return replace(outcome, version=str(built and built.snapshot_id))


def _change(
    work: SparkWork, table: StoredTable, found: Outcomes, begun: "DataFrame", counts: Mapping[str, int]
) -> Change:
    """The versions that close and begin; the latter are read from the base as it was just committed."""
    base = work.store.spark.table(work.store.sql_name(base_shape(work.load).table))
    come, closes = versions(work, live_rows(work, base), begun, table), found.changed + found.vanished
    gone = found.actions.where(column("action").isin(CHANGED, VANISHED))
    positions = positions_of(gone.select(f"v.{FILE}", f"v.{POSITION}"), closes)
    if closes:  # those that begin have no ids yet
        come = come.unionByName(closing(work, found, table), allowMissingColumns=True)
    return Change(counts, positions, come, expected=found.appeared + found.changed + closes)


@contextmanager
def planned_history(
    work: SparkWork, base: "DataFrame", before: TablePlan, loaded: LoadOutcome
) -> Iterator[PlannedHistory]:
    """Compare the base's rows with the open versions; nothing is written.

    `loaded` is what the base's load did. Raises Refused with the codes of section 3.6.
    """
    began = time.monotonic()
    newest = None if before.table is None else newest_of(work.store, before.table)
    late = newest is not None and newest >= work.run.instant
    with translate_faults(before.wanted.table):
        before = maintained(work, before)
        live, open_ = live_rows(work, base), _open_versions(work, before)
        checks = {
            "NULL_KEY": column(work.load.dataset.key).isNull(),
            "NULL_ROW_HASH": column(ColumnRole.ROW_HASH).isNull(),
        }
        key, compared = work.load.dataset.key, _compared(work, live)
        with outcomes(compared, open_, key, _changed(), versions_scope(work), checks) as joined:
            _refuse(work, live, before, joined)
            found = _kept(work, joined)
            begun = beginning(work, found, before, late=late)
            if late:
                _refuse_late(work, found, begun, before)
            outcome = outcome_of(tally(found, begun), found.delivered, loaded, began)
            if work.run.dry_run:
                outcome = replace(outcome, keys=_sample(work, found))
            counts = outcome.counts
            yield PlannedHistory(
                outcome, found.nothing, newest, lambda table: _change(work, table, found, begun, counts)
            )


def _kept(work: SparkWork, found: Outcomes) -> Outcomes:
    """The same actions as rows of their own.

    Spark computes again what it had computed from a table that is newer now, and the base is committed first.
    """
    if found.nothing or work.run.dry_run:
        return found
    return replace(found, actions=found.actions.localCheckpoint())


def _open() -> "Column":
    return column(ColumnRole.ENDED).isNull()


def live_rows(work: SparkWork, base: "DataFrame") -> "DataFrame":
    """The base's rows that are not flagged as deleted, with the columns that a version takes."""
    load = work.load
    rows = base.alias("r")
    if flag := load.live("r"):
        rows = rows.where(work.sql(f"TRUE{flag}"))
    names = [load.dataset.key, *(each.input or each.name for each in load.mirrored), ColumnRole.ROW_HASH]
    rows = rows.select(*(column(name) for name in names))
    if load.dataset.historization.duplicate_keys == "reject":
        return rows
    return work.collapsed(rows)


def _compared(work: SparkWork, live: "DataFrame") -> "DataFrame":
    """What the join moves of the base: keys and hashes, and what a refusal or a dry run tells."""
    dating = work.load.dataset.historization.effective_dating
    names = [work.load.dataset.key, ColumnRole.ROW_HASH]
    return live if dating or work.run.dry_run else live.select(*map(quoted, names))


def _open_versions(work: SparkWork, before: TablePlan) -> "DataFrame":
    """The open versions, with what the join needs of them and their place."""
    rows, rules = before.rows.where(_open()), work.load.dataset.historization
    if rules.delete_scope or rules.effective_dating or work.run.dry_run:
        return rows
    names = [work.load.dataset.key, ColumnRole.ROW_HASH, ColumnRole.STARTED]
    return rows.select(*map(quoted, names), FILE, POSITION)


def _changed() -> "Column":
    from pyspark.sql.functions import col

    return ~col(f"r.{ColumnRole.ROW_HASH}").eqNullSafe(col(f"v.{ColumnRole.ROW_HASH}"))


def versions_scope(work: SparkWork) -> "Column | None":
    """Which open versions a deletion may close; None for all."""
    from pyspark.sql.functions import lit

    if not work.load.closes_deleted:
        return lit(False)
    scope = hist_scope(work.load.dataset, work.load.hist, work.load.dialect, "v")
    return work.sql(scope) if scope else None


def _refuse(work: SparkWork, live: "DataFrame", before: TablePlan, found: Outcomes) -> None:
    """P1 to P4, P6, P7."""
    dataset, rules = work.load.dataset, work.load.dataset.historization
    conditions = {"NULL_KEY": dataset.key, "NULL_ROW_HASH": ColumnRole.ROW_HASH}
    for code, name in conditions.items():
        if found.failed[code]:
            keys = work.keys(live.where(column(name).isNull()))
            work.refuse(code, f"{found.failed[code]} rows of the base have no {name}.", keys)
    if found.repeats_delivered and (repeated := work.repeated(live)):
        work.refuse("DUPLICATE_KEY", f"Rows of the base share {dataset.key}.", repeated)
    if found.repeats_stored and (repeated := _repeated_open(work, before)):
        work.refuse("MULTIPLE_OPEN", "Keys have more than one open version.", repeated)
    if not found.delivered and found.stored and not rules.allow_empty_snapshot:
        work.refuse("EMPTY_SNAPSHOT", f"The base {dataset.name} is empty.")
    if many := mass_delete(rules, found.vanished, found.stored):
        work.refuse("MASS_DELETE", many, _keys_of(work, before, found, VANISHED))
    dating = rules.effective_dating
    if dating and dating.late_policy == "reject":
        early = column("action") == CHANGED
        early &= side("r", dating.column) < side("v", dating.column)
        if keys := work.keys(found.actions.where(early), "r."):
            work.refuse("LATE_EFFECTIVE", f"Changed rows have an earlier {dating.column} than before.", keys)


def _repeated_open(work: SparkWork, before: TablePlan) -> list[str]:
    key = work.load.dataset.key
    twice = before.rows.where(_open()).groupBy(quoted(key)).count().where(column("count") > 1)
    return _business_keys(work, before, twice.select(quoted(key)))


def _keys_of(work: SparkWork, before: TablePlan, found: Outcomes, *outcome: str) -> list[str]:
    """Business keys of stored versions with an outcome."""
    keys = found.actions.where(column("action").isin(*outcome))
    return _business_keys(work, before, keys.select(side("v", work.load.dataset.key)))


def _business_keys(work: SparkWork, before: TablePlan, keys: "DataFrame") -> list[str]:
    return work.keys(before.rows.join(keys.limit(100), work.load.dataset.key, "left_semi"))


def _refuse_late(work: SparkWork, found: Outcomes, begun: "DataFrame", before: TablePlan) -> None:
    """P5, where the history knows an instant at or after the load's."""
    instant = work.sql("{{ load_timestamp }}")
    late = "Versions begin or end at or after the load's timestamp."
    early = found.actions.where(side("v", ColumnRole.STARTED) >= instant).where(
        column("action").isin(CHANGED, VANISHED)
    )
    if keys := _business_keys(work, before, early.select(side("v", work.load.dataset.key))):
        work.refuse("NON_MONOTONIC_TIMESTAMP", late, keys)
    later = before.rows.where((column(ColumnRole.STARTED) >= instant) | (column(ColumnRole.ENDED) > instant))
    named = begun.select(column(KEY).alias(work.load.dataset.key))
    if keys := work.keys(later.join(named, work.load.dataset.key, "left_semi")):
        work.refuse("NON_MONOTONIC_TIMESTAMP", late, keys)


def outcome_of(cases: Tally, delivered: int, before: LoadOutcome, began: float) -> LoadOutcome:
    """The records by what became of them, and the steps as the four of section 3.3."""
    took = round((time.monotonic() - began) * 1000)
    steps = [LoadStep(name, rows) for name, rows in cases.rows.items()]
    steps.append(LoadStep("merge", sum(cases.rows.values()), took))
    return replace(before, counts=cases.counts, steps=[*before.steps, *steps], base=delivered)


def _sample(work: SparkWork, found: Outcomes) -> dict[str, list[str]]:
    """Up to ten business keys of each outcome, for a dry run."""
    sides = {State.NEW: (APPEARED, "r."), State.CHANGED: (CHANGED, "r."), State.DELETED: (VANISHED, "v.")}
    return {
        str(outcome): work.keys(found.actions.where(column("action") == action), side)
        for outcome, (action, side) in sides.items()
    }
