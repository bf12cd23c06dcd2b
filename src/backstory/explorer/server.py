"""The explorer as a server. Addresses become views, and views become pages or JSON, within limits."""

import asyncio
import shlex
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import structlog
import uvicorn
from anyio import CapacityLimiter, fail_after, to_thread
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError
from backstory.explorer.access import Guard, guard_application
from backstory.explorer.catalog_reader import CatalogReader, without_paths
from backstory.explorer.pages import asset, error_page, evidence, page
from backstory.explorer.questions import Question, question_of
from backstory.explorer.views import OF_TABLE, OF_WAREHOUSE, now, take_step, view_of
from backstory.model.values import as_json
from backstory.stores.metadata.table_metadata import Unreadable

if TYPE_CHECKING:
    from socket import socket

    from starlette.requests import Request
    from starlette.types import ASGIApp


# The largest number of connections, and the seconds within which the head of a request must arrive.
MOST, HEAD_SECONDS = 128, 10.0


class BoundedConnection(H11Protocol):
    """A connection that is closed if no request arrives in time, or if it is idle and others need it."""

    head_seconds: float = HEAD_SECONDS
    most: Final = MOST

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.idle_since = 0.0
        self._waiting: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether no response is due."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request's head.

        If there are too many connections, close the one that has been idle longest.
        """
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.most:
            idle = [
                connection
                for connection in self.connections
                if isinstance(connection, BoundedConnection) and connection.idle
            ]
            min(idle, key=lambda connection: connection.idle_since).transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting for a request."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request. Its head must be complete in time."""
        if self.idle and self._waiting is None:
            self._wait()
        super().data_received(data)
        if not self.idle:
            self._stop_waiting()

    def _wait(self) -> None:
        self.idle_since = self.loop.time()
        self._waiting = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


log = structlog.get_logger()


# The limits of answers computed at once, of waiting requests, and of seconds for one answer.
AT_ONCE, WAITING, SECONDS = 2, 16, 30
_STATUS: Final = {UsageError: 400, Refused: 409, TryAgain: 503, Failed: 500}


def application(source: CatalogReader, guard: Guard) -> "ASGIApp":
    """The explorer of a warehouse, behind its guard."""
    limiter = _Limiter(CapacityLimiter(AT_ONCE))
    routes = [Route("/", partial(_answer, source, limiter, "tables", "html"))]
    for view in (*OF_WAREHOUSE, *OF_TABLE):
        for ending, form in (("", "html"), (".json", "json"), (".html", "file")):
            if form != "file" or view == "record":
                routes.append(Route(f"/{view}{ending}", partial(_answer, source, limiter, view, form)))
    routes.append(Route("/static/{name}", _static))
    app: Starlette = Starlette(routes=routes, exception_handlers={404: _nowhere})
    return guard_application(app, guard)


@dataclass(slots=True)
class _Limiter:
    """The limit of answers computed at once, and the number of waiting requests."""

    places: Any
    waiting: int = 0


async def _answer(
    source: CatalogReader, limiter: _Limiter, view: str, form: str, request: "Request"
) -> Response:
    if form == "html" and _wants_json(request):
        form = "json"
    question = None
    try:
        question = question_of(view, request.query_params.multi_items())
        if question.step:
            moved = await _within_limits(limiter, partial(take_step, source, question))
            return RedirectResponse(moved.address(".json" if form == "json" else ""), 303)
        following, body = await _within_limits(limiter, partial(_render, source, question, form))
    except Exception as stop:  # noqa: BLE001 - every failure becomes an answer
        return _failure(question, form, stop)

    if form == "json":
        links = {"link": f'<{following.address(".json")}>; rel="next"'} if following else {}
        return Response(body, media_type="application/json", headers=links)
    if form == "file":
        name = {"content-disposition": 'attachment; filename="record.html"'}
        return HTMLResponse(body, headers=name)
    return HTMLResponse(body)


def _render(source: CatalogReader, question: Question, form: str) -> tuple[Question | None, str]:
    """The question of the next page, and the answer as HTML, JSON or a file."""
    view = view_of(source, question)
    if form == "json":
        return view.following, as_json(view.document) + "\n"
    return view.following, evidence(view, now()) if form == "file" else page(view)


async def _within_limits(limiter: _Limiter, act: Callable[[], Any]) -> Any:
    """Run a function in a thread. Raises TryAgain if too many requests wait or the call takes too long."""
    if limiter.waiting >= WAITING:
        raise TryAgain("busy", "Too many requests are waiting for an answer.", "Try again in a moment.")
    limiter.waiting += 1
    try:
        with fail_after(SECONDS):
            return await to_thread.run_sync(act, limiter=limiter.places, abandon_on_cancel=True)
    except TimeoutError:
        raise TryAgain(
            "too-long",
            f"The answer takes longer than {SECONDS} seconds.",
            "Ask for less: fewer rows, one record, or times that are closer together.",
        ) from None
    finally:
        limiter.waiting -= 1


def _wants_json(request: "Request") -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


def _failure(question: Question | None, form: str, stop: Exception) -> Response:
    """The response for an error, without folders of this machine."""
    error, status = _error_of(question, stop)
    texts = {"message": error.message, "remedy": error.remedy}
    shown = error.to_dict() | {name: without_paths(text).replace("`", "") for name, text in texts.items()}
    if form == "json":
        return Response(as_json({"error": shown}) + "\n", status, media_type="application/json")
    return HTMLResponse(error_page(question, shown), status)


def _error_of(question: Question | None, stop: Exception) -> tuple[BackstoryError, int]:
    if isinstance(stop, BackstoryError):
        missing = stop.code in {"no-table", "no-record", "no-page"}
        status = 404 if missing else next(code for kind, code in _STATUS.items() if isinstance(stop, kind))
        return stop, status
    if isinstance(stop, Unreadable):
        table = question.table if question else ""
        remedy = f"Use the command line, which starts Spark: {_command(question)}"
        return Failed("needs-spark", f"{table} cannot be read here without Spark: {stop}.", remedy), 501
    if isinstance(stop, OSError):
        return Failed("file-lost", "A file of the table cannot be read.", "Run `backstory check`."), 500
    log.error("internal error of the explorer", kind=type(stop).__name__, cause=without_paths(str(stop)))
    remedy = "Report it with the output of `backstory explore`."
    return Failed("bug", f"An internal error: {type(stop).__name__}.", remedy), 500


def _command(question: Question | None) -> str:
    """The command that answers the same question."""
    if question is None:
        return "backstory tables"
    words = {"table": "current", "record": "timeline", "value": "timeline"}
    parts = [words.get(question.view, question.view), question.table, *question.key]
    if question.view == "table" and question.at:
        parts = ["as-of", question.table, question.at]
    if question.view == "diff":
        parts += [question.first, question.to]
    return shlex.join(["backstory", *filter(None, parts)])


async def _static(request: "Request") -> Response:
    file = asset(request.path_params["name"])
    if file is None:
        return await _nowhere(request, None)
    content, media_type = file
    return Response(content, media_type=media_type)


async def _nowhere(request: "Request", stop: Any) -> Response:
    del stop
    form = "json" if _wants_json(request) or request.url.path.endswith(".json") else "html"
    return _failure(
        None, form, UsageError("no-page", "There is no such page.", "Start with the list of tables.")
    )


@dataclass(frozen=True, slots=True, repr=False)
class Explorer:
    """A running explorer. `link` opens it in a browser."""

    link: str
    server: Any
    thread: threading.Thread

    def __repr__(self) -> str:
        return f"Explorer at {self.link}"

    def _repr_html_(self) -> str:
        return f'<a href="{escape(self.link)}" target="_blank" rel="noopener">{escape(self.link)}</a>'

    def stop(self) -> None:
        """Finish the requests in progress, then stop."""
        self.server.should_exit = True
        self.thread.join(SECONDS)


def start(source: CatalogReader, listening: "socket", guard: Guard, shown: str) -> Explorer:
    """Answer requests on a socket, in a thread. `shown` is the host in the link."""
    settings = uvicorn.Config(
        application(source, guard),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http=BoundedConnection,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=1 << 16,
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    port = listening.getsockname()[1]
    token = f"?{urlencode({'token': guard.token})}" if guard.token else ""
    return Explorer(f"http://{shown}:{port}/{token}", server, thread)
