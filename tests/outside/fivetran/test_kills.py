"""A server that is killed at any moment: requirements 13, 16 and 17, section 7.1."""

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from depth import DEPTH, deep
from destination import HISTORY, LIVE, definition
from serving import (
    SECONDS,
    Ground,
    Request,
    Rows,
    Server,
    Watch,
    alter,
    create,
    described,
    migrate,
    truncate,
    within,
)
from tables_as_text import cell, instant

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.model.values import UNMODIFIED

pytestmark = pytest.mark.process

SEED = 20240229
KILLED, TWIN = "killed", "undisturbed"
# The moment of a kill in a call: a fraction of its duration, or its first file with this name.
MOMENTS = (0.05, "data/**/*.parquet", 0.5, "metadata/snap-*", 0.9, "metadata/*.metadata.json")
# At the gate: a commit that the catalog may or may not have received. The other lanes are at random moments.
MOMENTS = MOMENTS if DEPTH == "laws" else MOMENTS[-1:]
STEPS = 2 + len(MOMENTS)  # a first call, a measured one, and one for each kill
SIZE = deep(1000, 400)
TYPES = sdk.TableSyncModeMigrationType

State = Mapping[str, tuple[Rows | None, Mapping[str, str] | None]]


@dataclass(frozen=True)
class Lane:
    """Tables with a series of requests, independent of other lanes."""

    name: str
    tables: Sequence[str]
    columns: str
    requests: Callable[[Ground, str, common.Table], list[Request]]

    @property
    def table(self) -> common.Table:
        return definition(self.tables[0], self.columns)

    def begin(self, ground: Ground, schema: str) -> list[Request]:
        """Create the first table and fill it."""
        random_ = random.Random(SEED)
        history = "active" in self.columns
        rows = [_row(i, random_, history=history, table=self.table) for i in range(SIZE)]
        return [create(schema, self.table), ground.batch(schema, self.table, replace=rows)]

    def state(self, ground: Ground, stub: Any, schema: str) -> State:
        return {name: (ground.rows(schema, name), described(stub, schema, name)) for name in self.tables}


def _row(number: int, random_: random.Random, *, history: bool, table: common.Table, second: int = 1) -> dict:
    row: dict[str, object] = {"id": number, "v": f"v{random_.randrange(10**6)}", "n": random_.randrange(100)}
    row["_fivetran_synced"] = instant(f"T{second}")
    if history:
        row |= {"_fivetran_start": instant(f"T{second}"), "_fivetran_end": cell("TMAX")}
        row["_fivetran_active"] = True
    names = {column.name for column in table.columns}
    more = {"d": "1.50", "_fivetran_deleted": number % 5 == 0}
    return row | {name: value for name, value in more.items() if name in names}


def live(ground: Ground, schema: str, table: common.Table) -> list[Request]:
    """Batches that replace, update and delete, and one truncate."""
    random_ = random.Random(SEED + 1)
    made = []
    for step in range(STEPS):
        picked = random_.sample(range(SIZE), 300)
        second = step + 2
        new = [
            _row(SIZE + 200 * step + i, random_, history=False, table=table, second=second)
            for i in range(200)
        ]
        update = [{"id": i, "v": UNMODIFIED, "n": random_.randrange(100)} for i in picked[:200]]
        delete = [{"id": i} for i in picked[200:]]
        made.append(ground.batch(schema, table, replace=new, update=update, delete=delete))
    made[-1] = truncate(schema, table.name, instant("T2"))
    return made


def history(ground: Ground, schema: str, table: common.Table) -> list[Request]:
    """Batches with new versions, new records and deletions."""
    random_ = random.Random(SEED + 2)
    made = []
    for step in range(STEPS):
        picked = random_.sample(range(SIZE), 300)
        second = step + 2
        new = [
            _row(SIZE + 100 * step + i, random_, history=True, table=table, second=second) for i in range(100)
        ]
        changed = [
            _row(i, random_, history=True, table=table, second=second) | {"v": UNMODIFIED}
            for i in picked[:200]
        ]
        earliest = [{"id": row["id"], "_fivetran_start": row["_fivetran_start"]} for row in (*new, *changed)]
        gone = [{"id": i, "_fivetran_end": instant(f"T{second}")} for i in picked[200:]]
        made.append(ground.batch(schema, table, earliest=earliest, replace=new, update=changed, delete=gone))
    return made


def altered(_ground: Ground, schema: str, table: common.Table) -> list[Request]:
    """Columns are added and dropped, types are widened and rewritten, and keys change."""
    shapes = [
        "id:LONG* v n:LONG d:DECIMAL(12,2) synced new",
        "id:LONG* v n:LONG d:DECIMAL(14,4) synced new",
        "id:LONG* v:BINARY n:LONG d:DECIMAL(14,4) synced new",
        "id:LONG* v n:LONG d:DECIMAL(14,4) synced new more:JSON",
        "id:LONG* v n:LONG* d:DECIMAL(18,4) synced new more:JSON",
        "id:LONG* v:XML n:DOUBLE* d:DECIMAL(18,4) synced more:JSON",
        "id:LONG* v n:DOUBLE d:DECIMAL(18,6) synced more:JSON",
        "id:LONG* v:BINARY n:FLOAT d:DECIMAL(18,6) synced more",
    ]
    return [alter(schema, definition(table.name, shape), drop_columns=True) for shape in shapes]


def migrated(_ground: Ground, schema: str, table: common.Table) -> list[Request]:
    """Migrations of the columns of a history."""

    def at(second: int) -> str:
        return (instant("T0") + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def add(column: str, type_: str, value: str, second: int) -> Request:
        added = sdk.AddColumnInHistoryMode(
            column=column,
            column_type=common.DataType.Value(type_),
            default_value=value,
            operation_timestamp=at(second),
        )
        return migrate(schema, table.name, add=sdk.AddOperation(add_column_in_history_mode=added))

    def set_(column: str, value: str) -> Request:
        operation = sdk.UpdateColumnValueOperation(column=column, value=value)
        return migrate(schema, table.name, update_column_value=operation)

    dropped = sdk.DropColumnInHistoryMode(column="a", operation_timestamp=at(30))
    copied = sdk.CopyColumn(from_column="v", to_column="w")
    renamed = sdk.RenameColumn(from_column="n", to_column="m")
    default = sdk.AddColumnWithDefaultValue(column="c", column_type=common.DataType.LONG, default_value="7")
    return [
        add("a", "STRING", "x", 10),
        set_("v", "u"),
        add("b", "LONG", "7", 20),
        migrate(schema, table.name, drop=sdk.DropOperation(drop_column_in_history_mode=dropped)),
        migrate(schema, table.name, copy=sdk.CopyOperation(copy_column=copied)),
        migrate(schema, table.name, rename=sdk.RenameOperation(rename_column=renamed)),
        migrate(schema, table.name, add=sdk.AddOperation(add_column_with_default_value=default)),
        set_("b", "NULL"),
    ]


def moved(_ground: Ground, schema: str, table: common.Table) -> list[Request]:
    """Migrations of whole tables: copies, modes, a rename, a drop."""
    one, two, three, four = MOVED

    def copy(source: str, target: str) -> Request:
        operation = sdk.CopyOperation(copy_table=sdk.CopyTable(from_table=source, to_table=target))
        return migrate(schema, source, copy=operation)

    def mode(name: str, type_: Any) -> Request:
        operation = sdk.TableSyncModeMigrationOperation(type=type_, soft_deleted_column="_fivetran_deleted")
        return migrate(schema, name, table_sync_mode_migration=operation)

    to_history = sdk.CopyTableToHistoryMode(
        from_table=one, to_table=three, soft_deleted_column="_fivetran_deleted"
    )
    renamed = sdk.RenameTable(from_table=three, to_table=four)
    return [
        copy(one, two),
        migrate(schema, one, copy=sdk.CopyOperation(copy_table_to_history_mode=to_history)),
        mode(two, TYPES.SOFT_DELETE_TO_HISTORY),
        copy(two, one),
        mode(three, TYPES.HISTORY_TO_SOFT_DELETE),
        migrate(schema, three, rename=sdk.RenameOperation(rename_table=renamed)),
        mode(four, TYPES.SOFT_DELETE_TO_HISTORY),
        migrate(schema, two, drop=sdk.DropOperation(drop_table=True)),
    ]


MOVED = ("moved", "copied", "kept", "renamed")
LANES = (
    Lane("live", ["live"], LIVE, live),
    Lane("history", ["history"], HISTORY, history),
    Lane("altered", ["altered"], f"{LIVE} d:DECIMAL(12,2)", altered),
    Lane("migrated", ["migrated"], HISTORY, migrated),
    Lane("moved", MOVED, f"{LIVE} deleted", moved),
)


@dataclass
class Run:
    """The results of kills: the states after each undisturbed step, and per step the states after the kill
    and after the repeated request."""

    undisturbed: dict[str, list[State]]
    watch: Watch
    cut: dict[str, list[dict[str, Rows | None]]] = field(
        default_factory=lambda: {lane.name: [] for lane in LANES}
    )
    mended: dict[str, list[State]] = field(default_factory=lambda: {lane.name: [] for lane in LANES})
    left: list[list[int]] = field(default_factory=list)
    answers: set[tuple[str, str]] = field(default_factory=set)
    last: Server = field(init=False)


def together(act: Callable[[Lane], Any]) -> dict[str, Any]:
    """The result of the function for each lane, run in parallel."""
    with ThreadPoolExecutor(len(LANES)) as pool:
        return dict(zip([lane.name for lane in LANES], pool.map(act, LANES), strict=True))


def timed(request: Request, stub: Any) -> float:
    began = time.monotonic()
    request.done_by(stub)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def ground(tmp_path_factory) -> Ground:
    return Ground.at(tmp_path_factory.mktemp("kills") / "ground")


@pytest.fixture(scope="module")
def run(ground) -> Iterator[Run]:
    """The kills, each with five requests at different points of their work."""
    steps = {
        schema: {lane.name: lane.requests(ground, schema, lane.table)[:STEPS] for lane in LANES}
        for schema in (KILLED, TWIN)
    }
    with ExitStack() as stack:
        server = stack.enter_context(ground.server())
        stub = server.stub

        def begun(lane: Lane) -> list[State]:
            for schema in (KILLED, TWIN):
                for request in lane.begin(ground, schema):
                    request.done_by(stub)
            steps[KILLED][lane.name][0].done_by(stub)
            return [lane.state(ground, stub, TWIN)]

        undisturbed = together(begun)
        lasts = together(lambda lane: timed(steps[KILLED][lane.name][1], stub))

        def finished(lane: Lane) -> None:
            for request in steps[TWIN][lane.name]:
                request.done_by(stub)
                undisturbed[lane.name].append(lane.state(ground, stub, TWIN))

        together(finished)
        names = [name for lane in LANES for name in lane.tables]
        with Watch(ground, KILLED, names) as watch:
            record = Run(undisturbed, watch)
            for number, moment in enumerate(MOMENTS):
                _mend(record, ground, server, steps[KILLED], number + 1)
                requests = {name: made[number + 2] for name, made in steps[KILLED].items()}
                _kill(record, ground, server, requests, lasts, number, moment)
                server = stack.enter_context(ground.server())
            record.last = server
            _mend(record, ground, record.last, steps[KILLED], STEPS - 1)
        yield record


def _mend(
    record: Run, ground: Ground, server: Server, steps: Mapping[str, Sequence[Request]], step: int
) -> None:
    """Repeat the step's requests, and record the results."""
    stub = server.stub
    together(lambda lane: steps[lane.name][step].done_by(stub))
    for lane in LANES:
        record.mended[lane.name].append(lane.state(ground, stub, KILLED))


def _kill(
    record: Run,
    ground: Ground,
    server: Server,
    requests: Mapping[str, Request],
    lasts: Mapping[str, float],
    number: int,
    moment: float | str,
) -> None:
    """Send the requests, kill the server during them, and record the state."""
    random_ = random.Random(SEED + number)
    stub = server.stub
    reached = {name: random_.random() * lasts[name] for name in requests}
    aimed = LANES[number % len(LANES)].name
    if isinstance(moment, float):
        reached[aimed] = moment * lasts[aimed]
    until = max(reached.values())
    folder = ground.warehouse / KILLED / aimed
    before = set(folder.glob(str(moment)))

    def sent(name: str) -> tuple[str, str]:
        time.sleep(until - reached[name])
        return requests[name].outcome(stub)

    with ThreadPoolExecutor(len(requests)) as pool:
        answers: list[Future] = [pool.submit(sent, name) for name in requests]
        if isinstance(moment, float):
            time.sleep(until)
        else:
            at_it, aim = answers[list(requests).index(aimed)], moment
            within(SECONDS, lambda: at_it.done() or set(folder.glob(aim)) - before, pause=0.001)
        assert server.process.poll() is None, server.lines()
        server.kill(family=number % 2 == 1)
        record.answers.update(answer.result() for answer in answers)
    within(SECONDS, lambda: not server.family())
    record.left.append(server.family())
    for lane in LANES:
        record.cut[lane.name].append({name: ground.rows(KILLED, name) for name in lane.tables})


def rows_in(state: State) -> dict[str, Rows | None]:
    return {name: rows for name, (rows, _) in state.items()}


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.name)
def test_a_kill_never_leaves_a_partial_request_in_a_table(run, lane):
    """16: At any moment, the tables of a request are in their state before or after it."""
    course = run.undisturbed[lane.name]
    for number, tables in enumerate(run.cut[lane.name]):
        assert tables in [rows_in(course[number + 2]), rows_in(course[number + 3])], MOMENTS[number]


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.name)
def test_a_repeated_request_after_a_kill_equals_an_undisturbed_run(run, lane):
    """13, 16: After a restart, the repeated request succeeds, with rows and definitions of an undisturbed
    run."""
    assert run.undisturbed[lane.name][2:] == run.mended[lane.name]


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.name)
def test_a_reader_never_sees_a_partial_request(run, lane):
    """16, F3: A continuous reader sees only states before or after a request, and never an earlier one again."""
    assert run.watch.fault is None
    for name in lane.tables:
        course = [rows_in(state)[name] for state in run.undisturbed[lane.name]]
        assert run.watch.strange(name, course) is None


def test_no_child_outlives_a_killed_server(run):
    """7.1: The JVM and all other children end with the server."""
    assert run.left == [[]] * len(MOMENTS)


def test_interrupted_requests_are_never_refused(run):
    """2.0, F17: A sender gets success or a lost connection, never a refusal."""
    assert {member for member, _ in run.answers} <= {"success", "UNAVAILABLE"}


def test_sigterm_lets_batches_finish(run, ground):
    """17: The server answers running batches and exits with 0."""
    table, versions = definition("ending", LIVE), definition("versions", HISTORY)
    random_ = random.Random(SEED)
    rows = [_row(i, random_, history=False, table=table) for i in range(20_000)]
    changes = [_row(i, random_, history=True, table=versions) for i in range(20_000)]
    server = run.last
    with ThreadPoolExecutor(2) as pool:
        stub = server.stub
        for made in (table, versions):
            create("sigterm", made).done_by(stub)
        batches = [
            ground.batch("sigterm", table, replace=rows),
            ground.batch("sigterm", versions, replace=changes),
        ]
        answers = [pool.submit(batch.outcome, stub) for batch in batches]
        folder = ground.warehouse / "sigterm"
        assert within(
            SECONDS, lambda: _written(folder / "ending") and _written(folder / "versions"), pause=0.001
        )
        server.process.send_signal(signal.SIGTERM)
        assert [("success", "")] * 2 == [answer.result() for answer in answers]
        assert server.process.wait(SECONDS) == 0
        assert within(SECONDS, lambda: not server.family())
        assert not [message for level, message in server.lines() if level == "SEVERE"]
    assert len(ground.rows("sigterm", "ending")) == 20_000
    assert len(ground.rows("sigterm", "versions")) == 20_000


def _written(folder: Path) -> bool:
    """Whether a batch has begun to write data, just before its commit."""
    return any(folder.glob("data/**/*.parquet"))
