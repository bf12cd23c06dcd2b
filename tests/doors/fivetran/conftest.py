"""Tests of a door use tables in memory. Some of them also use Iceberg, or only Iceberg."""

import pytest
from depth import DEPTH
from destination import serving
from memory_store.store import MemoryStore


def pytest_generate_tests(metafunc):
    if "tables_on" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("tables_on")
        places = (
            [*marker.args, *(marker.kwargs.values() if DEPTH == "laws" else ())] if marker else ["memory"]
        )
        metafunc.parametrize("tables_on", places, indirect=True, scope="session")


@pytest.fixture(scope="session")
def tables_on(request):
    return request.param


@pytest.fixture(scope="session")
def in_memory():
    """A store in memory, and the address of a CSV destination over it."""
    store = MemoryStore()
    with serving({"backstory": store}) as address:
        yield store, address


@pytest.fixture
def store(request, tables_on):
    if tables_on == "memory":
        return request.getfixturevalue("in_memory")[0]
    from backstory.stores.iceberg.store import IcebergStore

    return IcebergStore(request.getfixturevalue("spark"))


@pytest.fixture
def address(request, tables_on):
    memory = tables_on == "memory"
    return request.getfixturevalue("in_memory")[1] if memory else request.getfixturevalue("iceberg_address")
