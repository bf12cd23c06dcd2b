"""Bring the many small files of a table, and what hides rows in them, back to few."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backstory.stores.iceberg.commit import discarding, finish
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.rewriting import rewrite, stage_rewrite, target_size
from backstory.stores.iceberg.store import Store, StoredTable

# A file is small below this share of what it should hold, and hides too much above that share of its rows.
SMALL, HIDDEN = 0.75, 0.1


@dataclass(frozen=True, slots=True)
class Compacted:
    """Files before and after a compaction, the bytes that were rewritten, and its snapshot; None for none."""

    files: int
    files_after: int
    bytes: int = 0
    snapshot_id: int | None = None


def scattered(store: Store, table: StoredTable) -> list[str]:
    """The data files that are worth being rewritten: small ones that share a partition, and holey ones."""
    from pyspark.sql.functions import col, count, lit
    from pyspark.sql.functions import sum as total

    if table.iceberg.currentSnapshot() is None:
        return []
    with translate_faults(table.shape.table):
        files = store.spark.table(store.sql_name(table.shape.table, "data_files"))
        parts = ["spec_id", *(["partition"] if "partition" in files.columns else [])]
        deletes = store.spark.table(store.sql_name(table.shape.table, "delete_files"))
        hidden = (
            deletes.where(col("referenced_data_file").isNotNull())
            .groupBy(col("referenced_data_file").alias("file_path"))
            .agg(total("record_count").alias("hidden"))
        )
        found = files.select("file_path", "file_size_in_bytes", "record_count", *parts).join(
            hidden, "file_path", "left"
        )
        holey = col("hidden") > HIDDEN * col("record_count")
        small = col("file_size_in_bytes") < int(SMALL * target_size(table))
        rows = found.select("file_path", holey.alias("holey"), small.alias("small"), *parts).where(
            "holey OR small"
        )
        from pyspark.sql import Window

        beside = count(lit(1)).over(Window.partitionBy(*parts))
        worth = rows.withColumn("beside", beside).where("holey OR beside > 1")
        return [row["file_path"] for row in worth.select("file_path").collect()]


def compact(
    store: Store, table: StoredTable, properties: Mapping[str, str], *, dry_run: bool = False
) -> Compacted:
    """Rewrite what is scattered, in one commit that only moves rows; none where nothing is.

    A dry run takes it that a file of each folder will be left. Raises TryAgain if another writer came first.
    What failed leaves nothing.
    """
    before = _files(table)
    locations = scattered(store, table)
    if dry_run or not locations:
        left = {each.rpartition("/")[0] for each in locations}
        return Compacted(before, before - len(locations) + len(left))
    with translate_faults(table.shape.table):
        transaction = table.begin()
        with discarding(table.iceberg) as written:
            done = rewrite(store, table, locations)
            written.extend(done.files)
            operation = stage_rewrite(transaction, done, {})
    made = finish(table.shape.table, transaction, operation, properties, written)
    return Compacted(before, before - len(done.tasks) + len(done.files), done.freed, made)


def _files(table: StoredTable) -> int:
    snapshot: Any = table.iceberg.currentSnapshot()
    return 0 if snapshot is None else int(snapshot.summary().get("total-data-files") or 0)
