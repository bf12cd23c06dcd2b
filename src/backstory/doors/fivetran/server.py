"""The destination as a gRPC server, with TLS, and the standard health and reflection services."""

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

from backstory.doors.fivetran.options import ServeRequest
from backstory.doors.fivetran.service import Destination
from backstory.doors.fivetran.wire import POOL, destination_sdk_pb2
from backstory.doors.fivetran.wire.destination_sdk_pb2_grpc import add_DestinationConnectorServicer_to_server
from backstory.errors import Failed, TryAgain, UsageError
from backstory.observe import close_metrics, serve_metrics
from backstory.stores.iceberg.faults import SPARK_GONE
from backstory.stores.port import Store

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

log = structlog.get_logger()


def credentials_of(request: ServeRequest) -> grpc.ServerCredentials | None:
    """The credentials made from a certificate (a chain in PEM) and its key, or None if no files are given.

    With `tls_client_ca`, only clients with a certificate from that authority are served. Raises UsageError if
    only a certificate or only a key is given, for files in another format, and for a key that belongs to
    another certificate.
    """
    if request.tls_cert is None and request.tls_key is None and request.tls_client_ca is None:
        return None
    if request.tls_cert is None or request.tls_key is None:
        raise UsageError(
            "half-tls", "TLS needs a certificate and its key.", "Set both `tls_cert=FILE` and `tls_key=FILE`."
        )
    cert, key = Path(request.tls_cert), Path(request.tls_key)
    chain, secret = _read(cert), _read(key)
    try:
        certificate = load_pem_x509_certificates(chain)[0]
        public_key = load_pem_private_key(secret, None).public_key()
    except (ValueError, TypeError):
        raise UsageError(
            "broken-tls",
            f"{cert.name} is not a certificate in PEM, or {key.name} is not an unencrypted private key in "
            "PEM.",
            "Name the right files.",
        ) from None
    if certificate.public_key() != public_key:
        raise UsageError(
            "broken-tls", f"{key.name} is not the key of {cert.name}.", "Name the key that belongs to it."
        )
    authority = None if request.tls_client_ca is None else _authority(Path(request.tls_client_ca))
    return grpc.ssl_server_credentials([(secret, chain)], authority, authority is not None)


def _authority(path: Path) -> bytes:
    content = _read(path)
    try:
        load_pem_x509_certificates(content)
    except ValueError:
        raise UsageError(
            "broken-tls", f"{path.name} contains no certificate in PEM.", "Name the authority's certificate."
        ) from None
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        raise UsageError(
            "no-tls-file", f"The file {path} cannot be read.", "Name an existing file."
        ) from None


MESSAGE_BYTES = 134_217_728
WORKERS = 16
GRACE_SECONDS = 120.0
# The time for Spark and Python to stop after the last request, and for requests whose Spark process has
# ended.
ENDING_SECONDS = 10.0
SERVICE = destination_sdk_pb2.DESCRIPTOR.services_by_name["DestinationConnector"].full_name


@dataclass(frozen=True, slots=True)
class Running:
    """A server that listens on `host:port`, and its metrics server, if there is one."""

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
        """Refuse new requests, wait at most `grace` seconds for running requests, and stop."""
        self.health.enter_graceful_shutdown()
        self.server.stop(grace).wait()
        if self.metrics is not None:
            close_metrics(self.metrics)


def listen(
    destination: Destination, host: str | None, port: int, tls: grpc.ServerCredentials | None = None
) -> Running:
    """Start a server.

    Without a host, the server listens on all IPv4 and IPv6 interfaces (section 7.1). Without `tls`, requests
    are not encrypted, as with Fivetran's own client on the same machine. Raises Failed if the port is in use.
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
    bound_port, bound_host = _bind(server, host, port, tls)
    server.start()
    return Running(server, checks, bound_host, bound_port)


def require_port(host: str | None, port: int, option: str = "port") -> None:
    """Raise Failed if the port is in use.

    Call it before Spark starts; `listen` raises the same error later.
    """
    if not port:
        return
    for address in _hosts(host):
        six = ":" in address
        family, both = socket.AF_INET6 if six else socket.AF_INET, six and socket.has_dualstack_ipv6()
        with (
            suppress(OSError, OverflowError, TypeError, UnicodeError),  # in use, or no such host or port
            socket.create_server((address.strip("[]"), port), family=family, dualstack_ipv6=both),
        ):
            return
    raise _port_in_use(port, option)


def serve_until_signal(running: Running, java: "subprocess.Popen[bytes] | None" = None) -> None:
    """Wait for SIGTERM or SIGINT, then finish running requests and return.

    If requests are still running after the grace period, the process exits with code 1. Raises TryAgain if
    `java`, Spark's process, ends before the signal.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if java is not None:

        def watch_java() -> None:
            java.wait()
            running.health.enter_graceful_shutdown()  # from now on, every service is NOT_SERVING
            stop.set()

        threading.Thread(target=watch_java, daemon=True).start()
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


def _end_after(seconds: float, code: int, java: "subprocess.Popen[bytes] | None" = None) -> None:
    """Exit the process after this many seconds, even if a request is stuck."""

    def end() -> None:
        log.critical(f"requests that still run after {seconds:.0f} s are cut off")
        if java is not None:
            java.kill()
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def is_reachable_remotely(host: str | None) -> bool:
    """Whether other machines can reach a server that listens on `host`."""
    try:
        return host is None or not ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host != "localhost"


def _add_standard_services(server: grpc.Server) -> health.HealthServicer:
    pool = ThreadPoolExecutor(1, thread_name_prefix="health")
    checks = health.HealthServicer(experimental_thread_pool=pool)
    # Health checks have their own thread, so that they are answered even if all other threads are busy.
    checks.Check = partial(checks.Check)
    checks.Check.experimental_thread_pool = pool
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    for name in ("", SERVICE):
        checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    # Reflection uses the pool with the contract's descriptors, so this pool must also contain the standard
    # descriptors.
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        POOL.AddSerializedFile(file.serialized_pb)
    names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool=POOL)
    return checks


def _bind(
    server: grpc.Server, host: str | None, port: int, tls: grpc.ServerCredentials | None
) -> tuple[int, str]:
    for bound_host in _hosts(host):
        try:
            address = f"{bound_host}:{port}"
            bound_port = server.add_secure_port(address, tls) if tls else server.add_insecure_port(address)
        except RuntimeError:
            continue
        if bound_port:
            return bound_port, bound_host
    raise _port_in_use(port)


def _hosts(host: str | None) -> list[str]:
    return [host] if host else ["[::]", "0.0.0.0"]  # noqa: S104 - the contract asks for all


def _port_in_use(port: int, option: str = "port") -> Failed:
    """The error for a port that is in use by another program."""
    return Failed(
        "port-in-use",
        f"The server cannot listen on port {port}.",
        f"Stop the program that uses it, or choose another port with `{option}=PORT`.",
    )


NOT_ENCRYPTED = (
    "requests are not encrypted, and everyone who reaches this port can send them: outside a private "
    "network use --tls-cert and --tls-key, or --host 127.0.0.1"
)


def serve(
    stores: Mapping[str, Store], request: ServeRequest, account: Mapping[str, str] | None = None
) -> Running:
    """Start the server and its metrics server, and log the start with the account.

    Raises Failed if a port is in use.
    """
    tls, destination = credentials_of(request), Destination(stores, request)
    port = request.metrics_port
    metrics = None if port is None else serve_metrics(request.host or "", port)
    try:
        running = replace(listen(destination, request.host, request.port, tls), metrics=metrics)
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
