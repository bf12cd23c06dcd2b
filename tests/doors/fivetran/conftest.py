"""A real server on a free port, and a sender to it."""

from contextlib import contextmanager

import pytest


@contextmanager
def serving(stores, **more):
    from backstory.doors.fivetran.server import listen
    from backstory.doors.fivetran.service import Destination

    running = listen(Destination(stores, **more), "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{running.port}"
    finally:
        running.stop(5)


@pytest.fixture(scope="session")
def address(spark):
    """Where a CSV destination over the embedded catalog listens."""
    from backstory.tables.store import Store

    with serving({"backstory": Store(spark)}) as found:
        yield found


@pytest.fixture
def sender(address, tmp_path):
    from backstory.doors.fivetran.sender.client import Sender

    return Sender.to(address, tmp_path)


@pytest.fixture
def schema(request):
    """A schema of the test's own, so that tests do not meet."""
    return request.node.name.partition("[")[0]
