"""The failed tests, for the second try of their files that `scripts/test.sh` makes.

`BACKSTORY_FAILED` names a file for the names of the tests that failed. `BACKSTORY_AGAIN` names such a file of
the first try. Only its files of tests run.
"""

import os
from pathlib import Path

import pytest

FAILED, AGAIN = "BACKSTORY_FAILED", "BACKSTORY_AGAIN"
NAMES: dict[str, None] = {}


def file_of(nodeid):
    return nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """On the second try, keep only tests of the files in which one failed."""
    if AGAIN not in os.environ:
        return
    files = {file_of(name) for name in Path(os.environ[AGAIN]).read_text("utf-8").splitlines()}
    others = [item for item in items if file_of(item.nodeid) not in files]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if file_of(item.nodeid) in files]


def pytest_runtest_logreport(report):
    """Record a test that failed, or that was running when its process crashed."""
    if report.failed:
        NAMES[report.nodeid] = None


def pytest_sessionfinish(session):
    """Write the names, in the process that has the reports of all tests."""
    if FAILED in os.environ and not hasattr(session.config, "workerinput"):
        Path(os.environ[FAILED]).write_text("".join(f"{name}\n" for name in NAMES), "utf-8")
