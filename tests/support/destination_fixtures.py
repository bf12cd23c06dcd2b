"""A real server on a free port, and a sender to it."""

import pytest
from destination import HISTORY, VERSIONS, Place, serving


@pytest.fixture(scope="session")
def iceberg_address(spark):
    """The address of a CSV destination with the embedded catalog."""
    from backstory.stores.iceberg.store import IcebergStore

    with serving({"backstory": IcebergStore(spark)}) as server_address:
        yield server_address


@pytest.fixture
def address(iceberg_address):
    return iceberg_address


@pytest.fixture(scope="session")
def spreading(spark):
    """The address of a destination whose driver may hold no rows, so that every batch is spread over tasks."""
    from backstory.formats.memory import Memory
    from backstory.stores.iceberg.store import IcebergStore

    with serving({"backstory": IcebergStore(spark, memory=Memory(0))}) as server_address:
        yield server_address


@pytest.fixture
def sender(address, tmp_path):
    from backstory.testing.sender import Sender

    return Sender.to(address, tmp_path)


@pytest.fixture
def history(sender, store, schema):
    """A history table with `VERSIONS`."""
    return Place.made(sender, store, schema, HISTORY, VERSIONS)


@pytest.fixture
def schema(request):
    """A schema for this test only."""
    return request.node.name.partition("[")[0]
