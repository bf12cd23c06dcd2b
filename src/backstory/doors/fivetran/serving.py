"""A destination over the catalogs of a session, as its starter asked for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from backstory.doors.fivetran.server import Running, beyond_this_machine, listen
from backstory.doors.fivetran.service import Destination
from backstory.doors.fivetran.tls import credentials
from backstory.formats.wrapping.batch_file import Format
from backstory.observe.metrics import serve_metrics
from backstory.stores.port import Store

log = structlog.get_logger()

IN_CLEAR = (
    "requests come in clear, and from whoever reaches this port: beyond a network of your own use "
    "--tls-cert and --tls-key, or --host 127.0.0.1"
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
        """The server's certificate and key, None without; UsageError for files that are none."""
        files = (self.tls_cert, self.tls_key, self.tls_client_ca)
        return credentials(*(None if each is None else Path(each) for each in files))


def serve(stores: Mapping[str, Store], asked: Serving, account: Mapping[str, str] | None = None) -> Running:
    """Listen, and say so in the log with what the sender is called; Failed when the port is taken."""
    tls, batch_format = asked.credentials(), Format(asked.batch_format)
    destination = Destination(
        stores, batch_format, live_modes=asked.enable_live_modes, folder=asked.batch_folder
    )
    running = listen(destination, asked.host, asked.port, tls)
    log.info(f"listening on {running.host}:{running.port}", **(account or {}))
    if asked.metrics_port is not None:
        log.info(f"metrics on port {serve_metrics(asked.host or '', asked.metrics_port)}")
    if tls is None and beyond_this_machine(running.host):
        log.warning(IN_CLEAR)
    return running
