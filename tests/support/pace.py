"""The order of tests, and the seconds of each file of tests.

Tests that need only Python run first, so that their failures appear first. Then the longest files follow, so
that no worker runs one when the others are done. `seconds.toml` has seconds for a fresh clone, and the last
run here has better ones. It lists the files that take long, with reasons.
"""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[1] / "seconds.toml"
LIMIT = 60  # a file that takes longer must have a reason
LONG = 2.5  # only `make test-all` runs a test that takes more seconds
OUTSIDE = "tests/outside/"
SHOWN = 20
LAST = "backstory/seconds"

SECONDS = Counter()
OF_TESTS = Counter()


def table():
    """The checked-in seconds by file, and the reasons."""
    return tomllib.loads(TABLE.read_text("utf-8"))


LISTED = frozenset(table()["long"])


def test_of(nodeid):
    """The test without its parameters."""
    return nodeid.partition("[")[0]


def is_long(nodeid):
    """Whether `make test` omits a test."""
    return nodeid.startswith(OUTSIDE) or test_of(nodeid) in LISTED


def pytest_itemcollected(item):
    """Mark tests that take long."""
    if is_long(item.nodeid):
        item.add_marker(pytest.mark.long)


def file_of(nodeid):
    return nodeid.partition("::")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Order the tests: pure files first, then the longest files. The order within a file is unchanged."""
    heavy = {
        file_of(item.nodeid)
        for item in items
        if any(item.get_closest_marker(mark) for mark in ("spark", "process", "database"))
    }
    known = table()["seconds"] | (config.cache.get(LAST, {}) if hasattr(config, "cache") else {})
    places = {file: place for place, file in enumerate(dict.fromkeys(file_of(item.nodeid) for item in items))}

    def turn(item):
        file = file_of(item.nodeid)
        return (file in heavy, -known.get(file, 0) if file in heavy else 0, places[file])

    items.sort(key=turn)


def pytest_runtest_logreport(report):
    """Add up the seconds of each file of tests, including fixtures."""
    SECONDS[file_of(report.nodeid)] += report.duration
    if report.when == "call" and not is_long(report.nodeid):
        OF_TESTS[test_of(report.nodeid)] += report.duration


def pytest_terminal_summary(terminalreporter, config):
    """Print the files that take longest, and remember the seconds of whole runs."""
    terminalreporter.section("seconds by file")
    reasons = table()["reasons"]
    for file, seconds in SECONDS.most_common(SHOWN):
        why = reasons.get(
            file, "takes long and names no reason in tests/seconds.toml" if seconds > LIMIT else ""
        )
        terminalreporter.line(f"{seconds:7.1f}  {file}  {why}".rstrip())
    terminalreporter.line(f"{SECONDS.total():7.1f}  all")
    for test, seconds in OF_TESTS.most_common(SHOWN):
        if seconds > LONG:
            terminalreporter.line(f"{seconds:7.1f}  {test}  takes long and is not in tests/seconds.toml")
    if not hasattr(config, "workerinput") and hasattr(config, "cache"):
        config.cache.set(
            LAST, config.cache.get(LAST, {}) | {f: round(s, 1) for f, s in SECONDS.items() if s >= 1}
        )
