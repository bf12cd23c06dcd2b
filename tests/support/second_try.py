"""The failed tests, for the second try of their files that `scripts/test.sh` makes.

`BACKSTORY_FAILED` names a file for the names of the tests that failed. `BACKSTORY_AGAIN` names such a file of
the first try. Only its files of tests run. Processes that tests start, some of which run tests of other
files, do not inherit these names.
"""

import os
from pathlib import Path

import pytest

FAILED, AGAIN = os.environ.pop("BACKSTORY_FAILED", None), os.environ.pop("BACKSTORY_AGAIN", None)
NAMES: dict[str, None] = {}


def file_of(nodeid):
    return nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """On the second try, keep only tests of the files in which one failed."""
    if AGAIN is None:
        return
    files = {file_of(name) for name in Path(AGAIN).read_text("utf-8").splitlines()}
    others = [item for item in items if file_of(item.nodeid) not in files]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if file_of(item.nodeid) in files]


def pytest_runtest_logreport(report):
    """Record a test that failed, or that was running when its process crashed."""
    if report.failed:
        NAMES[report.nodeid] = None


def pytest_sessionfinish(session):
    """Write the names, in the process that has the reports of all tests."""
    if FAILED is not None and not hasattr(session.config, "workerinput"):
        Path(FAILED).write_text("".join(f"{name}\n" for name in NAMES), "utf-8")
