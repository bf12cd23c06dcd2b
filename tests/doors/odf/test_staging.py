"""Staged rows of a file for Spark: any file name, in order, and with supported types."""

import json
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from odf_files import READ, declared, optional

from backstory.doors.odf.file_rows import PreparedFile, read_batch
from backstory.engine.staging import ARRIVAL, send_rows, type_with_void, with_void_columns
from backstory.formats.memory import Memory, bound_of
from backstory.formats.parquet import plain_parquet

APPEND = "{kind: append}"
SHARED = Path("/dev/shm")
PARQUET, NDJSON = "{kind: parquet}", "{kind: ndJson}"


@pytest.fixture
def batch(store, tmp_path):
    def batch(path, schema=None, folder=tmp_path, **read):
        ready = PreparedFile(path, path.name, bound_of(path))
        delivery = read_batch(store, ready, READ.validate_python(read), schema, folder, held=held)
        return None if delivery is None else delivery.frame

    with ExitStack() as held:
        yield batch


@pytest.fixture
def dataset(store, tmp_path):
    return partial(Dataset, store, tmp_path, merge=APPEND, namespace="odf_staging")


NAMES = [
    "_a.parquet",
    ".a.parquet",
    "a[b].parquet",
    "a*.parquet",
    "a?.parquet",
    "{a,b}.parquet",
    "a\\b",
    "ä %20#:,=1",
]


def test_plain_files_may_have_any_name(batch, tmp_path):
    """Spark skips names with a leading `_` or `.`, and treats other characters as patterns, including in
    folders."""
    for number, name in enumerate(NAMES):
        for place, folder in enumerate((tmp_path / f"{number}", tmp_path / name)):
            run = folder / "run"
            run.mkdir(parents=True)
            delivered = folder / name
            pq.write_table(pa.table({"k": [number]}), delivered)
            pq.write_table(pa.table({"k": [-1]}), folder / "a.parquet.other")
            assert plain_parquet(delivered, None)
            if place:  # a link to it, like one that a glob finds
                (folder / "link").symlink_to(name)
                delivered = folder / "link"
            assert [(number, 0)] == [
                tuple(row) for row in batch(delivered, folder=run, kind="Parquet").collect()
            ]


def test_the_folder_of_a_run_may_have_any_name(batch, tmp_path):
    """They are read through a file of ours, in a folder with another name."""
    (tmp_path / "a").write_text("1\n")
    for name in NAMES:
        run = tmp_path / "folder" / name
        run.mkdir(parents=True)
        assert [("1", 0)] == [tuple(row) for row in batch(tmp_path / "a", folder=run, kind="Csv").collect()]


def test_rows_of_a_plain_file_are_numbered(batch, tmp_path, spark):
    """Rows are numbered across all tasks and row groups, even next to columns with Spark's own names."""
    path = tmp_path / "a"
    pq.write_table(pa.table({"k": range(5000), "_metadata": range(5000)}), path, row_group_size=100)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "10000")
    try:
        frame = batch(path, kind="Parquet")
        assert frame.rdd.getNumPartitions() > 2
        rows = frame.where("_metadata > 10").toArrow().to_pylist()
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert ["k", "_metadata", ARRIVAL] == frame.columns
    assert [{"k": n, "_metadata": n, ARRIVAL: n} for n in range(11, 5000)] == sorted(
        rows, key=lambda row: row["k"]
    )


@pytest.mark.parametrize(("memory", "parts"), [(1 << 30, None), (6 * 60_000, 4)], ids=["few", "many"])
def test_rows_are_sent_within_the_memory_of_deliveries(store, tmp_path, memory, parts):
    """Tasks that cannot read local files get rows in order, with positions and types."""
    types = {"n": pa.int64(), "at": pa.timestamp("us", "UTC"), "naive": pa.timestamp("us"), "d": pa.decimal128(9, 2), "l": pa.list_(pa.struct([("x", pa.string())])), ARRIVAL: pa.int64()}  # fmt: skip
    schema = pa.schema(types.items())

    def piece(first):
        places = pa.array(range(first, first + 500), pa.int64())
        columns = [
            places if name in {"n", ARRIVAL} else pa.nulls(500, type_) for name, type_ in types.items()
        ]
        return pa.record_batch(columns, schema)

    pieces, store = map(piece, range(0, 5000, 500)), replace(store, memory=Memory(memory))
    with ExitStack() as held:
        frame = send_rows(store, pieces, schema, tmp_path, held)
        assert [(n, n) for n in range(5000)] == [tuple(row) for row in frame.select("n", ARRIVAL).collect()]
        assert list(types) == frame.columns
        assert parts in {None, frame.rdd.getNumPartitions()}
        assert (parts or 0) == len(list(tmp_path.glob("rows-*.parquet")))
    store.memory.take(memory // 6)


def test_a_changelog_may_be_a_plain_file(dataset, tmp_path):
    """V5: The halves of a correction stay adjacent, whichever tasks read them."""
    life = dataset(merge="{kind: changelogStream, primaryKey: [k]}", read=PARQUET)
    path = tmp_path / "_changes.parquet"
    time = pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"op": [0, 2, 3], "event_time": time, "k": ["A"] * 3, "v": [1, 1, 2]}), path)
    assert life.push_files(path).status == "updated"
    assert life.data("op", "k", "v") == [(0, "A", 1), (2, "A", 1), (3, "A", 2)]


VOIDS = {"a": [], "b": {"c": None, "d": [None]}, "e": {}, "f": [{}], "g": None, "k": "A"}


def test_lists_and_structs_of_only_null_become_text(dataset):
    """The type is text, as in tables. An object that is always empty is also text."""
    life = dataset(read=NDJSON)
    life.push_texts(json.dumps(VOIDS), ending="json")
    life.push_texts(json.dumps(VOIDS), ending="json")
    expected = {**VOIDS, "e": "{}", "f": ["{}"]}
    assert [expected] * 2 == [{name: row[name] for name in expected} for row in life.rows()]
    types = {field.name: field.dataType.simpleString() for field in life.frame.schema}
    assert ("array<string>", "struct<c:string,d:array<string>>") == (types["a"], types["b"])
    assert ("string", "array<string>") == (types["e"], types["f"])


def test_null_in_place_of_required_fields(batch, tmp_path):
    """Arrow would require a value for them."""
    path = tmp_path / "a"
    path.write_text('{"a": null}\n{"a": {"b": 1}}\n')
    struct = {"kind": "Struct", "fields": [{"name": "b", "type": "Int32"}]}
    frame = batch(path, declared(a=optional(struct)), kind="NdJson")
    assert [None, 1] == [row.b for row in frame.select("a.b").collect()]


def test_deeply_nested_values_are_stored(dataset):
    """Tables are at least as deep as inference."""
    life = dataset(read=NDJSON)
    deep = {"a": "[" * 20 + "1" + "]" * 20, "b": '{"x":' * 20 + "1" + "}" * 20}
    text = f'{{"k": 1, "a": {deep["a"]}, "b": {deep["b"]}}}\n'
    assert life.push_texts(text, ending="json").error is None
    assert life.push_texts(text, ending="json").error is None
    assert [(json.loads(deep["a"]), json.loads(deep["b"]))] * 2 == life.data("a", "b")


def test_int96_instants_beyond_nanoseconds_are_stored(dataset, tmp_path):
    """They are stored unchanged, although nanoseconds cannot express them."""
    path = tmp_path / "a.parquet"
    instants = [datetime(9999, 12, 31), datetime(1816, 3, 30)]
    table = pa.table({"event_time": pa.array(instants, pa.timestamp("us"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    life = dataset(read=PARQUET)
    life.push_files(path)
    assert [(each.replace(tzinfo=UTC),) for each in sorted(instants)] == life.data("event_time")


@pytest.mark.skipif(not SHARED.is_dir(), reason="there is no second file system")
def test_a_plain_file_may_be_on_another_file_system(batch, tmp_path):
    """The run's folder cannot contain a hard link to it."""
    with TemporaryDirectory(dir=SHARED) as there:
        path = Path(there) / "_a"
        assert path.parent.stat().st_dev != tmp_path.stat().st_dev
        pq.write_table(pa.table({"k": [1]}), path)
        assert [(1, 0)] == [tuple(row) for row in batch(path, kind="Parquet").collect()]


def test_a_column_with_dots_in_its_name_may_have_fields_without_values(spark):
    """Spark would treat the name as a path."""
    name = "a.`b"
    schema = pa.schema([(name, pa.struct([("x", pa.null()), ("y", pa.int64())]))])
    frame = spark.sql("SELECT named_struct('x', CAST(NULL AS STRING), 'y', 1L) AS `a.``b`")
    (field,) = with_void_columns(frame, schema).schema
    assert (field.name, type_with_void(field).simpleString()) == (name, "struct<x:void,y:bigint>")
