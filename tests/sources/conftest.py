"""Fixtures for tests of fetching: a server, and requests to sources."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from fetch_steps import glob_step, url_step
from web import serving

from backstory.sources import source
from backstory.sources.fetching import fetch
from backstory.sources.source import FetchContext

NOW = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    """Requests to loopback do not use the machine's proxy."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Three attempts, with almost no waits in between."""
    monkeypatch.setattr(source, "ATTEMPTS", 3)
    monkeypatch.setattr(source, "DELAY", 0.001)


@pytest.fixture
def web():
    with serving() as web:
        yield web


@pytest.fixture
def asking(tmp_path):
    """The first pull of a dataset whose manifest is in the test's folder."""
    return FetchContext(NOW, tmp_path, tmp_path / "cache" / "demo", {})


@pytest.fixture
def ask(asking):
    """Fetch a source: `ask(step, state=…)` or `ask(address)`, with different parts of FetchContext."""

    def fetch_source(step, **differing):
        step = url_step(url=step) if isinstance(step, str) else step
        return fetch(step, replace(asking, **differing))

    return fetch_source


@pytest.fixture
def glob():
    """The files of a fetch: `glob("data/*.csv", once=True)`."""
    return glob_step
