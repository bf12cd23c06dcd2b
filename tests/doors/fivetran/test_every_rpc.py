"""Rules for every RPC: requirements 2, 3, 6, 11 and 12, sections 2.0 and 7.4."""

from contextlib import contextmanager

import grpc
import pytest
import structlog
from destination import HISTORY, LIVE, Place, add_column, definition, gives, refusal, serving, status

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.doors.fivetran.wire.destination_sdk_pb2_grpc import DestinationConnectorStub
from backstory.stores.iceberg.store import IcebergStore
from backstory.testing.sender import Sender

LIMIT = 134_217_728
METHODS = sdk.DESCRIPTOR.services_by_name["DestinationConnector"].methods
FAULTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
BOUND = {"synced_column": "_fivetran_synced", "utc_delete_before": {"seconds": 1}}


def requests(schema, name, columns=LIVE, **more):
    """A request of each RPC about a table."""
    about = {"schema_name": schema, **more}
    table = definition(name, columns)
    drop = sdk.DropOperation(drop_table=True)
    details = sdk.MigrationDetails(schema=schema, table=f"{name} that is not there", drop=drop)
    return {
        "ConfigurationForm": common.ConfigurationFormRequest(),
        "Capabilities": sdk.CapabilitiesRequest(),
        "Test": common.TestRequest(name="connection", **more),
        "DescribeTable": sdk.DescribeTableRequest(table_name=name, **about),
        "CreateTable": sdk.CreateTableRequest(table=table, **about),
        "AlterTable": sdk.AlterTableRequest(table=table, **about),
        "WriteBatch": sdk.WriteBatchRequest(table=table, **about),
        "WriteHistoryBatch": sdk.WriteHistoryBatchRequest(table=table, **about),
        "Truncate": sdk.TruncateRequest(table_name=name, **BOUND, **about),
        "Migrate": sdk.MigrateRequest(details=details, **more),
    }


def member(reply):
    """The name of the one member that is set and never false, or None for a reply without a oneof."""
    if not reply.DESCRIPTOR.oneofs:
        return None
    [oneof] = reply.DESCRIPTOR.oneofs
    chosen = reply.WhichOneof(oneof.name)
    assert [field.name for field, _ in reply.ListFields()] == [chosen]
    assert getattr(reply, chosen)
    return chosen


@pytest.mark.tables_on("memory", "iceberg")
def test_every_reply_has_one_member_that_is_not_false(sender, schema):
    """2, 3: All ten RPCs answer, for any table or an empty request. A reply sets exactly one member of its
    oneof, never to false."""
    answers = {method.name: set() for method in METHODS}
    rounds = [requests(schema, "live"), requests(schema, "history", HISTORY), requests(schema, "live")]
    rounds += [
        requests("no schema", "none"),
        requests("", ""),
        requests(schema, "live", configuration={"catalog": "no"}),
    ]
    for each in rounds:
        for rpc, request in each.items():
            answers[rpc].add(member(getattr(sender.stub, rpc)(request)))
    for method in METHODS:
        empty = sdk.DESCRIPTOR.pool.FindMessageTypeByName(method.input_type.full_name)._concrete_class()
        answers[method.name].add(member(getattr(sender.stub, method.name)(empty)))
    assert len(answers) == 10
    assert answers.pop("ConfigurationForm") == answers.pop("Capabilities") == {None}
    assert answers.pop("Test") == {"success", "failure"}
    assert answers.pop("DescribeTable") == {"table", "not_found", "task"}
    assert answers.pop("Migrate") <= {"success", "unsupported", "task"}
    assert all(members == {"success", "task"} for members in answers.values()), answers


@contextmanager
def broken(spark, folder, kind):
    """The address of a server with one working catalog and one broken catalog."""
    where = folder / kind
    where.write_text("neither a database nor a folder")
    database = {"database": where, "warehouse": folder / "catalog.db"}[kind]
    options = {"type": "jdbc", "uri": f"jdbc:sqlite:{database}", "jdbc.schema-version": "V1"}
    spark.conf.set(f"spark.sql.catalog.no_{kind}", "org.apache.iceberg.spark.SparkCatalog")
    for name, value in (options | {"warehouse": f"{where}/tables"}).items():
        spark.conf.set(f"spark.sql.catalog.no_{kind}.{name}", value)
    with serving({"backstory": IcebergStore(spark), "broken": IcebergStore(spark, f"no_{kind}")}) as address:
        yield address


BROKEN = {"catalog": "broken"}
PATIENT = {"WriteBatch", "WriteHistoryBatch", "AlterTable", "Truncate", "Migrate", "CreateTable"}


@pytest.mark.tables_on("iceberg")
@pytest.mark.parametrize("kind", ["database", "warehouse"])
def test_a_broken_catalog_is_a_fault_and_the_server_continues(spark, schema, store, tmp_path, kind):
    """11, 20, 22: With a broken catalog, each RPC returns a status, a failure or a task, never `not_found`.
    Other catalogs still work."""
    with broken(spark, tmp_path, kind) as where:
        sender = Sender.to(where, tmp_path)
        good = Place.made(sender, store, schema, LIVE)
        failed = set()
        for rpc, request in requests(schema, "t", configuration=BROKEN).items():
            if kind == "database" and rpc in PATIENT:
                continue  # these may retry for seconds; test_errors.py covers their faults
            error = status(getattr(sender.stub, rpc), request)
            if error is not None:
                assert error.code() in FAULTS
                assert 0 < len(error.details().encode()) <= 8000
                failed.add(rpc)
            assert sender.describe(schema, good.table.name), rpc
        assert failed == {"database": {"DescribeTable"}, "warehouse": {"CreateTable"}}[kind]
        for name in ["connection", "write"][kind == "warehouse" :]:
            reply = sender.stub.Test(common.TestRequest(name=name, configuration=BROKEN))
            assert member(reply) == "failure"
        good.write(replace="id v n synced \n 1 a 1 T1")
        assert gives("id v n synced \n 1 a 1 T1") == good.rows()


@pytest.mark.parametrize("letter", ["x", "\n", "ü", "表", "🦉"], ids=ascii)
def test_a_long_status_arrives(spark, schema, tmp_path, letter):
    """12, 2.0: A status names its table in at most 8000 bytes, and reaches a client that accepts headers of
    10240 bytes."""
    small = [("grpc.max_metadata_size", 10_240), ("grpc.absolute_max_metadata_size", 10_240)]
    request = requests(schema, letter * 9_000, configuration=BROKEN)["DescribeTable"]
    with (
        structlog.testing.capture_logs(),
        broken(spark, tmp_path, "database") as where,
        grpc.insecure_channel(where, options=small) as channel,
    ):
        error = status(DestinationConnectorStub(channel).DescribeTable, request)
    code, details = error.code(), error.details()
    assert code in FAULTS, details[:100]
    assert schema in details[:200]
    assert len(details.encode()) <= 8000


@pytest.mark.tables_on("iceberg")
def test_requests_are_limited_to_128_mebibytes_and_replies_stay_short(address):
    """6, 7.4: A request of 134,217,728 bytes is accepted, and one with a byte more is not. The task repeats
    part of a column's name."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(address, options=options) as channel, structlog.testing.capture_logs():
        create = DestinationConnectorStub(channel).CreateTable

        def unspecified(length):
            request = sdk.CreateTableRequest(schema_name="no", table=common.Table(name="no"))
            add_column(request.table, "x" * length, "UNSPECIFIED")
            return request

        small = unspecified(1)
        small.configuration["certificate"] = "x" * (LIMIT - 100)
        small.configuration["certificate"] += "x" * (LIMIT - small.ByteSize())
        assert small.ByteSize() == LIMIT
        assert refusal(create(small))
        small.configuration["certificate"] += "x"
        assert status(create, small).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert create(unspecified(70_000_000)).ByteSize() < 10_000
        assert refusal(create(unspecified(1)))
