"""Form, tests, capabilities, targets and the form of replies: requirements 2, 3, 14, 18 to 21."""

import grpc
import pytest
from destination import LIVE, Place, definition, gives, refusal, serving

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.doors.fivetran.wire.destination_sdk_pb2_grpc import DestinationConnectorStub


@pytest.fixture
def form(sender):
    return sender.stub.ConfigurationForm(common.ConfigurationFormRequest())


def test_the_configuration_form_matches_the_interface(form):
    """18, F13: The form has two fields with unique names, each of one kind. The embedded catalog is
    preselected."""
    assert [field.name for field in form.fields] == ["catalog", "schema_prefix"]
    catalog, prefix = form.fields
    assert list(catalog.dropdown_field.dropdown_field) == ["backstory"]
    assert (catalog.default_value, catalog.WhichOneof("type")) == ("backstory", "dropdown_field")
    assert (prefix.required, prefix.WhichOneof("type")) == (False, "text_field")
    assert prefix.text_field == common.TextField.PlainText
    assert all(field.label for field in form.fields)
    assert (form.schema_selection_supported, form.table_selection_supported) == (True, True)
    assert [test.name for test in form.tests] == ["connection", "write"]
    assert all(test.label for test in form.tests)


def test_a_server_with_two_catalogs_offers_both(store, tmp_path):
    """18, 14: The first catalog is preselected, and each configuration uses its own."""
    from backstory.testing.sender import Sender

    with serving({"backstory": store, "lake": store}) as address:
        sender = Sender.to(address, tmp_path)
        form = sender.stub.ConfigurationForm(common.ConfigurationFormRequest())
        assert list(form.fields[0].dropdown_field.dropdown_field) == ["backstory", "lake"]
        assert form.fields[0].default_value == "backstory"
        request = sdk.DescribeTableRequest(schema_name="no", table_name="no")
        request.configuration["catalog"] = "lake"
        assert sender.stub.DescribeTable(request).not_found


@pytest.mark.parametrize(
    "configuration",
    [{}, {"catalog": "", "schema_prefix": ""}, {"catalog": "backstory", "schema_prefix": "form_"}],
)
def test_each_listed_test_succeeds_and_leaves_no_table(form, sender, store, configuration):
    """20, F20: An empty configuration means the defaults. The write test drops its table again."""
    from backstory.stores.tables import tables

    before = tables(store)
    for test in form.tests:
        reply = sender.stub.Test(common.TestRequest(name=test.name, configuration=configuration))
        assert reply == common.TestResponse(success=True)
    assert tables(store) == before


@pytest.mark.tables_on("iceberg")
def test_the_write_test_drops_its_table_again(form, sender, store, schema):
    """20, F20: The same holds if tables are files."""
    from backstory.stores.tables import tables

    configuration = {"schema_prefix": f"{schema} "}
    for test in form.tests:
        reply = sender.stub.Test(common.TestRequest(name=test.name, configuration=configuration))
        assert reply == common.TestResponse(success=True)
    assert tables(store, f"{schema} backstory_test") == []


@pytest.mark.parametrize(
    ("name", "catalog"), [("nonsense", ""), ("", ""), ("connection", "nowhere"), ("write", "nowhere")]
)
def test_unknown_tests_and_catalogs_fail_with_a_message(sender, name, catalog):
    """20: An unknown test and an unknown catalog are failures, not statuses."""
    reply = sender.stub.Test(common.TestRequest(name=name, configuration={"catalog": catalog}))
    assert [field.name for field, _ in reply.ListFields()] == ["failure"]
    assert reply.failure


def test_capabilities_need_no_configuration(sender, store, tmp_path):
    """21, F2: The answer is CSV by default, and Parquet if the server is configured for it."""
    from backstory.formats.batch_file import Format
    from backstory.testing.sender import Sender

    assert sender.stub.Capabilities(sdk.CapabilitiesRequest()).batch_file_format == sdk.CSV
    with serving({"backstory": store}, batch_format=Format.PARQUET) as address:
        stub = Sender.to(address, tmp_path).stub
        assert stub.Capabilities(sdk.CapabilitiesRequest()).batch_file_format == sdk.PARQUET


def test_schema_names_get_the_prefix_in_the_warehouse(sender, store, schema):
    """14, interface 3: The prefix is part of the schema's name in the warehouse, but not in replies."""
    from dataclasses import replace

    configured = replace(sender, configuration={"catalog": "backstory", "schema_prefix": "pre "})
    place = Place.made(configured, store, schema, LIVE, "id v n synced \n 1 a 1 T1")
    assert configured.describe(schema, place.table.name).name == place.table.name
    assert sender.describe(schema, place.table.name) is None
    stored = replace(place, schema=f"pre {schema}")
    assert gives("id v n synced \n 1 a 1 T1") == stored.rows()


@pytest.mark.parametrize("configuration", [{"catalog": "canary-7f3a"}, {"schema_prefix": "canary-\0"}])
def test_a_wrong_configuration_is_a_task_everywhere(sender, schema, configuration):
    """F17, 22: An unknown catalog is never `not_found` and never another catalog, and a prefix with NUL is
    never a fault of the server. The text does not repeat the value."""
    table = definition("t", LIVE)
    about = {"schema_name": schema, "configuration": configuration}
    stub = sender.stub
    replies = [
        stub.DescribeTable(sdk.DescribeTableRequest(table_name="t", **about)),
        stub.CreateTable(sdk.CreateTableRequest(table=table, **about)),
        stub.AlterTable(sdk.AlterTableRequest(table=table, **about)),
        stub.Truncate(sdk.TruncateRequest(table_name="t", **about)),
        stub.WriteBatch(sdk.WriteBatchRequest(table=table, **about)),
        stub.WriteHistoryBatch(sdk.WriteHistoryBatchRequest(table=table, **about)),
    ]
    assert not any("canary" in refusal(reply) for reply in replies)
    assert sender.describe(schema, "t") is None


def test_empty_requests_are_answered(sender):
    """2, 3, 11: Every RPC that needs a table answers an empty request with a task."""
    stub = sender.stub
    for reply in (
        stub.DescribeTable(sdk.DescribeTableRequest()),
        stub.CreateTable(sdk.CreateTableRequest()),
        stub.AlterTable(sdk.AlterTableRequest()),
        stub.Truncate(sdk.TruncateRequest()),
        stub.WriteBatch(sdk.WriteBatchRequest()),
        stub.WriteHistoryBatch(sdk.WriteHistoryBatchRequest()),
    ):
        assert refusal(reply)


def test_a_migration_without_an_operation_is_unsupported(sender):
    """94: If the details name no operation, the reply contains only `unsupported = true`."""
    reply = sender.stub.Migrate(sdk.MigrateRequest(details=sdk.MigrationDetails()))
    assert reply == sdk.MigrateResponse(unsupported=True)


def test_unknown_rpcs_are_unimplemented(address):
    """2: All ten RPCs exist. Any other is unimplemented, and the server continues."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/fivetran_sdk.v2.DestinationConnector/Nothing")
        with pytest.raises(grpc.RpcError) as unknown:
            call(b"")
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_large_and_compressed_messages(address):
    """6, 7: A request of 100 MB is accepted, and one that gRPC compressed."""
    limit = [("grpc.max_send_message_length", 134_217_728)]
    with grpc.insecure_channel(address, options=limit) as channel:
        stub = DestinationConnectorStub(channel)
        request = sdk.DescribeTableRequest(schema_name="no", table_name="no")
        request.configuration["certificate"] = "x" * 100_000_000
        assert stub.DescribeTable(request).not_found
        request.configuration["certificate"] = "x" * 1_000_000
        assert stub.DescribeTable(request, compression=grpc.Compression.Gzip).not_found
