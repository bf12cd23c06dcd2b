"""Which tests come first, and what each file of tests takes.

What needs nothing but Python comes first, so that its failures are seen first; then the longest files, so that no
worker is left with one when the others are done. `seconds.toml` tells of a fresh clone what the last run here tells
better; it names the files that take long, and why.
"""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

TABLE = Path(__file__).with_name("seconds.toml")
LIMIT = 60  # a file that takes longer names its reason
LONG = 5  # a test that takes more seconds is left to `make test-all`
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
    """Whether `make test` leaves a test out."""
    return nodeid.startswith(OUTSIDE) or test_of(nodeid) in LISTED


def pytest_itemcollected(item):
    """What takes long is marked so."""
    if is_long(item.nodeid):
        item.add_marker(pytest.mark.long)


def file_of(nodeid):
    return nodeid.partition("::")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Pure files first, then the others, the longest first; within a file as they stand."""
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
    """What each file of tests takes, fixtures included."""
    SECONDS[file_of(report.nodeid)] += report.duration
    if report.when == "call" and not is_long(report.nodeid):
        OF_TESTS[test_of(report.nodeid)] += report.duration


def pytest_terminal_summary(terminalreporter, config):
    """The files that take longest, so that none grows unseen; whole runs are remembered."""
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
