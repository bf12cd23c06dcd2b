"""A destination that a program starts for its own warehouse."""

import socket

import pytest
from destination import definition
from structlog.testing import capture_logs

from backstory.doors.fivetran.options import ServeRequest
from backstory.doors.fivetran.server import credentials_of, require_port, serve
from backstory.errors import Failed, UsageError
from backstory.testing.sender import Sender
from backstory.warehouse import Warehouse


@pytest.mark.tables_on("iceberg")
def test_a_warehouse_serves_until_it_is_stopped(store, schema, tmp_path):
    """Port 0 means a free port. The sender's tables are tables of the warehouse, and after the stop nothing
    listens."""
    warehouse = Warehouse(store, embedded=False)
    with warehouse.serve(host="127.0.0.1", port=0) as running:
        sender = Sender.to(f"{running.host}:{running.port}", tmp_path)
        sender.create(schema, definition("served", "id:LONG* v synced"))
        assert sender.describe(schema, "served") is not None
    assert warehouse.table(f"{schema}.served").current().columns == ["id", "v"]
    with warehouse.serve(host="127.0.0.1", port=running.port) as again:
        assert again.port == running.port


def test_a_certificate_without_its_key_is_refused(tmp_path):
    with pytest.raises(UsageError, match="certificate and its key"):
        credentials_of(ServeRequest(tls_cert=tmp_path / "server.pem"))


@pytest.mark.parametrize("host", [None, "127.0.0.1", "localhost"])
def test_a_port_in_use_is_detected_without_a_server(host):
    """Interface 3: The port is checked before Spark starts. Port 0 is never in use."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Failed, match=f"cannot listen on port {port}"):
            require_port(host, port)
    require_port(host, port)
    require_port(host, 0)


def test_a_metrics_port_in_use_is_refused_before_listening(store):
    """Interface 3: If the metrics port is in use, no line contains `listening`, and the remedy names that
    port."""
    with socket.create_server(("127.0.0.1", 0)) as other, capture_logs() as lines:
        taken = other.getsockname()[1]
        with pytest.raises(Failed, match=f"metrics on port {taken}.*`metrics_port=PORT`"):
            serve({store.catalog: store}, ServeRequest(host="127.0.0.1", port=0, metrics_port=taken))
    assert lines == []


def test_the_metrics_port_is_free_again_after_the_server_stops(store):
    """A server that stops, or whose own port is in use, releases its metrics port."""
    stores = {store.catalog: store}
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    free, spare = (each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    with serve(stores, ServeRequest(host="127.0.0.1", port=0, metrics_port=free)) as running:
        with pytest.raises(Failed, match="metrics on port"):
            serve(stores, ServeRequest(host="127.0.0.1", port=0, metrics_port=free))
        request = ServeRequest(host="127.0.0.1", port=running.port, metrics_port=spare)
        with pytest.raises(Failed, match=f"cannot listen on port {running.port}"):
            serve(stores, request)
        require_port("127.0.0.1", spare, "metrics_port")
    require_port("127.0.0.1", free, "metrics_port")
