"""A destination over the catalogs of a session, as its starter asked for it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import structlog

from backstory.doors.fivetran.server import Running, beyond_this_machine, listen
from backstory.doors.fivetran.service import Destination
from backstory.doors.fivetran.tls import credentials
from backstory.errors import Failed
from backstory.formats.wrapping.batch_file import Format
from backstory.observe.metrics import close_metrics, serve_metrics
from backstory.stores.port import Store

log = structlog.get_logger()

IN_CLEAR = (
    "requests are not encrypted, and everyone who reaches this port can send them: outside a private "
    "network use --tls-cert and --tls-key, or --host 127.0.0.1"
)


@dataclass(frozen=True, slots=True)
class Serving:
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
        return credentials(*(None if each is None else Path(each) for each in files))


def serve(stores: Mapping[str, Store], asked: Serving, account: Mapping[str, str] | None = None) -> Running:
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
    if tls is None and beyond_this_machine(running.host):
        log.warning(IN_CLEAR)
    return running
