"""Inspect datasets: manifest, schema, lints, head and newest rows.

Functions ending in `_here` read metadata and files. They raise Unreadable if only Spark can read them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa

from backstory.documents import DocumentPath
from backstory.doors.odf.columns import data_schema_of, declared_schema
from backstory.doors.odf.lints import Level, Lint, lints
from backstory.doors.odf.manifest.dataset import Dataset, DatasetSource, fold, read_manifests
from backstory.doors.odf.receipts import Head
from backstory.doors.odf.registry import KnownDataset, dataset_of, schema_document
from backstory.errors import UsageError
from backstory.formats.rows import arrow_type
from backstory.journal.chain import journal_in_files, walk
from backstory.model.instant import iso
from backstory.model.table import TableName
from backstory.stores.metadata.table_metadata import TableMetadata, Unreadable
from backstory.stores.metadata.table_rows import MOST_IN_ARROW, TableReader
from backstory.stores.port import TableLike
from backstory.strategies.events.terms import EventEncoding, Op


@dataclass(frozen=True, slots=True)
class Inspected:
    """A dataset, the lints of its manifest, and the state of its table (None before it is added)."""

    dataset: Dataset
    lints: list[Lint]
    table: str | None = None
    schema: Mapping[str, Any] | None = None
    head: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """All fields, as `--output json` prints them."""
        return {
            "dataset": self.dataset.name,
            "table": self.table,
            "folder": str(self.dataset.folder),
            "manifest": self.dataset.document,
            "schema": self.schema,
            "lints": [finding.to_dict() for finding in self.lints],
            "head": self.head,
        }


def inspect_table(dataset: KnownDataset[TableLike], lint: Callable[[], list[Lint]], head: Head) -> Inspected:
    """Combine a dataset with its lints and its head.

    If a query does not fit, the query's error is one of the lints.
    """
    try:
        findings = lint()
    except UsageError as wrong:
        error = Lint(wrong.code, Level.ERROR, wrong.message, None, remedy=wrong.remedy)
        findings = [error, *lints(dataset.dataset)]
    return Inspected(dataset.dataset, findings, str(dataset.name), _stored_schema(dataset), _head(head))


def unreadable_entry(name: TableName) -> dict[str, Any]:
    """The entry in `backstory list` for an unreadable table."""
    entry = dict.fromkeys(("dataset", "source", "merge", "pulled", "records", "blocks", "watermark"))
    return {**entry, "dataset": name.name, "merge": []}


def list_entry(dataset: KnownDataset[TableLike], head: Head) -> dict[str, Any]:
    """The entry in `backstory list` for a dataset."""
    definition = dataset.dataset
    return {
        "dataset": definition.name,
        "source": "polling" if definition.polling else "push" if definition.push else None,
        "merge": [source.merge.kind for _, source in definition.sources()],
        "pulled": iso(head.system_time) if head.system_time else None,
        "records": head.next_offset,
        "blocks": head.block.sequence + 1 if head.block else 0,
        "watermark": iso(head.watermark) if head.watermark else None,
    }


def inspect_file(path: Path) -> list[Inspected]:
    """The datasets of a file of manifests, without the warehouse.

    Raises UsageError for an invalid manifest.
    """
    inspections = []
    for document, snapshot in read_manifests(path):
        dataset = fold(snapshot, path.absolute().parent, known=True, written=document)
        inspections.append(Inspected(dataset, lints(dataset), schema=schema_document(dataset)))
    return inspections


def symbols(dataset: KnownDataset[TableLike]) -> dict[str, dict[Any, str]]:
    """The symbols of the operations, for each column with codes. The result may be empty."""
    if dataset.columns.encoding is not EventEncoding.OP:
        return {}
    return {dataset.columns.vocab.operation_type_column: {int(op): op.symbol for op in Op}}


def as_yaml(document: Mapping[str, Any]) -> str:
    """A JSON document as YAML, with the kind of each part first."""
    from ruamel.yaml import YAML

    sink = StringIO()
    yaml = YAML()
    yaml.width = 1 << 16
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(_kind_first(json.loads(json.dumps(document))), sink)
    return sink.getvalue()


def _kind_first(node: Any) -> Any:
    if isinstance(node, Mapping):
        names = sorted(node, key=lambda name: name != "kind")
        return {name: _kind_first(node[name]) for name in names}
    return [_kind_first(item) for item in node] if isinstance(node, list) else node


def _stored_schema(dataset: KnownDataset[TableLike]) -> Mapping[str, Any] | None:
    """The columns in the table's order or, before the first rows, the columns that the manifest sets."""
    if dataset.table is None or dataset.schema is None:
        return dataset.schema
    # Only the event time may be NULL among the system columns.
    fields = [
        field.with_nullable(field.name == dataset.columns.time) for field in dataset.columns.system_schema()
    ]
    shape = dataset.table.shape
    # Columns that another program added are only in the table.
    every = [*(pa.field(column.name, arrow_type(column.type)) for column in shape.columns), *fields]
    known = {field["name"]: field for field in data_schema_of(pa.schema(every))["fields"]}
    known |= {field["name"]: field for field in dataset.schema["fields"]}
    return {**dataset.schema, "fields": [known[name] for name in shape.names]}


def _head(head: Head) -> dict[str, Any] | None:
    """The newest commit's block and state, for display, or None if there is no commit."""
    if head.block is None:
        return None
    return {
        "sequence": head.block.sequence,
        "block": head.block.hash,
        "system_time": iso(head.block.system_time),
        "records": head.next_offset,
        "watermark": iso(head.watermark) if head.watermark else None,
        "source_state": head.event.get("source_state"),
    }


def dataset_here(files: TableReader) -> KnownDataset[TableMetadata]:
    """The dataset of a table. Raises Unreadable if the table is not a dataset."""
    dataset = dataset_of(files.table)
    if dataset is None:
        raise Unreadable("a table that is not a dataset")
    return dataset


def list_entry_here(files: TableReader) -> dict[str, Any]:
    """The entry in `backstory list` for a dataset."""
    return list_entry(dataset_here(files), Head(journal_in_files(files).newest()))


def newest_rows_here(files: TableReader, count: int, skip: int) -> pa.Table:
    """The newest `count` rows by offset, except the last `skip` rows, oldest first."""
    table, offset = files.table, dataset_here(files).columns.vocab.offset_column
    end = Head(journal_in_files(files).newest()).next_offset - skip
    rows = files.rows(table.snapshot, table.fields, table.shape.names, MOST_IN_ARROW)
    offsets = enumerate(rows[offset].to_pylist())
    selected = sorted(
        (number, place) for place, number in offsets if number is not None and end - count <= number < end
    )
    return rows.take(pa.array([place for _, place in selected], pa.int64()))


def inspect_here(files: TableReader, *, linted: bool) -> Inspected:
    """Inspect a dataset of the warehouse. Lints are omitted unless `linted` is set."""
    dataset = dataset_here(files)
    lint = partial(lints, dataset.dataset, partial(output_here, dataset)) if linted else list[Lint]
    return inspect_table(dataset, lint, Head(journal_in_files(files).newest()))


def output_here(dataset: KnownDataset[TableMetadata], _: DocumentPath, source: DatasetSource) -> None:
    """Return None, because the columns after preprocess are unknown.

    Raises Unreadable if Spark must analyse the query.
    """
    declared = declared_schema(source.read)
    known = declared is not None and declared.fields_
    if source.preprocess is not None and (known or not is_pulled_by(dataset)):
        raise Unreadable("a query of preprocess")


def is_pulled_by(dataset: KnownDataset[TableMetadata]) -> bool:
    """Whether the newest commit has this manifest.

    If so, the manifest's queries were checked for that commit.
    """
    table = dataset.table
    newest = None if table is None else next(walk(table), None)
    return newest is not None and newest.event.get("manifest_hash") == dataset.manifest_hash
