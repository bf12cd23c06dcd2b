"""Log lines, for Fivetran or for people, and metrics for Prometheus.

Fivetran reads JSON from standard output. People read plain text from standard error.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TextIO, cast
from wsgiref.simple_server import WSGIServer

import structlog
from prometheus_client import Counter, Histogram, start_http_server

from backstory.errors import Failed, shorten

LEVELS = {"debug": "INFO", "info": "INFO", "warning": "WARNING"}


def fivetran_line(_: Any, method: str, event: MutableMapping[str, Any]) -> str:
    """Render an event as Fivetran reads it: level, message and message-origin only (section 7.2)."""
    fields = "".join(f" {name}={shorten(str(value))}" for name, value in event.items() if name != "event")
    return json.dumps(
        {
            "level": LEVELS.get(method, "SEVERE"),
            "message": shorten(f"{event['event']}{fields}"),
            "message-origin": "sdk_destination",
        },
        ensure_ascii=False,
    )


class _Lines:
    """A stream of log lines. A line that cannot be written is lost, and the program continues."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> None:
        with suppress(OSError):
            self._stream.write(line)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def log_for_fivetran() -> None:
    """Log JSON lines to standard output, which contains nothing else from then on.

    Output of this process or its children to file descriptor 1 goes to standard error.
    """
    sys.stdout.flush()
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, fivetran_line],
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Lines(lines))),
        cache_logger_on_first_use=False,
    )


def log_for_people(*, quiet: bool = False, verbose: bool = False) -> None:
    """Log warnings and errors to standard error: only errors with `quiet`, all events with `verbose`."""
    level = "error" if quiet else "info" if verbose else "warning"
    structlog.configure(
        processors=[structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Standard error is read again for each line, because a progress line may replace it.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


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
