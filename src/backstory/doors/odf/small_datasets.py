"""Small datasets read from files and metadata, without Spark: the same answers, or Unreadable."""

from functools import partial
from typing import Any

import pyarrow as pa

from backstory.documents import DocumentPath
from backstory.doors.odf.data_types import declared_schema
from backstory.doors.odf.dataset import Source
from backstory.doors.odf.inspecting import Inspected, in_a_row, inspected
from backstory.doors.odf.lints import Lint, lints_of
from backstory.doors.odf.registry import Known, registered
from backstory.doors.odf.work import Head
from backstory.journal.chain import read_blocks
from backstory.journal.log_table import newest_block_in_files, snapshots_in_files
from backstory.stores.metadata.described import Described
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import MOST_IN_ARROW, Files
from backstory.stores.metadata.values import integers


def dataset_here(files: Files) -> Known[Described]:
    """The dataset that a table is; Unreadable for another table."""
    found = registered(files.table)
    if found is None:
        raise Unreadable("a table that is not a dataset")
    return found


def in_a_row_here(files: Files) -> dict[str, Any]:
    """A dataset as `backstory list` tells it."""
    return in_a_row(dataset_here(files), Head(newest_block_in_files(files)))


def newest_rows_here(files: Files, count: int, skip: int) -> pa.Table:
    """The newest rows without the very newest `skip`, by their offsets, oldest first."""
    table, offset = files.table, dataset_here(files).columns.vocab.offset_column
    end = Head(newest_block_in_files(files)).next_offset - skip
    rows = files.rows(table.snapshot, table.fields, table.shape.names, MOST_IN_ARROW)
    offsets = enumerate(rows[offset].to_pylist())
    found = sorted((each, place) for place, each in offsets if each is not None and end - count <= each < end)
    return rows.take(integers([place for _, place in found]))


def inspected_here(files: Files, *, linted: bool) -> Inspected:
    """A dataset of the warehouse; `linted` says whether anybody asks what is odd in its manifest."""
    dataset = dataset_here(files)
    lint = partial(lints_of, dataset.dataset, partial(output_here, dataset)) if linted else list[Lint]
    return inspected(dataset, lint, Head(newest_block_in_files(files)))


def output_here(dataset: Known[Described], _: DocumentPath, source: Source) -> None:
    """The columns after preprocess, where nobody knows them; Unreadable where Spark looks at the query."""
    declared = declared_schema(source.read)
    known = declared is not None and declared.fields_
    if source.preprocess is not None and (known or not is_pulled_by(dataset)):
        raise Unreadable("a query of preprocess")


def is_pulled_by(dataset: Known[Described]) -> bool:
    """Whether the newest commit was made under this very manifest, whose queries were looked at then."""
    table = dataset.table
    newest = None if table is None else next(read_blocks(snapshots_in_files(table)), None)
    return newest is not None and newest.event.get("manifest_hash") == dataset.manifest_hash
