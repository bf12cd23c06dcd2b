"""The real process: requirements 4, 5, 8 to 10, 13, 17, interface section 3."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from destination import Place, column_types, definition, refusal
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from serving import SECONDS, all_the_time

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.formats.batch_file import BatchFile
from backstory.model.values import UNMODIFIED
from backstory.testing.sender import Sender, encrypt

BACKSTORY = Path(sys.executable).parent / "backstory"
SERVICE = "fivetran_sdk.v2.DestinationConnector"
CANARY = "canary-9d41c7"
KEY = b"canary-9d41c7-as-an-aes-key-32-b"
COLUMNS = "id* v n:LONG synced start* end active"

pytestmark = pytest.mark.process


@contextmanager
def process(folder, *arguments, **environment):
    """`backstory serve` with a separate temporary folder, and its output in files."""
    folder.mkdir(exist_ok=True)
    temp = folder / "temp"
    temp.mkdir(exist_ok=True)
    places = {"TMPDIR": str(temp), "SPARK_LOCAL_DIRS": str(temp), "HOME": os.environ["HOME"]}
    running = subprocess.Popen(
        [BACKSTORY, "serve", "--warehouse", folder.parent / "warehouse", *arguments],
        stdout=(folder / "stdout").open("wb"),
        stderr=(folder / "stderr").open("wb"),
        cwd=folder,
        env={**{name: os.environ[name] for name in ("PATH", "SPARK_SUBMIT_OPTS")}, **places, **environment},
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def lines(folder):
    """The log lines so far, checked against the contract's form."""
    entries = []
    for line in (folder / "stdout").read_text("utf-8").splitlines():
        document = json.loads(line)
        assert set(document) == {"level", "message", "message-origin"}
        assert document["level"] in {"INFO", "WARNING", "SEVERE"}
        assert document["message-origin"] == "sdk_destination"
        entries.append((document["level"], document["message"]))
    return entries


def address(folder, running, seconds=SECONDS):
    """The address of the process, once its log contains it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and running.poll() is None:
        if (folder / "stdout").read_bytes().endswith(b"\n"):
            for _, message in lines(folder):
                if message.startswith("listening on "):
                    return message.split()[2]
        time.sleep(0.1)
    raise AssertionError((folder / "stderr").read_text()[-2000:])


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return tmp_path_factory.mktemp("process")


@pytest.fixture(scope="module")
def server(ground):
    with process(ground / "one", "--port", "0", FIVETRAN_ACCOUNT_NAME="acme") as running:
        yield running, address(ground / "one", running)


@contextmanager
def watched(folder):
    """Collect the files in the folder that contain the canary at any moment during the block."""
    files, seen = set(), {}
    with all_the_time(lambda: files.update(holding(folder, seen=seen))):
        yield files


def holding(folder, *, but=(), seen=None):
    """The files below a folder that contain the canary in any spelling. `seen` omits files that it knows."""
    forms = [CANARY.encode(), KEY, KEY.hex().encode(), base64.b64encode(KEY)]
    held, seen = set(), {} if seen is None else seen
    for path in folder.rglob("*"):
        try:
            about = path.stat()
            state = (about.st_size, about.st_mtime_ns)
            if path.suffix in {*but, ".jar"} or seen.get(path) == state or not path.is_file():
                continue
            seen[path] = state
            if any(form in path.read_bytes() for form in forms):
                held.add(str(path))
        except OSError:
            continue
    return held


def test_the_first_log_line_contains_the_listening_address(server, ground):
    """4, 8, interface 3: It listens on all interfaces, for IPv4 and IPv6. The account is ignored."""
    _, listening = server
    level, message = lines(ground / "one")[0]
    assert (level, message.startswith(f"listening on {listening}")) == ("INFO", True)
    assert "acme" in message
    port = listening.rpartition(":")[2]
    hosts = ["127.0.0.1", "[::1]"] if listening.startswith("[::]") else ["127.0.0.1"]
    for host in hosts:
        stub = Sender.to(f"{host}:{port}", ground).stub
        assert stub.ConfigurationForm(common.ConfigurationFormRequest()).fields


def test_health_and_reflection_answer(server):
    """Interface 3: The service is SERVING, and reflection lists its methods."""
    with grpc.insecure_channel(server[1].replace("[::]", "127.0.0.1")) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            reply = health.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        ask = reflection_pb2.ServerReflectionRequest
        requests = [ask(list_services=""), ask(file_containing_symbol=SERVICE)]
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        listed, files = reflection.ServerReflectionInfo(iter(requests))
        assert SERVICE in {service.name for service in listed.list_services_response.service}
        assert any(
            b"DestinationConnector" in file for file in files.file_descriptor_response.file_descriptor_proto
        )


def test_secrets_are_neither_logged_nor_kept(server, ground):
    """9, 10: Values, keys and settings of loads are in no line, reply or temporary file, and only in data
    files."""
    one = ground / "one"
    sender = Sender.to(server[1].replace("[::]", "127.0.0.1"), ground, configuration={"token": CANARY})
    place = Place(sender, None, "secret", definition("t", COLUMNS))
    sender.create("secret", place.table)
    system = {"_fivetran_synced": "2024-01-01T00:00:00Z", "_fivetran_end": "9999-12-31T23:59:59.999Z"}
    rows = [
        {"id": f"{CANARY}-{i}", "v": CANARY, "n": i, "_fivetran_start": "2024-01-01T00:00:00Z"}
        | system
        | {"_fivetran_active": True}
        for i in range(500)
    ]
    with watched(one / "temp") as seen:
        place.write(replace=rows)
        later = {"_fivetran_start": "2024-02-01T00:00:00Z", "v": UNMODIFIED}
        keys = [{"id": row["id"], "_fivetran_start": later["_fivetran_start"]} for row in rows]
        place.write(earliest=keys, update=[row | later for row in rows])
        place.write(delete=[{"id": row["id"], "_fivetran_end": "2024-03-01T00:00:00Z"} for row in rows[:300]])
        texts = []
        for broken in (
            [rows[0] | {"n": CANARY}],
            [rows[0] | {"_fivetran_start": CANARY}],
            [rows[0] | {"v": UNMODIFIED}],
        ):
            texts.append(refusal(place.reply(replace=place.files(broken))))
        sealed = ground / "sealed.csv"
        sealed.write_bytes(encrypt(f"id,v\n{CANARY},{CANARY}\n".encode(), KEY, os.urandom(16)))
        for key in (KEY, KEY[::-1]):
            texts.append(refusal(place.reply(replace=[BatchFile(sealed, key)])))
        wrong = Place(
            Sender.to(server[1].replace("[::]", "127.0.0.1"), ground, configuration={"catalog": CANARY}),
            None,
            "secret",
            place.table,
        )
        texts.append(refusal(wrong.reply()))
    assert seen == set()
    assert not any(CANARY in text for text in texts)
    assert holding(one) == set()
    assert holding(ground / "warehouse", but={".parquet"}) == set()
    assert any(holding(ground / "warehouse"))


def test_endless_and_special_files_are_refused(server, ground):
    """Devices, pipes and system files are refused, including through links, each at once."""
    sender = Sender.to(server[1].replace("[::]", "127.0.0.1"), ground)
    place = Place(sender, None, "endless", definition("t", "id:LONG* v synced"))
    sender.create("endless", place.table)
    os.mkfifo(ground / "pipe")
    (ground / "link").symlink_to(ground / "pipe")
    paths = [Path("/dev/zero"), ground / "pipe", ground / "link", Path("/proc/self/environ")]
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda path: refusal(place.reply(replace=[BatchFile(path)])), paths * 4))
    assert all("not a regular file" in text for text in texts)


def listening(running):
    """The addresses of this process and its Java, in the kernel's spelling."""
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    for process in (running.pid, *children):
        held = {str(file.readlink()) for file in Path(f"/proc/{process}/fd").iterdir() if file.is_symlink()}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == "0A" and f"socket:[{inode}]" in held:
                    address, _, port = local.partition(":")
                    yield address, int(port, 16)


def test_only_the_servers_port_is_reachable_from_other_machines(server):
    """Only `--host` and `--port` of the server and its Java listen beyond loopback."""
    port = int(server[1].rpartition(":")[2])
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    sockets = set(listening(server[0]))
    assert len(sockets) > 2
    assert {there for address, there in sockets if address not in loopback} == {port}


def open_to_others(folder):
    """The files that others can read or enter below a folder. A private folder protects its content."""
    for path in (path for path in folder.iterdir() if not path.is_symlink()):
        if path.stat().st_mode & 0o077:
            yield str(path)
            yield from open_to_others(path) if path.is_dir() else ()


def test_files_of_the_server_are_private_to_its_user(server, ground):
    """Warehouse, catalog, data and temporary files have modes 0600 and 0700, whatever the umask."""
    warehouse = ground / "warehouse"
    files = [path for path in warehouse.rglob("*") if path.is_file()]
    assert any(path.suffix == ".parquet" for path in files)
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}
    folders = [path for path in warehouse.rglob("*") if path.is_dir()]
    assert {oct(path.stat().st_mode & 0o777) for path in [warehouse, *folders]} == {"0o700"}
    assert list(open_to_others(ground / "one" / "temp")) == []


def test_an_unencrypted_server_warns_once_without_spark_warnings(server, ground):
    """7.2: One WARNING follows the first line. Spark's lines are only in its own log."""
    warnings = [
        message for level, message in lines(ground / "one") if level == "WARNING" and "encrypted" in message
    ]
    assert len(warnings) == 1
    assert "WARN" not in (ground / "one" / "stderr").read_text()


def test_a_port_in_use_is_reported_in_a_single_line(server, ground):
    """5, interface 3: One SEVERE line names port and flag, and the exit code is 1, including for the metrics
    port."""
    port = server[1].rpartition(":")[2]
    for name, *flags in (("two", "--port"), ("no-metrics", "--port", "0", "--metrics-port")):
        with process(ground / name, *flags, port) as running:
            assert running.wait(SECONDS) == 1
        [(level, message)] = lines(ground / name)
        assert level == "SEVERE"
        assert port in message
        assert f"`{flags[-1]} PORT`" in message


def test_sigterm_finishes_running_batches_and_exits_with_0(server, ground):
    """17, 13, 7.1: A running batch is answered, the process exits with 0, and the next one continues. Unknown
    arguments cause a WARNING."""
    running, listening = server
    sender = Sender.to(listening.replace("[::]", "127.0.0.1"), ground)
    place = Place(sender, None, "ending", definition("t", "id:LONG* v synced"))
    sender.create("ending", place.table)
    rows = [{"id": i, "v": f"v{i}", "_fivetran_synced": "2024-01-01T00:00:00Z"} for i in range(20_000)]
    files = place.files(rows)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(place.send, replace=files)
        end = time.monotonic() + SECONDS
        while not sent.done() and not list(ground.rglob("ending/t/data/*.parquet")):
            assert time.monotonic() < end
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        sent.result()
    assert running.wait(SECONDS) == 0
    assert not [message for level, message in lines(ground / "one") if level == "SEVERE"]
    three = ground / "three"
    with process(three, "--port", "0", "--host", "127.0.0.1", "--surprise", CANARY) as again:
        where = address(three, again)
        described = Sender.to(where, ground).describe("ending", "t")
        assert column_types(described) == column_types(place.table)
        again.send_signal(signal.SIGTERM)
        assert again.wait(SECONDS) == 0
    assert lines(three)[0][1].startswith("listening on 127.0.0.1:")
    assert [level for level, _ in lines(three)].count("WARNING") == 1
    assert holding(three) == set()
