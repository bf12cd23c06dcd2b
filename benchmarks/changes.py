"""Bytes that the feed of changes reads, against the bytes of the data files that its range touched.

Run `make bench ONLY=changes`, or `python benchmarks/changes.py [ROWS]`. It counts the bytes of the row groups
that the plan reads; `tests/stores/iceberg/test_moved_rows.py` checks that no other rows are read. The bound
is 1.2 for tables of any size; a compaction between the commits adds nothing.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from backstory.engine.deliver import commit_change
from backstory.model.change import Change, Note
from backstory.model.layout import FILE, POSITION, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.reading.commit_ranges import lineage_of, range_of
from backstory.settings import Settings
from backstory.spark.session import start_session
from backstory.stores.iceberg.positions import moved_rows
from backstory.stores.iceberg.scripts import files_of_commit
from backstory.stores.iceberg.store import IcebergStore, existing
from backstory.table import Table

NAME = TableName("bench", "changes")
SPARK = {"spark.master": "local[2]", "spark.driver.memory": "2g"}
BOUND = 1.2


def bytes_read(store, since):
    """The bytes of data files that a feed since this commit reads."""
    table = existing(store, NAME)
    found = range_of(lineage_of(table), since, None)
    moved = moved_rows(store, table, found.before, found.commits)
    try:
        return moved.bytes
    finally:
        moved.release(store)


def rows(keys, seed):
    """Rows whose values hardly compress."""
    random = np.random.default_rng(seed)
    drawn = random.bytes(16 * len(keys)).hex()
    texts = pa.array([drawn[place : place + 32] for place in range(0, len(drawn), 32)])
    return pa.table({"id": pa.array(keys, pa.int64()), "text": texts, "n": random.random(len(keys))})


def commit(store, change):
    commit_change(store, existing(store, NAME), change, Note("bench", ""))


def update(store, keys, seed):
    """Commit new values for rows; deletion vectors remove the present ones."""
    listed = ", ".join(map(str, keys))
    found = store.spark.table(store.sql_name(NAME)).where(f"id IN ({listed})")
    commit(store, Change(removed=found.select(FILE, POSITION).toArrow(), added=rows(keys, seed)))


def touched(store, since):
    """The bytes of the data files in which commits, other than compactions, added or removed rows."""
    table, files = existing(store, NAME), store.jvm.java.util.HashMap()
    sizes = {}
    for each in lineage_of(table).commits[since:]:
        for line in (
            files_of_commit(store.jvm, table.iceberg, each.id, files) if each.operation != "replace" else ()
        ):
            if line.content == "DATA":
                sizes[line.location] = line.size
            elif line.sign == "+" and line.hidden not in sizes:
                sizes[line.hidden] = Path(line.hidden.removeprefix("file:")).stat().st_size
    return sum(sizes.values())


def measure(store, what, since, **asked):
    """Print one line of the report: rows, bytes read, bytes touched, ratio."""
    of_table = sum(
        row.file_size_in_bytes
        for row in store.spark.sql(f"SELECT * FROM {store.sql_name(NAME, 'files')}").collect()
    )
    bound = touched(store, since)
    read, begun = bytes_read(store, since), time.perf_counter()
    with Table(store, NAME).changes(since=since, **asked) as feed:
        told = feed.frame.toArrow().num_rows
    took = time.perf_counter() - begun
    verdict = "" if read <= BOUND * bound else f"  above {BOUND}"
    print(
        f"{what:42} {told:9,} rows {read:12,} of {bound:12,} bytes: {read / bound:.2f}"
        f"  (table {of_table:,}) {took:.1f} s{verdict}"
    )


def main(count=1_000_000):
    with tempfile.TemporaryDirectory() as folder:
        spark = start_session(Settings(Path(folder), spark=SPARK))
        store = IcebergStore(spark)
        columns = {"id": Kind.LONG, "text": Kind.STRING, "n": Kind.DOUBLE}
        shape = Shape(
            NAME,
            tuple(Column(*each) for each in ((n, ColumnType(k)) for n, k in columns.items())),
            ("id",),
            Layout.FIVETRAN_LIVE,
        )
        commit_change(store, None, Change(into=shape), Note("bench", ""))
        commit(store, Change(added=rows(range(count), 0)))
        commit(store, Change(added=rows(range(count, count + 10_000), 1)))
        measure(store, "10,000 rows appended", 1)
        update(store, range(100, 200), 2)
        measure(store, "100 neighbours changed", 2)
        update(store, range(0, count, max(count // 1000, 1)), 3)
        measure(store, "1,000 rows changed all over the table", 3)
        measure(store, "all of these", 1)
        measure(store, "all of these, net", 1, net=True)
        spark.sql(
            f"CALL backstory.system.rewrite_data_files(table => '{NAME}', options => map('rewrite-all', 'true'))"
        )
        measure(store, "and a compaction", 1)
        update(store, range(500, 600), 4)
        measure(store, "and 100 neighbours changed after it", 1)
        spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
