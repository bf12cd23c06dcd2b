"""The driver, whole or in parts, and Spark's tasks produce the same log with the same hashes."""

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from depth import DEPTH, deep
from structlog.testing import capture_logs

from backstory.engine import driver
from backstory.engine import row_buffers as ranges
from backstory.engine.runner import IN_TASKS
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory
from backstory.stores.iceberg import slice as slices

COLUMNS = "k STRING, n INT, x DOUBLE, f FLOAT, d DATE, t TIMESTAMP, b BOOLEAN"
MERGES = {
    "append": "{kind: append}",
    "append op": "{kind: append, encoding: op}",
    "ledger": "{kind: ledger, primaryKey: [k, n]}",
    "ledger correct": "{kind: ledger, primaryKey: [k, n], encoding: op, onConflict: correct}",
    "snapshot": "{kind: snapshot, primaryKey: [k, n], encoding: op}",
    "snapshot observed": "{kind: snapshot, primaryKey: [k, n], compareColumns: [x, d]}",
    "upsert": "{kind: upsertStream, primaryKey: [k, n]}",
    "changelog": "{kind: changelogStream, primaryKey: [k, n], validation: schema}",
}
# All run before a release. At the gate these are left out, because the plans of others cover theirs.
CONTAINED = () if DEPTH == "laws" else ("append", "append op", "ledger", "snapshot")
ROWS = (
    "b,1,1.5,3.10,2020-02-01,2020-01-01T00:00:00.123Z,true é,1,-0.0,0.00,1500-01-01,,false b,2,NaN,,,,",
    "é,1,0.0,0.00,1500-01-01,,false b,1,1.25,3.10,2020-02-01,2020-01-01T00:00:00.123Z,true a,1,,,9999-12-31,,",
    ",1,,,,, b,2,7,,,, ,1,,,,,",
    "b,2,NaN,,,,",
)
TOLD = ("logical_hash", "schema_hash", "watermark", "start", "end", "counts")
# Bytes for less than the rows of two deliveries, and for more than the rows of a key.
LITTLE = 400
ALL = "{kind: sql, engine: spark, query: 'select * from input'}"


IN_PARTS = "more rows than driver-memory holds: planned in parts"


@pytest.mark.parametrize("name", [name for name in MERGES if name not in CONTAINED])
def test_every_way_of_planning_writes_the_same_log(store, tmp_path, monkeypatch, name):
    """R15, R24, R54: Rows, offsets, times, refusals and blocks are the same, including hashes.

    The driver reads local files, in parts if they are large. Spark reads queries, remote files, and the
    delivered keys of a long log. Without driver memory, Spark's tasks merge.
    """
    # No keys are requested from a log, however long, if all or none of its records are needed.
    read = ("Spark reads", 1000) if name.startswith(("append", "snapshot")) else ("keys", 0)
    looks_back = not name.startswith(("append", "changelog"))
    little = _with_memory(store, LITTLE)
    monkeypatch.setattr(ranges, "ROWS_IN_RANGE", 2)  # spilled events are written as several files
    ways = {"here": store, "parts": little, read[0]: store, "tasks": _with_memory(store, 0)}
    first = "op INT, " if name == "changelog" else ""
    results = []
    for way, place in ways.items():
        monkeypatch.setattr(driver, "SHORT", read[1] if way == read[0] else 1000)
        monkeypatch.setattr(slices, "MOST_FILES", -1 if way == read[0] else 1000)
        query = ALL if way == "Spark reads" else ""
        life = Dataset(
            place, tmp_path / way, MERGES[name], first + COLUMNS, preprocess=query, namespace="odf_merge_ways"
        )
        outcomes = []
        with capture_logs() as logs:
            for text in ROWS:
                receipt = life.push(" ".join(f"0,{row}" for row in text.split()) if first else text)
                event = life.newest().event
                error = receipt.error.to_dict() if receipt.error else None
                outcomes.append((receipt.status, receipt.counts, error, [event[name] for name in TOLD]))
        told_of = {line["event"] for line in logs}
        assert (IN_PARTS in told_of) == (way == "parts" and looks_back)
        assert (IN_TASKS in told_of) == (way == "tasks")
        results.append((outcomes, [str(row) for row in life.rows()]))
    assert results == [results[0]] * len(ways)
    assert len(results[0][1]) >= 3
    assert [error is None for _, _, error, _ in results[0][0]].count(False) == looks_back


def _with_memory(store, held):
    return replace(store, memory=Memory(CLEAR_TEXT_SHARE * held))


SIFTED = {"more rows than a step: planned where fingerprints differ", "records sifted by fingerprints"}
LIVES = (
    "a,1,1.5,3.10,2020-02-01,2020-01-01T00:00:00Z,true b,2,NaN,,,2020-01-01T00:00:00Z, c,3,0.0,,,2020-01-01T00:00:00Z,",
    "a,1,1.5,3.10,2020-02-01,2020-01-01T00:00:00Z,true b,2,7,,,2020-01-01T00:00:00Z, d,4,,,,2020-01-01T00:00:00Z,",
    "b,2,7,,,2020-01-01T00:00:00Z, b,2,7,,,2020-01-01T00:00:00Z, c,3,-0.0,,,2020-01-01T00:00:00Z, d,4,,,,2021-01-01T00:00:00Z,",
    "b,2,NaN,,,2020-01-01T00:00:00Z, c,3,0.0,,,2020-01-01T00:00:00Z, d,4,,,,2021-01-01T00:00:00Z,",
)


@pytest.mark.parametrize("times", ["", ", compareColumns: [t, x]"][: deep(2, 1)])
def test_a_sifted_snapshot_writes_the_same_log(store, tmp_path, monkeypatch, times):
    """Added, removed, changed, returned and unchanged records have the same events as in the whole plan."""
    monkeypatch.setattr("backstory.engine.tasks.SIFTED_FROM", 1)
    store.spark.catalog.clearCache()
    results = []
    for way, held in {"whole": None, "sifted": 2_000, "tasks": 0}.items():
        place = store if held is None else _with_memory(store, held)
        merge = MERGES["snapshot"].replace("}", f"{times}}}", 1)
        life = Dataset(place, tmp_path / way, merge, COLUMNS, namespace="odf_merge_ways")
        with capture_logs() as logs:
            outcomes = [(life.push(text).counts, life.newest().event["logical_hash"]) for text in LIVES]
        assert bool(SIFTED & {line["event"] for line in logs}) == (way != "whole")
        assert store.spark._jsparkSession.sharedState().cacheManager().isEmpty(), "a frame was left behind"
        results.append((outcomes, [str(row) for row in life.rows()]))
    assert results == [results[0]] * 3


PART = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float64()))])


@pytest.mark.parametrize("name", ["append", "upsert", "snapshot"][: deep(3, 2)])
def test_nested_values_are_merged_in_every_way_of_planning(store, tmp_path, name):
    """This includes keys, and maps that are not compared. Lists and structs sort as in Spark."""
    merge = MERGES[name].replace("[k, n]", "[k]")
    keys = [{"a": 1, "b": [0.5]}, {"a": 1, "b": []}, None, {"a": None, "b": [float("nan")]}]
    values = [[{"x": "é"}, None], [], None, [{"x": None}]]
    more = {"m": pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int32()))}
    whole = pa.table(
        {
            "k": pa.array(keys, PART),
            "v": pa.array(values, pa.list_(pa.struct([("x", pa.string())]))),
            **(more if name == "append" else {}),
        }
    )
    whole = whole if name == "append" else whole.take(pa.array([0, 1, 3]))
    results = []
    for way, held in {"here": None, "parts": LITTLE // 2, "tasks": 0}.items():
        place = store if held is None else _with_memory(store, held)
        life = Dataset(place, tmp_path / way, merge, read="{kind: parquet}", namespace="odf_merge_ways")
        with capture_logs() as logs:
            outcomes = []
            for number, rows in enumerate([whole, whole.slice(1), whole.take(pa.array([2, 0, 1]))]):
                changed = rows.set_column(1, "v", rows["v"].take(pa.array([*range(1, len(rows)), 0])))
                path = tmp_path / f"{way}-{number}.parquet"
                pq.write_table(changed if number == 2 else rows, path)
                receipt = life.push_files(path)
                outcomes.append((receipt.status, receipt.counts, life.newest().event["logical_hash"]))
        assert (IN_PARTS in [line["event"] for line in logs]) == (way == "parts" and name != "append")
        results.append((outcomes, [str(row) for row in life.rows()]))
    assert results == [results[0]] * 3
    assert len(results[0][1]) > len(whole)


@pytest.mark.parametrize("held", [1 << 20, 0], ids=["here", "tasks"])
def test_rows_with_only_an_event_time_are_ingested(store, tmp_path, held):
    life = Dataset(
        _with_memory(store, held),
        tmp_path,
        MERGES["append"],
        "event_time TIMESTAMP",
        namespace="odf_merge_ways",
    )
    assert life.push("2020-01-02T00:00:00Z 2020-01-01T00:00:00Z").offsets == (0, 1)
    assert life.push("2020-01-03T00:00:00Z").offsets == (2, 2)
    assert [row["event_time"].day for row in life.rows()] == [1, 2, 3]


def test_the_driver_and_tasks_give_batches_the_same_columns(store, tmp_path):
    """Narrow numbers, system names, columns of only NULL and days have Spark's types. Conversions use Spark."""
    instants = pa.array([datetime(2024, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC"))
    columns = {
        "k": pa.array(["b", "a"]),
        "op": pa.array([1, None], pa.int8()),
        "x.y": pa.array([1, 2], pa.int16()),
        "f": pa.array([1.5, float("nan")], pa.float32()),
        "d": pa.array([Decimal("1.10"), None], pa.decimal128(9, 2)),
        "raw": pa.array([b"\x00\xff", b""]),
        "system_time": instants,
        "wide": pa.array([1, 2], pa.int64()),
    }
    times = {
        "instants": instants,
        "days": pa.array([date(2024, 1, 2), date(2024, 1, 1)]),
        "naive": pa.array([datetime(2024, 1, 1), None], pa.timestamp("us")),
        "years": pa.array([2024, 2023], pa.int32()),
        "nothing": pa.nulls(2, pa.string()),
    }
    for name in times if DEPTH == "laws" else ("days", "naive", "nothing"):
        results, time = [], times[name]
        for way, place in {"here": store, "tasks": _with_memory(store, 0)}.items():
            path = tmp_path / f"{name}-{way}.parquet"
            pq.write_table(pa.table({**columns, "event_time": time}), path)
            life = Dataset(
                place,
                tmp_path / name / way,
                MERGES["ledger correct"].replace("n]", '"x.y"]'),
                read="{kind: parquet}",
                namespace="odf_merge_ways",
            )
            receipt = life.push_files(path)
            results.append(
                (receipt.counts, life.newest().event["logical_hash"], [str(row) for row in life.rows()])
            )
        assert results[0] == results[1], name


def test_a_query_may_return_more_rows_than_the_driver_collects(store, tmp_path, monkeypatch):
    """The driver collects at most its limit, and the log has all rows in order."""
    monkeypatch.setattr(driver, "FEW", 5)
    query = "{kind: sql, engine: spark, query: 'select explode(sequence(1, n)) as n from input'}"
    life = Dataset(store, tmp_path, MERGES["append"], "n INT", preprocess=query, namespace="odf_merge_ways")
    planned_in_tasks = []
    for rows, offsets in (("5", (0, 4)), ("6", (5, 10))):
        with capture_logs() as logs:
            assert life.push(rows).offsets == offsets
        planned_in_tasks.append(IN_TASKS in [line["event"] for line in logs])
    assert planned_in_tasks == [False, True]
    assert life.data("n") == [(n,) for n in [*range(1, 6), *range(1, 7)]]


def test_a_small_pull_runs_no_job(store, tmp_path):
    """The driver reads log and delivery, and writes without a task."""
    tracker = store.spark.sparkContext.statusTracker()
    polling = "{kind: url, url: data.csv}"
    life = Dataset(store, tmp_path, MERGES["snapshot"], "k STRING, n INT", fetch=polling)
    life.add()
    started = []
    for text in ("k,n\nA,1\n", "k,n\nA,2\nB,1\n", None):
        before = max(tracker.getJobIdsForGroup(None), default=-1)
        life.pull(text)
        started.append(max(tracker.getJobIdsForGroup(None), default=-1) - before)
    assert started == [0, 0, 0]


@pytest.mark.parametrize(("key", "most"), [("x", 9), ("n", 1)], ids=["no range of keys", "many events"])
def test_logs_without_key_ranges_or_with_many_events_are_merged(store, tmp_path, monkeypatch, key, most):
    """Floats include NaN, which is outside all ranges, and a key may have any number of events."""
    monkeypatch.setattr(slices, "MOST_FILES", -1)
    monkeypatch.setattr(driver, "SHORT", 0)
    monkeypatch.setattr(driver, "MANY", most)
    merge = f"{{kind: upsertStream, primaryKey: [{key}]}}"
    life = Dataset(store, tmp_path, merge, "n INT, x DOUBLE, v STRING", namespace="odf_merge_ways")
    life.push("1,NaN,a 2,0.5,b")
    with capture_logs() as logs:
        assert life.push("1,NaN,b 2,-0.0,b").counts["corrected"] == (1 if key == "x" else 2)
    assert IN_TASKS in [line["event"] for line in logs]
