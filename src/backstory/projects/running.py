"""A project, run: declarations side by side, each once those are done that it waits for."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from threading import Event
from typing import Any, Final

import structlog

from backstory.engine.runs import RunNotes
from backstory.errors import BackstoryError, TryAgain, UsageError, internal_error
from backstory.formats.wrapping.room import DISK_FULL
from backstory.model.table import table_name
from backstory.projects.acts import Terms, carry_out
from backstory.projects.declarations import Declaration, Project, filled_in
from backstory.projects.locks import going_on, holding
from backstory.projects.log import (
    append_beginning,
    append_run,
    marks_of_commits,
    marks_of_log,
    rows_of_log,
)
from backstory.projects.order import select, upstream_of
from backstory.projects.receipts import WELL, RunReceipt, status_of
from backstory.projects.undone import undone
from backstory.stores.iceberg.store import Store, load

# What failed for now is tried again after these seconds; others have their turn meanwhile.
PAUSES: Final = (2.0, 10.0, 30.0)
JOBS: Final = 4
NO_END: Final = "The end of this run is not on record, but what it reports is committed"
LOOKING: Final = 0.2  # how often the end of the run is asked for

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RunWatcher:
    """Who is told what happens in a run: its declarations, which one begins, and which one has ended."""

    selected: Callable[[Sequence[Declaration]], object] = lambda _: None
    begun: Callable[[str], object] = lambda _: None
    ended: Callable[[RunReceipt], object] = lambda _: None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a caller asks of a run; once `stop` is set nothing more is begun."""

    select: Sequence[str] = ()
    failed: bool = False
    jobs: int = JOBS
    dry_run: bool = False
    stop: Event = field(default_factory=Event)
    watcher: RunWatcher = field(default_factory=RunWatcher)

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UsageError("bad-option", "`jobs=` must be at least 1.", "Give how many tables at once.")


@dataclass(slots=True)
class _Turn:
    """A declaration that waits for its turn, and what came of it until now.

    `marks` are those of the files that its table has, `logged` those that the log knows of.
    """

    declared: Declaration
    attempts: int = 0
    not_before: float = 0.0
    marks: set[str] = field(default_factory=set)
    logged: set[str] = field(default_factory=set)
    receipt: RunReceipt | None = None


def run_project(store: Store, project: Project, asked: RunRequest, terms: Terms) -> list[RunReceipt]:
    """Do what the project declares, or what is selected of it; a receipt for each, in the file's order.

    Raises UsageError, before anything is begun, for what is wrong with the selection or the environment.
    """
    upstream = upstream_of(project)
    selected = select(project, upstream, asked.select)
    logged = rows_of_log(store) if _needs_log(selected, asked) else []
    if asked.failed:
        names = undone(store, project, selected, logged)
        selected = [each for each in selected if each.name in names]
    for each in selected:
        filled_in(each.source, each.place)
    asked.watcher.selected(selected)
    began = datetime.now(UTC)
    run_id = f"{began:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    turns = {each.name: _Turn(each) for each in selected}
    run = _Run(store, asked, terms, run_id, logged, upstream)
    if not selected or asked.dry_run:
        return _in_order(run, turns)
    with going_on(store, run_id):
        _log(
            "The beginning of this run is not on record, and `failed=True` will not see it",
            partial(append_beginning, store, project, run_id, began, selected),
        )
        receipts = _in_order(run, turns)
        marks = {name: sorted(turn.marks - turn.logged) for name, turn in turns.items()}
        try:
            _log(NO_END, partial(append_run, store, project, receipts, marks))
        except TryAgain as error:
            _warn(NO_END, error)
    return receipts


def _in_order(run: "_Run", turns: Mapping[str, _Turn]) -> list[RunReceipt]:
    """The receipts of a run, in the order of its turns."""
    receipts = {each.name: each for each in run.receipts(turns)}
    return [receipts[name] for name in turns]


def _needs_log(selected: Sequence[Declaration], asked: RunRequest) -> bool:
    return asked.failed or any(each.times is not None and each.times.each for each in selected)


def _log(lost: str, append: Callable[[], None]) -> None:
    """Log something of a run; a log that cannot be written holds up no table.

    Raises TryAgain where it could be written later.
    """
    try:
        append()
    except TryAgain:
        raise
    except BackstoryError as error:
        _warn(lost, error)


def _warn(lost: str, error: BackstoryError) -> None:
    log.warning(f"{lost}: {error.message}", code=error.code)


@dataclass(slots=True)
class _Run:
    """One run: what holds for all of its declarations."""

    store: Store
    asked: RunRequest
    terms: Terms
    run_id: str
    logged: Sequence[Mapping[str, Any]]
    upstream: Mapping[str, frozenset[str]]

    def receipts(self, turns: Mapping[str, _Turn]) -> Iterator[RunReceipt]:
        """The receipts of all turns, as they come."""
        waiting, ended = dict(turns), dict[str, RunReceipt]()
        running: dict[Future[RunReceipt], _Turn] = {}
        with ThreadPoolExecutor(self.asked.jobs, thread_name_prefix="run") as pool:
            while waiting or running:
                for receipt in self._without_turn(waiting, ended):
                    ended[receipt.name] = self._end(receipt)
                    yield receipt
                left = turns.keys() - {each.name for each in ended.values() if each.status in WELL}
                for turn in self._ready(waiting, left, self.asked.jobs - len(running)):
                    del waiting[turn.declared.name]
                    running[pool.submit(self._attempt, turn)] = turn
                if not running:
                    self.asked.stop.wait(LOOKING)
                    continue
                for future in wait(running, LOOKING, FIRST_COMPLETED).done:
                    turn, receipt = running.pop(future), future.result()
                    if self._again(turn, receipt):
                        waiting[turn.declared.name] = turn
                        continue
                    ended[receipt.name] = self._end(receipt)
                    yield receipt

    def _end(self, receipt: RunReceipt) -> RunReceipt:
        self.asked.watcher.ended(receipt)
        return receipt

    def _without_turn(
        self, waiting: dict[str, _Turn], ended: Mapping[str, RunReceipt]
    ) -> Iterator[RunReceipt]:
        """The receipts of those that will have no turn: the run ends, or what they wait for failed."""
        for name, turn in list(waiting.items()):
            failed = sorted(up for up in self.upstream[name] if up in ended and ended[up].status not in WELL)
            if not failed and not self.asked.stop.is_set():
                continue
            del waiting[name]
            if turn.receipt is not None:
                yield turn.receipt
                continue
            now = datetime.now(UTC)
            receipt = RunReceipt(name, turn.declared.kind, "stopped", self.run_id, started_at=now, attempts=0)
            yield replace(receipt, status="blocked", blocked_by=failed[0]) if failed else receipt

    def _ready(self, waiting: Mapping[str, _Turn], left: AbstractSet[str], free: int) -> list[_Turn]:
        """Those that may begin now: what they wait for is not `left`."""
        now = time.monotonic()
        ready = (
            turn
            for name, turn in waiting.items()
            if turn.not_before <= now and not self.upstream[name] & left
        )
        return list(islice(ready, max(free, 0)))

    def _again(self, turn: _Turn, receipt: RunReceipt) -> bool:
        """Whether it failed only for now, and has another turn."""
        passing = isinstance(receipt.error, TryAgain) and receipt.error.code != DISK_FULL
        if not passing or turn.attempts > len(PAUSES):
            return False
        turn.receipt = receipt
        turn.not_before = time.monotonic() + PAUSES[turn.attempts - 1]
        return True

    def _attempt(self, turn: _Turn) -> RunReceipt:
        """What comes of a turn, in a thread of the pool; whatever ends it stands in the receipt."""
        declared, notes, began = turn.declared, RunNotes(self.run_id), time.monotonic()
        turn.attempts += 1
        self.asked.watcher.begun(declared.name)
        started = datetime.now(UTC)
        try:
            with nullcontext() if self.asked.dry_run else holding(self.store, declared.writes):
                if declared.times is not None and declared.times.each:
                    stored = load(self.store, table_name(declared.name))
                    turn.logged = marks_of_log(self.logged, declared.name, stored)
                    turn.marks |= turn.logged | marks_of_commits(stored)
                receipt = carry_out(self.store, declared, self.terms, notes, turn.marks)
        except BackstoryError as error:
            receipt = RunReceipt(declared.name, declared.kind, status_of(error), error=error)
        except Exception as bug:  # one table ends no run
            log.debug("a bug", exc_info=True)
            unforeseen = internal_error(bug)
            receipt = RunReceipt(declared.name, declared.kind, status_of(unforeseen), error=unforeseen)
        seconds = time.monotonic() - began
        known = sum(notes.seconds.values())
        stages = {"read": max(seconds - known, 0.0), **notes.seconds}
        return replace(
            _added(turn.receipt, receipt),
            run_id=self.run_id,
            started_at=started,
            seconds=round(seconds, 3),
            stages={name: round(each, 3) for name, each in stages.items()},
            way=notes.way,
            attempts=turn.attempts,
        )


def _added(before: RunReceipt | None, now: RunReceipt) -> RunReceipt:
    """The receipt of a later attempt, with what earlier ones had committed of several files."""
    if before is None or not before.files:
        return now
    earlier = {name: count for name, count in before.counts.items() if name != "unchanged"}
    counts = {**now.counts, **{name: now.counts.get(name, 0) + count for name, count in earlier.items()}}
    changed = before.status == "changed" or any(earlier.values())
    status = "changed" if changed and now.status == "unchanged" else now.status
    return replace(now, counts=counts, files=[*before.files, *now.files], status=status)
