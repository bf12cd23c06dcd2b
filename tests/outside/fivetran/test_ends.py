"""The end of a server that cannot end normally: D1, interface section 3."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from serving import SECONDS, Ground, Server, describe, environment, within

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
WORKERS = 16
IMPATIENT = (
    "from backstory.doors.fivetran import server; server.GRACE_SECONDS = server.ENDING_SECONDS = 1.0;"
    "from backstory.cli.app import main; main()"
)

pytestmark = pytest.mark.process


def stuck(server: Server, pool: ThreadPoolExecutor, count: int) -> list:
    """This number of requests, which wait for a stopped Java."""
    os.kill(server.java(), signal.SIGSTOP)
    stub = server.stub
    sent = [pool.submit(describe("s", "t").outcome, stub) for _ in range(count)]
    assert within(SECONDS, lambda: unread(server.java()))
    assert not any(each.done() for each in sent)
    return sent


def unread(java: int) -> bool:
    """Whether a request to this Java is waiting in a socket, unread."""
    tables = [Path(f"/proc/{java}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    lines = [line.split()[:10] for table in tables for line in table]
    held = {str(file.readlink()) for file in Path(f"/proc/{java}/fd").iterdir() if file.is_symlink()}
    listens = {
        line[1].rpartition(":")[2] for line in lines if f"socket:[{line[9]}]" in held and line[3] == "0A"
    }
    return any(
        line[1].rpartition(":")[2] in listens and int(line[4].partition(":")[2], 16)
        for line in lines
        if line[3] == "01"
    )


def test_a_server_reports_the_death_of_its_java_and_exits(tmp_path):
    """Health answers while all workers wait, and NOT_SERVING once Java is dead. Requests should be repeated.
    The exit code is 75."""
    with Ground.at(tmp_path / "ground").server() as server, ThreadPoolExecutor(WORKERS) as pool:
        channel = grpc.insecure_channel(server.address)
        health, ask = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
        watched = health.Watch(ask)
        assert next(watched).status == SERVING
        sent = stuck(server, pool, WORKERS)
        assert health.Check(ask, timeout=SECONDS).status == SERVING
        os.kill(server.java(), signal.SIGKILL)
        assert next(watched).status == NOT_SERVING
        assert {each.result()[0] for each in sent} == {"UNAVAILABLE"}
        watched.cancel()  # the server waits for watchers too
        assert server.process.wait(SECONDS) == 75
        channel.close()
    level, message = server.lines()[-1]
    assert level == "SEVERE"
    assert "Java" in message


def test_an_endless_request_is_cut_off_after_the_grace_period(tmp_path):
    """SIGTERM: A request that never ends is cut off together with Java, and the exit code is 1."""
    program = (sys.executable, "-c", IMPATIENT)
    with Ground.at(tmp_path / "ground").server(program=program) as server, ThreadPoolExecutor(1) as pool:
        assert server.address
        java = server.java()
        sent = stuck(server, pool, 1)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(SECONDS) == 1
        assert sent[0].result()[0] in {"UNAVAILABLE", "CANCELLED"}
        assert within(SECONDS, lambda: not environment(java))
    assert server.lines()[-1][0] == "SEVERE"
