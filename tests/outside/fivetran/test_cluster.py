"""A real standalone master and executors with one core: large batches are never collected on the driver.

There is one executor at the gate, and two before a release.
"""

import os
import re
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import java
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyspark
import pytest
from depth import deep
from destination import definition
from serving import SECONDS, Ground

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.testing.sender import AS_FIVETRAN, Sender, seal

pytestmark = pytest.mark.process

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
# The memory of a row. A driver that may hold `MEMORY` mebibytes plans FEW rows, but not ROWS.
MEBIBYTES_A_ROW = 260 / 1_000_000
ROWS, FEW, FILES = deep(1_000_000, 200_000), deep(80_000, 12_000), 4
MEMORY = deep(64, 16)
EXECUTORS = deep(2, 1)
# The MiB that the first batch in tasks adds to the server's process: modules and buffers.
FIRST_TASKS = 20
CONFIGURATION = """
[spark]
"spark.master" = "{master}"
"spark.driver.memory" = "640m"
"spark.driver.host" = "127.0.0.1"
"spark.executor.memory" = "1g"
"spark.executor.cores" = "1"
"spark.executor.extraJavaOptions" = "{java}"
"spark.sql.shuffle.partitions" = "4"

[delivery]
driver-memory = "{memory}"
"""
COLUMNS = "id:LONG* n:LONG a b c d e f synced"
TABLE = definition("large", COLUMNS)


@contextmanager
def spark_process(folder, name, *arguments):
    """A process of Spark, with its log in the folder."""
    log = folder / f"{name}.log"
    own = os.environ | {"SPARK_DAEMON_JAVA_OPTS": java.SMALL, "SPARK_DAEMON_MEMORY": "256m"}
    with log.open("wb") as out:
        running = subprocess.Popen([SPARK_CLASS, *arguments], stdout=out, stderr=out, cwd=folder, env=own)
    try:
        yield log
    finally:
        running.kill()
        running.wait()


def wait_for_match(log, pattern, seconds=SECONDS):
    """The match in its log, once it appears."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if match := re.search(pattern, log.read_text(errors="replace")):
            return match.group(1)
        time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace")[-2000:])


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """The address of a master that has a worker with room for the executors."""
    folder = tmp_path_factory.mktemp("cluster")
    deploy, quiet = "org.apache.spark.deploy", ("--webui-port", "0")
    with spark_process(
        folder, "master", f"{deploy}.master.Master", "-h", "127.0.0.1", "-p", "0", *quiet
    ) as log:
        address = wait_for_match(log, r"Starting Spark master at (spark://\S+)")
        size = ("--cores", str(EXECUTORS), "--memory", "2g", "-h", "127.0.0.1", *quiet)
        worker = f"{deploy}.worker.Worker"
        with spark_process(folder, "worker", worker, *size, "-d", folder / "worker", address) as working:
            wait_for_match(working, r"(Successfully registered with master)")
            yield address


def rows(first, count, changed):
    """Rows from a key on, with `changed` added to each number."""
    ids = pa.array(range(first, first + count), pa.int64())
    text = pc.binary_join_element_wise(ids.cast(pa.string()), "of a column of some width", "-")
    columns = {"id": ids, "n": pc.add(ids, changed), **dict.fromkeys("abcdef", text)}
    return pa.table(columns | {"_fivetran_synced": pa.repeat("2024-02-29T00:00:00Z", count)})


def files(folder, count, changed):
    """The rows of a batch in several encrypted files."""
    batch_files = []
    for number in range(FILES):
        part = rows(number * count // FILES, count // FILES, changed)
        sink = pa.BufferOutputStream()
        pa_csv.write_csv(part, sink)
        batch_files.append(seal(folder, bytes(sink.getvalue()), AS_FIVETRAN))
    return batch_files


@pytest.fixture(scope="module")
def ground(master, tmp_path_factory):
    """A warehouse whose servers run on the cluster."""
    ground = Ground.at(tmp_path_factory.mktemp("warehouse") / "ground")
    settings = CONFIGURATION.format(master=master, memory=f"{MEMORY}m", java=java.OPTIONS)
    (ground.folder / "backstory.toml").write_text(settings)
    return ground


@pytest.fixture(scope="module")
def server(ground):
    with ground.server() as server:
        yield server


def peak_of(process):
    """The peak memory of the process, in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) >> 10


def test_large_batches_are_not_collected_on_the_driver(ground, server, tmp_path):
    """A few rows, very many, and a few changes: each batch is one commit. The server grows by less than half
    of the rows' size, plus a fixed 20 MiB."""
    sender = Sender.to(server.address, tmp_path)
    sender.create("s", TABLE)
    sizes = []
    for count, changed in ((FEW, 1), (ROWS, 0), (FEW, 7)):
        sender.send_files("s", TABLE, {"replace_files": files(tmp_path, count, changed)})
        sizes.append(peak_of(server.process))
    with ground.catalog() as catalog:
        table = catalog.load_table("s.large")
        read = table.scan(selected_fields=("id", "n")).to_arrow().sort_by("id")
    assert len(table.snapshots()) == 3
    assert read["id"].equals(pa.chunked_array([pa.array(range(ROWS), pa.int64())]))
    expected = pa.chunked_array([pa.array([n + 7 for n in range(FEW)]), pa.array(range(FEW, ROWS))])
    assert read["n"].equals(expected)
    assert sizes[1] - sizes[0] < FIRST_TASKS + ROWS * MEBIBYTES_A_ROW / 2


def test_an_unreadable_cell_on_a_worker_is_reported_as_a_task(server, tmp_path):
    """The sender gets the worker's error with file and line."""
    sender = Sender.to(server.address, tmp_path)
    sender.create("s", definition("spoilt", COLUMNS))
    good = files(tmp_path, 2 * FEW, 0)
    bad = seal(tmp_path, b"id,n\n1,1\n2,seven\n", AS_FIVETRAN)
    reply = server.stub.WriteBatch(
        sdk.WriteBatchRequest(
            schema_name="s",
            table=definition("spoilt", COLUMNS),
            keys={str(each.path): each.key for each in (*good, bad)},
            replace_files=[str(each.path) for each in (*good, bad)],
            file_params=sdk.FileParams(compression="ZSTD", encryption="AES", null_string="(null)"),
        )
    )
    assert f"{bad.name}, line 3, column n" in reply.task.message
    assert "seven" not in reply.task.message
