"""Which tests failed, for the second try that `scripts/test.sh` gives their files, alone.

`BACKSTORY_FAILED` names a file for the names of the tests that failed. `BACKSTORY_AGAIN` names such a file of the
first try: only its files of tests run.
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
    """On the second try, only tests of the files in which one failed."""
    if AGAIN not in os.environ:
        return
    files = {file_of(name) for name in Path(os.environ[AGAIN]).read_text("utf-8").splitlines()}
    others = [item for item in items if file_of(item.nodeid) not in files]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if file_of(item.nodeid) in files]


def pytest_runtest_logreport(report):
    """A test that failed, in its set-up or tear-down too, or that was running when its process crashed."""
    if report.failed:
        NAMES[report.nodeid] = None


def pytest_sessionfinish(session):
    """The names, written by the process that has the reports of all."""
    if FAILED in os.environ and not hasattr(session.config, "workerinput"):
        Path(os.environ[FAILED]).write_text("".join(f"{name}\n" for name in NAMES), "utf-8")
