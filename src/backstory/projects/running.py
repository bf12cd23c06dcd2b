"""A run of a project: declarations in parallel, each after its upstream declarations.

Locks keep two runs on this machine from writing the same table. A run can repeat the declarations that did
not succeed in the previous run, even if that run was interrupted.
"""

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import gettempdir
from threading import Event, Lock
from typing import IO, Any, Final

import structlog

from backstory.doors.native.databases import declared_keys_by_jdbc
from backstory.doors.native.options import names_files
from backstory.engine.run_context import RUN, RunNotes
from backstory.errors import BackstoryError, TryAgain, UsageError, internal_error, option
from backstory.formats.memory import DISK_FULL, translate_disk_errors
from backstory.model.table import TableName, table_name
from backstory.projects.declarations import (
    Declaration,
    Project,
    declare_tables,
    select,
    tables_read,
    upstream_of,
)
from backstory.projects.deliveries import (
    Delivery,
    archive_to_complete,
    archive_without_load,
    archives_of,
)
from backstory.projects.files import Mark, fill_in
from backstory.projects.log import (
    BEGUN,
    UNDONE,
    WELL,
    RunReceipt,
    append_beginning,
    append_run,
    marks_of_commits,
    marks_of_log,
    newest_rows,
    rows_of_log,
    status_of,
    uuid_of,
)
from backstory.projects.options import RunRequest, RunWatcher
from backstory.settings import Rights
from backstory.sources.databases.address import Database
from backstory.sources.databases.copies import Keys, declared_keys
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, exists, load, tables
from backstory.upkeep.previews import branch_head

FOLDER: Final = ".runs"  # in the folder of an embedded warehouse
RUN_ENDING: Final = ".run"


@contextmanager
def hold_tables(store: IcebergStore, tables: Iterable[str]) -> Iterator[None]:
    """Lock the tables. Raises TryAgain (`table-busy`) if another run holds one of them.

    The locks end with the process.
    """
    with ExitStack() as stack:
        for table in sorted(tables):
            name = hashlib.sha256(f"{store.address} {table}".encode()).hexdigest()[:24]
            file = stack.enter_context(_open_lock_file(_folder(store) / f"{name}.lock"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TryAgain(
                    "table-busy",
                    f"Another run is writing {table}.",
                    "Run it again after the other run has ended.",
                ) from None
        yield


@contextmanager
def hold_run(store: IcebergStore, run_id: str) -> Iterator[None]:
    """Hold the lock that marks a run as running. The lock ends with the process."""
    path = _folder(store) / f"{run_id}{RUN_ENDING}"
    with _open_lock_file(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def is_running(store: IcebergStore, run_id: str) -> bool:
    """Whether a run on this machine has not ended yet."""
    try:
        with (_folder(store) / f"{run_id}{RUN_ENDING}").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _open_lock_file(path: Path) -> IO[str]:
    """An open lock file, created if missing."""
    with translate_disk_errors(f"the folder {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")


def _folder(store: IcebergStore) -> Path:
    """The folder of lock files: in an embedded warehouse, or else among this user's temporary files."""
    home = store.home
    return Path(gettempdir()) / f"backstory-runs-{os.getuid()}" if home is None else home / FOLDER


Rows = Sequence[Mapping[str, Any]]


def names_to_repeat(
    store: IcebergStore, project: Project, selected: Iterable[Declaration], logged: Rows
) -> set[str]:
    """The names of the selected declarations that did not succeed, except declarations of a run in progress.

    Raises UsageError if no run of the project is recorded. Raises TryAgain if only declarations of a run in
    progress are left.
    """
    of_project = [row for row in logged if row["project"] == str(project.path)]
    if not of_project:
        raise UsageError(
            "no-run",
            f"No run of {project.path} is recorded in {store.description}.",
            f"Run it without {option('failed', value=True)}.",
        )
    rows = newest_rows(of_project)
    running = {run for run in _runs_without_end(rows) if is_running(store, run)}
    if _runs_without_end(rows) - running:  # a run may have ended since the log was read
        rows = newest_rows([row for row in rows_of_log(store) if row["project"] == str(project.path)])
    last = {row["name"]: row for row in rows if row["run_id"] not in running}
    left = {
        declared.name
        for declared in selected
        if declared.name in last and not _is_done(store, declared, last[declared.name])
    }
    # The tables of a pattern that could not be listed are not in the log if they are new.
    patterns = {name for name, row in last.items() if row["status"] in UNDONE}
    left |= {
        declared.name for declared in selected if declared.name not in last and declared.pattern in patterns
    }
    if running and not left:
        raise TryAgain(
            "run-under-way",
            f"The run {max(running)} has not ended yet.",
            "Run it again after the other run has ended.",
        )
    return left


def _runs_without_end(rows: Rows) -> set[str]:
    return {row["run_id"] for row in rows if row["status"] == BEGUN}


def _is_done(store: IcebergStore, declared: Declaration, row: Mapping[str, Any]) -> bool:
    """Whether a declaration succeeded. If its end is not recorded, whether its only delivery is committed."""
    if row["status"] != BEGUN:
        return row["status"] not in UNDONE
    times = declared.times
    if times is None or (times.each and names_files(declared.source)):
        return False  # it has several deliveries, so a commit need not be the last one
    stored = load(store, table_name(declared.name))
    commits = stored.commits if stored else ()
    if archive_to_complete(stored) is not None:
        return False  # the commit of the run has archived the table
    return any(commit.properties.get(RUN) == row["run_id"] for commit in commits)


# A delivery with a transient error is tried again after these seconds. Others run in the meantime.
PAUSES: Final = (2.0, 10.0, 30.0)
NO_END: Final = "The end of this run was not logged, but everything that it reports is committed"
CHECK_SECONDS: Final = 0.2  # seconds between checks of the event that ends the run

log = structlog.get_logger()


@dataclass(slots=True)
class _Turn:
    """A declaration that waits for its turn, with its attempts so far and the receipt of the last attempt.

    `marks` identify the files that the table has received, and `logged` are the marks in the log.
    """

    declared: Declaration
    attempts: int = 0
    not_before: float = 0.0
    marks: set[Mark] = field(default_factory=set)
    logged: set[Mark] = field(default_factory=set)
    receipt: RunReceipt | None = None


def run_project(
    store: IcebergStore,
    project: Project,
    request: RunRequest,
    rights: Rights,
    stop: Event | None = None,
    watcher: RunWatcher | None = None,
) -> list[RunReceipt]:
    """Deliver the project's declarations, or the selected ones. Once `stop` is set, no declaration begins.

    Returns their receipts in the file's order. Raises UsageError, before anything begins, for a wrong
    selection or a missing environment variable.
    """
    # Past runs matter for patterns, and for declarations whose files are delivered once.
    once = (declared.times is not None and declared.times.each for declared in project.declarations)
    logged = rows_of_log(store) if request.failed or project.patterns or any(once) else []
    project = _declare_tables(store, project, logged)
    upstream = upstream_of(project)
    selected = _select(store, project, request, upstream, logged)
    watcher = watcher or RunWatcher()
    watcher.on_selection(selected)
    began = datetime.now(UTC)
    run_id = f"{began:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    turns = {declared.name: _Turn(declared) for declared in selected}
    writers, stop = _writers(selected), stop or Event()
    run = _Run(store, request, project.folder, rights, run_id, logged, upstream, writers, stop, watcher)
    if not selected or request.dry_run or request.branch is not None:
        return run.receipts(turns)
    with hold_run(store, run_id):
        _log(
            "The beginning of this run was not logged, so `failed=True` will not find it",
            partial(append_beginning, store, project, run_id, began, selected),
            TryAgain,
        )
        receipts = run.receipts(turns)
        marks = {name: sorted(turn.marks - turn.logged, key=str) for name, turn in turns.items()}
        _log(NO_END, partial(append_run, store, project, receipts, marks))
    return receipts


def _declare_tables(store: IcebergStore, project: Project, logged: Rows) -> Project:
    """The project with the tables of its patterns. Keys are read with Spark if no other way exists."""

    def is_table(name: str) -> bool:
        return exists(store, table_name(name))

    def keys_of(database: Database) -> Keys:
        return declared_keys_by_jdbc(store, database) if database.kind == "jdbc" else declared_keys(database)

    return declare_tables(project, logged, is_table, keys_of)


def _select(
    store: IcebergStore,
    project: Project,
    request: RunRequest,
    upstream: Mapping[str, frozenset[str]],
    logged: Rows,
) -> list[Declaration]:
    """The declarations to deliver.

    Raises UsageError for a wrong selection, for a missing variable, and for a model or dataset on a branch.
    """
    selected = select(project, upstream, request.select)
    if request.failed:
        names = names_to_repeat(store, project, selected, logged)
        selected = [declared for declared in selected if declared.name in names]
    for declared in selected:
        fill_in(declared.source, declared.place)
    for declared in selected if request.branch is not None else ():
        if declared.kind in {"model", "dataset"}:
            raise UsageError(
                "bad-option",
                f"{declared.name} is a {declared.kind}; only tables and feeds can be previewed on a branch.",
                "Select tables and feeds, or omit `branch=`.",
            )
    return selected


def _writers(selected: Iterable[Declaration]) -> dict[str, str]:
    """The declaration that writes each table of the warehouse. Models with an address write elsewhere."""
    within = (declared for declared in selected if "url" not in declared.options)
    return {table: declared.name for declared in within for table in declared.writes}


def _log(lost: str, append: Callable[[], None], *raised: type[BackstoryError]) -> None:
    """Append to the log. If that fails, raise errors of the classes `raised`, or warn with `lost`."""
    try:
        append()
    except BackstoryError as error:
        if isinstance(error, raised):
            raise
        log.warning(f"{lost}: {error.message}", code=error.code)


@dataclass(slots=True)
class _Run:
    """A run, with the data for all of its declarations. `listed` caches the tables of each schema."""

    store: IcebergStore
    request: RunRequest
    folder: Path
    rights: Rights
    run_id: str
    logged: Sequence[Mapping[str, Any]]
    upstream: Mapping[str, frozenset[str]]
    writers: Mapping[str, str]
    stop: Event
    watcher: RunWatcher
    listed: dict[str, Sequence[TableName]] = field(default_factory=dict)
    listing: Lock = field(default_factory=Lock)

    def receipts(self, turns: Mapping[str, _Turn]) -> list[RunReceipt]:
        """Deliver the declarations of all turns. Returns their receipts in the same order."""
        waiting, ended = dict(turns), dict[str, RunReceipt]()
        running: dict[Future[RunReceipt], _Turn] = {}
        jobs = self.request.jobs

        def end(receipt: RunReceipt) -> None:
            ended[receipt.name] = receipt
            self.watcher.on_end(receipt)

        with ThreadPoolExecutor(jobs, thread_name_prefix="run") as pool:
            while waiting or running:
                for receipt in self._without_turn(waiting, ended):
                    end(receipt)
                left = turns.keys() - {receipt.name for receipt in ended.values() if receipt.status in WELL}
                for turn in self._ready(waiting, left, jobs - len(running)):
                    del waiting[turn.declared.name]
                    running[pool.submit(self._attempt, turn)] = turn
                if not running:
                    self.stop.wait(CHECK_SECONDS)
                    continue
                for future in wait(running, CHECK_SECONDS, FIRST_COMPLETED).done:
                    turn, receipt = running.pop(future), future.result()
                    if self._has_another_turn(turn, receipt):
                        waiting[turn.declared.name] = turn
                    else:
                        end(receipt)
        return [ended[name] for name in turns]

    def _without_turn(
        self, waiting: dict[str, _Turn], ended: Mapping[str, RunReceipt]
    ) -> Iterator[RunReceipt]:
        """The receipts of declarations that will not run, because the run ends or a failure blocks them."""
        for name, turn in list(waiting.items()):
            failed = sorted(up for up in self.upstream[name] if up in ended and ended[up].status not in WELL)
            if not failed and not self.stop.is_set():
                continue
            del waiting[name]
            if turn.receipt is not None:
                yield turn.receipt
                continue
            now = datetime.now(UTC)
            receipt = RunReceipt(name, turn.declared.kind, "stopped", self.run_id, started_at=now, attempts=0)
            yield replace(receipt, status="blocked", blocked_by=failed[0]) if failed else receipt

    def _ready(self, waiting: Mapping[str, _Turn], left: AbstractSet[str], free: int) -> list[_Turn]:
        """The turns that may begin now, because none of their upstream declarations is `left`."""
        now = time.monotonic()
        begin = (turn for turn in waiting.values() if turn.not_before <= now)
        ready = (turn for turn in begin if not self.upstream[turn.declared.name] & left)
        return list(islice(ready, max(free, 0)))

    def _has_another_turn(self, turn: _Turn, receipt: RunReceipt) -> bool:
        """Whether the error is transient, so that the declaration is tried again."""
        if turn.declared.error is not None:
            return False
        passing = isinstance(receipt.error, TryAgain) and receipt.error.code != DISK_FULL
        if not passing or turn.attempts > len(PAUSES):
            return False
        turn.receipt = receipt
        turn.not_before = time.monotonic() + PAUSES[turn.attempts - 1]
        return True

    def _attempt(self, turn: _Turn) -> RunReceipt:
        """The receipt of one attempt, in a thread of the pool. It contains any error."""
        # A preview is not a run of the project: neither the log nor its commits record it.
        request = self.request
        notes = RunNotes("" if request.branch else self.run_id)
        declared, began = turn.declared, time.monotonic()
        turn.attempts += 1
        self.watcher.on_begin(declared.name)
        started = datetime.now(UTC)
        try:
            with nullcontext() if request.dry_run else hold_tables(self.store, declared.writes):
                if declared.times is not None and declared.times.each:
                    self._note_marks(turn)
                archive = self._archive_without_load(declared)
                delivery = Delivery(self.store, declared, request, self.folder, self.rights, notes)
                receipt = self._without_source(declared) or delivery.carry_out(turn.marks)
                if archive is not None and load(self.store, table_name(declared.name)) is not None:
                    notes.archives.insert(0, archive)
        except Exception as stop:  # an error of one table must not end the run
            error = stop if isinstance(stop, BackstoryError) else internal_error(stop)
            if error is not stop:
                log.debug("a bug", exc_info=True)
            receipt = RunReceipt(declared.name, declared.kind, status_of(error), error=error)
        if notes.archives:
            turn.logged = set()  # the log has these marks only for the former table
        seconds = time.monotonic() - began
        known = sum(notes.seconds.values())
        stages = {"read": max(seconds - known, 0.0), **notes.seconds}
        return replace(
            _add_attempts(turn.receipt, receipt),
            run_id=self.run_id,
            started_at=started,
            seconds=round(seconds, 3),
            stages={name: round(duration, 3) for name, duration in stages.items()},
            way=notes.way,
            attempts=turn.attempts,
            archives=[*dict.fromkeys([*(turn.receipt.archives if turn.receipt else ()), *notes.archives])],
        )

    def _without_source(self, declared: Declaration) -> RunReceipt | None:
        """In a dry run, the receipt of a declaration that reads a table that the run would create."""
        for table in tables_read(declared) if self.request.dry_run else ():
            writer = self.writers.get(table, declared.name)
            if writer != declared.name and not exists(self.store, table_name(table)):
                return RunReceipt(declared.name, declared.kind, "blocked", blocked_by=writer)
        return None

    def _note_marks(self, turn: _Turn) -> None:
        """Note the files that the table or one of its former histories has received.

        The log repeats the files of former histories once the restart is logged.
        """
        name, branch = turn.declared.name, self.request.branch
        stored = load(self.store, table_name(name))
        if branch and stored is not None and branch_head(stored, branch) is not None:
            stored = load(replace(self.store, branch=branch), table_name(name))
        turn.logged = marks_of_log(self.logged, name, stored)
        turn.marks |= turn.logged | marks_of_commits(stored)
        uuid = uuid_of(stored)
        others = any(
            row["name"] == name and row["files"] and row["table_uuid"] != uuid for row in self.logged
        )
        if not turn.logged and (stored is None or others or turn.declared.restart):
            for archive in self._archives(table_name(name)):
                turn.marks |= marks_of_log(self.logged, name, archive) | marks_of_commits(archive)

    def _archive_without_load(self, declared: Declaration) -> str | None:
        """The archive of a restart that a killed run began, if the new history has no first load yet."""
        if not declared.restart or self.request.dry_run:
            return None
        table = table_name(declared.name)  # only tables restart: a model or dataset may have any name
        if load(self.store, table) is not None:
            return None
        archives = self._archives(table)
        return archive_without_load(archives, rows_of_log(self.store)) if archives else None

    def _archives(self, table: TableName) -> list[IcebergTable]:
        """The former histories of a table. The tables in its schema are listed once per run."""
        with self.listing:
            if table.schema not in self.listed:
                self.listed[table.schema] = tables(self.store, table.schema)
        return archives_of(self.store, table, self.listed[table.schema])


def _add_attempts(before: RunReceipt | None, now: RunReceipt) -> RunReceipt:
    """The receipt of a later attempt, with the counts and files that earlier attempts committed."""
    if before is None or not before.files:
        return now
    earlier = {name: count for name, count in before.counts.items() if name != "unchanged"}
    counts = {**now.counts, **{name: now.counts.get(name, 0) + count for name, count in earlier.items()}}
    changed = before.status == "changed" or any(earlier.values())
    status = "changed" if changed and now.status == "unchanged" else now.status
    return replace(now, counts=counts, files=[*before.files, *now.files], status=status)
