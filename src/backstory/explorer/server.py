"""The explorer as a server: addresses to views, views to pages or their JSON twins, within limits.

Connections that lock nobody out: a request's head must come in time, the oldest idle one makes room.
"""

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
from uvicorn.protocols.http.h11_impl import H11Protocol

from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError
from backstory.explorer import history_views, views
from backstory.explorer.catalog_reader import CatalogReader, without_paths
from backstory.explorer.guard import Guard, guard_application
from backstory.explorer.pages import asset, error_page, evidence, page
from backstory.explorer.questions import Question, question_of
from backstory.explorer.views import View
from backstory.model.values import as_json
from backstory.stores.metadata.deletes import Unreadable

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


if TYPE_CHECKING:
    from socket import socket

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

log = structlog.get_logger()

VIEWS: Final[dict[str, Callable[[CatalogReader, Question], View]]] = {
    "tables": views.tables_view,
    "table": history_views.table_view,
    "record": history_views.record_view,
    "value": history_views.value_view,
    "diff": history_views.diff_view,
    "check": views.check_view,
    "log": views.log_view,
}
# Answers that are made at once, requests that may wait for one, and seconds that one may take.
AT_ONCE, WAITING, SECONDS = 2, 16, 30
_STATUS: Final = {UsageError: 400, Refused: 409, TryAgain: 503, Failed: 500}


def application(source: CatalogReader, guard: Guard) -> "ASGIApp":
    """The explorer of a warehouse, behind its guard."""
    from anyio import CapacityLimiter
    from starlette.applications import Starlette
    from starlette.routing import Route

    limiter = _Limiter(CapacityLimiter(AT_ONCE))
    routes = [Route("/", partial(_answer, source, limiter, "tables", "html"))]
    for view in VIEWS:
        for ending, form in (("", "html"), (".json", "json"), (".html", "file")):
            if form != "file" or view == "record":
                routes.append(Route(f"/{view}{ending}", partial(_answer, source, limiter, view, form)))
    routes.append(Route("/static/{name}", _static))
    app: Starlette = Starlette(routes=routes, exception_handlers={404: _nowhere})
    return guard_application(app, guard)


@dataclass(slots=True)
class _Limiter:
    """How many answers are made at once, and how many requests wait for one."""

    places: Any
    waiting: int = 0


async def _answer(
    source: CatalogReader, limiter: _Limiter, view: str, form: str, request: "Request"
) -> "Response":
    from starlette.responses import HTMLResponse, RedirectResponse, Response

    if form == "html" and _wants_json(request):
        form = "json"
    question = None
    try:
        question = question_of(view, request.query_params.multi_items())
        if question.step:
            moved = await _within_limits(limiter, partial(history_views.take_step, source, question))
            return RedirectResponse(moved.address(".json" if form == "json" else ""), 303)
        found = await _within_limits(limiter, partial(_render, source, question, form))
    except Exception as stop:  # noqa: BLE001 - a door tells whatever comes
        return _failure(question, form, stop)
    following, body = found
    if form == "json":
        links = {"link": f'<{following.address(".json")}>; rel="next"'} if following else {}
        return Response(body, media_type="application/json", headers=links)
    if form == "file":
        name = {"content-disposition": 'attachment; filename="record.html"'}
        return HTMLResponse(body, headers=name)
    return HTMLResponse(body)


def _render(source: CatalogReader, question: Question, form: str) -> tuple[Question | None, str]:
    """The question of the next page, and the answer in its form."""
    found = VIEWS[question.view](source, question)
    if form == "json":
        return found.following, as_json(found.document) + "\n"
    return found.following, evidence(found, views.now()) if form == "file" else page(found)


async def _within_limits(limiter: _Limiter, act: Callable[[], Any]) -> Any:
    """What a thread answers; TryAgain where too many wait, or it takes too long: then nobody waits for it."""
    from anyio import fail_after, to_thread

    if limiter.waiting >= WAITING:
        raise TryAgain("busy", "Too many questions wait for an answer.", "Ask again in a moment.")
    limiter.waiting += 1
    try:
        with fail_after(SECONDS):
            return await to_thread.run_sync(act, limiter=limiter.places, abandon_on_cancel=True)
    except TimeoutError:
        raise TryAgain(
            "too-long",
            f"The answer takes longer than {SECONDS} seconds.",
            "Ask for less: fewer rows, one record, or times that are nearer to each other.",
        ) from None
    finally:
        limiter.waiting -= 1


def _wants_json(request: "Request") -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


def _failure(question: Question | None, form: str, stop: Exception) -> "Response":
    """The answer that says what is wrong; folders of this machine are not in it."""
    from starlette.responses import HTMLResponse, Response

    error, status = _error_of(question, stop)
    told = {
        **error.to_dict(),
        "message": without_paths(error.message).replace("`", ""),
        "remedy": without_paths(error.remedy).replace("`", ""),
    }
    if form == "json":
        return Response(as_json({"error": told}) + "\n", status, media_type="application/json")
    return HTMLResponse(error_page(question, told), status)


def _error_of(question: Question | None, stop: Exception) -> tuple[BackstoryError, int]:
    if isinstance(stop, BackstoryError):
        missing = stop.code in {"no-table", "no-record", "no-page"}
        status = 404 if missing else next(code for kind, code in _STATUS.items() if isinstance(stop, kind))
        return stop, status
    if isinstance(stop, Unreadable):
        table = question.table if question else ""
        remedy = f"Ask on the command line, which starts Spark: {_command(question)}"
        return Failed("needs-spark", f"{table} cannot be read here without Spark: {stop}.", remedy), 501
    if isinstance(stop, OSError):
        return Failed("file-lost", "A file of the table cannot be read.", "Look with `backstory check`."), 500
    log.error("the explorer met a bug", kind=type(stop).__name__, cause=without_paths(str(stop)))
    remedy = "Report it, with what `backstory explore` printed."
    return Failed("bug", f"An internal error: {type(stop).__name__}.", remedy), 500


def _command(question: Question | None) -> str:
    """The command that asks Spark the same."""
    if question is None:
        return "backstory tables"
    words = {"table": "current", "record": "timeline", "value": "timeline"}
    parts = [words.get(question.view, question.view), question.table, *question.key]
    if question.view == "table" and question.at:
        parts = ["as-of", question.table, question.at]
    if question.view == "diff":
        parts += [question.first, question.to]
    return shlex.join(["backstory", *filter(None, parts)])


async def _static(request: "Request") -> "Response":
    from starlette.responses import Response

    found = asset(request.path_params["name"])
    if found is None:
        return await _nowhere(request, None)
    return Response(found[0], media_type=found[1])


async def _nowhere(request: "Request", stop: Any) -> "Response":
    del stop
    form = "json" if _wants_json(request) or request.url.path.endswith(".json") else "html"
    return _failure(
        None, form, UsageError("no-page", "There is no such page.", "Begin with the list of tables.")
    )


@dataclass(frozen=True, slots=True, repr=False)
class Explorer:
    """An explorer that listens; `link` opens it."""

    link: str
    server: Any
    thread: threading.Thread

    def __repr__(self) -> str:
        return f"Explorer at {self.link}"

    def _repr_html_(self) -> str:
        return f'<a href="{escape(self.link)}" target="_blank" rel="noopener">{escape(self.link)}</a>'

    def stop(self) -> None:
        """Answer what was asked, and end."""
        self.server.should_exit = True
        self.thread.join(SECONDS)


def start(source: CatalogReader, listening: "socket", guard: Guard, shown: str) -> Explorer:
    """Answer on a socket from now on, in a thread; `shown` is the host that the link names."""
    import uvicorn

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
