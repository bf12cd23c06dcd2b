"""A REST catalog with its own server: changes that it does not compare must not be lost."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from committing import commit
from destination import LIVE, Place, definition, gives, serving
from java import PYTHONPATH
from own_sessions import ANSWERS, own_session, walk
from rest_catalog import serving_rest
from serving import SECONDS, within
from store_contract import STORED, check

from backstory.doctor import ABSENT, SCHEMA, WORKS
from backstory.errors import TryAgain
from backstory.model.change import Change
from backstory.settings import Settings
from backstory.spark.session import session_properties
from backstory.stores.iceberg.store import IcebergStore, existing, tables
from backstory.testing.sender import Sender
from backstory.warehouse import Warehouse

pytestmark = pytest.mark.process

# One batch creates the table, and the writer is killed in the next one. Both change every row.
WRITER = """
import json, sys
import java
from pathlib import Path
from destination import LIVE, Place, serving
from store_contract import STORED
from backstory.settings import Settings
from backstory.spark.session import start_session
from backstory.stores.iceberg.store import IcebergStore
from backstory.testing.sender import Sender
folder, catalog = Path(sys.argv[1]), json.loads(sys.argv[2])
own = {"spark.master": "local[1]", "spark.driver.memory": "512m", **java.PLANS}
spark = start_session(Settings(folder / "near", {"rest": catalog}, spark=own))
with serving({"rest": IcebergStore(spark, "rest")}) as address:
    place = Place.made(Sender.to(address, folder), IcebergStore(spark, "rest"), "killed", LIVE, STORED)
    print(place.table.name, spark.sparkContext._gateway.proc.pid, flush=True)
    sys.stdin.readline()
    place.write(replace=STORED.replace("T1", "T2"))
    sys.stdin.readline()  # until it is killed
"""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory) -> Iterator[dict[str, str]]:
    with serving_rest(tmp_path_factory.mktemp("rest")) as properties:
        yield properties


@pytest.fixture(scope="module")
def rest(spark, catalog, tmp_path_factory) -> IcebergStore:
    """A store whose catalog is a REST server."""
    settings = Settings(tmp_path_factory.mktemp("near"), {"rest": catalog})
    for name, value in session_properties(settings).items():
        if name.startswith("spark.sql.catalog.rest"):
            spark.conf.set(name, value)
    return IcebergStore(spark, "rest")


@pytest.fixture
def sender(rest, tmp_path) -> Iterator[Sender]:
    with serving({"rest": rest}) as address:
        yield Sender.to(address, tmp_path)


def test_the_store_contract_holds_on_a_rest_catalog(rest, sender):
    """Tables are created, written, read, evolved, hidden by vectors and rewritten there."""
    check(sender, rest, "contract")


@pytest.mark.laws("the contract is tried there at each depth, and this walk in another catalog")
def test_a_session_with_default_settings_works_on_a_rest_catalog(spark, catalog):
    """Its cached tables never hide the writes of another program."""
    session, other = (own_session(spark, "own_rest", catalog, cached) for cached in (None, "false"))
    assert walk(session, "own_rest", other) == ANSWERS


def test_the_doctor_reports_no_failures_on_a_rest_catalog(rest):
    """Views are absent or work, and no table of the doctor is left."""
    diagnosis = Warehouse(rest, embedded=False).doctor()

    failures = {
        each.ability: each.error for each in diagnosis.abilities if each.status not in {WORKS, ABSENT}
    }
    assert (failures, diagnosis.exit_code) == ({}, 0)
    assert diagnosis.versions["catalog"] == "rest: RESTCatalog"
    assert not [each for each in tables(rest) if each.schema == SCHEMA]


def test_a_preview_is_published_on_a_rest_catalog(rest, tmp_path):
    lake, file = Warehouse(rest, embedded=False), tmp_path / "a.csv"
    file.write_text("id,name\n1,Ann\n2,Bob\n")
    lake.snapshot(str(file), into="preview.t", key="id", at="2026-01-01")
    file.write_text("id,name\n1,Anna\n2,Bob\n")
    lake.snapshot(str(file), into="preview.t", at="2026-01-02", branch="preview", remember=True)
    names = {row["name"] for row in lake.table("preview.t").current().collect()}
    assert names == {"Ann", "Bob"}
    lake.publish("preview.t", "preview")
    names = {row["name"] for row in lake.table("preview.t").current().collect()}
    assert names == {"Anna", "Bob"}
    first = {row["name"] for row in lake.table("preview.t").as_of("2026-01-01").collect()}
    assert first == {"Ann", "Bob"}


def test_a_plan_for_an_older_shape_is_refused(rest, sender):
    """The catalog compares only snapshots, so a change of shape makes one, and any older plan is refused."""
    place = Place.made(sender, rest, "properties", LIVE, STORED)
    columns = iter(["first", "second"])

    def meanwhile(_: object) -> dict[str, str]:
        place.alter(f"{LIVE} {next(columns)}")
        return {}

    gone = rest.spark.table(rest.sql_name(place.name)).select("_file", "_pos")
    for change in (Change(properties={"backstory.test": "x"}), Change(removed=gone)):
        with pytest.raises(TryAgain):
            commit(rest, existing(rest, place.name), replace(change, late_properties=meanwhile))
    assert len(place.rows()) == 4
    assert "backstory.test" not in dict(existing(rest, place.name).iceberg.properties())


def test_a_writer_killed_before_its_commit_leaves_the_table_as_it_was(rest, sender, catalog, tmp_path):
    """If the writer is killed after its data file, readers see the table before or after the batch, and the
    repeated batch completes it."""
    arguments = [str(tmp_path), json.dumps(catalog)]
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, *arguments],
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = (line.split() for line in iter(writer.stdout.readline, ""))
    name, java = next(words for words in lines if len(words) == 2 and words[1].isdigit())
    place = Place(sender, rest, "killed", definition(name, LIVE))
    before = place.files_below()
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert within(SECONDS, lambda: place.files_below() - before, 0.002)
    os.kill(int(java), signal.SIGKILL)
    writer.kill()
    writer.wait()
    stored, later = gives(STORED), gives(STORED.replace("T1", "T2"))
    assert place.rows() in (stored, later)
    place.write(replace=STORED.replace("T1", "T2"))
    assert place.rows() == later
