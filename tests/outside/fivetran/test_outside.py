"""A server process observed from outside: its output, its files on disk, its restarts and its clock.
Requirements 4, 8 to 11, 13 and 60, sections 2.0, 7.1 to 7.3.

It runs in a zone far from UTC, and Spark spills to disk as much as possible.
"""

import base64
import json
import os
import signal
import socket
import stat
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import java
import pytest
from destination import Place, definition, refusal, status
from destination import column_types as told_columns
from outside.fivetran.test_process import address, lines, process
from pyiceberg.catalog.sql import SqlCatalog
from serving import SECONDS, all_the_time
from tables_as_text import WORDS, in_order

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.formats.batch_file import BatchFile
from backstory.model.values import UNMODIFIED
from backstory.testing.sender import AS_FIVETRAN, Sender, encrypt, seal

CANARY = "kanari-5e0d-vogel"
NUMBER = int.from_bytes(b"zeisig#7", "little")
AES_KEY = b"stieglitz-fink-star-meise-amsel!"
FORMS = [
    form
    for text in (CANARY, str(NUMBER), AES_KEY.hex(), base64.b64encode(AES_KEY).decode(), repr(AES_KEY)[2:-1])
    for form in (text.encode(), text.encode("utf-16-le"), text.encode("utf-16-be"))
] + [AES_KEY, b"zeisig#7", b"zeisig#7"[::-1], base64.b64encode(CANARY.encode())[:20]]

# Joins use shuffles instead of broadcasts, and every sort spills.
SETTINGS = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "640m"
"spark.sql.session.timeZone" = "ZONE"
"spark.driver.extraJavaOptions" = "-Duser.timezone=ZONE"
"spark.sql.optimizer.disableHints" = "true"
"spark.sql.autoBroadcastJoinThreshold" = "-1"
"spark.shuffle.spill.numElementsForceSpillThreshold" = "100"
"spark.sql.windowExec.buffer.in.memory.threshold" = "10"
"""
LIVE = "id:LONG* k* v j:JSON b:BINARY synced"
HISTORY = f"{LIVE} start* end active"
COUNT = 1200

TMAX, MILLISECOND = WORDS["TMAX"], timedelta(milliseconds=1)

pytestmark = pytest.mark.process


def has_canary(content):
    """Whether bytes or a text contain a canary in any spelling."""
    content = content if isinstance(content, bytes) else content.encode()
    return any(form in content for form in FORMS)


class Disk:
    """A watcher of all files below some folders, and of the files that a process and its children write."""

    def __init__(self, process, *folders):
        self.process, self.folders = process, folders
        self.seen, self.holding, self.elsewhere = {}, set(), set()

    def look(self):
        """Check everything that is new or was written."""
        for folder in self.folders:
            for path in folder.rglob("*"):
                self._read(path, str(path))
        for opened, name in written_by(family(self.process.pid)):
            if not name.startswith(tuple(map(str, self.folders))):
                self.elsewhere.add(name)
            self._read(opened, name)

    def _read(self, path, name):
        with suppress(OSError):
            stat_result = path.stat()
            state = (stat_result.st_size, stat_result.st_mtime_ns)
            if stat.S_ISREG(stat_result.st_mode) and self.seen.get(name) != state and path.suffix != ".jar":
                self.seen[name] = state
                if has_canary(path.read_bytes()):
                    self.holding.add(name)

    @contextmanager
    def watched(self):
        """Check repeatedly during the block, and once more after it."""
        with all_the_time(self.look):
            yield self


def family(process):
    """A process and all its descendants."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    pids = {process}
    while more := {child for child, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return pids


def written_by(processes):
    """The regular files that processes have open for writing, including deleted ones."""
    for number in processes:
        for opened in Path(f"/proc/{number}/fd").glob("*"):
            with suppress(OSError, StopIteration, ValueError):
                name = str(opened.readlink())
                if not name.startswith("/") or name.startswith("/memfd:") or name.endswith((".jar", ".so")):
                    continue  # most are sockets, pipes and jars, which are slow to inspect
                about = Path(f"/proc/{number}/fdinfo/{opened.name}").read_text().splitlines()
                flags = int(next(line for line in about if line.startswith("flags")).split()[1], 8)
                if flags & os.O_ACCMODE and stat.S_ISREG(opened.stat().st_mode):
                    yield opened, name


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return tmp_path_factory.mktemp("secrets")


@contextmanager
def serving(folder, zone, *arguments):
    """A server whose temporary files, including Spark's and Java's, are below one folder."""
    local = folder / "local"
    local.mkdir(parents=True)
    (folder / "backstory.toml").write_text(SETTINGS.replace("ZONE", zone) + java.in_toml(java.PLANS))
    places = {"SPARK_LOCAL_DIRS": str(local), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={local}"}
    with process(folder, *arguments, TZ=zone, **places) as running:
        yield running


@pytest.fixture(scope="module")
def server(ground):
    with serving(ground / "one", "America/New_York", "--port", "0", "--host", "127.0.0.1") as running:
        yield running, address(ground / "one", running)


@pytest.fixture
def sender(server, ground):
    files = ground / "files"
    files.mkdir(exist_ok=True)
    return Sender.to(server[1], files, configuration={"token": CANARY, "certificate": CANARY * 9})


@pytest.fixture
def disk(server, ground):
    """The watched files: the server's own folder, and the warehouse without tables."""
    return Disk(server[0], ground / "one", ground / "warehouse")


def rows(numbers, **more):
    """Rows of canaries, in numbers and texts, keys and values."""
    secret = {"v": CANARY, "j": f'{{"a": "{CANARY}"}}', "b": CANARY.encode()}
    synced = {"_fivetran_synced": "2024-01-01T00:00:00Z"}
    return [{"id": NUMBER + i * 256**5, "k": f"{CANARY}-{i}"} | secret | synced | more for i in numbers]


def keys(numbers, **more):
    return [{"id": row["id"], "k": row["k"]} | more for row in rows(numbers)]


def version(day, *, active=True):
    end = "9999-12-31T23:59:59.999Z"
    return {"_fivetran_start": f"2024-01-{day}T00:00:00Z", "_fivetran_end": end, "_fivetran_active": active}


def made(sender, schema, columns):
    place = Place(sender, None, schema, definition("t", columns))
    sender.create(schema, place.table)
    place.write(replace=rows(range(COUNT), **(version("01") if place.history else {})))
    return place


def replies(place, files):
    """The replies to requests that are refused or concern a missing table."""
    sender, stub, configuration = place.sender, place.sender.stub, {"catalog": CANARY}
    for broken in (
        {"_fivetran_synced": CANARY},
        {"v": UNMODIFIED},
        {"id": CANARY},
        {"id": UNMODIFIED},
        {"b": UNMODIFIED},
    ):
        yield refusal(place.reply(replace=place.files(rows(range(2))) + place.files(rows([5], **broken))))
    content = f'id,k,v\n{NUMBER},"{CANARY}\n'.encode()
    sealed = files / "sealed.csv"
    sealed.write_bytes(encrypt(content, AES_KEY, os.urandom(16)))
    for key in (AES_KEY, AES_KEY[::-1], AES_KEY[:16]):
        yield refusal(place.reply(update=[BatchFile(sealed, key)]))
    yield refusal(place.reply(update=[seal(files, content, AS_FIVETRAN)]))
    about = {"schema_name": place.schema, "configuration": configuration}
    yield refusal(stub.WriteBatch(sdk.WriteBatchRequest(table=place.table, **about)))
    for name in ("connection", "write"):
        assert stub.Test(common.TestRequest(name=name, configuration=sender.configuration)).success
        yield stub.Test(common.TestRequest(name=name, configuration=configuration)).failure
    yield refusal(sender.stub.AlterTable(alter(place, f"id:LONG k v:UNSPECIFIED* j:JSON b:BINARY {CANARY}")))


def alter(place, columns):
    table = definition(place.table.name, columns)
    told_by = place.sender.configuration
    return sdk.AlterTableRequest(schema_name=place.schema, table=table, configuration=told_by)


def test_every_spelling_of_a_canary_is_found():
    """A test of the test: the search finds each spelling of a canary."""
    for content in (
        CANARY,
        f"x{NUMBER}",
        CANARY.encode("utf-16-le"),
        NUMBER.to_bytes(8, "little"),
        AES_KEY.hex(),
    ):
        assert has_canary(content)
    assert not has_canary("kanari")


def test_a_load_leaves_no_values_on_disk_or_in_logs(sender, disk, ground, server):
    """8 to 10, 7.3: With joins, shuffles and spills, no file, line or reply contains a value, key or setting
    at any moment."""
    with disk.watched():
        live = made(sender, "live", LIVE)
        live.write(update=rows(range(COUNT // 2), v=CANARY * 2), delete=keys(range(700, 900)))
        live = live.alter(LIVE.replace("k*", "k"))
        live.write(update=rows(range(400), v=CANARY * 3))
        live.truncate(at("2023-12-31"))
        history = made(sender, "history", HISTORY)
        start = {"_fivetran_start": version("02")["_fivetran_start"]}
        history.write(
            earliest=keys(range(600), **start),
            update=rows(range(600), j=UNMODIFIED, **version("02")),
            delete=keys(range(900, 1200), _fivetran_end="2024-01-05T00:00:00Z"),
        )
        history.truncate(at("2024-01-02"), "_fivetran_deleted")
        texts = list(replies(live, ground / "files"))
    assert [text for text in texts if has_canary(text)] == []
    assert not_of_tables(disk.holding) == set()
    assert disk.elsewhere == set()
    on_disk = {Path(name).name for name, (size, _) in disk.seen.items() if size}
    assert any(name.startswith("shuffle_") for name in on_disk), "no shuffle was looked at"
    assert {level for level, _ in lines(ground / "one")} <= {"INFO", "WARNING"}


def test_a_failed_batch_stores_and_prints_no_values(sender, disk, ground):
    """9 to 11: An unreadable or unwritable data file ends the batch in a status without a value. Later calls
    are served."""
    broken, good = made(sender, "broken", LIVE), made(sender, "good", LIVE)
    data = max((ground / "warehouse" / "broken").rglob("*.parquet"), key=lambda path: path.stat().st_size)
    whole = data.read_bytes()
    texts = []
    with disk.watched():
        data.write_bytes(whole[:100] + os.urandom(len(whole) - 200) + whole[-100:])
        for numbers in (range(20), range(COUNT)):
            texts += failure(broken, update=rows(numbers, v=CANARY))
        texts += texts_of(status(sender.stub.AlterTable, alter(broken, LIVE.replace("k*", "k"))))
        data.write_bytes(whole)
        folder = data.parent.rename(ground / "hidden")
        data.parent.write_text("no folder")
        texts += failure(broken, replace=rows([COUNT + 1]))
        data.parent.unlink()
        folder.rename(data.parent)
        for details in migrations():
            request = sdk.MigrateRequest(details=details, configuration=sender.configuration)
            try:
                texts.append(str(sender.stub.Migrate(request)))
            except grpc.RpcError as error:
                texts += texts_of(error)
        good.write(update=rows(range(20), v=CANARY))
        broken.write(update=rows(range(20), v=CANARY))
    assert [text for text in texts if has_canary(text)] == []
    assert not_of_tables(disk.holding) == set()
    assert disk.elsewhere == set()
    assert [line for line in lines(ground / "one") if has_canary(line[1])] == []


def test_table_metadata_contains_no_values(sender, ground):
    """F20: No table property and no snapshot summary contains a value."""
    files = list((ground / "warehouse").rglob("*.metadata.json"))
    documents = [json.loads(path.read_text("utf-8")) for path in files]
    about = [[d["properties"], [s["summary"] for s in d.get("snapshots", ())]] for d in documents]
    assert any(summaries for _, summaries in about)
    assert not has_canary(json.dumps(about, ensure_ascii=False))


def migrations():
    """Migrations with canaries in all of their texts."""
    when = {"operation_timestamp": "2024-02-01T00:00:00Z"}
    number = {"column": "w", "column_type": common.DataType.LONG, "default_value": CANARY}
    text = {"column": "x", "column_type": common.DataType.STRING, "default_value": CANARY}
    for operation in (
        {"add": sdk.AddOperation(add_column_with_default_value=number)},
        {"add": sdk.AddOperation(add_column_with_default_value=text)},
        {"add": sdk.AddOperation(add_column_in_history_mode=number | when)},
        {"add": sdk.AddOperation(add_column_in_history_mode=text | when)},
        {"update_column_value": sdk.UpdateColumnValueOperation(column="id", value=CANARY)},
        {"update_column_value": sdk.UpdateColumnValueOperation(column="v", value=CANARY)},
    ):
        for schema in ("good", "history"):
            yield sdk.MigrationDetails(schema=schema, table="t", **operation)


def failure(place, **kinds):
    """The message of a failing batch, which is a status of ours."""
    files = {kind: place.files(listed) for kind, listed in kinds.items()}
    with pytest.raises(grpc.RpcError) as failed:
        place.reply(**files)
    assert failed.value.code() in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
    return texts_of(failed.value)


def texts_of(error):
    """The full text of a status."""
    assert error is not None
    return [error.details(), error.debug_error_string(), str(error.trailing_metadata())]


def not_of_tables(files):
    """The files that are no table's own data or metadata."""
    return {name for name in files if not {"data", "metadata"} & set(Path(name).parts)}


def at(day):
    return datetime.fromisoformat(day).replace(tzinfo=UTC)


# Times that another zone skips, repeats or counts in another way.
NAIVE = [
    datetime(2024, 3, 10, 2, 30),
    datetime(2024, 11, 3, 1, 30),
    datetime(1, 1, 1),
    datetime(1890, 1, 1, 12),
]
KEYS = ("day", "utc")
SYNCED = [{"_fivetran_synced": at(f"2024-01-0{day}")} for day in (1, 2, 3, 4)]


def moments(**more):
    """A row for each moment, in keys and values."""
    return [
        {"day": time.date(), "utc": time.replace(tzinfo=UTC), "at": time} | synced | more
        for time, synced in zip(NAIVE, SYNCED, strict=True)
    ]


def key_of(row, **more):
    return {name: row[name] for name in KEYS} | more


def read(ground, schema):
    """The table `t` as read by another program, with its zones."""
    catalog = SqlCatalog("backstory", uri=f"sqlite:///{ground}/warehouse/catalog.db")
    try:
        rows_ = catalog.load_table((schema, "t")).scan().to_arrow().to_pylist()
    finally:
        catalog.engine.dispose()
    return in_order(
        {n: v.astimezone(UTC) if isinstance(v, datetime) and v.tzinfo else v for n, v in row.items()}
        for row in rows_
    )


def test_a_killed_server_continues_unchanged_in_another_time_zone(sender, server, ground):
    """4, 13, 60: After a kill and a restart in another zone without a port, it listens on 50052 and no time
    has moved."""
    columns = "day:NAIVE_DATE* utc:UTC_DATETIME* at:NAIVE_DATETIME v synced"
    live = Place(sender, None, "zones", definition("t", columns))
    sender.create("zones", live.table)
    live.write(replace=moments(v="old"))
    live.write(update=moments(v="mid")[:2])
    history = Place(sender, None, "old", definition("t", f"{columns} start* end active"))
    sender.create("old", history.table)
    first, later = {"_fivetran_start": at("2024-01-01")}, {"_fivetran_start": at("2024-01-05")}
    open_ = {"_fivetran_end": TMAX, "_fivetran_active": True}
    history.write(replace=moments(v="old", **first, **open_))
    server[0].kill()
    server[0].wait()
    with again(ground) as (running, where):
        other = Sender.to(where, sender.folder)
        live, history = (replace(place, sender=other) for place in (live, history))
        for place in (live, history):
            assert told_columns(other.describe(place.schema, "t")) == told_columns(place.table)
        live.write(update=moments(v="new")[1:3])
        live.truncate(at("2024-01-01") + timedelta(milliseconds=1))
        live.write(delete=[key_of(row) for row in moments()[3:]])
        history.write(
            earliest=[key_of(row, **later) for row in moments()[:2]],
            update=moments(v="new", **later, **open_)[:2],
            delete=[key_of(moments()[2], _fivetran_end=at("2024-01-06"))],
        )
        running.send_signal(signal.SIGTERM)
        assert running.wait(SECONDS) == 0
    assert in_order(moments(v="new")[1:3]) == read(ground, "zones")
    ends = [at("2024-01-05") - MILLISECOND] * 2 + [at("2024-01-06")]
    closed = [{"_fivetran_end": end, "_fivetran_active": False} for end in ends] + [open_]
    expected = [row | end for row, end in zip(moments(v="old", **first), closed, strict=True)]
    expected += moments(v="new", **later, **open_)[:2]
    assert in_order(expected) == read(ground, "old")


@contextmanager
def again(ground):
    """A server with the default port, or with another one if that port is reported as used."""
    folder = ground / "two"
    with serving(folder, "Asia/Tokyo", "--host", "127.0.0.1") as running:
        while running.poll() is None and not lines(folder):
            time.sleep(0.1)
        [(level, message), *_] = lines(folder)
        if level == "INFO":
            where = address(folder, running)
            assert where == "127.0.0.1:50052"
            yield running, where
            return
        assert (level, "50052" in message, running.wait(SECONDS)) == ("SEVERE", True, 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with serving(ground / "three", "Asia/Tokyo", "--host", "127.0.0.1", "--port", port) as running:
        where = address(ground / "three", running)
        assert where == f"127.0.0.1:{port}"
        yield running, where
