"""Run the destination as a gRPC server, with the standard health and reflection services."""

import os
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Self

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from backstory.doors.fivetran.service import Destination
from backstory.doors.fivetran.wire import destination_sdk_pb2
from backstory.doors.fivetran.wire.destination_sdk_pb2_grpc import (
    add_DestinationConnectorServicer_to_server,
)
from backstory.doors.fivetran.wire.pool import POOL
from backstory.errors import Failed, TryAgain
from backstory.observe.metrics import close_metrics
from backstory.stores.iceberg.faults import SPARK_GONE

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

log = structlog.get_logger()

MESSAGE_BYTES = 134_217_728
WORKERS = 16
GRACE_SECONDS = 120.0
# For Spark and Python to end once no request runs any more; and for requests whose Spark has gone.
ENDING_SECONDS = 10.0
SERVICE = destination_sdk_pb2.DESCRIPTOR.services_by_name["DestinationConnector"].full_name


@dataclass(frozen=True, slots=True)
class Running:
    """A server that listens on `host:port`, and perhaps one for its metrics."""

    server: grpc.Server
    health: health.HealthServicer
    host: str
    port: int
    metrics: "WSGIServer | None" = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Refuse new requests, wait up to `grace` seconds for running ones, and end."""
        self.health.enter_graceful_shutdown()
        self.server.stop(grace).wait()
        if self.metrics is not None:
            close_metrics(self.metrics)


def listen(
    destination: Destination, host: str | None, port: int, tls: grpc.ServerCredentials | None = None
) -> Running:
    """Start to serve; without a host on all IPv4 and IPv6 interfaces (section 7.1).

    Without `tls` in clear, as Fivetran's own client does next door. Raises Failed when the port is
    taken.
    """
    server = grpc.server(
        ThreadPoolExecutor(WORKERS, thread_name_prefix="rpc"),
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_send_message_length", MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),
        ],
    )
    add_DestinationConnectorServicer_to_server(destination, server)  # type: ignore[no-untyped-call]
    checks = _add_standard_services(server)
    bound, shown = _bind(server, host, port, tls)
    server.start()
    return Running(server, checks, shown, bound)


def require_port(host: str | None, port: int, option: str = "port") -> None:
    """Raises Failed when the port is taken: worth asking before Spark starts. `listen` has the last word."""
    if not port:
        return
    for shown in _hosts(host):
        six = ":" in shown
        family, both = socket.AF_INET6 if six else socket.AF_INET, six and socket.has_dualstack_ipv6()
        with (
            suppress(OSError, OverflowError, TypeError, UnicodeError),  # no such host or port either
            socket.create_server((shown.strip("[]"), port), family=family, dualstack_ipv6=both),
        ):
            return
    raise _port_in_use(port, option)


def serve_until_signal(running: Running, java: "subprocess.Popen[bytes] | None" = None) -> None:
    """Wait for SIGTERM or SIGINT, then finish running requests and end.

    What still runs after the grace is cut off with the process: exit code 1. Raises TryAgain when
    `java`, Spark's own process, ends before.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if java is not None:
        threading.Thread(target=_tell_its_end, args=(java, running, stop), daemon=True).start()
    stop.wait()
    if java is None or java.poll() is None:
        _end_after(GRACE_SECONDS + ENDING_SECONDS, 1, java)
        running.stop()
        log.info("stopped")
        return
    _end_after(2 * ENDING_SECONDS, TryAgain.exit_code)
    running.stop(ENDING_SECONDS)
    raise TryAgain(
        SPARK_GONE,
        f"Spark's Java process has ended (status {java.returncode}).",
        "No table is affected; start the server again.",
    )


def _tell_its_end(java: "subprocess.Popen[bytes]", running: Running, told: threading.Event) -> None:
    java.wait()
    running.health.enter_graceful_shutdown()  # NOT_SERVING for every service, from now on
    told.set()


def _end_after(seconds: float, code: int, java: "subprocess.Popen[bytes] | None" = None) -> None:
    """End the process after so long, whatever still runs in it: nothing waits for a stuck request."""

    def end() -> None:
        log.critical(f"requests that still run after {seconds:.0f} s are cut off")
        if java is not None:
            java.kill()
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def beyond_this_machine(host: str | None) -> bool:
    """Whether others than this machine can reach a server that listens on `host`."""
    try:
        return host is None or not ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host != "localhost"


def _add_standard_services(server: grpc.Server) -> health.HealthServicer:
    pool = ThreadPoolExecutor(1, thread_name_prefix="health")
    checks = health.HealthServicer(experimental_thread_pool=pool)
    # Whoever asks after our health is answered while every other thread is busy.
    checks.Check = partial(checks.Check)
    checks.Check.experimental_thread_pool = pool
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    for name in ("", SERVICE):
        checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    # The contract's descriptors live in a pool of their own; reflection tells them all from there.
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        POOL.AddSerializedFile(file.serialized_pb)
    names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool=POOL)
    return checks


def _bind(
    server: grpc.Server, host: str | None, port: int, tls: grpc.ServerCredentials | None
) -> tuple[int, str]:
    for shown in _hosts(host):
        try:
            address = f"{shown}:{port}"
            bound = server.add_secure_port(address, tls) if tls else server.add_insecure_port(address)
        except RuntimeError:
            continue
        if bound:
            return bound, shown
    raise _port_in_use(port)


def _hosts(host: str | None) -> list[str]:
    return [host] if host else ["[::]", "0.0.0.0"]  # noqa: S104 - the contract asks for all


def _port_in_use(port: int, option: str = "port") -> Failed:
    """The error for a port that another program listens on."""
    return Failed(
        "port-in-use",
        f"The server cannot listen on port {port}.",
        f"Stop the program that uses it, or choose another with `{option}=PORT`.",
    )
