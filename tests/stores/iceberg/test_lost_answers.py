"""A catalog whose answer to a commit is lost: section 7.7, law 2."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from destination import LIVE, Place, serving

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.settings import Settings
from backstory.spark.session import session_properties
from backstory.stores.iceberg.store import IcebergStore
from backstory.testing.sender import Sender

STORED = "id v n synced \n 1 a 1 T1 \n 2 b 2 T1"
COMMIT = b"UPDATE iceberg_tables"


@dataclass
class Line:
    """Connections to a database. On demand, the answer to the next commit is lost."""

    to: int
    door: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    armed: threading.Event = field(default_factory=threading.Event)
    lost: int = 0

    @property
    def port(self) -> int:
        return self.door.getsockname()[1]

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.door.accept()
                database = socket.create_connection(("127.0.0.1", self.to))
                cut = threading.Event()
                for way in ((client, database, cut, True), (database, client, cut, False)):
                    threading.Thread(target=self._carry, args=way, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, cut: threading.Event, asks: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if asks and COMMIT in data and self.armed.is_set():
                    self.armed.clear()
                    cut.set()
                if not asks and cut.is_set():
                    self.lost += 1
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def line(to: int) -> Iterator[Line]:
    relay = Line(to)
    threading.Thread(target=relay.serve, daemon=True).start()
    try:
        yield relay
    finally:
        relay.door.close()


@pytest.fixture(scope="module")
def wire(postgresql) -> Iterator[Line]:
    """A line to the run's database."""
    with line(int(postgresql.partition("127.0.0.1:")[2].partition("/")[0])) as relay:
        yield relay


@pytest.fixture(scope="module")
def far(spark, postgresql, wire, tmp_path_factory) -> IcebergStore:
    """A store whose catalog is behind the line."""
    uri = postgresql.replace(f":{wire.to}/", f":{wire.port}/") + "&prepareThreshold=0"
    catalog = {"type": "jdbc", "uri": uri, "jdbc.schema-version": "V1"}
    catalog["warehouse"] = str(tmp_path_factory.mktemp("far"))
    for name, value in session_properties(
        Settings(tmp_path_factory.mktemp("near"), {"far": catalog})
    ).items():
        if name.startswith("spark.sql.catalog.far"):
            spark.conf.set(name, value)
    return IcebergStore(spark, "far")


@pytest.fixture
def place(far, request, tmp_path) -> Iterator[Place]:
    with serving({"far": far}) as address:
        schema = request.node.name.partition("[")[0]
        yield Place.made(Sender.to(address, tmp_path), far, schema, LIVE, STORED)


def answer(call) -> str:
    """`success`, or the error of the call."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return f"{error}"
    return "success"


@pytest.mark.parametrize("act", ["batch", "column", "type", "value"])
def test_a_request_repeated_after_a_lost_answer_succeeds(wire, place, act):
    """7.7: Whatever the server reports, the table can be read, no committed row is lost, and a repeated
    request completes it."""
    batch = place.files("id v n synced \n 1 x 1 T2 \n 3 c 3 T2")
    value = sdk.MigrationDetails(schema=place.schema, table=place.table.name)
    value.update_column_value.column, value.update_column_value.value = "v", "z"

    def migrate() -> None:
        reply = place.sender.stub.Migrate(sdk.MigrateRequest(details=value))
        assert reply.success, reply

    acts = {
        "batch": lambda: place.send(replace=batch),
        "column": lambda: place.alter(f"{LIVE} more"),
        "type": lambda: place.alter(LIVE.replace("n:LONG", "n:STRING")),
        "value": migrate,
    }
    wire.armed.set()
    first, lost = answer(acts[act]), wire.lost
    wire.armed.clear()
    assert lost
    assert answer(acts[act]) == "success", first
    names = [row["id"] for row in place.rows()]
    assert sorted(names) == ([1, 2, 3] if act == "batch" else [1, 2])
    assert {row["v"] for row in place.rows()} == {"batch": {"x", "b", "c"}, "value": {"z"}}.get(
        act, {"a", "b"}
    )
