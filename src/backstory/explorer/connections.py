"""Connections that lock nobody out: a request's head must come in time, the oldest idle one makes room."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

# Connections at once, and seconds in which the head of a request must come.
MOST, HEAD_SECONDS = 128, 10.0


class BoundedConnection(H11Protocol):
    """A connection that is closed if no request comes in time, or if it is idle and others need its place."""

    head_seconds: float = HEAD_SECONDS
    most: Final = MOST

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.since = 0.0
        self._waiting: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether no answer is due."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head; among too many connections the one that has been idle longest is closed."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.most:
            idle = [each for each in self.connections if isinstance(each, BoundedConnection) and each.idle]
            min(idle, key=lambda each: each.since).transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._come()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; its head must be whole in time."""
        if self.idle and self._waiting is None:
            self._wait()
        super().data_received(data)
        if not self.idle:
            self._come()

    def _wait(self) -> None:
        self.since = self.loop.time()
        self._waiting = self.loop.call_later(self.head_seconds, self.transport.close)

    def _come(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
