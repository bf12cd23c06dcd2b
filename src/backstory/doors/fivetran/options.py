"""The options of `serve`, for Python calls and for the command."""

from pathlib import Path
from typing import Literal

from attrs import frozen


@frozen(kw_only=True)
class ServeRequest:
    """The options of `serve`. If `batch_folder` is set, batch files must be in it.

    Attributes:
        host: Interface to listen on. Default: all IPv4 and IPv6 interfaces.
        port: Port to listen on; 0 picks a free one.
        metrics_port: Port for Prometheus metrics, under /metrics. Default: no metrics.
        batch_format: Format of the batch files that Fivetran is asked to send.
        enable_live_modes: Offer migrations from and to live mode, which Fivetran has withdrawn.
        tls_cert: The server's certificate chain, in PEM; without it requests are not encrypted.
        tls_key: The certificate's private key, in PEM.
        tls_client_ca: Accept only clients with a certificate signed by this authority.
    """

    host: str | None = None
    port: int = 50052
    metrics_port: int | None = None
    batch_format: Literal["csv", "parquet"] = "csv"
    enable_live_modes: bool = False
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None
    tls_client_ca: str | Path | None = None
    batch_folder: Path | None = None
