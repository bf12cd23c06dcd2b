"""Errors as replies: a task for errors that the sender or its user can fix, otherwise a status (F17)."""

import string
import time
from collections.abc import Callable
from functools import wraps
from itertools import accumulate
from typing import Any, TypeVar
from urllib.parse import quote

import grpc
import structlog

from backstory.errors import BackstoryError, Refused, TryAgain, UsageError
from backstory.observe.metrics import REQUESTS
from backstory.stores.iceberg.faults import SPARK_GONE, spark_is_gone

log = structlog.get_logger()

STATUS_BYTES = 8000
# Letters that gRPC does not escape in a status.
PLAIN = string.printable[:95].replace("%", "")

Reply = TypeVar("Reply")
Handler = Callable[[Any, Any, grpc.ServicerContext], Reply]


def handle_errors(reply: Callable[..., Reply]) -> Callable[[Callable[[Any, Any], Reply]], Handler[Reply]]:
    """A decorator for methods of the service that turns each error into a task or a status.

    A task is sent in a `reply`. The handler logs one line for each request: the RPC, its table, its seconds,
    and its outcome.
    """

    def decorate(method: Callable[[Any, Any], Reply]) -> Handler[Reply]:
        @wraps(method)
        def handle(service: Any, request: Any, context: grpc.ServicerContext) -> Reply:
            began = time.monotonic()
            table = request_table(request)
            try:
                result = method(service, request)
            except (Refused, UsageError) as error:
                REQUESTS.labels(method.__name__, "refused").inc()
                log.warning(f"{method.__name__} refused: {error}", code=error.code, table=table)
                return reply(task={"message": str(error)})
            except Exception as stop:
                later = isinstance(stop, TryAgain) or spark_is_gone(stop)
                REQUESTS.labels(method.__name__, "later" if later else "failed").inc()
                text, fields = _error_text(stop)
                log.error(f"{method.__name__} failed: {text}", **fields, table=table)
                code = grpc.StatusCode.UNAVAILABLE if later else grpc.StatusCode.INTERNAL
                context.abort(code, _status_text(text))
            REQUESTS.labels(method.__name__, "done").inc()
            seconds = round(time.monotonic() - began, 3)
            log.info(f"{method.__name__} done", seconds=seconds, table=table)
            return result

        return handle

    return decorate


def _error_text(stop: Exception) -> tuple[str, dict[str, str]]:
    """The message of an error for a status, and the fields of its log line.

    For a bug, the message has only the kind of error, because the error's own message may contain values of
    the delivery.
    """
    if isinstance(stop, BackstoryError):
        return str(stop), {"code": stop.code}
    if spark_is_gone(stop):
        return "Spark stopped; send the request again after the server has restarted.", {"code": SPARK_GONE}
    return f"An internal error ({type(stop).__name__}).", {"at": _code_line(stop)}


def request_table(request: Any) -> str:
    """The table of a request, as written in the request, or an empty string if it has none."""
    if details := getattr(request, "details", None):
        return f"{details.schema}.{details.table}"
    schema = getattr(request, "schema_name", "")
    name = getattr(request, "table_name", "") or getattr(getattr(request, "table", None), "name", "")
    return f"{schema}.{name}" if schema else ""


def _status_text(text: str) -> str:
    """The message, cut to fit into a header. gRPC escapes some bytes as three bytes there."""
    sizes = accumulate(len(quote(letter, safe=PLAIN)) for letter in text)
    return text[: sum(size <= STATUS_BYTES for size in sizes)]


def _code_line(bug: BaseException) -> str:
    trace = bug.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
