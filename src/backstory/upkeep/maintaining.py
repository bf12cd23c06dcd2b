"""Keep a table small and quick: compact, settle, let old snapshots expire; no answer changes (V91)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from backstory.engine.upkeep import compact, expire
from backstory.errors import BackstoryError, TryAgain, UsageError
from backstory.journal.log_table import bring_up_to_date
from backstory.model.layout import HIST_SUFFIX, Layout
from backstory.model.receipt import Receipt, apart
from backstory.model.table import TableName
from backstory.stores.iceberg.erasures import Expired
from backstory.stores.iceberg.store import Store, StoredTable, existing, load
from backstory.stores.port import LOADING
from backstory.upkeep.carried import carried
from backstory.upkeep.keeping import expiring
from backstory.upkeep.settling import Bounds, remembered, settle

# The tokens of commits that no log tells of, so that they have to stay.
Needed = Callable[[Store, StoredTable], Collection[str]]


@dataclass(frozen=True, slots=True, repr=False)
class Maintained(Receipt):
    """What was done to a table, or would be in a dry run.

    Data files before and after, the bytes of those that were rewritten, snapshots that expired, cursors that
    were dropped for their age, files outside of the table's folder that nothing needs any more and that are
    not deleted (`left`), rows of memory that were settled or pruned, the share of rows that are memory, and a
    time up to which to settle where that is more than a fifth. Of a failed one no more is known.
    """

    table: str
    layout: str
    files: int = 0
    files_after: int = 0
    bytes_rewritten: int = 0
    snapshots_expired: int = 0
    cursors_dropped: Sequence[str] = ()
    left: Sequence[str] = ()
    rows_settled: int = 0
    memory_share: float | None = None
    propose_settle_before: str | None = None
    status: Literal["done", "failed"] = "done"
    error: BackstoryError | None = None


def maintain(
    store: Store, name: TableName, bounds: Bounds, needed: Needed, *, dry_run: bool = False
) -> Maintained:
    """Settle what is asked for, compact, and let expire what nothing needs; each is one commit, or none.

    Raises UsageError for bounds of a table that is none of versions, TryAgain where another writer came
    first each time, and while a load stands between its commits.
    """
    table = existing(store, name)
    native = table.shape.layout is Layout.VERSIONS
    if bounds != Bounds() and not native:
        layout = table.shape.layout
        raise UsageError("no-memory", f"{name} keeps no memory: its layout is {layout}.", "Omit the time.")
    _refuse_loading(store, table)
    done = Maintained(str(name), table.shape.layout.value)
    if native:
        done = replace(done, rows_settled=settle(store, name, bounds, dry_run=dry_run))
        share = remembered(store, existing(store, name))
        done = replace(done, memory_share=round(share.share, 4), propose_settle_before=share.propose)
    found = compact(store, name, lambda stored: carried(stored, {}), dry_run=dry_run)
    done = replace(done, files=found.files, files_after=found.files_after, bytes_rewritten=found.bytes)
    old = expiring(existing(store, name), needed(store, existing(store, name)))
    if old is None:
        return done
    if not dry_run:
        gone = _expired(store, name, needed)
        cursors, left = list(old.cursors), list(gone.left)
        return replace(done, snapshots_expired=gone.snapshots, cursors_dropped=cursors, left=left)
    return replace(done, snapshots_expired=old.snapshots, cursors_dropped=list(old.cursors))


def run_for_each(
    names: Sequence[TableName], act: Callable[[TableName], Maintained], *, every: bool
) -> list[Maintained]:
    """The result of `act` for each table; an error of one is its receipt, and does not stop the others."""
    results = ((name, each) for name, each in apart(names, act, every=every).items())
    return [
        Maintained(str(name), "", status="failed", error=each) if isinstance(each, BackstoryError) else each
        for name, each in results
    ]


def _expired(store: Store, name: TableName, needed: Needed) -> Expired:
    """Let go what nothing needs; the log of a dataset is written first, for it keeps the chain."""

    def chosen(table: StoredTable) -> tuple[int, Sequence[str], Mapping[str, int]] | None:
        found = expiring(table, needed(store, table))
        return None if found is None else (found.milliseconds, found.cursors, found.renewed)

    table = existing(store, name)
    if table.shape.layout is Layout.ODF:
        bring_up_to_date(store, table)
    return expire(store, name, chosen)


def _refuse_loading(store: Store, table: StoredTable) -> None:
    name = table.shape.table
    beside = TableName(name.schema, name.name + HIST_SUFFIX) if table.shape.layout is Layout.BASE else name
    history = load(store, beside)
    told = history.properties.get(LOADING) if history else None
    if told:
        raise TryAgain(
            "CONCURRENT_RUN",
            f"A run is loading {name}, or was interrupted.",
            "Wait until it ends, or run the load again, which restores the base first.",
        )
