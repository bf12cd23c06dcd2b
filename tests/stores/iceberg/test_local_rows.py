"""The driver reads the same rows as Spark, with their places and ids."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from committing import commit

from backstory.errors import Failed
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory, TooLarge
from backstory.model.change import Change
from backstory.model.layout import FILE, POSITION, ROW_ID, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.slice import LocalRows
from backstory.stores.iceberg.store import existing
from backstory.stores.metadata import parquet_files
from backstory.stores.metadata.searches import IsNull, OneOf
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.table_files import local_path

LIFE = """
CREATE TABLE {t} (k int, v string, n decimal(9,2), at timestamp, s struct<a: int, b: array<string>>)
  USING iceberg PARTITIONED BY (years(at)) TBLPROPERTIES ('format-version'='{version}',
  'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read')
INSERT INTO {t} SELECT id, concat('v', id), id / 3, timestamp'2024-01-01' + make_interval(0, 0, 0, id * 30),
  named_struct('a', id, 'b', array('x', NULL)) FROM range(40)
INSERT INTO {t} VALUES (100, NULL, NULL, NULL, NULL)
DELETE FROM {t} WHERE k % 7 = 3
ALTER TABLE {t} ADD COLUMN late string
ALTER TABLE {t} ALTER COLUMN k TYPE bigint
ALTER TABLE {t} RENAME COLUMN v TO word
UPDATE {t} SET late = 'now', word = concat(word, '!') WHERE k % 5 = 0
DELETE FROM {t} WHERE k = 100 OR k % 7 = 4
"""
NAMES = ["k", "word", "n", "at", "s", "late"]


def lived(store, name, version):
    table = f"{store.catalog}.here.{name}"
    store.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {store.catalog}.here")
    for statement in LIFE.strip().replace("\n  ", " ").split("\n"):
        store.spark.sql(statement.format(t=table, version=version))
    return existing(store, TableName("here", name))


def by_place(rows):
    return sorted(rows.to_pylist(), key=lambda row: (row[FILE], row[POSITION]))


def found_at(rows, places):
    """The rows with these places, in order."""
    numbers = {(row[FILE], row[POSITION]): number for number, row in enumerate(rows.to_pylist())}
    return rows.take(pa.array([numbers[row[FILE], row[POSITION]] for row in places.to_pylist()]))


@pytest.mark.parametrize("version", [2, 3])
def test_local_rows_equal_the_rows_read_by_spark(store, version):
    """Deleted, updated, evolved and partitioned rows are equal: all, some, or none from a skipped file."""
    stored = lived(store, f"format_{version}", version)
    names = [*NAMES, FILE, POSITION, *([ROW_ID] if version > 2 else [])]
    frame = store.spark.table(store.sql_name(stored.shape.table)).select(*names)
    with Memory(1 << 30).lease() as lease:
        here = LocalRows(store, stored, lease)
        result = here.read(names)
        assert by_place(result) == by_place(frame.toArrow())
        assert result.schema.field("k").type == "int64"
        late = here.read(names, ["late"], lambda rows: pc.is_valid(rows["late"]))
        assert by_place(late) == by_place(frame.where("late IS NOT NULL").toArrow())
        some = {"k": pa.array([5, 12, 13, 99]), "word": pa.array(["v12", "v13", "v5!", None])}
        some = {name: OneOf(values) for name, values in some.items()}
        result = here.read(names, ["n"], lambda rows: pc.less(rows["n"], 4.2), [some])
        assert by_place(result) == by_place(frame.where("k IN (5, 12)").toArrow())
        mixed = here.read(["k", POSITION, FILE]).take(pa.array([5, 0, 17, 2]))
        assert here.read_at(mixed, NAMES) == found_at(here.read(names), mixed).select(NAMES)
        assert here.read_at(mixed.slice(0, 0), NAMES).schema == result.select(NAMES).schema
        assert here.read(["k"], searches=[{"at": IsNull()}]).num_rows == 0
        size = lease.size
        some = here.read(["k"], ["k"], lambda rows: pc.less(rows["k"], 9))
        assert lease.size == size + some.nbytes  # a second read of the same files does not replace the first
    with Memory(600).lease() as lease, pytest.raises(TooLarge):
        LocalRows(store, stored, lease).read(names)
    with Memory(1 << 30).lease() as lease:
        sizes = []
        for number in (0, 1, 2, 3, 0):  # rows of several files
            LocalRows(store, stored, lease).read_at(mixed.slice(number, 1), NAMES)
            sizes.append(lease.size)
        assert sizes[0] == sizes[-1]  # only the last answer is held


@pytest.mark.parametrize(
    "fault", ["another format", "a file that is gone", "a file that is spoilt", "a manifest that is cut"]
)
def test_files_unreadable_by_the_driver_are_left_to_spark(store, fault):
    name = fault.replace(" ", "_")
    store.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {store.catalog}.here")
    format_ = "orc" if fault == "another format" else "parquet"
    made = f"CREATE TABLE {store.catalog}.here.{name} USING iceberg TBLPROPERTIES ('write.format.default'='{format_}')"
    store.spark.sql(f"{made} AS SELECT 1 k")
    stored = existing(store, TableName("here", name))
    (row,) = store.spark.table(store.sql_name(stored.shape.table, "data_files")).select("file_path").collect()
    (manifest,) = store.spark.table(store.sql_name(stored.shape.table, "manifests")).select("path").collect()
    if fault == "a file that is gone":
        local_path(row.file_path).unlink()
    elif fault == "a file that is spoilt":
        local_path(row.file_path).write_bytes(b"PAR1 no more PAR1")
    elif fault == "a manifest that is cut":
        local_path(manifest.path).write_bytes(local_path(manifest.path).read_bytes()[:-100])
    with Memory(1 << 30).lease() as lease, pytest.raises(Unreadable):
        LocalRows(store, stored, lease).read(["k"])


def test_a_truncated_manifest_or_list_is_refused(store):
    """A file that was cut after its header is complete for every reader, including Spark."""
    store.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {store.catalog}.here")
    store.spark.sql(f"CREATE TABLE {store.catalog}.here.early USING iceberg AS SELECT 1 k")
    stored = existing(store, TableName("here", "early"))
    (row,) = store.spark.table(store.sql_name(stored.shape.table, "manifests")).select("path").collect()
    for location in (row.path, stored.iceberg.currentSnapshot().manifestListLocation()):
        file = local_path(location)
        content = file.read_bytes()
        file.write_bytes(content[: content.index(content[-16:]) + 16])
        fresh = existing(store, TableName("here", "early"))
        with Memory(1 << 30).lease() as lease, pytest.raises(Failed) as stop:
            LocalRows(store, fresh, lease).read(["k"])
        assert (stop.value.code, file.name in stop.value.message) == ("file-garbled", True)
        file.write_bytes(content)


def test_unselected_rows_of_a_large_file_free_their_memory(store, monkeypatch):
    """A file may be larger than the lease, if its row groups and the selected rows are not."""
    name = TableName("here", "large")
    shape = Shape(name, (Column("k", ColumnType(Kind.STRING)),), ("k",), Layout.BASE)
    keys = [f"{number:064}" for number in range(100_000)]
    wanted = pa.array([keys[5], keys[99_999], "absent"])
    commit(store, None, Change(added=pa.table({"k": keys}), into=shape))
    monkeypatch.setattr(parquet_files, "AT_ONCE", 1)
    with Memory(CLEAR_TEXT_SHARE * (4 << 20)).lease() as lease:
        here = LocalRows(store, existing(store, name), lease)
        result = here.read(["k", POSITION], ["k"], lambda rows: pc.is_in(rows["k"], value_set=wanted))
        assert result == here.read(["k", POSITION], searches=[{"k": OneOf(wanted)}])
        assert result.to_pydict() == {"k": [keys[5], keys[99_999]], POSITION: [5, 99_999]}
        with pytest.raises(TooLarge):
            here.read(["k"])


def test_a_file_with_only_hidden_rows_is_not_opened(store):
    name = TableName("here", "hidden")
    shape = Shape(name, (Column("k", ColumnType(Kind.LONG)),), ("k",), Layout.BASE)
    commit(store, None, Change(added=pa.table({"k": [1, 2, 3]}), into=shape))
    first = existing(store, name)
    with Memory(1 << 30).lease() as lease:
        places = LocalRows(store, first, lease).read(["k", FILE, POSITION]).select([FILE, POSITION])
    commit(store, first, Change(removed=places, added=pa.table({"k": [4]})))
    local_path(places[FILE][0].as_py()).unlink()
    with Memory(1 << 30).lease() as lease:
        assert LocalRows(store, existing(store, name), lease).read(["k"]) == pa.table({"k": [4]})
