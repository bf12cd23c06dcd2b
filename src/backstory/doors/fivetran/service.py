"""The ten RPCs of the contract. Each translates its request into a call, and the result into a reply.

The setup form has tests (sections 2.1 and 2.2, F13). An error is reported as a task if the sender or its user
can fix it, and as a status otherwise (F17).
"""

import string
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import accumulate
from typing import Any, TypeVar
from urllib.parse import quote

import grpc
import pyarrow as pa
import structlog

from backstory.doors.fivetran.batches import Request, batch_of
from backstory.doors.fivetran.definitions import (
    CATALOG_FIELD,
    PREFIX_FIELD,
    NamedStore,
    alter,
    definition_of,
    load_own,
    note,
    shape_from,
    target,
    truncate,
)
from backstory.doors.fivetran.migrations import migrate
from backstory.doors.fivetran.options import ServeRequest
from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.doors.fivetran.wire.destination_sdk_pb2_grpc import DestinationConnectorServicer
from backstory.engine.batches import deliver_batch
from backstory.engine.deliver import deliver_change
from backstory.errors import BackstoryError, Failed, Refused, TryAgain, UsageError
from backstory.formats.batch_file import Format
from backstory.model.change import Change
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.observe import REQUESTS, count_batch
from backstory.stores.iceberg.faults import SPARK_GONE, spark_is_gone
from backstory.stores.port import Store, table_exists
from backstory.stores.tables import existing, load, read_slice, tables

CONNECTION, WRITE = "connection", "write"


def form(catalogs: Sequence[str]) -> common.ConfigurationFormResponse:
    """The setup form: its fields (a catalog and a schema prefix) and its tests."""
    response = common.ConfigurationFormResponse(
        schema_selection_supported=True, table_selection_supported=True
    )
    catalog = response.fields.add(
        name=CATALOG_FIELD,
        label="Catalog",
        description="The Iceberg catalog that the tables are written to.",
        required=True,
        default_value=catalogs[0],
    )
    catalog.dropdown_field.dropdown_field.extend(catalogs)
    response.fields.add(
        name=PREFIX_FIELD,
        label="Schema prefix",
        description="Put before the name of every schema. May be empty.",
        required=False,
        text_field=common.TextField.PlainText,
    )
    response.tests.add(name=CONNECTION, label="The catalog answers")
    response.tests.add(name=WRITE, label="Tables can be created, written, read and dropped")
    return response


def run_test(name: str, target: NamedStore) -> None:
    """Run one test of the form. Raises the error of a failed test, and UsageError for an unknown test."""
    if name == CONNECTION:
        tables(target.store, target.schema("backstory_test"))  # the list of all schemas could be long
    elif name == WRITE:
        _try_writing(target)
    else:
        raise UsageError("no-test", f"There is no test {name!r}.", f"Run {CONNECTION} or {WRITE}.")


def _try_writing(target: NamedStore) -> None:
    """Create a table, write a row, read it, and drop the table."""
    store = target.store
    name = TableName(target.schema("backstory_test"), f"test_{uuid.uuid4().hex[:8]}")
    key = Column("id", ColumnType(Kind.LONG))
    shape = Shape(name, (key,), ("id",), Layout.FIVETRAN_LIVE)
    deliver_change(store, [name], note("test"), lambda: (None, Change(into=shape)))
    try:
        rows = pa.table({"id": pa.array([1], pa.int64())})
        added = Change({"inserted": 1}, added=rows)
        deliver_change(store, [name], note("test"), lambda: (existing(store, name), added))
        if read_slice(store, existing(store, name), rows).num_rows != 1:
            raise Failed(
                "lost-row",
                f"The row that was written to {name} could not be read back.",
                "Check that the server can read and write the catalog's storage.",
            )
    finally:
        deliver_change(store, [name], note("test"), lambda: (load(store, name), Change(dropped=True)))


STATUS_BYTES = 8000
# Letters that gRPC does not escape in a status.
PLAIN = string.printable[:95].replace("%", "")

Reply = TypeVar("Reply")
Handler = Callable[[Any, Any, grpc.ServicerContext], Reply]


def handle_errors(reply: Callable[..., Reply]) -> Callable[[Callable[[Any, Any], Reply]], Handler[Reply]]:
    """A decorator that turns each error of a service method into a task or a status.

    A task is returned in a `reply`. The handler logs one line for each request, with the RPC, its table and
    its outcome. The line of a successful request also has its duration.
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
    """The message, cut to fit into a header, where gRPC escapes some bytes as three bytes."""
    sizes = accumulate(len(quote(letter, safe=PLAIN)) for letter in text)
    return text[: sum(size <= STATUS_BYTES for size in sizes)]


def _code_line(bug: BaseException) -> str:
    trace = bug.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"


log = structlog.get_logger()


class Destination(DestinationConnectorServicer):
    """The gRPC service for the server's catalogs. It has no state."""

    def __init__(self, stores: Mapping[str, Store], options: ServeRequest | None = None) -> None:
        self._stores = stores
        self._options = options or ServeRequest()
        self._format = Format(self._options.batch_format)

    def ConfigurationForm(
        self, _request: common.ConfigurationFormRequest, _context: grpc.ServicerContext
    ) -> common.ConfigurationFormResponse:
        """Return the setup form."""
        return form(list(self._stores))

    @handle_errors(common.TestResponse)
    def Test(self, request: common.TestRequest) -> common.TestResponse:
        """Run one test of the form. An error is returned as a `failure`, never as a status."""
        try:
            run_test(request.name, self._target(request))
        except BackstoryError as error:
            return common.TestResponse(failure=str(error))
        return common.TestResponse(success=True)

    def Capabilities(
        self, _request: sdk.CapabilitiesRequest, _context: grpc.ServicerContext
    ) -> sdk.CapabilitiesResponse:
        """Return the format of batch files that this server reads."""
        return sdk.CapabilitiesResponse(batch_file_format=self._format.name)

    @handle_errors(sdk.DescribeTableResponse)
    def DescribeTable(self, request: sdk.DescribeTableRequest) -> sdk.DescribeTableResponse:
        """Return the table's definition, or `not_found`."""
        stored = load_own(*self._table(request, request.table_name))
        if stored is None:
            return sdk.DescribeTableResponse(not_found=True)
        return sdk.DescribeTableResponse(table=definition_of(stored.shape, request.table_name))

    @handle_errors(sdk.CreateTableResponse)
    def CreateTable(self, request: sdk.CreateTableRequest) -> sdk.CreateTableResponse:
        """Create the table, and its schema if it is missing."""
        store, table = self._table(request, request.table.name)
        shape = shape_from(table, request.table)

        def plan() -> tuple[None, Change]:
            if load(store, table) is not None:
                raise table_exists(table)
            return None, Change(into=shape)

        deliver_change(store, [table], note("create", table), plan)
        return sdk.CreateTableResponse(success=True)

    @handle_errors(sdk.AlterTableResponse)
    def AlterTable(self, request: sdk.AlterTableRequest) -> sdk.AlterTableResponse:
        """Change the table's columns and key to match the definition."""
        store, table = self._table(request, request.table.name)
        alter(store, table, request.table, drop_columns=request.drop_columns)
        return sdk.AlterTableResponse(success=True)

    @handle_errors(sdk.TruncateResponse)
    def Truncate(self, request: sdk.TruncateRequest) -> sdk.TruncateResponse:
        """Delete or flag the rows that were synced before a given time."""
        store, table = self._table(request, request.table_name)
        truncate(store, table, request)
        return sdk.TruncateResponse(success=True)

    @handle_errors(sdk.WriteBatchResponse)
    def WriteBatch(self, request: sdk.WriteBatchRequest) -> sdk.WriteBatchResponse:
        """Write a batch to a live or soft-delete table."""
        return self._deliver(request)

    @handle_errors(sdk.WriteBatchResponse)
    def WriteHistoryBatch(self, request: sdk.WriteHistoryBatchRequest) -> sdk.WriteBatchResponse:
        """Write a batch to a history table."""
        return self._deliver(request)

    @handle_errors(sdk.MigrateResponse)
    def Migrate(self, request: sdk.MigrateRequest) -> sdk.MigrateResponse:
        """Change a table's columns, values, name or sync mode."""
        if migrate(self._target(request), request.details, live_modes=self._options.enable_live_modes):
            return sdk.MigrateResponse(success=True)
        return sdk.MigrateResponse(unsupported=True)

    def _target(self, request: object) -> NamedStore:
        return target(self._stores, request.configuration)  # type: ignore[attr-defined]

    def _table(self, request: Any, name: str) -> tuple[Store, TableName]:
        where = self._target(request)
        return where.store, where.table(request.schema_name, name)

    def _deliver(self, request: Request) -> sdk.WriteBatchResponse:
        store, table = self._table(request, request.table.name)
        receipt = deliver_batch(store, batch_of(request, table, self._options))
        outcome = "committed" if receipt.snapshot_id else "nothing" if receipt.counts else "known"
        count_batch(outcome, receipt.counts)
        counts = " ".join(f"{name}={count}" for name, count in receipt.counts.items())
        text = outcome if receipt.snapshot_id else "nothing to commit"
        log.info(f"batch {text}", table=str(table), counts=counts or "known delivery")
        return sdk.WriteBatchResponse(success=True)
