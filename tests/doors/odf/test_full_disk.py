"""If the disk is full, one dataset fails temporarily, and the others continue (decision O15, E1)."""

import errno
import gzip
import os
import tempfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, s

from backstory.doors.odf import door
from backstory.engine import staging
from backstory.model.receipt import exit_code
from backstory.sources.savepoint import unwritable

URL = "{kind: url, url: data.%s}"
CSV = "{kind: csv, header: true}"
GZIP = "[{kind: decompress, format: gzip}]"


@pytest.fixture
def dataset(store, tmp_path):
    return lambda name, **parts: Dataset(
        store, tmp_path / name, "{kind: append}", namespace="odf_full", name=name, **parts
    )


@pytest.fixture
def full(monkeypatch):
    """Temporary folders in which this file name is on a full device."""

    def folder(name, **options):
        made = real(**options)
        Path(made.name, name).symlink_to("/dev/full")
        return made

    real = tempfile.TemporaryDirectory
    return lambda name: monkeypatch.setattr("tempfile.TemporaryDirectory", partial(folder, name))


@pytest.mark.parametrize("file", ["step-1", "rows.parquet"])
def test_a_full_disk_fails_one_dataset_temporarily(store, dataset, full, file, monkeypatch):
    """Unpacking and staging both fail temporarily, and nothing of the dataset is written."""
    monkeypatch.setattr(staging, "FEW_ROWS", 0)
    packed = dataset(f"packed-{file}", fetch=URL % "csv.gz", read=CSV, prepare=GZIP)
    plain = dataset(f"plain-{file}", fetch=URL % "parquet", read="{kind: parquet}")
    for each in (packed, plain):
        each.add()
    (packed.folder / "data.csv.gz").write_bytes(gzip.compress(b"city\nA\n"))
    pq.write_table(pa.table({"city": ["A"]}), plain.folder / "data.parquet")
    full(file)

    with packed.unchanged():
        receipts = door.pull_all(
            store, [packed.name, plain.name], door.IngestRequest(s(1)), namespace="odf_full"
        )

    packed.error(receipts[0], "disk-full", 75)
    assert receipts[1].status == "updated"
    assert exit_code(receipts) == 75


def test_a_download_to_a_full_disk_fails_temporarily():
    """Other faults of the cache folder are permanent."""
    assert unwritable(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))).exit_code == 75
    assert unwritable(OSError(errno.EACCES, os.strerror(errno.EACCES))).exit_code == 1
