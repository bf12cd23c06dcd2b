"""What there is to know of a dataset: its manifest, schema, lints and head; and its newest rows."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from backstory.doors.odf.data_types import data_schema_of
from backstory.doors.odf.dataset import Dataset, fold
from backstory.doors.odf.lints import Level, Lint, lints
from backstory.doors.odf.manifests import read_manifests, resolved
from backstory.doors.odf.registry import Known, Registered, schema_document
from backstory.doors.odf.work import Head, head_of
from backstory.errors import UsageError
from backstory.model.instant import iso
from backstory.model.table import TableName
from backstory.stores.iceberg.literals import quoted
from backstory.stores.iceberg.store import Store
from backstory.stores.port import ToldTable
from backstory.strategies.events.terms import EventEncoding, Op

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Inspected:
    """A dataset and the lints of its manifest; the rest is None where there is none yet."""

    dataset: Dataset
    lints: list[Lint]
    table: str | None = None
    schema: Mapping[str, Any] | None = None
    head: Mapping[str, Any] | None = None

    @property
    def resolved(self) -> dict[str, Any]:
        """The manifest with every default."""
        return resolved(self.dataset)

    def to_dict(self) -> dict[str, Any]:
        """All of it, as `--output json` prints it."""
        return {
            "dataset": self.dataset.name,
            "table": self.table,
            "folder": str(self.dataset.folder),
            "manifest": self.dataset.document,
            "schema": self.schema,
            "lints": [each.to_dict() for each in self.lints],
            "head": self.head,
        }


def inspect_dataset(store: Store, dataset: Registered) -> Inspected:
    """A dataset of the warehouse."""
    from backstory.doors.odf.foreseeing import foreseen

    return inspected(dataset, partial(foreseen, store, dataset), head_of(store, dataset))


def inspected(dataset: Known[ToldTable], lint: Callable[[], list[Lint]], head: Head) -> Inspected:
    """A dataset with what is odd in its manifest and what its newest commit says, whoever read them."""
    found = _foreseen(dataset, lint)
    return Inspected(dataset.dataset, found, str(dataset.name), _stored_schema(dataset), _head(head))


def unread(name: TableName) -> dict[str, Any]:
    """A table of the schema of datasets that cannot be read, as `backstory list` tells it."""
    told = dict.fromkeys(("dataset", "source", "merge", "pulled", "records", "blocks", "watermark"))
    return {**told, "dataset": name.name, "merge": []}


def in_a_row(dataset: Known[ToldTable], head: Head) -> dict[str, Any]:
    """A dataset as `backstory list` tells it."""
    told = dataset.dataset
    return {
        "dataset": told.name,
        "source": "polling" if told.polling else "push" if told.push else None,
        "merge": [source.merge.kind for _, source in told.sources()],
        "pulled": iso(head.system_time) if head.system_time else None,
        "records": head.next_offset,
        "blocks": head.block.sequence + 1 if head.block else 0,
        "watermark": iso(head.watermark) if head.watermark else None,
    }


def inspected_file(path: Path) -> list[Inspected]:
    """The datasets of a file of manifests; the warehouse is not asked. UsageError for a wrong manifest."""
    found = []
    for document, snapshot in read_manifests(path):
        dataset = fold(snapshot, path.absolute().parent, known=True, written=document)
        found.append(Inspected(dataset, lints(dataset), schema=schema_document(dataset)))
    return found


def _foreseen(dataset: Known[ToldTable], lint: Callable[[], list[Lint]]) -> list[Lint]:
    """What is odd in a manifest; a query that does not fit hides nothing else of the dataset."""
    try:
        return lint()
    except UsageError as wrong:
        return [
            Lint(wrong.code, Level.ERROR, wrong.message, None, remedy=wrong.remedy),
            *lints(dataset.dataset),
        ]


def newest_rows(store: Store, dataset: Registered, count: int, skip: int) -> "DataFrame":
    """The newest rows without the very newest `skip`, by their offsets, oldest first."""
    from pyspark.sql.functions import col

    assert dataset.table is not None
    rows = store.spark.table(store.sql_name(dataset.name))
    offset = col(quoted(dataset.columns.vocab.offset_column))
    end = head_of(store, dataset).next_offset - skip
    return rows.where((offset >= end - count) & (offset < end)).orderBy(offset)


def symbols(dataset: Known[ToldTable]) -> dict[str, dict[Any, str]]:
    """For the column of operations, if the table has one, the symbols of its codes."""
    if dataset.columns.encoding is not EventEncoding.OP:
        return {}
    return {dataset.columns.vocab.operation_type_column: {int(op): op.symbol for op in Op}}


def as_yaml(document: Mapping[str, Any]) -> str:
    """A document of JSON's types as YAML, the kind of each part first."""
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
    return [_kind_first(each) for each in node] if isinstance(node, list) else node


def _stored_schema(dataset: Known[ToldTable]) -> Mapping[str, Any] | None:
    """The columns of the table in its own order, once it has rows; else those that the manifest sets."""
    if dataset.table is None or dataset.schema is None:
        return dataset.schema
    own = {each["name"]: each for each in _system_fields(dataset)}
    told = {each["name"]: each for each in dataset.schema["fields"]}
    names = [column.name for column in dataset.table.shape.columns]
    return {**dataset.schema, "fields": [told.get(name) or own[name] for name in names]}


def _system_fields(dataset: Known[ToldTable]) -> Any:
    """The system columns; only an event time may be NULL."""
    time = dataset.columns.time
    fields = [field.with_nullable(field.name == time) for field in dataset.columns.own()]
    return data_schema_of(pa.schema(fields))["fields"]


def _head(head: Head) -> dict[str, Any] | None:
    """What the newest commit says, for people who ask where the dataset stands."""
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
