"""Base and history of a load stand or fall together, though each has a commit of its own (section 3.8).

While a load is between the two, the history's properties say so: whose load it is, until when it is
waited for, and what the base was before. The history's own commit takes that away. A load that fails
there, or one that finds it left by a process that was killed, puts the base back.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

import structlog

from backstory.doors.historize.runs import hist_names, names_of
from backstory.doors.historize.spark_runs import UNDONE, first_of
from backstory.doors.historize.spark_work import DOOR, SparkWork
from backstory.engine.deliver import TableChange, deliver_once
from backstory.errors import BackstoryError, TryAgain
from backstory.model.change import TOKEN, Change, Note
from backstory.model.instant import iso, parse_instant
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.stores.port import LOADING
from backstory.stores.refusals import conflict

# Writing both tables can take long; a run that was killed goes on at once under its own id.
LASTS = timedelta(hours=1)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LoadLease:
    """A load between its two commits: whose it is, its end, and the snapshot that the base had before."""

    load: str
    run_id: str
    until: str
    base: int | None

    @property
    def lasts(self) -> bool:
        """Whether its load may still go on."""
        return parse_instant(self.until) > datetime.now(UTC)


def lease_of(table: StoredTable | None) -> LoadLease | None:
    """The lease that a history's properties tell."""
    told = table and table.iceberg.properties().get(LOADING)
    return LoadLease(**json.loads(told)) if told else None


def refuse_leased(table: StoredTable | None) -> None:
    """Raises TryAgain (CONCURRENT_RUN) while another load is between its commits."""
    lease = lease_of(table)
    if table is not None and lease is not None:
        raise _concurrent(table, lease)


def recover(work: SparkWork) -> None:
    """Put the base back that an interrupted load left ahead of its history.

    A run goes on at once where it was killed itself. Raises TryAgain (CONCURRENT_RUN) while another
    load may go on, and in a dry run.
    """
    store, schema, dataset = work.store, work.load.schema, work.load.dataset
    hist = first_of(store, schema, hist_names(dataset))
    lease = lease_of(hist)
    if hist is None or lease is None:
        return
    if lease.lasts and lease.load != work.token:
        raise _concurrent(hist, lease)
    if work.run.dry_run:
        raise _interrupted(hist, lease)
    base = first_of(store, schema, names_of(dataset))
    if base is None:
        _written(store, hist, None)  # nothing is left to put back
    else:
        put_back(store, base, hist, lease)


@contextmanager
def hold_lease(work: SparkWork, base: StoredTable, hist: StoredTable) -> Iterator[StoredTable]:
    """Hold the history for a load of both tables, and give it as it then stands.

    What fails in it puts the base back. Raises TryAgain if the history is not what was planned on.
    """
    until = datetime.now(UTC) + LASTS
    lease = LoadLease(work.token, work.run.run_id, iso(until), snapshot_of(base))
    held = _written(work.store, hist, lease)
    try:
        yield held
    except BaseException:
        try:
            put_back(work.store, base, held, lease)
        except BackstoryError as error:
            # The lease stays, and the next load puts the base back.
            log.warning(f"the base {base.shape.table} could not be restored: {error}")
        raise


def put_back(store: Store, base: StoredTable, hist: StoredTable, lease: LoadLease) -> None:
    """Give the base the rows that it had before the lease, then end the lease.

    Nothing is done if the history has another lease by now, or none: its load is over.
    """
    hist = existing(store, hist.shape.table)
    if lease_of(hist) != lease:
        return
    # Written anew first: a commit of the leased load that is still on its way cannot hold any more.
    ended = replace(lease, until=iso(datetime.now(UTC)))
    hist = _written(store, hist, ended)
    _roll_back(store, existing(store, base.shape.table), lease)
    _written(store, hist, None)


def snapshot_of(table: StoredTable) -> int | None:
    """The id of a table's snapshot; None for one that never had rows."""
    snapshot = table.iceberg.currentSnapshot()
    return None if snapshot is None else int(snapshot.snapshotId())


def _written(store: Store, hist: StoredTable, lease: LoadLease | None) -> StoredTable:
    """The history with the lease, or without one; TryAgain if it was changed meanwhile."""
    name, before = hist.shape.table, snapshot_of(hist)
    told = {LOADING: None if lease is None else json.dumps(asdict(lease))}
    built = _commit(store, hist, Change(properties=told))
    held = existing(store, name)
    if lease_of(held) != lease or snapshot_of(held) != (built or before):
        raise conflict(name)
    return held


def _commit(store: Store, table: StoredTable, change: Change, **more: str) -> int | None:
    """The snapshot, if the commit made one."""
    note = Note(DOOR, "", more)
    built = deliver_once(store, TableChange([table.shape.table], note, lambda: (table, change)))
    return built.snapshot_id if built else None


def _roll_back(store: Store, base: StoredTable, lease: LoadLease) -> None:
    current = base.iceberg.currentSnapshot()
    if current is None or int(current.snapshotId()) == lease.base:
        return
    name, expired = base.shape.table, lease.base is not None and base.iceberg.snapshot(lease.base) is None
    if current.summary().get(TOKEN) != lease.load or expired:
        log.warning(f"{name} was changed after an interrupted load, and stays as it is")
        return
    if lease.base is None:
        _commit(store, base, Change(whole=True, snapshot=True), **{UNDONE: lease.load})
    else:
        _commit(store, base, Change(back_to=lease.base))


def _concurrent(table: StoredTable, lease: LoadLease) -> TryAgain:
    return TryAgain(
        "CONCURRENT_RUN",
        f"Another run ({lease.run_id}) is loading {table.shape.table}; its lease ends at {lease.until}.",
        "Wait until it ends; a killed run can be continued at once under its own run id.",
    )


def _interrupted(table: StoredTable, lease: LoadLease) -> TryAgain:
    return TryAgain(
        "CONCURRENT_RUN",
        f"The run {lease.run_id} was interrupted while it loaded {table.shape.table}.",
        "Load without `dry_run=True`: the load restores the base first, which a dry run does not.",
    )
