"""Streams from a real broker: killed, restarted, replayed, poisoned and concurrent (V66 to V68)."""

import os
import random
import shutil
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count
from pathlib import Path
from threading import Event

import kafka_stream
import pytest
from commands import configure, locked, program
from debezium_engine import RECORDED, last_rows, messages_of
from depth import deep
from documented import ROOT, blocks
from java import PYTHONPATH
from kafka_broker import kafka
from kafka_stream import FEED, MOST, changes, finish, send, start
from serving import SECONDS

import backstory
from backstory.doors.native.feeds.feed import BATCH, STREAM
from backstory.formats.envelopes.debezium import unwrap_debezium
from backstory.formats.envelopes.messages import debezium_messages
from backstory.model.table import TableName
from backstory.stores.iceberg.store import existing
from backstory.warehouse import Warehouse

PAGE = ROOT / "docs" / "how-to" / "debezium-kafka.md"
KILLS = deep(20, 1)
COUNT = deep(60, 4) * MOST
SEED = 7
# Moments of a kill: after files but before the commit, between commit and checkpoint, amid a batch, anywhere.
BEFORE_COMMIT, COMMITTED, AMID, ANYWHERE = ("before the commit", "committed", "amid", "anywhere")
MOMENTS = (BEFORE_COMMIT, COMMITTED, AMID, ANYWHERE)[: deep(4, 1)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with kafka(tmp_path_factory.mktemp("kafka")) as address:
        yield address


@pytest.fixture
def lake(store):
    return Warehouse(store, embedded=False)


def table_of(lake, into):
    return existing(lake.store, TableName(*into.split(".")))


def versions(lake, into):
    columns = "id, name, city, valid_from, valid_to, is_current"
    rows = lake.spark.sql(f"SELECT {columns} FROM backstory.{into} WHERE _memory.role IS NULL")
    return sorted(map(repr, rows.toArrow().to_pylist()))


def batches(lake, into):
    """The query and batch of each commit."""
    return [
        (each.properties.get(STREAM), each.properties.get(BATCH)) for each in table_of(lake, into).lineage
    ]


def at_once(lake, rows, into):
    """The versions if all changes arrive at once."""
    lake.apply(lake.spark.createDataFrame(rows, kafka_stream.CHANGE), into=into, **FEED)
    return versions(lake, into)


@pytest.mark.process
def test_a_killed_stream_has_the_result_of_an_undisturbed_stream(lake, broker, warehouse, tmp_path):
    """It has its checkpoint of that moment, and no batch is committed twice."""
    topic, into, whole = "killed", "kafka.killed", "kafka.whole"
    rows = changes(COUNT, 17, SEED)
    send(lake.spark, broker, topic, rows)
    finish(start(lake, broker, topic, tmp_path / "undisturbed", whole))
    configure(tmp_path)
    settings = tmp_path / "backstory.toml"
    words = [kafka_stream.__file__, warehouse, settings, broker, topic, tmp_path / "checkpoint", into]
    # Spark 3.5 gets its environment through this path.
    path = os.pathsep.join(filter(None, [PYTHONPATH, os.environ.get("PYTHONPATH")]))
    paths = dict([("PYTHONPATH", path), kafka_stream.class_path()])
    chance, ends = random.Random(SEED), Counter()
    for number in count():
        if number >= KILLS and ends.keys() >= {*MOMENTS}:
            break
        assert number < 2 * KILLS, ends
        with program(tmp_path, sys.executable, *words, **paths) as stream:
            ends[kill(stream, MOMENTS[number % len(MOMENTS)], chance, Path(warehouse), into)] += 1
    finish(start(lake, broker, topic, tmp_path / "checkpoint", into))
    assert versions(lake, into) == versions(lake, whole) == at_once(lake, rows, "kafka.once")
    committed = batches(lake, into)
    assert len(set(committed)) == len(committed) == len(batches(lake, whole))
    assert [each for each in lake.check(into) if each["violations"]] == []


def kill(stream, moment, chance, folder, into):
    """Kill a program at this moment of its first batch, or soon after. Returns the moment."""
    lines = iter(stream.process.stdout.readline, "")
    for _ in range(chance.choice([1, 1, 3])):
        line = next(lines, None)
        assert line, stream.process.communicate()
    if moment == ANYWHERE:
        time.sleep(chance.uniform(0, 2))
    elif moment == AMID:
        time.sleep(chance.uniform(0, 0.4))
    elif moment == COMMITTED and not any(each.startswith("written") for each in chain([line], lines)):
        moment = ANYWHERE
    elif moment == BEFORE_COMMIT:
        metadata = folder.joinpath(*into.split("."), "metadata")
        before = len([*metadata.glob("*.metadata.json")])
        with locked(folder / "catalog.db"):
            # A known batch writes nothing, but the next one does.
            stream.reach(lambda: len([*metadata.glob("*.metadata.json")]) > before)
            stream.kill()
    stream.kill()
    return moment


def test_no_batch_is_committed_twice_with_any_checkpoint(lake, broker, tmp_path):
    """This holds with an older checkpoint, without one, and with two concurrent queries over more messages."""
    topic, into = "replayed", "kafka.replayed"
    rows = changes(6 * MOST, 9, SEED + 1)
    run = lambda name: start(lake, broker, topic, tmp_path / name, into, most=4 * MOST)  # noqa: E731
    send(lake.spark, broker, topic, rows[: 3 * MOST])
    finish(run("first"))
    shutil.copytree(tmp_path / "first", tmp_path / "older")
    send(lake.spark, broker, topic, rows[3 * MOST :])
    finish(run("first"))
    commits = batches(lake, into)
    for name in ("older", "none"):
        finish(run(name))
    assert batches(lake, into) == commits
    more = changes(8 * MOST, 9, SEED + 1)[6 * MOST :]
    send(lake.spark, broker, topic, more)
    queries = [run("first"), run("another")]
    for query in queries:
        finish(query)
    assert len(batches(lake, into)) == len(commits) + 1
    assert versions(lake, into) == at_once(lake, [*rows, *more], "kafka.all")


POISONS = [
    ('{"id": null, "name": "x", "at": "2024-03-01T00:00:00Z", "seq": 1}', "null-key", "id"),
    ('{"id": 5, "name": "x", "at": "2024-03-01T00:00:00Z"}', "null-sequence", "5"),
    ('{"id": 5, "name": "x", "at": "2024-02-29T01:00:00Z", "seq": 1}', "sequence-conflict", "5"),
    ("no JSON", "null-key", "id"),
]


def test_a_poisoned_message_ends_the_query_and_changes_nothing(lake, broker, tmp_path):
    """The error has its code and key. The first poisoned message follows good ones, and others are next to
    new ones."""
    into, topics = "kafka.poisoned", [f"poisoned-{number}" for number in range(len(POISONS))]
    send(lake.spark, broker, topics[0], [(5, "a", "b", kafka_stream.ZERO, 1, "U")])
    send(lake.spark, broker, topics[0], ['{"id": 5, "name": "a", "at": "2024-02-29T01:00:00Z", "seq": 1}'])
    finish(start(lake, broker, topics[0], tmp_path / topics[0], into))
    before = versions(lake, into), batches(lake, into)
    for topic, (message, code, word) in zip(topics, POISONS, strict=True):
        send(lake.spark, broker, topic, [message])
        with pytest.raises(Exception, match=code) as stop:
            finish(start(lake, broker, topic, tmp_path / topic, into))
        assert word in str(stop.value)
        assert (versions(lake, into), batches(lake, into)) == before


def test_a_file_applied_during_a_stream_is_kept(lake, broker, tmp_path):
    """One of the two plans again, and nothing is lost."""
    topic, into = "beside", "kafka.beside"
    rows = changes(6 * MOST, 9, SEED + 2)
    others = [(1000 + each[0], *each[1:]) for each in changes(200, 9, SEED + 3)]
    send(lake.spark, broker, topic, rows)
    file = tmp_path / "others.csv"
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in others]
    file.write_text("\n".join(["id,name,city,at,seq,op", *lines]) + "\n")
    types = {"id": "BIGINT", "seq": "BIGINT"}
    began = Event()
    with ThreadPoolExecutor(1) as beside:
        query = start(lake, broker, topic, tmp_path / "checkpoint", into, lambda *_: began.set())
        assert began.wait(SECONDS)
        applied = beside.submit(lake.apply, file, into=into, type=types, **FEED)
        finish(query)
        assert applied.result(SECONDS).counts["began"]
    assert versions(lake, into) == at_once(lake, [*rows, *others], "kafka.beside_at_once")


def test_the_programs_of_the_debezium_and_kafka_page_run(lake, broker, tmp_path, monkeypatch):
    """Its two Python blocks run on recorded messages of a real Debezium in a topic."""
    keys, values = messages_of(RECORDED, "plain")
    rows = [tuple(each) for each in zip(keys.to_pylist(), values.to_pylist(), strict=True)]
    frame = lake.spark.createDataFrame(rows, "key STRING, value STRING").coalesce(1)
    places = {"kafka.bootstrap.servers": broker, "topic": "crm.public.customer"}
    frame.write.format("kafka").options(**places).save()
    lake.spark.sql("DROP TABLE IF EXISTS backstory.crm.customer PURGE")  # other tests use the same name
    monkeypatch.setattr(backstory, "open", lambda *_, **__: lake)
    names = {"BROKER": broker}
    for block in blocks(PAGE):
        if block.language == "python":
            # Spark resolves relative names in the folder where its Java started, not in the test's folder.
            exec(block.text.replace('"checkpoints/', f'"{tmp_path}/'), names)
    assert (tmp_path / "customer" / "commits").is_dir()
    expected = last_rows(unwrap_debezium(debezium_messages(keys, values), ("id",)), ["id"])
    now = lake.table("crm.customer").current().drop("valid_from", "valid_to").toArrow().to_pylist()
    assert {(row["id"],): row for row in now} == expected


@pytest.mark.laws("a thousand batches take minutes")
def test_memory_stays_level_over_a_thousand_batches(lake, broker, tmp_path):
    """`maintain` runs concurrently."""
    topic, into, many = "level", "kafka.level", 1000
    send(lake.spark, broker, topic, changes(2 * many, 40, SEED + 4))
    resident = []

    def note(word, number):
        if word == "written" and number % 10 == 0:
            resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)

    query = start(lake, broker, topic, tmp_path / "checkpoint", into, note, most=2)
    while len(resident) < many // 10 and query.isActive:
        query.awaitTermination(60)
        if table_of(lake, into) is not None:
            lake.maintain(into)
    finish(query)
    assert len(resident) >= many // 10
    third = len(resident) // 3
    assert max(resident[-third:]) < 1.2 * max(resident[third : 2 * third])
