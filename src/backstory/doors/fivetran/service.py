"""The ten RPCs of the contract. Each translates its request into a call, and the result into a reply."""

from collections.abc import Mapping
from pathlib import Path

import grpc
import structlog

from backstory.doors.fivetran.batches import AcceptedFiles, LiveBatch, history_batch, live_batch
from backstory.doors.fivetran.definitions import definition_of, shape_from
from backstory.doors.fivetran.form import form, run_test
from backstory.doors.fivetran.migrations import migrate
from backstory.doors.fivetran.replies import handle_errors
from backstory.doors.fivetran.table_changes import alter, truncate, truncation
from backstory.doors.fivetran.targets import NamedStore, load_own, note, target
from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.doors.fivetran.wire.destination_sdk_pb2_grpc import DestinationConnectorServicer
from backstory.engine.batches import deliver_batch
from backstory.engine.deliver import TableChange, deliver
from backstory.errors import BackstoryError
from backstory.formats.batch_file import Format
from backstory.model.change import Change
from backstory.observe.metrics import count_batch
from backstory.stores import tables
from backstory.stores.port import Store
from backstory.stores.refusals import table_exists

log = structlog.get_logger()

_FORMATS = {Format.CSV: sdk.BatchFileFormat.CSV, Format.PARQUET: sdk.BatchFileFormat.PARQUET}


class Destination(DestinationConnectorServicer):
    """The gRPC service for the server's catalogs. It has no state."""

    def __init__(
        self,
        stores: Mapping[str, Store],
        batch_format: Format = Format.CSV,
        *,
        live_modes: bool = False,
        folder: Path | None = None,
    ) -> None:
        self._stores = stores
        self._accepted = AcceptedFiles(batch_format, folder)
        self._live_modes = live_modes

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
        return sdk.CapabilitiesResponse(batch_file_format=_FORMATS[self._accepted.format])

    @handle_errors(sdk.DescribeTableResponse)
    def DescribeTable(self, request: sdk.DescribeTableRequest) -> sdk.DescribeTableResponse:
        """Return the table's definition, or `not_found`."""
        where = self._target(request)
        stored = load_own(where.store, where.table(request.schema_name, request.table_name))
        if stored is None:
            return sdk.DescribeTableResponse(not_found=True)
        return sdk.DescribeTableResponse(table=definition_of(stored.shape, request.table_name))

    @handle_errors(sdk.CreateTableResponse)
    def CreateTable(self, request: sdk.CreateTableRequest) -> sdk.CreateTableResponse:
        """Create the table, and its schema if it is missing."""
        where = self._target(request)
        table = where.table(request.schema_name, request.table.name)
        shape = shape_from(where.store, table, request.table)

        def plan() -> tuple[None, Change]:
            if tables.load(where.store, table) is not None:
                raise table_exists(table)
            return None, Change(into=shape)

        deliver(where.store, TableChange([table], note("create", table), plan))
        return sdk.CreateTableResponse(success=True)

    @handle_errors(sdk.AlterTableResponse)
    def AlterTable(self, request: sdk.AlterTableRequest) -> sdk.AlterTableResponse:
        """Change the table's columns and key to match the definition."""
        where = self._target(request)
        table = where.table(request.schema_name, request.table.name)
        alter(where.store, table, request.table, drop_columns=request.drop_columns)
        return sdk.AlterTableResponse(success=True)

    @handle_errors(sdk.TruncateResponse)
    def Truncate(self, request: sdk.TruncateRequest) -> sdk.TruncateResponse:
        """Delete or flag the rows that were synced before a given time."""
        where = self._target(request)
        table = where.table(request.schema_name, request.table_name)
        truncate(where.store, truncation(request, table))
        return sdk.TruncateResponse(success=True)

    @handle_errors(sdk.WriteBatchResponse)
    def WriteBatch(self, request: sdk.WriteBatchRequest) -> sdk.WriteBatchResponse:
        """Write a batch to a live or soft-delete table."""
        where = self._target(request)
        table = where.table(request.schema_name, request.table.name)
        return self._deliver(where, live_batch(request, table, self._accepted))

    @handle_errors(sdk.WriteBatchResponse)
    def WriteHistoryBatch(self, request: sdk.WriteHistoryBatchRequest) -> sdk.WriteBatchResponse:
        """Write a batch to a history table."""
        where = self._target(request)
        table = where.table(request.schema_name, request.table.name)
        return self._deliver(where, history_batch(request, table, self._accepted))

    @handle_errors(sdk.MigrateResponse)
    def Migrate(self, request: sdk.MigrateRequest) -> sdk.MigrateResponse:
        """Change a table's columns, values, name or sync mode."""
        where = self._target(request)
        if migrate(where, request.details, live_modes=self._live_modes):
            return sdk.MigrateResponse(success=True)
        return sdk.MigrateResponse(unsupported=True)

    def _target(self, request: object) -> NamedStore:
        return target(self._stores, request.configuration)  # type: ignore[attr-defined]

    def _deliver(self, where: NamedStore, batch: LiveBatch) -> sdk.WriteBatchResponse:
        receipt = deliver_batch(where.store, batch)
        outcome = "committed" if receipt.snapshot_id else "nothing" if receipt.counts else "known"
        count_batch(outcome, receipt.counts)
        counts = " ".join(f"{name}={count}" for name, count in receipt.counts.items())
        text = outcome if receipt.snapshot_id else "nothing to commit"
        log.info(f"batch {text}", table=str(batch.table), counts=counts or "known delivery")
        return sdk.WriteBatchResponse(success=True)
