"""Real `backstory serve` processes with their own warehouses, observed from outside.

A server is started with `Ground.server`, gets a `Request`, and is ended by a signal. Tables are read with
pyiceberg, independently of the server: `Ground.rows` reads once, and `Watch` reads all the time.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Self

import grpc
import java
from destination import PLAIN, column_types
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from tables_as_text import in_order

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.testing.sender import Sender, write_batch_file

BACKSTORY = Path(sys.executable).parent / "backstory"
SECONDS = 300
KEPT = ("PATH", "HOME", "JAVA_HOME", "PYTHONPATH", "SPARK_SUBMIT_OPTS")
SPARK = {
    "spark.master": "local[2]",
    "spark.driver.memory": "640m",
    "spark.sql.shuffle.partitions": "2",
    **java.PLANS,
}
CONFIGURATION = f"[spark]\n{java.in_toml(SPARK)}"
LISTS = {kind: f"{kind}_files" for kind in ("replace", "update", "delete")} | {
    "earliest": "earliest_start_files"
}

Rows = list[dict[str, object]]


@dataclass
class Server:
    """A server process, which may not listen yet."""

    process: subprocess.Popen
    folder: Path

    @property
    def address(self) -> str:
        """The address of the server, once its log has it."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            for _, message in self.lines():
                if message.startswith("listening on "):
                    return message.split()[2]
            time.sleep(0.05)
        raise AssertionError((self.lines(), (self.folder / "stderr").read_text()[-2000:]))

    @property
    def stub(self) -> Any:
        """A connection to it."""
        return Sender.to(self.address, self.folder).stub

    def lines(self) -> list[tuple[str, str]]:
        """The complete log lines so far: level and message."""
        written = (self.folder / "stdout").read_text("utf-8")
        whole = written[: written.rfind("\n") + 1].splitlines()
        return [(line["level"], line["message"]) for line in map(json.loads, whole)]

    def family(self) -> list[int]:
        """The processes that run for this server, including the server itself.

        They are identified by the folder for temporary files that they inherited.
        """
        return family_by(self.folder / "temp")

    def java(self) -> int:
        """Its Java."""
        [process_id] = [each for each in self.family() if b"java" in command_line(each).partition(b"\0")[0]]
        return process_id

    def kill(self, *, family: bool = False) -> None:
        """Kill the server. If `family` is true, its Java and other children are killed at the same moment."""
        children = self.family() if family else []
        for process in [self.process.pid, *children]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        """Ask the server to end. Returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)


@contextmanager
def all_the_time(look: Callable[[], object]) -> Iterator[None]:
    """Check something repeatedly during the block, and once more after it."""
    done = threading.Event()

    def looking() -> None:
        while not done.wait(0.02):
            look()

    thread = threading.Thread(target=looking)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        look()


def family_by(temp: Path) -> list[int]:
    """The processes that inherited this folder for temporary files."""
    mark = f"TMPDIR={temp}".encode()
    return [process for process in processes() if mark in environment(process)]


def processes() -> list[int]:
    """The running processes. Zombies are excluded."""
    process_ids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in {"Z", "X"}:
                process_ids.append(int(folder.name))
    return process_ids


def command_line(process: int) -> bytes:
    """A process's command line. Empty if the process has ended."""
    with suppress(OSError):
        return Path("/proc", str(process), "cmdline").read_bytes()
    return b""


def environment(process: int) -> list[bytes]:
    """A process's initial environment. Empty if the process has ended or belongs to another user."""
    with suppress(OSError):
        return Path("/proc", str(process), "environ").read_bytes().split(b"\0")
    return []


def within(seconds: float, holds: Callable[[], object], pause: float = 0.02) -> bool:
    """Whether a condition becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(pause)
    return bool(holds())


@dataclass(frozen=True)
class Request:
    """A request that can be sent more than once."""

    rpc: str
    message: Any

    def outcome(self, stub: Any) -> tuple[str, str]:
        """The outcome and its name: the reply's member, or the name of a status."""
        try:
            reply = getattr(stub, self.rpc)(self.message, timeout=SECONDS)
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""
        member = reply.WhichOneof("response")
        return member, reply.task.message if member == "task" else ""

    def settled(self, stub: Any, attempts: int = 8) -> tuple[str, str]:
        """The outcome if a sender sends it, who repeats it as long as the server requests this."""
        for _ in range(attempts):
            member, words = self.outcome(stub)
            if member != "UNAVAILABLE":
                break
        return member, words

    def done_by(self, stub: Any) -> None:
        """The same for a request that must succeed."""
        member, words = self.settled(stub)
        assert member == "success", (self.rpc, member, words)


def create(schema: str, table: common.Table) -> Request:
    return Request("CreateTable", sdk.CreateTableRequest(schema_name=schema, table=table))


def alter(schema: str, table: common.Table, *, drop_columns: bool = False) -> Request:
    message = sdk.AlterTableRequest(schema_name=schema, table=table, drop_columns=drop_columns)
    return Request("AlterTable", message)


def describe(schema: str, name: str) -> Request:
    return Request("DescribeTable", sdk.DescribeTableRequest(schema_name=schema, table_name=name))


def migrate(schema: str, name: str, **operation: object) -> Request:
    details = sdk.MigrationDetails(schema=schema, table=name, **operation)
    return Request("Migrate", sdk.MigrateRequest(details=details))


def truncate(schema: str, name: str, before: datetime) -> Request:
    message = sdk.TruncateRequest(schema_name=schema, table_name=name, synced_column="_fivetran_synced")
    message.utc_delete_before.FromDatetime(before)
    return Request("Truncate", message)


def described(stub: Any, schema: str, name: str) -> dict[str, str] | None:
    """The columns according to DescribeTable, or None if the table does not exist."""
    reply = stub.DescribeTable(describe(schema, name).message, timeout=SECONDS)
    assert reply.WhichOneof("response") in {"table", "not_found"}, reply
    return column_types(reply.table) if reply.WhichOneof("response") == "table" else None


@dataclass(frozen=True)
class Ground:
    """A folder with a warehouse, its servers' folders and the files of its batches."""

    folder: Path
    warehouse: Path
    _numbers: Iterator[int] = field(default_factory=count)

    @classmethod
    def at(cls, folder: Path, warehouse: Path | None = None) -> "Ground":
        (folder / "files").mkdir(parents=True)
        (folder / "backstory.toml").write_text(CONFIGURATION)
        return cls(folder, warehouse or folder / "warehouse")

    @contextmanager
    def server(
        self, *arguments: str, program: Sequence[object] = (BACKSTORY,), **environment: str
    ) -> Iterator[Server]:
        """A server with the warehouse, on a port of its choice.

        No process or file of it remains after the block.
        """
        folder = self.folder / f"server-{next(self._numbers)}"
        temp = folder / "temp"
        temp.mkdir(parents=True)
        variables = {name: os.environ[name] for name in KEPT if name in os.environ}
        places = {"TMPDIR": str(temp), "SPARK_LOCAL_DIRS": str(temp)}
        where = ["--warehouse", self.warehouse, "--config", self.folder / "backstory.toml"]
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            process = subprocess.Popen(
                [*program, "serve", "--host", "127.0.0.1", "--port", "0", *where, *arguments],
                stdout=out,
                stderr=err,
                cwd=folder,
                env=variables | places | environment,
            )
        server = Server(process, folder)
        try:
            yield server
        finally:
            server.kill(family=True)

    def batch(self, schema: str, table: common.Table, **kinds: Sequence[Mapping[str, object]]) -> Request:
        """One batch. All rows of a kind have the columns of its first row."""
        history = any(column.name == "_fivetran_active" for column in table.columns)
        make = sdk.WriteHistoryBatchRequest if history else sdk.WriteBatchRequest
        files = {
            LISTS[kind]: [str(write_batch_file(self.folder / "files", rows, list(rows[0]), PLAIN).path)]
            for kind, rows in kinds.items()
            if rows
        }
        markers = sdk.FileParams(null_string=PLAIN.null_string, unmodified_string=PLAIN.unmodified_string)
        message = make(schema_name=schema, table=table, file_params=markers, **files)
        return Request("WriteHistoryBatch" if history else "WriteBatch", message)

    @contextmanager
    def catalog(self) -> Iterator[SqlCatalog]:
        """The catalog, opened as by another program."""
        uri = f"sqlite:///{self.warehouse}/catalog.db"
        catalog = SqlCatalog("backstory", uri=uri, init_catalog_tables="false")
        try:
            yield catalog
        finally:
            catalog.engine.dispose()

    def rows(self, schema: str, name: str) -> Rows | None:
        """The table's rows, read as by another program, or None if the table does not exist."""
        with self.catalog() as catalog:
            try:
                return rows_of(catalog.load_table((schema, name)))
            except NoSuchTableError:
                return None

    def snapshots(self, schema: str, name: str) -> int:
        """The number of the table's commits of data."""
        with self.catalog() as catalog:
            return len(catalog.load_table((schema, name)).snapshots())

    def orphans(self, schema: str, name: str) -> set[str]:
        """The files below the table's data folder that none of its snapshots names."""
        with self.catalog() as catalog:
            table = catalog.load_table((schema, name))
            manifests = [m for snapshot in table.snapshots() for m in snapshot.manifests(table.io)]
            entries = [e for m in manifests for e in m.fetch_manifest_entry(table.io, discard_deleted=False)]
            named = {Path(entry.data_file.file_path).name for entry in entries}
            data = Path(table.location().removeprefix("file:"), "data")
        files = (path for path in data.rglob("*") if path.is_file())
        return {path.name for path in files if path.name.removeprefix(".").removesuffix(".crc") not in named}


def rows_of(table: Any) -> Rows:
    """All rows of a table that pyiceberg loaded."""
    read = table.scan().to_arrow().to_pylist()
    return in_order({column: _utc(value) for column, value in row.items()} for row in read)


def _utc(value: object) -> object:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


@dataclass
class Watch:
    """A reader that reads tables all the time, and keeps each state that it sees, in order.

    The file that a catalog's pointer names never changes, so a table is read only if its pointer is new.
    """

    ground: Ground
    schema: str
    names: Sequence[str]
    states: dict[str, list[Rows | None]] = field(default_factory=dict)
    fault: BaseException | None = None
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(SECONDS)

    def _look(self) -> None:
        pointers = text(
            "SELECT table_name, metadata_location FROM iceberg_tables WHERE table_namespace = :of"
        )
        known: dict[str, str | None] = {}
        with self.ground.catalog() as catalog:
            last = False
            while not last:
                last = self._done.wait(0.01)  # the final state is read too
                try:
                    with catalog.engine.connect() as connection:
                        now = dict(connection.execute(pointers, {"of": self.schema}).all())
                    for name in self.names:
                        if name not in known or known[name] != now.get(name):
                            known[name] = self._read(catalog, name)
                except OperationalError:  # another connection writes
                    last = False
                except Exception as fault:  # noqa: BLE001 - told to the test
                    self.fault = fault
                    return

    def _read(self, catalog: SqlCatalog, name: str) -> str | None:
        try:
            table = catalog.load_table((self.schema, name))
            state, pointer = rows_of(table), table.metadata_location
        except NoSuchTableError:
            state, pointer = None, None
        seen = self.states.setdefault(name, [])
        if not seen or seen[-1] != state:
            seen.append(state)
        return pointer

    def strange(self, name: str, course: Sequence[Rows | None]) -> int | None:
        """The place of the first state of a table that is not on its course, or None if all are.

        A course has the table's states in the order in which they may occur. Some may be missed.
        """
        place = 0
        for number, state in enumerate(self.states.get(name, [])):
            while place < len(course) and course[place] != state:
                place += 1
            if place == len(course):
                return number
        return None
