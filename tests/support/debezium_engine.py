"""A real Debezium, whose engine follows a real PostgreSQL or MariaDB and writes its messages into a file.

`tests/support/debezium` has the database's statements and the recorded messages. Run as a program with the
address of a server, this module records them again.
"""

import gzip
import itertools
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
from maven import jars

HERE = Path(__file__).parent / "debezium"
RECORDED = HERE / "postgresql.tsv.gz"
MARIADB = HERE / "mariadb.tsv.gz"
VERSION = "3.3.1.Final"
VERSION_OF_MARIADB = "3.3.0.Final"  # Maven Central has no 3.3.1 of its connector
NUMBERS = itertools.count(1)
PROPERTIES = {
    "name": "engine",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "offset.flush.interval.ms": 1000,
    "topic.prefix": "crm",
    "poll.interval.ms": 50,
    "skipped.operations": "none",
}
OF_POSTGRESQL = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
}
OF_MARIADB = {
    "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
    "database.server.id": 77,
    "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
    "database.ssl.mode": "disable",
    "include.schema.changes": "false",  # they are messages of a separate topic
}


# A table whose changes a trigger records, and a table that marks the end.
HISTORY_OF_POSTGRESQL = """
CREATE TABLE item (id int PRIMARY KEY, v text);
CREATE TABLE done (id int PRIMARY KEY);
CREATE TABLE history (number bigserial, id int, v text);
CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO history (id, v) VALUES (coalesce(NEW.id, OLD.id), CASE WHEN TG_OP <> 'DELETE' THEN NEW.v END);
  RETURN NULL;
END $$;
CREATE TRIGGER remembers AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION remember();
INSERT INTO item VALUES (1, 'one'), (2, 'two'), (3, 'three'), (4, 'four');
"""


def engine() -> Path:
    """The engine's jars."""
    names = ("debezium-embedded", "debezium-connector-postgres")
    return jars("debezium", *(f"io.debezium:{name}:{VERSION}" for name in names))


def engine_of_mariadb() -> Path:
    """The jars of the engine that follows MariaDB."""
    names = ("debezium-embedded", "debezium-connector-mariadb")
    return jars("debezium-mariadb", *(f"io.debezium:{name}:{VERSION_OF_MARIADB}" for name in names))


def run(connection, script: str) -> None:
    """Run the statements of a script one by one, each in its own transaction."""
    for statement in (HERE / script).read_text("utf-8").split(";\n"):
        if statement.strip():
            connection.execute(statement)


@contextmanager
def empty_database(server_url):
    """The address of a database that is dropped at the end, with everything that Debezium leaves in it."""
    name = f"debezium_{next(NUMBERS)}"
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        try:
            yield f"{server_url.rpartition('/')[0]}/{name}"
        finally:
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )
            deadline = time.monotonic() + 60
            while server.execute(
                "SELECT 1 FROM pg_replication_slots WHERE active AND slot_name = %s", [name]
            ).fetchone():
                assert time.monotonic() < deadline, "the slot is still in use"
                time.sleep(0.1)
            server.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                [name],
            )
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@dataclass(frozen=True)
class Engine:
    """A running engine, the file of its messages, and its log."""

    running: subprocess.Popen
    messages: Path
    log: Path

    def wait(self, happened):
        """Wait until something has happened. The engine must not end before."""
        deadline = time.monotonic() + 240
        while not happened():
            assert self.running.poll() is None, self.log.read_text("utf-8")
            assert time.monotonic() < deadline, self.log.read_text("utf-8")
            time.sleep(0.2)

    def wait_for(self, connection, query):
        """Wait until a query returns a row."""
        self.wait(lambda: connection.execute(query).fetchone())

    def wait_for_table(self, table):
        """Wait until a message of a table has arrived."""
        self.wait(lambda: f'"table":"{table}"' in self.messages.read_text("utf-8"))


@contextmanager
def following(url: str, folder: Path, **properties):
    """An engine that follows a database from now on."""
    at = urlsplit(url)
    database = at.path[1:]
    place = {
        "hostname": at.hostname,
        "port": at.port,
        "user": at.username,
        "password": "",
        "dbname": database,
    }
    options = {**OF_POSTGRESQL, "slot.name": database}
    with _running(engine(), folder, {**options, **_of_database(place), **properties}) as recorder:
        yield recorder


@contextmanager
def following_mariadb(port: int, folder: Path, **properties):
    """An engine that follows the MariaDB at a port of this machine, as its user `debezium`."""
    place = {"hostname": "127.0.0.1", "port": port, "user": "debezium", "password": "debezium"}
    options = {**OF_MARIADB, **_of_database(place), **properties}
    with _running(engine_of_mariadb(), folder, options) as recorder:
        yield recorder


def _of_database(place) -> dict:
    return {f"database.{each}": value for each, value in place.items()}


@contextmanager
def _running(classes: Path, folder: Path, options: dict):
    messages, settings = folder / "messages.tsv", folder / "engine.properties"
    text = "".join(f"{each}={value}\n" for each, value in (PROPERTIES | options).items())
    settings.write_text(text, "utf-8")
    messages.touch()
    words = ["java", "-cp", f"{classes}/*", HERE / "Recorder.java", settings, messages]
    with (folder / "java.log").open("w") as log:
        running = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield Engine(running, messages, folder / "java.log")
        finally:
            running.terminate()
            running.wait(60)


STREAMING = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"


def record(url: str, folder: Path, **properties) -> Path:
    """Record Debezium's messages about the state after `snapshot.sql`, and about `changes.sql`."""
    with psycopg.connect(url, autocommit=True) as connection:
        run(connection, "snapshot.sql")
        with following(url, folder, **properties) as recorder:
            recorder.wait_for(connection, STREAMING)
            run(connection, "changes.sql")
            recorder.wait_for_table("done")
    return recorder.messages


def messages_of(path: Path, table: str) -> tuple[pa.Array, pa.Array]:
    """Keys and values of the messages of a table, including tombstones."""
    whole = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = [line.split("\t") for line in whole.decode().split("\n")[:-1]]
    follows, messages = False, []
    for key, value in rows:
        if value != "null":
            follows = f'"table":"{table}"' in value
        if follows:
            messages.append([None if each == "null" else each for each in (key, value)])
    return tuple(pa.array(list(each), pa.string()) for each in zip(*messages, strict=True))


def last_rows(events, key) -> dict[tuple, dict]:
    """The rows after the events, by key, computed one by one in their order."""
    order = [
        (instant, *sequence.values())
        for instant, sequence in zip(events.instants.to_pylist(), events.sequence.to_pylist(), strict=True)
    ]
    kinds, rows = events.kinds.to_pylist(), events.rows.to_pylist()
    records: dict[tuple, dict] = {}
    for place in sorted(range(len(rows)), key=order.__getitem__):
        row, at = rows[place], tuple(rows[place][each] for each in key)
        if kinds[place] == "truncate":
            records.clear()
        elif kinds[place] == "delete":
            records.pop(at, None)
        else:
            unmodified = [
                each for each in events.unmodified.column_names if events.unmodified[each][place].as_py()
            ]
            records[at] = row | {each: records.get(at, {}).get(each) for each in unmodified}
    return records


if __name__ == "__main__":
    with empty_database(sys.argv[1]) as url:
        RECORDED.write_bytes(gzip.compress(record(url, Path(sys.argv[2])).read_bytes(), mtime=0))
