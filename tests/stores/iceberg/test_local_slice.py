"""The driver reads the same slice as Spark, for any keys."""

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from backstory.formats.memory import Memory
from backstory.model.layout import ACTIVE, END, FILE, POSITION, START
from backstory.model.table import TableName
from backstory.stores.iceberg import slice as sliced
from backstory.stores.iceberg.slice import read_slice, slice_here
from backstory.stores.iceberg.store import existing, load
from backstory.stores.metadata import parquet_files
from backstory.stores.metadata.searches import LISTED

# Row groups of a few hundred rows, in two partitions; versions of a record end where the next one begins.
LIFE = f"""
CREATE TABLE {{t}} (k int, part string, day date, x double, {START} timestamp, {END} timestamp, {ACTIVE} boolean)
  USING iceberg PARTITIONED BY ({ACTIVE}) TBLPROPERTIES ('format-version'='{{version}}',
  'write.parquet.row-group-size-bytes'='4096', 'write.parquet.row-group-check-min-record-count'='100',
  'write.parquet.row-group-check-max-record-count'='100', 'write.delete.mode'='merge-on-read')
INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id, concat('p', id % 3), date'2020-01-01' + int(id), id / 4,
  timestamp'2024-01-01' + make_interval(v), timestamp'2025-01-01' + make_interval(v) - INTERVAL 1 MILLISECOND, v = 2
  FROM range(2000) CROSS JOIN (SELECT explode(array(0, 1, 2)) v) ORDER BY v = 2, id
INSERT INTO {{t}} VALUES (NULL, 'p1', NULL, NULL, timestamp'2024-01-01', NULL, NULL), (5, NULL, NULL, 1, NULL, NULL, true)
DELETE FROM {{t}} WHERE k % 7 = 3 AND {ACTIVE}
ALTER TABLE {{t}} ADD COLUMN late string
ALTER TABLE {{t}} ALTER COLUMN k TYPE bigint
ALTER TABLE {{t}} RENAME COLUMN part TO named
INSERT INTO {{t}} VALUES (10, 'p1', NULL, NULL, timestamp'2025-06-01', timestamp'2025-07-01', false, 'x'),
  (11, 'p2', date'2020-01-12', 0.25, timestamp'2027-01-01', timestamp'2026-01-01', false, 'y')
"""
NUMBERS = {
    "some, one twice, one of nobody": [5, 1999, 5, 3, -1],
    "one that is NULL": [None, 10],
    "nobody": [100_000],
    "more than a list": list(range(0, 2 * LISTED + 50, 2)),
}
KEYS = {
    **{name: {"k": pa.array(values, pa.int64())} for name, values in NUMBERS.items()},
    "texts": {"named": ["p1", "absent"]},
    "days": {"day": [date(2020, 1, 12), date(1999, 1, 1)]},
    "pairs": {"k": [5, 5, 10, 11], "named": [None, "p2", "p2", "p2"]},
    "triples": {"named": ["p1", "p2"], "k": [10, 11], "day": [None, date(2020, 1, 12)]},
}
SINCE = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


def lived(store, version):
    name, table = TableName("slices", f"format_{version}"), f"{store.catalog}.slices.format_{version}"
    if (stored_table := load(store, name)) is not None:
        return stored_table
    store.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {store.catalog}.slices")
    for statement in LIFE.strip().replace("\n  ", " ").split("\n"):
        store.spark.sql(statement.format(t=table, version=version))
    return existing(store, name)


def by_place(rows):
    return sorted(rows.to_pylist(), key=lambda row: (row[FILE], row[POSITION]))


@pytest.mark.parametrize("version", [2, 3])
def test_a_local_slice_equals_the_slice_read_by_spark(store, version, monkeypatch):
    """The slices of all or only open versions are equal, with hidden, evolved and moved rows, and any keys."""
    table = lived(store, version)
    slices = {}
    for name, keys in KEYS.items():
        for since in (None, SINCE):
            here = read_slice(store, table, pa.table(keys), since)
            assert pa.types.is_dictionary(here[FILE].type), "Spark was asked"
            slices[name, since] = by_place(here)
    assert sum(map(len, slices.values())) > 4 * LISTED
    monkeypatch.setattr(sliced, "slice_here", lambda *_: None)
    for (name, since), rows in slices.items():
        there = by_place(read_slice(store, table, pa.table(KEYS[name]), since))
        assert rows == there, name


def test_only_matching_row_groups_are_read_for_a_key(store, monkeypatch):
    """Only row groups whose bounds contain a key are read, and all columns only from these groups."""
    table = lived(store, 3)
    read, plain = [], parquet_files.read_fields

    def noted(file, wanted, parted, held, groups, *arguments):
        read.append((len(wanted), len(groups), file.metadata.num_row_groups))
        return plain(file, wanted, parted, held, groups, *arguments)

    monkeypatch.setattr(parquet_files, "read_fields", noted)
    assert read_slice(store, table, pa.table({"k": [1234]}), SINCE).num_rows == 2
    assert [groups for _, groups, _ in read] == [1, 1, 1, 1]
    assert all(all_ > 4 for *_, all_ in read)


def test_inexact_keys_and_large_slices_are_left_to_spark(store):
    table = lived(store, 3)
    assert slice_here(store, table, ["k"], pa.table({"x": [0.25]}), None) is None
    small = type(store)(store.session, store.catalog, store.format_version, Memory(600))
    keys = pa.table({"k": list(range(1000))})
    assert slice_here(small, table, ["k"], keys, None) is None
    assert read_slice(small, table, keys).num_rows == 1 + sum(3 - (k % 7 == 3) for k in range(1000)) + 2
