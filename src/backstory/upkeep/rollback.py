"""Take a table back to an earlier commit, where rows do not say when the table learnt of them.

Of an event log that is the reset of its chain: its log forgets the blocks of the commits that are taken back.
A history goes back together with the base that it is made from.
"""

from datetime import datetime
from typing import Any

from backstory.engine.attempts import attempt
from backstory.engine.deliver import TableChange, deliver_once
from backstory.errors import MAX_KEYS, Refused, TryAgain, UsageError
from backstory.journal.chain import SEQUENCE, SYSTEM_TIME, snapshots
from backstory.journal.log_table import LOGGED, NUMBER, log_of
from backstory.model.change import Change, Note
from backstory.model.instant import iso, parse_instant
from backstory.model.layout import HIST_SUFFIX, Layout
from backstory.model.table import TableName
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.conditions import delete_where
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_at
from backstory.stores.iceberg.lineage import UPDATED_IN, keeps_row_ids
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.snapshots import IcebergSnapshot, ancestry
from backstory.stores.iceberg.store import Store, StoredTable, existing, load
from backstory.stores.port import LOADING
from backstory.upkeep.rewound import Rewound, commit_fields

LOGS = (Layout.RUN_LOG, Layout.ODF_LOG)


def roll_back(store: Store, table: TableName, time: datetime, *, apply: bool) -> Rewound:
    """Give the table the rows that it had at a time, by its commits; without `apply` only tell which go.

    Raises UsageError for a log and for the base of a history, Refused where the commit of that time has
    expired or the table had other columns, TryAgain while a load is between its commits.
    """
    _refuse_derived(store, existing(store, table).shape.layout, table)
    base = TableName(table.schema, table.name.removesuffix(HIST_SUFFIX))

    def act() -> Rewound:
        stored = existing(store, table)
        if stored.shape.layout is not Layout.HIST:
            return _one(store, stored, time, apply=apply)
        _refuse_loading(stored)
        made_from = load(store, base) if base != table else None
        done = _one(store, stored, time, apply=apply)
        also = [_one(store, made_from, time, apply=apply)] if made_from else []
        return Rewound(
            done.table,
            done.time,
            done.applied or any(each.applied for each in also),
            done.counts,
            done.commits,
            done.keys,
            snapshot_id=done.snapshot_id,
            also=[each.to_dict() for each in also],
        )

    return attempt(store, [table, base, log_of(table)], act)


def _refuse_derived(store: Store, layout: Layout, table: TableName) -> None:
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


def _refuse_loading(table: StoredTable) -> None:
    if table.properties.get(LOADING):
        raise TryAgain(
            "CONCURRENT_RUN",
            f"A run is loading {table.shape.table}, or was interrupted.",
            "Wait until it ends, or run the load again, which restores the base first.",
        )


def _one(store: Store, table: StoredTable, time: datetime, *, apply: bool) -> Rewound:
    name = table.shape.table
    later, target = _parted(table, time)
    if not later:
        return Rewound(str(name), iso(time))
    then = _target_commit(table, later, target, time)
    counts, keys = _lost(store, table, then)
    done = None
    if apply:
        change = Change(counts, back_to=then.id)
        done = _commit(store, table, change, Note(table.shape.layout.door, f"rewind {iso(time)}"))
        if table.shape.layout is Layout.ODF:
            _cut_log(store, existing(store, name))
    commits = [commit_fields(each) for each in later]
    return Rewound(str(name), iso(time), bool(done), counts, commits, keys, None, then.id if done else None)


def _commit(store: Store, table: StoredTable, change: Change | None, note: Note) -> Any:
    return deliver_once(store, TableChange([], note, lambda: (table, change)))


def _parted(table: StoredTable, time: datetime) -> tuple[list[IcebergSnapshot], IcebergSnapshot | None]:
    """The commits by which the table learnt something after the time, newest first, and the one before."""
    later, pending = list[IcebergSnapshot](), list[IcebergSnapshot]()
    for snapshot in ancestry(table):
        learnt = _learnt(table, snapshot)
        pending.append(snapshot)
        if learnt is None:
            continue  # rows that only moved, such as a compaction's, belong to the commit before
        if learnt <= time:
            return later, pending[0]
        later, pending = [*later, *pending], []
    return [*later, *pending], None


def _learnt(table: StoredTable, snapshot: IcebergSnapshot) -> datetime | None:
    """When the table learnt what a commit told: of a dataset's block its system time."""
    if table.shape.layout is not Layout.ODF:
        return snapshot.committed_at
    time = snapshot.get_property(SYSTEM_TIME)
    return parse_instant(time) if time else None


def _target_commit(
    table: StoredTable, later: list[IcebergSnapshot], target: IcebergSnapshot | None, time: datetime
) -> IcebergSnapshot:
    """The commit to go back to; Refused if it has expired, or if the columns were others then."""
    name = table.shape.table
    if target is None and later[-1].java.parentId() is not None:
        raise Refused(
            "snapshots-expired",
            f"The commit that {name} had at {iso(time)} has expired.",
            "Nothing was written; give a later time.",
        )
    if target is None:
        raise Refused(
            "nothing-then", f"{name} had no rows at {iso(time)}.", "Nothing was written; give a later time."
        )
    schemas, now = table.iceberg.schemas(), table.iceberg.schema()
    then = schemas.get(target.java.schemaId()) or now
    names = {int(each.fieldId()): str(each.name()) for each in now.columns()}
    before = {int(each.fieldId()): str(each.name()) for each in then.columns()}
    lost = [column for id_, column in before.items() if id_ not in names]
    new = [names[id_] for id_ in names.keys() - before.keys()]
    own = [each for each in new if table.shape.layout.owns(each, name.name) or each in table.shape.key]
    if lost or own:
        raise Refused(
            "columns-changed",
            f"{name} has other columns now than at {iso(time)}: {', '.join(sorted([*lost, *own]))}.",
            "Nothing was written; give a time after the columns changed.",
        )
    return target


def _lost(
    store: Store, table: StoredTable, then: IcebergSnapshot
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """How many rows there are and were, and up to ten keys of rows that came since, where rows tell."""
    name, key = table.shape.table, table.shape.key
    with translate_faults(name):
        rows = store.spark.table(store.sql_name(name))
        before = rows_at(store, name, then.id)
        counts = {"rows": rows.count(), "rows_then": before.count()}
        if not (key and keeps_row_ids(table)):
            return counts, []
        new = rows.where(column(UPDATED_IN) > int(then.java.sequenceNumber())).select(*map(quoted, key))
        return counts, arrow_of(new.distinct().orderBy(*map(quoted, key)).limit(MAX_KEYS)).to_pylist()


def _cut_log(store: Store, dataset: StoredTable) -> None:
    """Take the blocks out of a dataset's log that are its own no more."""
    head, log = next(snapshots(dataset), None), load(store, log_of(dataset.shape.table))
    if head is None or log is None or log.shape.layout is not Layout.ODF_LOG:
        return
    change = delete_where(store, log, column(NUMBER) > int(head[SEQUENCE]))
    if change is not None:
        _commit(store, log, change, Note("odf", "", {**head, LOGGED: head[SEQUENCE]}))
