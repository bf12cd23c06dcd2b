"""Run the destination as a gRPC server, with the standard health and reflection services.

The server's certificate, and whose clients it trusts.

A destination over the catalogs of a session, as its starter asked for it.
"""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Self

import grpc
import structlog
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from backstory.doors.fivetran.service import Destination
from backstory.doors.fivetran.wire import destination_sdk_pb2
from backstory.doors.fivetran.wire.destination_sdk_pb2_grpc import (
    add_DestinationConnectorServicer_to_server,
)
from backstory.doors.fivetran.wire.pool import POOL
from backstory.errors import Failed, TryAgain, UsageError
from backstory.formats.wrapping.batch_file import Format
from backstory.observe.metrics import close_metrics, serve_metrics
from backstory.stores.iceberg.faults import SPARK_GONE
from backstory.stores.port import Store


def load_credentials(
    cert: Path | None, key: Path | None, client_ca: Path | None
) -> grpc.ServerCredentials | None:
    """TLS with this certificate (a chain in PEM) and key; None without either.

    With `client_ca` only clients with a certificate of that authority are served. Raises UsageError
    for one without the other, and for files that are none or do not belong together.
    """
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise UsageError(
            "half-tls", "TLS needs a certificate and its key.", "Set both `tls_cert=FILE` and `tls_key=FILE`."
        )
    chain, secret = _read(cert), _read(key)
    try:
        certificate = load_pem_x509_certificates(chain)[0]
        own = load_pem_private_key(secret, None).public_key()
    except (ValueError, TypeError):
        raise UsageError(
            "broken-tls",
            f"{cert.name} is not a certificate in PEM, or {key.name} is not an unencrypted private key in "
            "PEM.",
            "Name the right files.",
        ) from None
    if certificate.public_key() != own:
        raise UsageError(
            "broken-tls", f"{key.name} is not the key of {cert.name}.", "Name the key that belongs to it."
        )
    authority = _authority(client_ca) if client_ca else None
    return grpc.ssl_server_credentials([(secret, chain)], authority, authority is not None)


def _authority(path: Path) -> bytes:
    content = _read(path)
    try:
        load_pem_x509_certificates(content)
    except ValueError:
        raise UsageError(
            "broken-tls", f"{path.name} holds no certificate in PEM.", "Name the authority's certificate."
        ) from None
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        raise UsageError(
            "no-tls-file", f"The file {path} cannot be read.", "Name an existing file."
        ) from None


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
        threading.Thread(target=_watch_java, args=(java, running, stop), daemon=True).start()
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


def _watch_java(java: "subprocess.Popen[bytes]", running: Running, told: threading.Event) -> None:
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


def is_reachable_remotely(host: str | None) -> bool:
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


NOT_ENCRYPTED = (
    "requests are not encrypted, and everyone who reaches this port can send them: outside a private "
    "network use --tls-cert and --tls-key, or --host 127.0.0.1"
)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `serve`; without a host it listens on all interfaces, on port 0 on a free port."""

    host: str | None = None
    port: int = 50052
    metrics_port: int | None = None
    batch_format: Format | str = Format.CSV
    enable_live_modes: bool = False
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None
    tls_client_ca: str | Path | None = None
    batch_folder: Path | None = None

    def credentials(self) -> grpc.ServerCredentials | None:
        """The server's certificate and key, None without; UsageError for files that are neither."""
        files = (self.tls_cert, self.tls_key, self.tls_client_ca)
        return load_credentials(*(None if each is None else Path(each) for each in files))


def serve(
    stores: Mapping[str, Store], asked: ServeOptions, account: Mapping[str, str] | None = None
) -> Running:
    """Listen, then log it with the sender's account; Failed when its port or the metrics' is taken."""
    tls, batch_format = asked.credentials(), Format(asked.batch_format)
    destination = Destination(
        stores, batch_format, live_modes=asked.enable_live_modes, folder=asked.batch_folder
    )
    metrics = None if asked.metrics_port is None else serve_metrics(asked.host or "", asked.metrics_port)
    try:
        running = replace(listen(destination, asked.host, asked.port, tls), metrics=metrics)
    except Failed:
        if metrics is not None:
            close_metrics(metrics)
        raise
    log.info(f"listening on {running.host}:{running.port}", **(account or {}))
    if metrics is not None:
        log.info(f"metrics on port {metrics.server_port}")
    if tls is None and is_reachable_remotely(running.host):
        log.warning(NOT_ENCRYPTED)
    return running
