"""Tables in an object store, through S3's interface: read on the driver, written by Iceberg's Java."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import java
import pytest
import store_contract
from conftest import SPARK
from destination import serving
from manifesting import manifest, polling
from object_store import BUCKET, SECRET, serving_objects
from serving import SECONDS, family_by
from small_model import FIRST as STAGE
from small_model import MODEL

import backstory
from backstory.cli.app import run
from backstory.doctor import SCHEMA, WORKS
from backstory.errors import BackstoryError, Failed, TryAgain
from backstory.settings import CATALOG
from backstory.stores.iceberg import slice as slices
from backstory.stores.iceberg.store import IcebergStore, _io_properties, existing, files_of, tables
from backstory.testing.sender import Sender

pytestmark = pytest.mark.process

BACKSTORY = str(Path(sys.executable).parent / "backstory")
FIRST, SECOND, THIRD = "2026-01-01", "2026-01-02", "2026-01-03"
COPIES = "id,name\n1,Ada\n2,Bob\n3,Cy\n", "id,name\n1,Ada\n2,Rob\n4,Dan\n"
# Few attempts and short pauses, so that tests do not wait for them.
IMPATIENT = {"s3.retry.num-retries": "1", "s3.retry.min-wait-ms": "10", "s3.retry.max-wait-ms": "20"}
# The most requests of each command on a small table, after one copy and after two.
MOST = {
    "first": 8,
    "changed": 18,
    "same": 11,
    "as-of, one copy": 8,
    "as-of": 18,
    "current": 18,
    "timeline": 18,
    "diff": 18,
    "log": 2,
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    with serving_objects(tmp_path_factory.mktemp("objects")) as storage:
        yield storage


@pytest.fixture(scope="module")
def lake(spark, objects, tmp_path_factory):
    """A catalog of a separate session, with tables in the object store and a configuration file."""
    folder = tmp_path_factory.mktemp("lake")
    properties = {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{folder}/lake.db?busy_timeout=60000",
        "jdbc.schema-version": "V1",
        "warehouse": f"s3://{BUCKET}/w",
        **objects.reached,
    }
    session = spark.newSession()
    for name, value in {**properties, **IMPATIENT}.items():
        session.conf.set(f"spark.sql.catalog.{CATALOG}.{name}", value)
    own = {"spark.master": "local[2]", "spark.driver.memory": "700m", **java.PLANS}
    own["spark.jars.packages"] = SPARK["spark.jars.packages"]
    toml = f"[catalog]\n{java.in_toml(properties)}\n[spark]\n{java.in_toml(own)}"
    (folder / "backstory.toml").write_text(toml)
    for number, text in enumerate(COPIES, 1):
        (folder / f"copy-{number}.csv").write_text(text)
    return Lake(session, folder, objects)


class Lake:
    """A warehouse in the object store: in this process, and by configuration in others."""

    def __init__(self, session, folder, objects):
        self.session, self.folder, self.objects = session, folder, objects
        self.warehouse = backstory.open(spark=session, catalog=CATALOG)
        self.store = IcebergStore(session, CATALOG)

    def copy(self, number, into, at):
        return self.warehouse.snapshot(
            str(self.folder / f"copy-{number}.csv"), into=into, at=at, key="id"
        ).counts

    def names(self, table, at=None):
        history = self.warehouse.table(table)
        rows = (history.current() if at is None else history.as_of(at)).collect()
        return {row["id"]: row["name"] for row in rows}

    def command(self, capsys, *words):
        """The output of a command without Java, and its requests."""
        with self.objects.counting() as requests:
            ended = run([*words, "--config", str(self.folder / "backstory.toml"), "--output", "json"])
        output = capsys.readouterr()
        assert ended == 0, output
        assert SECRET not in output.out + output.err
        return json.loads(output.out), requests


@pytest.mark.laws(
    "the contract and every door are tried there at each depth, and the doctor in other catalogs"
)
def test_the_doctor_reports_no_failures_on_object_storage(lake):
    """No table of the doctor is left."""
    diagnosis = lake.warehouse.doctor()

    assert {each.ability: each.error for each in diagnosis.abilities if each.status != WORKS} == {}
    assert not [each for each in tables(lake.store) if each.schema == SCHEMA]


def test_the_store_contract_holds_on_object_storage(lake, tmp_path):
    """Create, write, slices, changes, evolution, vectors, row ids and other writers work through the Fivetran
    door."""
    with serving({CATALOG: lake.store}) as address:
        for part in (store_contract.live, store_contract.other_writers):
            part(Sender.to(address, tmp_path), lake.store, "contract")


def test_copies_loads_and_pulls_deliver_to_object_storage(lake, monkeypatch):
    """A native copy, a model's load and a pull work, each followed by a change. Fivetran is in the contract."""
    monkeypatch.setenv("BACKSTORY_PEPPER", "a secret")
    assert lake.copy(1, "doors.c", FIRST)["new"] == 3
    assert lake.copy(2, "doors.c", SECOND) == {
        "new": 1,
        "changed": 1,
        "closed": 1,
        "reopened": 0,
        "unchanged": 1,
    }
    assert lake.names("doors.c") == {1: "Ada", 2: "Rob", 4: "Dan"}
    assert lake.names("doors.c", FIRST) == {1: "Ada", 2: "Bob", 3: "Cy"}
    (lake.folder / "model.yaml").write_text(MODEL)
    (lake.folder / "stage.csv").write_text(STAGE)
    (loaded,) = lake.warehouse.historize(lake.folder / "model.yaml")
    assert loaded.error is None, loaded.error
    source = polling(
        fetch="{kind: filesGlob, path: 'in/*.csv'}",
        read="{kind: csv, header: true, schema: {fields: [{name: id, type: Int32}]}}",
    )
    (lake.folder / "in").mkdir()
    for number in (1, 2):
        (lake.folder / "in" / f"{number}.csv").write_text(f"id\n{number}\n")
    (lake.folder / "cities.yaml").write_text(manifest(source))
    (pulled,) = lake.warehouse.pull(lake.folder / "cities.yaml")
    assert pulled.error is None, pulled.error
    assert sum(each["violations"] for each in lake.warehouse.table("doors.c").check()) == 0


def test_local_rows_equal_the_rows_read_by_spark(lake):
    """All rows of a table with deletion vectors are equal, and no file is requested twice."""
    lake.copy(1, "reading.c", FIRST)
    lake.copy(2, "reading.c", SECOND)
    table = existing(lake.store, lake.warehouse.table("reading.c").name)
    names = [each.name for each in table.shape.columns]
    with lake.store.memory.lease() as lease, lake.objects.counting() as requests:
        here = slices.LocalRows(lake.store, table, lease)
        rows = here.read([*names, "_file", "_pos"])
        again = here.read(names)
    there = lake.session.table(f"{CATALOG}.reading.c").select(*names, "_file", "_pos").toArrow()
    place = lambda row: (row["_file"], row["_pos"])  # noqa: E731
    assert sorted(rows.to_pylist(), key=place) == sorted(there.to_pylist(), key=place)
    assert len(again) == len(rows)
    of_rows = [each[:2] for each in requests if each[1].endswith((".parquet", ".puffin"))]
    assert len(of_rows) == len(set(of_rows)), of_rows


def test_no_command_exceeds_its_number_of_requests(lake, capsys):
    """The requests of each command, on a small table after one and two copies, are limited."""
    counts, every = {}, {}
    for name, number, at in (("first", 1, FIRST), ("changed", 2, SECOND), ("same", 2, THIRD)):
        with lake.objects.counting() as requests:
            lake.copy(number, "counting.c", at)
        # Other requests are from processes that earlier tests killed. On a busy machine, Java repeats some.
        every[name] = {each for each in requests if "counting" in each[1]}
        counts[name] = len(every[name])
        if name == "first":
            answer, own_requests = lake.command(capsys, "as-of", "counting.c", FIRST)
            assert [row["name"] for row in answer] == ["Ada", "Bob", "Cy"]
            counts["as-of, one copy"] = len(own_requests)
    reads = {
        "as-of": ("as-of", "counting.c", FIRST),
        "current": ("current", "counting.c"),
        "timeline": ("timeline", "counting.c", "2"),
        "diff": ("diff", "counting.c", FIRST, SECOND),
        "log": ("log", "counting.c"),
    }
    for name, words in reads.items():
        answer, own_requests = lake.command(capsys, *words)
        counts[name] = len(own_requests)
        assert {method for method, _, _ in own_requests} <= {"GET", "HEAD"}
        twice = [each for each in own_requests if own_requests.count(each) > 1]
        assert not twice, (name, twice)
    more = {name: count for name, count in counts.items() if count > MOST[name]}
    assert more == {}, {name: every.get(name) for name in more}


def test_a_kill_between_files_and_commit_leaves_the_table_as_it_was(lake):
    """No snapshot names the written files, and the repeated copy succeeds."""
    lake.copy(1, "killed.c", FIRST)
    words = [BACKSTORY, "snapshot", "copy-2.csv", "--into", "killed.c", "--at", SECOND]
    with lake.objects.failing("hold", "PUT", r"/killed/c/metadata/.*metadata\.json") as fault:
        temp = lake.folder / "temp"
        temp.mkdir()
        environment = {**os.environ, "TMPDIR": str(temp)}
        process = subprocess.Popen(
            words, cwd=lake.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            assert fault.met.wait(SECONDS), process.communicate(timeout=5)
        finally:
            for each in family_by(temp):  # Java has its own session, and would send the file again
                os.kill(each, signal.SIGKILL)
        output = b"".join(process.communicate())
    assert SECRET.encode() not in output
    assert lake.names("killed.c") == {1: "Ada", 2: "Bob", 3: "Cy"}
    assert lake.copy(2, "killed.c", SECOND)["changed"] == 1
    assert lake.names("killed.c") == {1: "Ada", 2: "Rob", 4: "Dan"}


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", r"metadata\.json"), ("PUT", r"\.parquet"), ("GET", "avro")]
)
def test_a_request_with_a_lost_answer_is_repeated(lake, method, path):
    """The store executed the request, but the answer was lost. The copy is in the table once."""
    name = f"lost.c{method}{len(path)}"
    lake.copy(1, name, FIRST)
    with lake.objects.failing("lose", method, path) as fault:
        assert lake.copy(2, name, SECOND)["changed"] == 1
        assert fault.met.is_set()
    assert lake.names(name) == {1: "Ada", 2: "Rob", 4: "Dan"}
    assert len(lake.warehouse.table(name).log()) == 2


def test_a_briefly_throttled_request_is_repeated(lake):
    """If the driver or Java gets 503 for some requests, the copy still succeeds."""
    lake.copy(1, "throttled.c", FIRST)
    with (
        lake.objects.failing("throttle", "GET|HEAD", r"/throttled/.*\.parquet", 2) as reading,
        lake.objects.failing("throttle", "PUT", r"/throttled/.*m0\.avro") as writing,
    ):
        assert lake.copy(2, "throttled.c", SECOND)["changed"] == 1
        assert reading.met.is_set()
        assert writing.met.is_set()


@pytest.mark.parametrize(("what", "kind"), [("throttle", TryAgain), ("deny", Failed)])
def test_permanently_refused_requests_give_an_error_without_secrets(lake, monkeypatch, what, kind):
    """Throttled requests end with 75, denied ones fail. The table is unchanged, and no secret is shown."""
    monkeypatch.setattr("backstory.engine.deliver.ATTEMPTS", 1)
    name = f"refusing.{what}"
    lake.copy(1, name, FIRST)
    refusing = lake.objects.failing(what, "GET|HEAD|PUT", rf"/refusing/{what}/data", 10_000)
    with refusing, pytest.raises(BackstoryError) as stopped:
        lake.copy(2, name, SECOND)
    assert type(stopped.value) is kind, stopped.value
    assert SECRET not in str(stopped.value)
    assert lake.names(name) == {1: "Ada", 2: "Bob", 3: "Cy"}


def test_the_error_for_a_lost_file_has_its_name(lake):
    """Spark reads files that the driver cannot open, and reports the error."""
    lake.copy(1, "gone.c", FIRST)
    (file,) = lake.session.table(f"{CATALOG}.gone.c.files").select("file_path").collect()
    location = file["file_path"]
    existing(lake.store, lake.warehouse.table("gone.c").name).iceberg.io().deleteFile(location)
    with pytest.raises(Failed) as stopped:
        lake.copy(2, "gone.c", SECOND)
    assert stopped.value.code == "file-lost"
    assert location.rpartition("/")[2] in str(stopped.value)


def test_credentials_from_the_catalog_replace_configured_ones(lake):
    """As in Iceberg's FileIO, the credentials with the longest matching prefix are used."""
    java = lake.store.jvm
    as_java = lambda told: java.java.util.HashMap(told)  # noqa: E731
    io = java.org.apache.iceberg.aws.s3.S3FileIO()
    io.initialize(as_java(lake.objects.reached))
    handed = {"s3://lake": "wide", "s3://lake/w/t": "exact", "s3://other": "other"}
    credential = java.org.apache.iceberg.io.StorageCredential
    keys = lambda key: as_java({"s3.access-key-id": key, "s3.secret-access-key": "s"})  # noqa: E731
    io.setCredentials([credential.create(prefix, keys(key)) for prefix, key in handed.items()])
    table = SimpleNamespace(io=lambda: io, location=lambda: "s3://lake/w/t")
    properties = _io_properties(table)
    assert properties["s3.access-key-id"] == "exact"
    assert properties["s3.endpoint"] == lake.objects.reached["s3.endpoint"]
    with pytest.raises(FileNotFoundError) as gone:
        files_of(table)(f"s3://{BUCKET}/nothing")
    assert "exact" not in str(gone.value)
    io.close()
    other = java.org.apache.iceberg.hadoop.HadoopFileIO()
    assert _io_properties(SimpleNamespace(io=lambda: other)) is None
