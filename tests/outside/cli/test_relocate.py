"""Real kills of `backstory relocate`: all tables are unchanged or all are relocated, and the next call
finishes."""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from hashlib import sha256

import pyarrow as pa
import pytest
from commands import command, configure
from pyiceberg.catalog.sql import SqlCatalog

from backstory.errors import UsageError
from backstory.model.table import TableName
from backstory.stores.embedded_catalog import read_catalog
from backstory.stores.metadata.catalogs import EmbeddedCatalog

pytestmark = pytest.mark.process

NAMES = [f"t{number}" for number in range(12)]
WRITTEN = "crm/*/metadata/*-r????????.*"
# Ends like a killed process, between the switch of the catalog and the removal of the replaced files.
KILLING = """
import os, signal
from backstory.cli.app import main
from backstory.upkeep import relocating
relocating._remove = lambda _: os.kill(os.getpid(), signal.SIGKILL)
main()
"""
KILLED_AFTER = (sys.executable, "-c", KILLING)


def digests(folder):
    return {each: sha256(each.read_bytes()).hexdigest() for each in folder.rglob("*") if each.is_file()}


def rows_of(folder):
    catalog = EmbeddedCatalog(folder)
    return [catalog.count(catalog.describe(TableName("crm", name))).rows for name in NAMES]


@contextmanager
def being_read(catalog):
    """A program that reads the catalog, so that a writer waits at the end."""
    with closing(sqlite3.connect(catalog, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM iceberg_tables").fetchone()
        yield


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A warehouse of another program."""
    folder = tmp_path_factory.mktemp("original") / "old"
    folder.mkdir()
    with SqlCatalog(
        "backstory", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}"
    ) as catalog:
        catalog.create_namespace("crm")
        for name in NAMES:
            table = catalog.create_table(f"crm.{name}", pa.schema([("id", pa.int64())]))
            for number in range(5):
                table.append(pa.table({"id": [number]}))
    return folder


@pytest.fixture
def copied(original, tmp_path):
    """A copy that is not relocated yet, whose original does not change."""
    configure(tmp_path)
    before = digests(original)
    yield shutil.copytree(original, tmp_path / "new")
    assert digests(original) == before


def test_a_relocation_killed_before_the_switch_is_completed_by_the_next_run(copied, tmp_path):
    """During the writing of files and the switch, all tables are refused. After the next run, all are read."""
    before, words = read_catalog(copied), ["relocate", "--warehouse", copied]

    def is_as_before():
        assert list(copied.glob(WRITTEN))
        assert read_catalog(copied) == before
        with pytest.raises(UsageError, match="was copied or moved from"):
            rows_of(copied)

    with command(tmp_path, *words) as writing:
        writing.reach(lambda: list(copied.glob(WRITTEN)))
    is_as_before()
    with being_read(copied / "catalog.db"), command(tmp_path, *words) as switching:
        switching.reach((copied / "catalog.db-journal").exists)
    is_as_before()
    with command(tmp_path, *words) as again:
        code, output, warned = again.end()
    assert (code, len(json.loads(output)["tables"])) == (0, len(NAMES)), warned
    assert rows_of(copied) == [5] * len(NAMES)
    # No old metadata is left, and no file of the first run without a reference.
    assert named(copied) == {max(each.glob("*.metadata.json")).name for each in copied.glob("crm/*/metadata")}
    assert all("-r" in each.name for each in copied.glob("crm/*/metadata/*"))


def test_a_relocation_killed_after_the_switch_leaves_only_unneeded_files(copied, tmp_path):
    """The next run has nothing to do, and every table is read."""
    words = ["relocate", "--warehouse", copied, "--output", "json"]
    killed = subprocess.run(
        [*KILLED_AFTER, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed
    assert rows_of(copied) == [5] * len(NAMES)
    assert [each for each in copied.glob("crm/*/metadata/*") if "-r" not in each.name]
    with command(tmp_path, *words[:-2]) as again:
        code, output, warned = again.end()
    assert (code, json.loads(output)["tables"]) == (0, []), warned
    assert rows_of(copied) == [5] * len(NAMES)
    assert named(copied) <= {each.name for each in copied.glob(WRITTEN)}


def named(folder):
    """The metadata files that the catalog names."""
    return {each.location.rpartition("/")[2] for each in read_catalog(folder).entries}
