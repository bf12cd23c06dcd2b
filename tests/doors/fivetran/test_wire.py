"""The wire package equals Fivetran's contract, and works together with other copies of it."""

import ast
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileOptions,
    MethodDescriptorProto,
)
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from backstory.doors.fivetran import wire
from backstory.doors.fivetran.wire import POOL, common_pb2
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.doors.fivetran.wire import destination_sdk_pb2_grpc as rpcs

FOLDER = Path(wire.__file__).parent
CONTRACT = Path(__file__).with_name("contract.txt")
GENERATOR = Path(__file__).parents[3] / "scripts" / "generate_wire.py"

SERVICE = sdk.DESCRIPTOR.services_by_name["DestinationConnector"].full_name
MODULES = {"common.proto": common_pb2, "destination_sdk.proto": sdk}


# The contract -------------------------------------------------------------------------------


@pytest.mark.parametrize("file", MODULES)
def test_descriptors_match_the_contract(file):
    """Each file declares exactly the items in its section of contract.txt."""
    assert sorted(contract()[file]) == sorted(rendered(proto(file)))


def test_contract_lists_both_files():
    """The contract has one section per file, and each file has a module."""
    assert set(contract()) == set(MODULES)


@pytest.mark.parametrize("file", MODULES)
def test_package_and_file_options_match_the_fivetran_sdk(file):
    """gRPC paths and clients in other languages depend on the package and the file options."""
    options = FileOptions(
        optimize_for=FileOptions.SPEED,
        java_multiple_files=True,
        go_package="fivetran.com/fivetran_sdk_v2",
    )

    assert proto(file).syntax == "proto3"
    assert proto(file).package == "fivetran_sdk.v2"
    assert proto(file).options == options


def contract() -> dict[str, list[str]]:
    _, *sections = CONTRACT.read_text("utf-8").split("\n\n")
    tables = map(str.splitlines, sections)
    return {title.removeprefix("# "): lines for title, *lines in tables}


def proto(file: str) -> FileDescriptorProto:
    return FileDescriptorProto.FromString(MODULES[file].DESCRIPTOR.serialized_pb)


def rendered(file: FileDescriptorProto) -> Iterator[str]:
    for service in file.service:
        assert service.name == "DestinationConnector"
        yield from map(rendered_rpc, service.method)
    for enum in file.enum_type:
        yield " ".join(["enum", enum.name, *(f"{each.name}={each.number}" for each in enum.value)])
    for message in file.message_type:
        yield from (rendered_field(message, field) for field in message.field)
        if not message.field:
            yield f"{message.name} -"


def rendered_rpc(method: MethodDescriptorProto) -> str:
    stream = " stream" * (method.client_streaming or method.server_streaming)
    return f"rpc {method.name} {short(method.input_type)} {short(method.output_type)}{stream}"


def rendered_field(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    entries = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
    entry = entries.get(field.type_name.rpartition(".")[2])
    kind, label = type_of(field), ""
    if entry:
        key, value = map(type_of, entry.field)
        kind, label = f"map<{key},{value}>", "map"
    elif field.label == field.LABEL_REPEATED:
        label = "repeated"
    elif field.proto3_optional:
        label = "optional"
    elif field.HasField("oneof_index"):
        label = f"oneof {message.oneof_decl[field.oneof_index].name}"
    return f"{message.name} {field.number} {field.name} {kind} {label}".rstrip()


def type_of(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return short(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def short(name: str) -> str:
    return name.removeprefix(".fivetran_sdk.v2.").removeprefix(".")


# Messages -----------------------------------------------------------------------------------


def test_false_selects_its_member():
    """A scalar in a oneof has presence: false and zero are sent and count as set."""
    refused = travelled(sdk.MigrateResponse(unsupported=False))
    plain = travelled(common_pb2.FormField(text_field=common_pb2.PlainText))

    assert refused.WhichOneof("response") == "unsupported"
    assert plain.WhichOneof("type") == "text_field"
    assert common_pb2.FormField().WhichOneof("type") is None


def test_optional_fields_distinguish_absent_from_empty():
    """An optional field that is set to its default is not absent."""
    empty = sdk.TableSyncModeMigrationOperation(soft_deleted_column="")

    assert travelled(empty).HasField("soft_deleted_column")
    assert not travelled(empty).HasField("keep_deleted_rows")


def test_unset_migration_type_is_destructive():
    """Type 0 must not be trusted, because it is also the value of an unset field."""
    silent = sdk.TableSyncModeMigrationOperation()

    assert silent.type == sdk.SOFT_DELETE_TO_LIVE


def test_the_two_batch_requests_number_their_file_lists_differently():
    """The bytes of one kind of batch request decode as the other kind, but with the files in the wrong lists."""
    live = sdk.WriteBatchRequest(replace_files=["a"], delete_files=["b"])

    history = sdk.WriteHistoryBatchRequest.FromString(live.SerializeToString())

    assert history.earliest_start_files == ["a"]
    assert history.update_files == ["b"]


def test_timestamp_of_the_private_pool():
    """Our Timestamp converts like the standard one, but is another class, so only bytes can be exchanged."""
    instant = datetime(2024, 1, 2, 3, 4, 5, 678901, UTC)
    usual = timestamp_pb2.Timestamp()
    usual.FromDatetime(instant)
    request = travelled(sdk.TruncateRequest(utc_delete_before=instant))

    assert request.utc_delete_before.ToDatetime(UTC) == instant
    assert request.utc_delete_before.SerializeToString() == usual.SerializeToString()
    assert not sdk.TruncateRequest().HasField("utc_delete_before")
    with pytest.raises(TypeError):
        request.utc_delete_before.CopyFrom(usual)


def test_messages_can_be_pickled():
    """Pickle finds the classes, because they name their module."""
    request = sdk.WriteBatchRequest(keys={"a.csv": b"\0\xff"})

    assert pickle.loads(pickle.dumps(request)) == request


def travelled(message):
    return type(message).FromString(message.SerializeToString())


# The service --------------------------------------------------------------------------------

SETTINGS = {"catalog": "lake", "empty": ""}
DECIMAL = common_pb2.DataTypeParams(decimal=common_pb2.DecimalParams(precision=10, scale=2))
TABLE = common_pb2.Table(
    name="orders",
    columns=[
        common_pb2.Column(name="id", type=common_pb2.LONG, primary_key=True),
        common_pb2.Column(name="price", type=common_pb2.DECIMAL, params=DECIMAL),
    ],
)
PLACE = {"configuration": SETTINGS, "schema_name": "shop"}
FILES = {
    "table": TABLE,
    "keys": {"a.csv": b"\0\xff", "b.csv": b"key"},
    "replace_files": ["a.csv"],
    "delete_files": ["b.csv"],
    "file_params": sdk.FileParams(compression=sdk.ZSTD, encryption=sdk.AES, null_string="∅"),
}
SOFT = {"soft": sdk.SoftTruncate(deleted_column="_fivetran_deleted")}
DROP = sdk.MigrationDetails(schema="shop", drop=sdk.DropOperation(drop_table=True))
FIELD = common_pb2.FormField(name="catalog", text_field=common_pb2.PlainText)

EXCHANGES = {
    "ConfigurationForm": (
        common_pb2.ConfigurationFormRequest(),
        common_pb2.ConfigurationFormResponse(fields=[FIELD]),
    ),
    "Capabilities": (
        sdk.CapabilitiesRequest(),
        sdk.CapabilitiesResponse(batch_file_format=sdk.PARQUET),
    ),
    "Test": (
        common_pb2.TestRequest(name="connect", configuration=SETTINGS),
        common_pb2.TestResponse(failure="No such catalog."),
    ),
    "DescribeTable": (
        sdk.DescribeTableRequest(**PLACE, table_name="orders"),
        sdk.DescribeTableResponse(table=TABLE),
    ),
    "CreateTable": (
        sdk.CreateTableRequest(**PLACE, table=TABLE),
        sdk.CreateTableResponse(success=True),
    ),
    "AlterTable": (
        sdk.AlterTableRequest(**PLACE, table=TABLE, drop_columns=True),
        sdk.AlterTableResponse(task=common_pb2.Task(message="Grant us the table.")),
    ),
    "Truncate": (
        sdk.TruncateRequest(**PLACE, **SOFT, utc_delete_before=datetime(2024, 1, 2, tzinfo=UTC)),
        sdk.TruncateResponse(success=True),
    ),
    "WriteBatch": (
        sdk.WriteBatchRequest(**PLACE, **FILES),
        sdk.WriteBatchResponse(success=True),
    ),
    "WriteHistoryBatch": (
        sdk.WriteHistoryBatchRequest(**PLACE, **FILES, earliest_start_files=["e.csv"]),
        sdk.WriteBatchResponse(warning=common_pb2.Warning(message="Slow.")),
    ),
    "Migrate": (
        sdk.MigrateRequest(configuration=SETTINGS, details=DROP),
        sdk.MigrateResponse(unsupported=True),
    ),
}


@pytest.mark.parametrize("rpc", EXCHANGES)
def test_round_trip_through_a_server(rpc):
    """The servicer gets the client's message, and the client gets the servicer's answer."""
    request, reply = EXCHANGES[rpc]
    seen = []
    servicer = rpcs.DestinationConnectorServicer()
    setattr(servicer, rpc, lambda request, _: seen.append(request) or reply)

    with serving(servicer) as channel:
        answer = getattr(rpcs.DestinationConnectorStub(channel), rpc)(request)

    assert seen == [request]
    assert answer == reply


def test_every_rpc_has_a_round_trip():
    """Every RPC of the service has a test above."""
    service = sdk.DESCRIPTOR.services_by_name["DestinationConnector"]

    assert set(service.methods_by_name) == set(EXCHANGES)


def test_reflection_reads_the_private_pool():
    """A client without .proto files gets the service definition from the server."""
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)

    with serving(rpcs.DestinationConnectorServicer()) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([request]))
        check = health_pb2.HealthCheckRequest(service=SERVICE)
        status = health_pb2_grpc.HealthStub(channel).Check(check).status

    files = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
    assert {file.name for file in files} == {*MODULES, "google/protobuf/timestamp.proto"}
    assert status == health_pb2.HealthCheckResponse.SERVING


@contextmanager
def serving(servicer) -> Iterator[grpc.Channel]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    rpcs.add_DestinationConnectorServicer_to_server(servicer, server)
    healthy = health.HealthServicer()
    healthy.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool=POOL)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        server.stop(grace=None).wait()


# Next to other stubs ------------------------------------------------------------------------

OURS = "from backstory.doors.fivetran.wire import destination_sdk_pb2 as our"
THEIRS = "import destination_sdk_pb2 as their, destination_sdk_pb2_grpc"
MEETING = """
from concurrent import futures
import grpc
from backstory.doors.fivetran.wire import destination_sdk_pb2_grpc as our_rpcs

class Servicer(our_rpcs.DestinationConnectorServicer):
    def WriteBatch(self, request, context):
        assert type(request) is our.WriteBatchRequest
        return our.WriteBatchResponse(success=request.table.name == "orders")

server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
our_rpcs.add_DestinationConnectorServicer_to_server(Servicer(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    client = destination_sdk_pb2_grpc.DestinationConnectorStub(channel)
    reply = client.WriteBatch(their.WriteBatchRequest(table={"name": "orders", "extra": "new"}))
server.stop(grace=None).wait()
assert type(reply) is their.WriteBatchResponse and reply.success

for pool, known in (their.DESCRIPTOR.pool, True), (our.DESCRIPTOR.pool, False):
    table = pool.FindMessageTypeByName("fivetran_sdk.v2.Table")
    assert ("extra" in table.fields_by_name) is known
print("met")
"""


@pytest.mark.parametrize("imports", [(THEIRS, OURS), (OURS, THEIRS)], ids=["theirs", "ours"])
def test_other_stubs_of_the_contract_load_in_the_same_process(tmp_path, imports):
    """Other stubs with the same names and one more field work in the same process as ours."""
    newer = (FOLDER / "common.proto").read_text("utf-8")
    newer = newer.replace("message Table {", "message Table {\n  string extra = 3;")
    (tmp_path / "common.proto").write_text(newer, "utf-8")
    (tmp_path / "destination_sdk.proto").write_bytes((FOLDER / "destination_sdk.proto").read_bytes())
    outputs = (f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python"))
    run("-m", "grpc_tools.protoc", f"-I{tmp_path}", *outputs, *map(str, tmp_path.glob("*.proto")))

    assert run("-c", "\n".join([*imports, MEETING]), before=tmp_path) == "met\n"


def run(*arguments: str, before: Path | None = None) -> str:
    """The output of Python if `before` is first on the path."""
    path = os.pathsep.join(map(str, filter(None, [before, *sys.path])))
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# The generator ------------------------------------------------------------------------------


def test_stubs_equal_the_output_of_the_generator(tmp_path):
    """If a .proto file or a stub changes, the generator must run. No stub is left over."""
    run(str(GENERATOR), "--into", str(tmp_path))
    fresh, committed = stubs(tmp_path), stubs(FOLDER)

    assert set(fresh) == set(committed)
    for name in ("common_pb2.py", "destination_sdk_pb2.py"):
        assert described(fresh[name]) == described(committed[name])
    if recorded(committed) == {version("grpcio-tools")}:  # other versions may phrase the rest differently
        assert fresh == committed


def stubs(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in folder.glob("*_pb2*.py*")}


def described(stub: str) -> FileDescriptorProto:
    """The file that a stub adds to its pool, read without import."""
    (added,) = (
        ast.literal_eval(node.args[0])
        for node in ast.walk(ast.parse(stub))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".AddSerializedFile")
    )
    return FileDescriptorProto.FromString(added)


def recorded(texts: dict[str, str]) -> set[str]:
    pattern = r"# Generated by `python scripts/generate_wire\.py` with grpcio-tools (\S+)\. "
    return {re.match(pattern, text)[1] for text in texts.values()}
