"""Real kills of `backstory forget`: the next call finishes, and nothing else is lost."""

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from commands import configure, locked, metadata_of, program
from copied_warehouses import embedded
from depth import deep
from pyiceberg.catalog.sql import SqlCatalog
from stored_bytes import holding

from backstory.errors import TryAgain
from backstory.model.table import TableName
from backstory.stores.iceberg.erasures import unfinished_erasure
from backstory.stores.tables import existing

pytestmark = pytest.mark.process

ANNA, COMMITS = "canary-anna-7Qx", 4
OTHERS = [(f"bert-{number}", number) for number in range(COMMITS)]
BEFORE, AMID, BETWEEN = "before_commit", "amid_removal", "before_removal"
# At the gate only one command is killed, after its commit, when it has removed one file.
NAMES = (AMID, BEFORE, BETWEEN)[: deep(3, 1)]
# The command on a disk that removes this number of files and then hangs. It is killed there.
STUCK = """
import itertools, sys, time
from backstory.cli.app import main
from backstory.stores.iceberg import data_files as files
is_inside, removed, most = files.is_inside, itertools.count(), int(sys.argv.pop(1))
files.is_inside = lambda *file: time.sleep(3600 * (next(removed) >= most)) or is_inside(*file)
main()
"""
MOST = {BEFORE: 0, BETWEEN: 0, AMID: 1}
LIVE = {"backstory.layout": "fivetran-live", "backstory.layout-version": "1", "backstory.key": '["id"]'}


def make(folder):
    """Create tables with rows of one record and of others, each commit in one file."""
    folder.mkdir()
    with SqlCatalog(
        "backstory", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}"
    ) as catalog:
        catalog.create_namespace("crm")
        for name in NAMES:
            schema = pa.schema([("id", pa.string()), ("v", pa.int64())])
            table = catalog.create_table(f"crm.{name}", schema, properties=LIVE)
            for each in OTHERS:
                rows = [dict(zip(schema.names, row, strict=True)) for row in ((ANNA, 0), each)]
                table.append(pa.Table.from_pylist(rows, schema))


@pytest.fixture(scope="module")
def killed(spark, tmp_path_factory):
    """The warehouse after the killed commands, with whether each committed, and the former files."""
    tmp_path = tmp_path_factory.mktemp("killed")
    configure(tmp_path)
    folder = tmp_path / "warehouse"
    make(folder)
    catalog, left = folder / "catalog.db", {}
    for name in NAMES:
        files = [each for each in (folder / "crm" / name).rglob("*") if each.is_file()]
        location = metadata_of(catalog, name)
        words = ["forget", f"crm.{name}", ANNA, "--apply", "--warehouse", folder]
        with program(tmp_path, sys.executable, "-c", STUCK, MOST[name], *words) as forget:
            wait_at[name](forget, folder / "crm" / name, catalog, location)
        committed = metadata_of(catalog, name) != location
        left[name] = committed, len(files), sum(each.exists() for each in files)
    return embedded(spark, "killed", folder), left


def before_commit(forget, table, catalog, _):
    """The command has written rows and metadata, and waits for the catalog, which another program writes."""
    with locked(catalog):
        forget.reach(lambda: len([*table.glob("metadata/*.json")]) > COMMITS + 1)
        forget.kill()


def before_removal(forget, table, catalog, location):
    forget.reach(lambda: metadata_of(catalog, table.name) != location, pause=0.01)


def amid_removal(forget, table, catalog, location):
    files = [*table.glob("data/*.parquet")]
    forget.reach(lambda: not all(each.exists() for each in files))


wait_at = {BEFORE: before_commit, BETWEEN: before_removal, AMID: amid_removal}


def test_every_forget_was_killed_at_its_intended_moment(killed):
    """The moments are before the commit, between it and the deletion of files, and during the deletion."""
    _, left = killed
    moments = {name: (committed, there == before) for name, (committed, before, there) in left.items()}
    ends = {BEFORE: (False, True), AMID: (True, False), BETWEEN: (True, True)}
    assert moments == {name: ends[name] for name in NAMES}
    assert left[AMID][2] > 1


@pytest.mark.parametrize("name", NAMES)
def test_the_next_forget_finishes_a_killed_erasure(killed, name):
    """No file of the table contains the record, others are unchanged, and the table is healthy.

    Files of a command killed before its commit look like an active writer's until they are a day old.
    """
    warehouse, left = killed
    table, stored = warehouse.table(f"crm.{name}"), existing(warehouse.store, TableName("crm", name))
    folder = Path(stored.iceberg.location().removeprefix("file:"))
    assert bool(unfinished_erasure(stored).record) is left[name][0]
    assert holding(folder, ANNA)
    if not left[name][0]:
        with pytest.raises(TryAgain) as caught:
            table.forget(ANNA, apply=True)
        assert caught.value.code == "writer-at-work"
        for each in folder.rglob("*"):
            os.utime(each, (0, 0))
    certificate = table.forget(ANNA, apply=True)
    assert (certificate.status, certificate.left) == ("forgotten", 0)
    assert ANNA not in json.dumps(certificate.to_dict())
    assert holding(folder, ANNA) == {}
    assert sorted((row["id"], row["v"]) for row in table.current().collect()) == OTHERS
    assert sum(each["violations"] for each in table.check()) == 0
    assert table.forget(ANNA, apply=True).status == "no-record"
