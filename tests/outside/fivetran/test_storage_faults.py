"""Failing storage: requirement 11, sections 2.0 and 7.7, decision F17.

The full disk is a small file system in a separate mount namespace, which needs no permissions on most
machines. Without namespaces, the size of files is limited instead.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit
from typing import Any

import pytest
from depth import DEPTH, deep
from destination import HISTORY, LIVE, definition
from java import PYTHONPATH
from serving import SECONDS, Ground, Request, Server, alter, create, describe, described, migrate
from tables_as_text import cell, instant

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk

pytestmark = pytest.mark.process

CANARY = "canary-51f0e2"
PAGE = 4096
# A missing catalog is missing at every attempt, so two attempts suffice instead of six.
IMPATIENT = (
    sys.executable,
    "-c",
    "from backstory.engine import deliver; deliver.ATTEMPTS = 2; from backstory.cli.app import main; main()",
)
# Mounts a small file system at the first argument, and runs the rest as the calling user.
NAMESPACE = f"""
mount -t tmpfs -o size=4m tmpfs "$1" && shift &&
exec unshare --user --map-user={os.getuid()} --map-group={os.getgid()} "$@"
"""
SHAPES = {"live": LIVE, "history": HISTORY}
MANY = [f"t{number}" for number in range(deep(6, 4))]


def rows(first: int, number: int, *, history: bool = False, weight: int = 0) -> list[dict]:
    """Rows with the canary, and this number of additional bytes in total."""
    random_ = random.Random(first)
    times = {"_fivetran_start": instant("T1"), "_fivetran_end": cell("TMAX"), "_fivetran_active": True}
    row = {"_fivetran_synced": instant("T1")} | (times if history else {})
    return [
        {"id": i, "n": i, "v": f"{CANARY}-{i}-{random_.randbytes(weight // number).hex()}"} | row
        for i in range(first, first + number)
    ]


def batch(ground: Ground, name: str, first: int, *, weight: int = 0) -> Request:
    """New rows, and changes of existing rows."""
    history = name == "history"
    table = definition(name, SHAPES["history" if history else "live"])
    new = rows(first, 20, history=history, weight=weight)
    if history:
        gone = [{"id": i, "_fivetran_end": instant("T2")} for i in range(first % 500, first % 500 + 20)]
    else:
        gone = [{"id": i} for i in range(first % 500, first % 500 + 20)]
    return ground.batch("s", table, replace=new, delete=gone)


def fill(ground: Ground, stub: Any, names: Sequence[str]) -> None:
    """Tables with a thousand rows each."""
    for name in names:
        table = definition(name, SHAPES.get(name, LIVE))
        create("s", table).done_by(stub)
        ground.batch("s", table, replace=rows(0, 1000, history=name == "history")).done_by(stub)
        batch(ground, name, 990).done_by(stub)


@dataclass
class Met:
    """A request that met a fault, with its result and its table's state."""

    what: str
    member: str
    words: str
    same: bool  # the table is unchanged, if the request failed
    orphans: list[str]  # files that it left and that no snapshot names
    alive: bool
    again: str  # the outcome of the same request without the fault
    changed: bool  # whether the table is as requested
    litter: list[str]  # orphans after that


@dataclass
class Case:
    """Requests to one table while something is broken."""

    ground: Ground
    server: Server
    stub: Any
    name: str

    def state(self) -> tuple[Any, Any]:
        return self.ground.rows("s", self.name), described(self.stub, "s", self.name)

    def orphans(self) -> set[str]:
        known = described(self.stub, "s", self.name) is not None
        return self.ground.orphans("s", self.name) if known else set()

    def meet(
        self, what: str, request: Request, break_: Callable[[], object], mend: Callable[[], object]
    ) -> Met:
        """Send the request during a fault, and again after it."""
        before, orphans = self.state(), self.orphans()
        break_()
        try:
            member, words = request.outcome(self.stub)
        finally:
            mend()
        same = member == "success" or before == self.state()
        left = sorted(self.orphans() - orphans)
        alive = self.server.process.poll() is None
        done = member == "success" and request.rpc == "CreateTable"  # a second create would be refused
        again = member if done else request.settled(self.stub)[0]
        changed, litter = before != self.state(), sorted(self.orphans() - orphans)
        return Met(f"{request.rpc} {what}", member, words, same, left, alive, again, changed, litter)


class Disk:
    """A small file system with an adjustable amount of free space."""

    steps = tuple(PAGE * pages for pages in (0, 1, 2, 3, 5, 7, 9, 11, 13, 15, 18, 22, 26, 30))
    steps = steps if DEPTH == "laws" else steps[::3]
    weight = 0

    def __init__(self, folder: Path) -> None:
        self.folder, self.filler = folder, folder / "filler"

    def full(self, _server: Server, leaving: int) -> None:
        free = os.statvfs(self.folder)
        self.filler.write_bytes(b"x" * max(0, free.f_bavail * free.f_frsize - leaving))

    def free(self, _server: Server) -> None:
        self.filler.unlink(missing_ok=True)


class Limits:
    """The same without namespaces: the size of these processes' files is limited."""

    steps = (16 * 1024, 24 * 1024, 32 * 1024)
    weight = 100_000

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def full(self, server: Server, leaving: int) -> None:
        limit(server.family(), leaving)

    def free(self, server: Server) -> None:
        limit(server.family(), RLIM_INFINITY)


def limit(processes: Sequence[int], size: int) -> None:
    """Limit the size of these processes' files."""
    for process in processes:
        with suppress(ProcessLookupError):
            prlimit(process, RLIMIT_FSIZE, (size, RLIM_INFINITY))


def on_a_full_disk(folder: Path, make: type) -> list[Met]:
    """Batches, alters, migrations and creates while the disk gets less and less full."""
    disk = make(folder / "disk")
    ground = Ground.at(folder / "ground", disk.folder / "warehouse")
    results = []
    with ground.server(program=IMPATIENT) as server:
        stub = server.stub
        fill(ground, stub, ["live", "history", "altered", "retyped"])
        for number, leaving in enumerate(disk.steps):
            set_ = sdk.UpdateColumnValueOperation(column="v", value=f"{CANARY} {number}")
            retyped = LIVE.replace(" v ", " v:BINARY " if number % 2 == 0 else " v ")
            others = [
                ("history", batch(ground, "history", 1000 + 20 * number, weight=disk.weight)),
                ("altered", alter("s", definition("altered", f"{LIVE} new{number}"))),
                ("retyped", alter("s", definition("retyped", retyped))),
                ("altered", migrate("s", "altered", update_column_value=set_)),
                (f"made{number}", create("s", definition(f"made{number}", LIVE))),
            ]
            live_batch = ("live", batch(ground, "live", 1000 + 20 * number, weight=disk.weight))
            for name, request in (live_batch, others[number % len(others)]):
                case = Case(ground, server, stub, name)
                results.append(
                    case.meet(
                        f"with {leaving} bytes",
                        request,
                        lambda leaving=leaving: disk.full(server, leaving),
                        lambda: disk.free(server),
                    )
                )
    return results


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> list[Met]:
    """The results of requests to a server on a full disk."""
    folder = tmp_path_factory.mktemp("full")
    (folder / "disk").mkdir()
    own = ["unshare", "--map-root-user", "--mount", "sh", "-c", NAMESPACE, "sh", folder / "disk"]
    if subprocess.run([*own, "true"], capture_output=True).returncode:
        return on_a_full_disk(folder, Limits)
    report = folder / "found.json"
    paths = filter(None, [PYTHONPATH, os.environ.get("PYTHONPATH")])
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [*own, sys.executable, __file__, folder, report]
    done = subprocess.run(command, env=variables, capture_output=True, timeout=2 * SECONDS)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return [Met(**met) for met in json.loads(report.read_text())]


def failed(met: Sequence[Met]) -> list[Met]:
    return [one for one in met if one.member != "success"]


def check_told(met: Sequence[Met]) -> None:
    """Check that a fault is reported as a task or a status of ours, without a value."""
    assert {one.member for one in met} <= {"success", "task", "INTERNAL", "UNAVAILABLE"}
    assert [] == [one for one in met if CANARY in one.words]
    unclear = [(one.what, one.words) for one in failed(met) if not re.search(r"\bs\.\w", one.words)]
    assert [] == unclear


def check_kept(met: Sequence[Met]) -> None:
    """Check that the server is running and the table is unchanged."""
    assert [] == [one.what for one in met if not one.alive]
    assert [] == [one.what for one in met if not one.same]


def check_mended(met: Sequence[Met]) -> None:
    """Check that the same request succeeds without the fault."""
    assert [] == [(one.what, one.again) for one in met if one.again != "success" or not one.changed]


def check_clean(met: Sequence[Met]) -> None:
    """Check that every file is named by a snapshot."""
    assert [] == [(one.what, one.orphans) for one in met if one.orphans]
    assert [] == [(one.what, one.litter) for one in met if one.litter]


def test_a_full_disk_fails_requests(full):
    """The fault is real: requests fail at every step of a write, and succeed with enough space."""
    assert len(failed(full)) >= 3


def test_a_full_disk_is_reported(full):
    """11, F17: A status or a task names the table and no value."""
    check_told(full)


def test_a_full_disk_changes_nothing(full):
    """2.0, 11: The server keeps running, and the table is unchanged."""
    check_kept(full)


def test_a_request_succeeds_once_the_disk_has_space(full):
    """7.7: Nothing that a full disk interrupted blocks it."""
    check_mended(full)


@pytest.fixture(scope="module")
def ground(tmp_path_factory) -> Ground:
    return Ground.at(tmp_path_factory.mktemp("storage") / "ground")


@pytest.fixture(scope="module")
def server(ground) -> Iterator[Server]:
    with ground.server(program=IMPATIENT) as new_server:
        fill(ground, new_server.stub, ["live", "history", *MANY])
        yield new_server


@pytest.fixture
def stub(server) -> Any:
    return server.stub


def test_an_unwritable_log_fails_no_request(ground, server, stub):
    """11, 7.2: The request has its normal result, whether or not it can be logged."""
    limit([server.process.pid], 0)
    try:
        outcomes = [
            describe("s", "live").outcome(stub),
            create("s", definition("unlogged", LIVE)).outcome(stub),
        ]
    finally:
        limit([server.process.pid], RLIM_INFINITY)
    assert [("table", ""), ("success", "")] == outcomes


@pytest.mark.parametrize("name", ["live", "history", "empty"])
def test_a_file_in_place_of_the_data_folder_fails_the_request(ground, server, stub, name):
    """2.0, F17: The table cannot be written, even by root."""
    if name == "empty":
        create("s", definition(name, LIVE)).done_by(stub)
    data = ground.warehouse / "s" / name / "data"
    aside = data.with_name("aside")
    there = data.exists()

    def block() -> None:
        if there:
            data.rename(aside)
        data.write_text("in the way")

    def clear() -> None:
        data.unlink()
        if there:
            aside.rename(data)

    case = Case(ground, server, stub, name)
    result = case.meet("below a file", batch(ground, name, 2000), block, clear)
    assert result.member != "success"
    check_told([result])
    check_kept([result])
    check_mended([result])
    check_clean([result])


def gone(ground: Ground) -> tuple[Callable[[], object], Callable[[], object]]:
    """Move the catalog's file away, and back. A replacement is deleted."""
    catalog, aside = ground.warehouse / "catalog.db", ground.warehouse / "aside.db"

    def back() -> None:
        catalog.unlink(missing_ok=True)
        aside.rename(catalog)

    return lambda: catalog.rename(aside), back


def a_folder(ground: Ground) -> tuple[Callable[[], object], Callable[[], object]]:
    """Replace the catalog's file with a folder."""
    catalog, aside = ground.warehouse / "catalog.db", ground.warehouse / "aside.db"

    def replaced() -> None:
        catalog.rename(aside)
        catalog.mkdir()

    def back() -> None:
        shutil.rmtree(catalog)
        aside.rename(catalog)

    return replaced, back


@pytest.mark.parametrize("fault", [gone, a_folder][: deep(2, 1)])
def test_writes_fail_without_the_catalog_and_succeed_after_its_return(ground, server, stub, fault):
    """2.0, 7.7: Without its catalog, a server refuses to write. With it, everything is as before."""
    name = fault.__name__
    fill(ground, stub, [name])
    case = Case(ground, server, stub, name)
    results = [case.meet(name, batch(ground, name, 3000), *fault(ground))]
    results.append(case.meet(name, alter("s", definition(name, f"{LIVE} new")), *fault(ground)))
    made = Case(ground, server, stub, f"made-{name}")
    results.append(made.meet(name, create("s", definition(f"made-{name}", LIVE)), *fault(ground)))
    assert len(results) == len(failed(results))
    check_told(results)
    check_kept(results)
    check_mended(results)
    check_clean(results)


def test_a_catalog_lost_during_concurrent_writes_loses_no_rows(ground, stub):
    """7.7, F3: Requests for many tables fail while the catalog is missing. Later they all succeed, and no row
    is lost.

    Only a request that failed without the catalog's answer about its commit leaves files.
    """
    break_, mend = gone(ground)

    def all_at_once(stub: Any, first: int, send: Callable[[Request, Any], Any]) -> list[Any]:
        requests = [batch(ground, name, first) for name in MANY]
        requests += [describe("s", name) for name in MANY] if send is Request.outcome else []
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda request: send(request, stub), requests))

    break_()
    try:
        answers = all_at_once(stub, 1000, Request.outcome)
    finally:
        mend()
    assert {member for member, _ in answers} <= {"success", "UNAVAILABLE", "INTERNAL", "table"}
    for first in (1000, 1020, 1040):
        all_at_once(stub, first, Request.done_by)
    doubtful = {name for name, (member, _) in zip(MANY, answers, strict=False) if member != "success"}
    for name in MANY:
        ids = {row["id"] for row in ground.rows("s", name)}
        assert set(range(1000, 1060)) <= ids
        assert name in doubtful or ground.orphans("s", name) == set()


def test_an_unusable_catalog_at_start_is_reported_in_a_single_line(tmp_path):
    """7.1: There is one SEVERE line, and the exit code is 1."""
    grounds = [Ground.at(tmp_path / "folder"), Ground.at(tmp_path / "spoilt")]
    (grounds[0].warehouse / "catalog.db").mkdir(parents=True)
    grounds[1].warehouse.mkdir()
    (grounds[1].warehouse / "catalog.db").write_bytes(
        b"SQLite format 3\0" + b"and then no more of it\n" * 500
    )
    with grounds[0].server() as one, grounds[1].server() as two:
        for server in (one, two):
            assert server.process.wait(SECONDS) == 1
            levels = [level for level, _ in server.lines()]
            assert levels == ["SEVERE"]
        assert "catalog.db is not the database" in one.lines()[0][1]
        assert "backstory" in two.lines()[0][1]


if __name__ == "__main__":
    met = on_a_full_disk(Path(sys.argv[1]), Disk)
    Path(sys.argv[2]).write_text(json.dumps([asdict(one) for one in met]))
