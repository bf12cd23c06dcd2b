"""Rewinds of a table to an earlier state (native.md V84, V85).

Rows of layout `versions` contain their recorded times, so they are rewound one by one. Any other table goes
back to an earlier commit. An event log goes back together with its log of blocks, and a history together with
its base.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import greatest, unix_micros
from pyspark.sql.functions import max as newest

from backstory.engine.deliver import Plan, attempt, commit_change, deliver
from backstory.engine.plans import PlanTerms, Side
from backstory.engine.runner import run_plan
from backstory.errors import MAX_KEYS, Refused, UsageError
from backstory.formats.delivered import arrow_schema
from backstory.journal.chain import LOGGED, NUMBER, SEQUENCE, SYSTEM_TIME, log_of, snapshots
from backstory.model.change import DOOR, TOKEN, Change, Commit, Note
from backstory.model.instant import iso, parse_instant
from backstory.model.layout import HIST_SUFFIX, MEMORY, RECORDED_AT, ROW_ID, Layout
from backstory.model.receipt import Receipt
from backstory.model.table import TableName
from backstory.model.versions_layout import (
    COPIED_AT,
    ENDED_AT,
    FORMER_MEMORIES,
    KNOWN_FROM,
    LACKS,
    MEMORY_SINCE,
    OVERWRITE,
    RECORDED,
    SETTLED,
)
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.conditions import change_where
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import UPDATED_IN, keeps_row_ids, rows_at, rows_with_ids
from backstory.stores.iceberg.literals import column, instant, micros_of, quote
from backstory.stores.iceberg.schema import names_by_id
from backstory.stores.iceberg.slice import PLACE
from backstory.stores.iceberg.store import (
    IcebergStore,
    IcebergTable,
    existing,
    load,
)
from backstory.stores.metadata.table_metadata import CommitMetadata
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan, Whole
from backstory.strategies.rewind import KEYS, RewindTerms, plan_rewind
from backstory.upkeep.maintaining import refuse_loading

TOUCHED: Final = "touched"
OUTCOMES = ("taken_back", "moved", "returned")


@dataclass(frozen=True, slots=True, repr=False)
class Rewound(Receipt):
    """The result of a rewind, or its plan if `applied` is false.

    `counts` are rows by outcome. `commits` are the undone commits, newest first. `keys` are up to ten keys of
    records that change. `recorded_at` is the recorded time of the rewind (layout `versions`). `also` has the
    receipts of tables that are rewound with this one.
    """

    table: str
    time: str
    applied: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)
    recorded_at: str | None = None
    snapshot_id: int | None = None
    also: list[dict[str, Any]] = field(default_factory=list)


def commit_fields(snapshot: CommitMetadata) -> dict[str, Any]:
    """The fields of a commit in receipts."""
    return {
        "snapshot_id": snapshot.id,
        "committed_at": iso(snapshot.committed_at),
        "door": snapshot.properties.get(DOOR),
        "token": snapshot.properties.get(TOKEN),
    }


LOGS = (Layout.RUN_LOG, Layout.ODF_LOG)


def roll_back(store: IcebergStore, table: TableName, time: datetime, *, apply: bool) -> Rewound:
    """Roll the table back to the commit that was current at a time.

    Unless `apply` is true, only report the later commits. Raises UsageError for a log and for the base of a
    history. Raises Refused if the commit of that time has expired or had other columns, and TryAgain while a
    load is between its two commits.
    """
    _refuse_derived(store, existing(store, table).shape.layout, table)
    base = TableName(table.schema, table.name.removesuffix(HIST_SUFFIX))

    def act() -> Rewound:
        stored = existing(store, table)
        if stored.shape.layout is not Layout.HIST:
            return _roll_back_one(store, stored, time, apply=apply)
        refuse_loading(store, stored)
        made_from = load(store, base) if base != table else None
        done = _roll_back_one(store, stored, time, apply=apply)
        also = [_roll_back_one(store, made_from, time, apply=apply)] if made_from else []
        applied = done.applied or any(receipt.applied for receipt in also)
        return replace(done, applied=applied, also=[receipt.to_dict() for receipt in also])

    return attempt(store, [table, base, log_of(table)], act)


def _refuse_derived(store: IcebergStore, layout: Layout, table: TableName) -> None:
    history = TableName(table.schema, table.name + HIST_SUFFIX)
    if layout in LOGS:
        raise UsageError(
            "no-rewind",
            f"{table} is a log of other tables.",
            "Rewind those tables; their logs are rewound with them.",
        )
    if layout is Layout.BASE and load(store, history) is not None:
        raise UsageError(
            "no-rewind",
            f"{table} is the base of {history}.",
            f"Rewind {history}: its base is rewound with it.",
        )


def _roll_back_one(store: IcebergStore, table: IcebergTable, time: datetime, *, apply: bool) -> Rewound:
    name = table.shape.table
    later, target = _split_commits(table, time)
    if not later:
        return Rewound(str(name), iso(time))
    then = _target_commit(table, later, target, time)
    counts, keys = _count_lost(store, table, then)
    done = None
    if apply:
        change = Change(counts, back_to=then.id)
        done = commit_change(store, table, change, Note(table.shape.layout.door, f"rewind {iso(time)}"))
        if table.shape.layout is Layout.ODF:
            _cut_log(store, existing(store, name))
    commits = [commit_fields(commit) for commit in later]
    return Rewound(str(name), iso(time), bool(done), counts, commits, keys, None, then.id if done else None)


def _split_commits(table: IcebergTable, time: datetime) -> tuple[list[CommitMetadata], CommitMetadata | None]:
    """The commits recorded after the time, newest first, and the newest commit before it."""
    later, pending = list[CommitMetadata](), list[CommitMetadata]()
    for snapshot in table.lineage:
        time_recorded = _learnt_at(table, snapshot)
        pending.append(snapshot)
        if time_recorded is None:
            continue  # rows that only moved, such as a compaction's, belong to the commit before
        if time_recorded <= time:
            return later, pending[0]
        later, pending = [*later, *pending], []
    return [*later, *pending], None


def _learnt_at(table: IcebergTable, snapshot: CommitMetadata) -> datetime | None:
    """The recorded time of a commit. For a dataset, this is the system time of the commit's block, if any."""
    if table.shape.layout is not Layout.ODF:
        return snapshot.committed_at
    time = snapshot.properties.get(SYSTEM_TIME)
    return parse_instant(time) if time else None


def _target_commit(
    table: IcebergTable, later: list[CommitMetadata], target: CommitMetadata | None, time: datetime
) -> CommitMetadata:
    """The commit to go back to. Raises Refused if it has expired or had other columns."""
    name = table.shape.table
    if target is None and later[-1].parent is not None:
        raise Refused(
            "snapshots-expired",
            f"The commit that {name} had at {iso(time)} has expired.",
            "Nothing was written; give a later time.",
        )
    if target is None:
        raise Refused(
            "nothing-then", f"{name} had no rows at {iso(time)}.", "Nothing was written; give a later time."
        )
    names, before = names_by_id(table.fields), names_by_id(table.fields_then(target.schema_id))
    lost = [column for id_, column in before.items() if id_ not in names]
    new = [names[id_] for id_ in names.keys() - before.keys()]
    own = [
        column for column in new if table.shape.layout.owns(column, name.name) or column in table.shape.key
    ]
    if lost or own:
        raise Refused(
            "columns-changed",
            f"{name} now has other columns than at {iso(time)}: {', '.join(sorted([*lost, *own]))}.",
            "Nothing was written; give a time after the columns changed.",
        )
    return target


def _count_lost(
    store: IcebergStore, table: IcebergTable, then: CommitMetadata
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """The current and earlier row counts and, if rows have ids, up to ten keys of rows written since then."""
    name, key = table.shape.table, table.shape.key
    with translate_faults(name):
        rows = store.spark.table(store.sql_name(name))
        before = rows_at(store, name, then.id)
        counts = {"rows": rows.count(), "rows_then": before.count()}
        if not (key and keeps_row_ids(table)):
            return counts, []
        new = rows.where(column(UPDATED_IN) > then.version).select(*map(quote, key))
        return counts, arrow_of(new.distinct().orderBy(*map(quote, key)).limit(MAX_KEYS)).to_pylist()


def _cut_log(store: IcebergStore, dataset: IcebergTable) -> None:
    """Remove from a dataset's log the blocks after the dataset's newest block."""
    head, log = next(snapshots(dataset), None), load(store, log_of(dataset.shape.table))
    if head is None or log is None or log.shape.layout is not Layout.ODF_LOG:
        return
    change = change_where(store, log, column(NUMBER) > int(head[SEQUENCE]))
    if change is not None:
        commit_change(store, log, change, Note("odf", "", {**head, LOGGED: head[SEQUENCE]}))


def rewind(store: IcebergStore, table: TableName, time: datetime, *, apply: bool = False) -> Rewound:
    """Undo everything recorded after a given time. Unless `apply` is true, only report what would be undone.

    A second call commits nothing. Raises UsageError (`known-pruned`) if the state of that time was pruned,
    and Refused (`snapshots-expired`) if the commit of that time has expired.
    """
    layout = existing(store, table).shape.layout
    if layout is Layout.VERSIONS:
        return deliver(store, [table], partial(_open_rewind, table=table, time=time, dry_run=not apply))
    return roll_back(store, table, time, apply=apply)


@contextmanager
def _open_rewind(
    store: IcebergStore, table: TableName, time: datetime, *, dry_run: bool
) -> Iterator[Plan[Rewound]]:
    """A plan for the rewind, made from the rows recorded after the time.

    If there are no such rows, the plan has no change.
    """
    stored = existing(store, table)
    _refuse_pruned(stored, time)
    commits = [commit for commit in stored.lineage if (_recorded_at(commit) or time) > time]
    change, counts, keys = None, dict[str, int](), list[dict[str, Any]]()
    with ExitStack() as stack, translate_faults(table):
        rows = rows_with_ids(store, stored).withColumns({name: column(name) for name in PLACE.names})
        touched = rows.where(is_learnt_after(time))
        now = _next_recorded_at(stored, touched) if stored.rows else None
        if now is not None:
            planned = stack.enter_context(run_plan(_plan_terms(store, stored, touched, time, now)))
            counts = {name: count for name, count in planned.sums.counts.items() if count}
            if (few := planned.sums.samples.get(KEYS)) is not None:
                keys = few.sort_by([(name, "ascending") for name in stored.shape.key]).to_pylist()
            properties = memory_at(stored.properties, time, now)
            removed, added = planned.places(REMOVED, stored), planned.rows(ADDED)
            change = Change(counts, removed, added, properties=properties) if counts else None

        def receipt(committed: Commit | None) -> Rewound:
            return Rewound(
                str(table),
                iso(time),
                committed is not None,
                {name: counts.get(name, 0) for name in OUTCOMES},
                [commit_fields(commit) for commit in commits] if change else [],
                keys,
                iso(now) if committed and now else None,
                committed.snapshot_id if committed else None,
            )

        yield Plan(stored, change, _note(stored, time, now), receipt, dry_run)


def is_learnt_after(known: datetime) -> Column:
    """Whether a row or its end was recorded after this time (V85)."""
    time = instant(micros_of(known))
    return (column(RECORDED_AT) > time) | (column(MEMORY)[ENDED_AT] > time)


def _plan_terms(
    store: IcebergStore, stored: IcebergTable, touched: DataFrame, known: datetime, now: datetime
) -> PlanTerms:
    columns, key = stored.shape.columns, stored.shape.key
    untold = frozenset(json.loads(stored.properties.get(OVERWRITE) or "[]"))
    terms = RewindTerms(columns, key, micros_of(known), micros_of(now), untold)
    ids = [pa.field(ROW_ID, pa.int64())] if ROW_ID in touched.columns else []
    added = pa.schema([*arrow_schema({column.name: column.type for column in columns}), *ids])
    schema = pa.schema([*added, *PLACE])
    side = Side(schema, lambda: touched.select(*map(column, schema.names)))
    kinds = {REMOVED: PLACE, ADDED: added}
    return PlanTerms(store, stored.shape.table, {TOUCHED: side}, key, kinds, partial(_plan_part, terms))


def _plan_part(terms: RewindTerms, sides: Mapping[str, pa.Table], _whole: Whole) -> PartPlan:
    return plan_rewind(terms, sides[TOUCHED])


def _refuse_pruned(table: IcebergTable, time: datetime) -> None:
    since = table.properties.get(KNOWN_FROM)
    if since is not None and time < parse_instant(since):
        raise UsageError(
            "known-pruned",
            f"The recorded history of {table.shape.table} before {since} was pruned.",
            "Nothing was written; give a later time.",
        )


def _next_recorded_at(table: IcebergTable, touched: DataFrame) -> datetime | None:
    """The recorded time of the rewind's commit (V10), or None if there are no `touched` rows."""
    latest = newest(unix_micros(greatest(column(RECORDED_AT), column(MEMORY)[ENDED_AT])))
    (row,) = touched.agg(latest).collect()
    if row[0] is None:
        return None
    recorded = [_recorded_at(commit) for commit in table.lineage][:1]
    times = [datetime.fromtimestamp(0, UTC) + timedelta(microseconds=row[0]), *filter(None, recorded)]
    return max(datetime.now(UTC), max(times) + timedelta(microseconds=1))


def memory_at(properties: Mapping[str, str], time: datetime, now: datetime) -> dict[str, str | None]:
    """The properties that restore a table's memory at a time. Later memories become former (V84, E20).

    An interval that `maintain` settled stays settled.
    """
    settled, since = properties.get(SETTLED), properties.get(MEMORY_SINCE)
    if settled and (json.loads(settled) or [""])[0] is None:
        return {}
    if since is not None and parse_instant(since) <= time:
        return {}
    former = json.loads(properties.get(FORMER_MEMORIES) or "[]")
    again = next(
        (
            memory
            for memory in former
            if parse_instant(memory["since"]) <= time < parse_instant(memory["until"])
        ),
        None,
    )
    if since is None and again is None:
        return {}
    if since is not None:
        former.append({"since": since, "settled": settled, "until": iso(now)})
    return {
        SETTLED: again and again["settled"],
        MEMORY_SINCE: again and again["since"],
        FORMER_MEMORIES: json.dumps(former),
    }


def _note(table: IcebergTable, time: datetime, now: datetime | None) -> Note:
    """The note of the commit, with the newest copy's instant (V14) and missing columns as of the time."""
    standing = [commit for commit in table.lineage if (_recorded_at(commit) or time) <= time]
    at, lists = (
        next(filter(None, (commit.properties.get(name) for commit in standing)), None)
        for name in (COPIED_AT, LACKS)
    )
    more = {RECORDED: now and iso(now), COPIED_AT: at, LACKS: lists or "{}"}
    return Note("native", f"rewind {iso(time)}", {name: text for name, text in more.items() if text})


def _recorded_at(snapshot: CommitMetadata) -> datetime | None:
    time = snapshot.properties.get(RECORDED)
    return parse_instant(time) if time else None
