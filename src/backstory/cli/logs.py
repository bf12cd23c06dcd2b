"""Log lines, for Fivetran or for people.

Fivetran reads JSON from standard output. People read plain text from standard error.
"""

import json
import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

from backstory.errors import shorten

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
