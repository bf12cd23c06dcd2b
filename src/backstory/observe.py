"""Metrics for Prometheus."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import Counter, Histogram, start_http_server

from backstory.errors import Failed

BATCHES = Counter("backstory_batches", "Batches by how they ended.", ["outcome"])
ROWS = Counter("backstory_rows", "Rows of batches by outcome.", ["outcome"])
REQUESTS = Counter("backstory_requests", "Requests by RPC and how they ended.", ["rpc", "outcome"])
COMMITS = Counter("backstory_commits", "Commits to tables.")
CONFLICTS = Counter("backstory_conflicts", "Attempts that another writer or a busy catalog ended.")
RETRIES = Counter("backstory_retries", "Attempts after such an end.")
SECONDS = Histogram(
    "backstory_stage_seconds",
    "Seconds of a batch by stage.",
    ["stage"],
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
# The seconds of the stages inside the current stage.
_within: ContextVar[list[float] | None] = ContextVar("within", default=None)


@contextmanager
def time_stage(name: str) -> Iterator[None]:
    """Add the time of the block to this stage of a batch, without the time of stages inside it."""
    outer, within = _within.get(), [0.0]
    token = _within.set(within)
    began = time.monotonic()
    try:
        yield
    finally:
        _within.reset(token)
        seconds = time.monotonic() - began
        if outer is not None:
            outer[0] += seconds
        SECONDS.labels(name).observe(seconds - within[0])


def count_batch(outcome: str, rows: Mapping[str, int]) -> None:
    """Count a batch by its outcome: `committed`, `nothing` (to commit) or `known` (a repetition)."""
    BATCHES.labels(outcome).inc()
    for name, count in rows.items():
        ROWS.labels(name).inc(count)


def serve_metrics(host: str, port: int) -> WSGIServer:
    """Serve `/metrics` for Prometheus. Raises Failed if the port is in use."""
    try:
        server, _ = start_http_server(port, host)
    except OSError:
        raise Failed(
            "port-in-use",
            f"The server cannot serve metrics on port {port}.",
            "Stop the program that uses it, or choose another port with `metrics_port=PORT`.",
        ) from None
    return server


def close_metrics(server: WSGIServer) -> None:
    """Stop serving, and release the port."""
    server.shutdown()
    server.server_close()
