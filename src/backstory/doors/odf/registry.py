"""The datasets of a warehouse: tables whose properties contain their manifests, and their system columns.

Command arguments identify datasets by name or by manifest file.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from backstory.doors.odf.manifest.dataset import (
    ENDINGS,
    Dataset,
    find_manifests,
    fold,
    from_document,
    read_manifests,
    same_name,
)
from backstory.doors.odf.manifest.events import OBSERVED, Append, Ledger, SetVocab, encoding_of
from backstory.errors import BackstoryError, UsageError
from backstory.journal.chain import canonical, log_of, sha3
from backstory.model.layout import Layout
from backstory.model.receipt import attempt_each
from backstory.model.table import TableName
from backstory.model.types import Kind
from backstory.reading.questions import SYSTEM_COLUMNS
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, load, tables
from backstory.stores.metadata.table_metadata import Catalog, TableMetadata
from backstory.stores.port import TableLike, require_columns
from backstory.strategies.events.sides import OP, TIME, data_names
from backstory.strategies.events.terms import LETTERS, EventEncoding, Op

INSTANT: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class LogColumns:
    """The names of a table's system columns, and the encoding of its operations."""

    vocab: SetVocab
    encoding: EventEncoding | None

    @property
    def time(self) -> str:
        """The name of the event-time column."""
        return self.vocab.event_time_column

    @property
    def names(self) -> dict[str, str | None]:
        """The system columns' names by role, in order, with None for a role that the table lacks."""
        vocab = self.vocab
        return {
            "offset": vocab.offset_column,
            "op": vocab.operation_type_column if self.encoding is EventEncoding.OP else None,
            "system_time": vocab.system_time_column,
            "event_time": vocab.event_time_column,
            "observed": OBSERVED if self.encoding is EventEncoding.OBSERVED else None,
        }

    @property
    def system(self) -> list[str]:
        """The names of the system columns, in order."""
        return [name for name in self.names.values() if name is not None]

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The names of all system columns in the manifest's vocabulary."""
        return tuple(getattr(self.vocab, name) for name in SetVocab.model_fields if name != "kind")

    def system_schema(self, *, dated: bool = False) -> pa.Schema:
        """The system columns with their types. If `dated`, the event time is a day instead of an instant."""
        vocab = self.vocab
        types = {
            vocab.offset_column: pa.int64(),
            vocab.operation_type_column: pa.int32(),
            vocab.system_time_column: INSTANT,
            vocab.event_time_column: pa.date32() if dated else INSTANT,
            OBSERVED: pa.string(),
        }
        return pa.schema([(name, types[name]) for name in self.system])

    def stored_rows(self, events: pa.Table, system_time: datetime, start: int) -> pa.Table:
        """Events, in order, as rows of the table, with offsets from `start` on."""
        size = len(events)
        letters = [LETTERS.get(op) for op in Op]
        values = {
            self.vocab.offset_column: pa.array(np.arange(start, start + size)),
            self.vocab.operation_type_column: events[OP],
            self.vocab.system_time_column: pa.repeat(pa.scalar(system_time, INSTANT), size),
            self.time: events[TIME],
            OBSERVED: pa.array(letters, pa.string()).take(events[OP]),
        }
        system, data = self.system, data_names(events)
        return pa.table(
            [*(values[name] for name in system), *(events[name] for name in data)], names=[*system, *data]
        )


def log_columns(dataset: Dataset) -> LogColumns:
    """The system columns of a dataset. All its sources have the same encoding."""
    encodings = {encoding_of(source.merge) for _, source in dataset.sources()} - {None}
    return LogColumns(dataset.vocab, next(iter(encodings), None))


MANIFEST, FOLDER, SCHEMA = "backstory.odf.manifest", "backstory.odf.folder", "backstory.odf.schema"
Table = TypeVar("Table", bound=TableLike)
Table_co = TypeVar("Table_co", bound=TableLike, covariant=True)


@dataclass(frozen=True)  # no slots: calling `KnownDataset[T]` sets an attribute on the instance
class KnownDataset(Generic[Table_co]):
    """A dataset and its table, which a store or a catalog loaded.

    Before the dataset is added, it has no table.
    """

    dataset: Dataset
    name: TableName
    table: Table_co | None = None

    @property
    def columns(self) -> LogColumns:
        """The names of the table's system columns."""
        return log_columns(self.dataset)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The columns as a DataSchema document.

        Returns None before the first rows, unless the manifest sets the columns.
        """
        text = self.table.properties.get(SCHEMA) if self.table else None
        return json.loads(text) if text else schema_document(self.dataset)

    @property
    def is_dated(self) -> bool | None:
        """Whether the stored event times are days, or None if there are no rows."""
        if self.table is None or not self.table.rows:
            return None
        time = self.table.shape.column(self.columns.time)
        return time is not None and time.type.kind is Kind.NAIVE_DATE

    @property
    def manifest_hash(self) -> str:
        """The hash of the manifest."""
        return sha3(canonical(self.dataset.document))


RegisteredDataset: TypeAlias = KnownDataset[IcebergTable]


def schema_document(dataset: Dataset) -> Mapping[str, Any] | None:
    """The columns that a manifest sets, as a DataSchema document, or None if it sets no columns."""
    if dataset.schema is None:
        return None
    return dataset.schema.model_dump(mode="json", by_alias=True, exclude_unset=True)


def properties_of(dataset: Dataset) -> dict[str, str]:
    """The table properties that store a manifest."""
    merges = [source.merge for _, source in dataset.sources()]
    columns = {
        **log_columns(dataset).names,
        "events": all(isinstance(merge, Append | Ledger) for merge in merges),
    }
    return {
        MANIFEST: canonical(dataset.document),
        FOLDER: str(dataset.folder),
        SYSTEM_COLUMNS: json.dumps(columns),
    }


@dataclass(frozen=True, slots=True)
class DatasetRegistry(Generic[Table]):
    """The datasets of a schema.

    The registry uses a function that lists the schema's tables and a function that loads a table.
    """

    namespace: str
    tables: Callable[[], Iterable[TableName]]
    load: Callable[[TableName], Table | None]

    def find(self, name: str) -> KnownDataset[Table] | None:
        """The dataset with this name, ignoring case, or None if no dataset has it."""
        wanted = name.rpartition("/")[2]
        table = self.load(TableName(self.namespace, wanted))
        if table is None:
            others = (table_name for table_name in self.tables() if same_name(table_name.name, wanted))
            other = next(others, None)
            table = None if other is None else self.load(other)
        return dataset_of(table)

    def existing(self, name: str) -> KnownDataset[Table]:
        """The dataset with this name. Raises UsageError if no dataset has it."""
        dataset = self.find(name)
        if dataset is None:
            known = ", ".join(known_dataset.name.name for known_dataset in self.every()[:10]) or "none"
            raise UsageError(
                "no-dataset",
                f"There is no dataset {name} in {self.namespace}.",
                f"Add its manifest with `backstory add`; known datasets are: {known}.",
            )
        return dataset

    def every(self) -> list[KnownDataset[Table]]:
        """Every dataset with readable metadata, sorted by name."""
        return [entry for entry in self.all_or_errors().values() if isinstance(entry, KnownDataset)]

    def all_or_errors(self) -> dict[TableName, KnownDataset[Table] | BackstoryError]:
        """Every dataset by name. For a table with unreadable metadata, the value is the error."""
        entries: dict[TableName, KnownDataset[Table] | BackstoryError | None] = attempt_each(
            self.tables(), lambda name: dataset_of(self.load(name)), every=True
        )
        return {name: entry for name, entry in entries.items() if entry is not None}

    def select_names(self, names: Iterable[str], *, every: bool = False) -> list[TableName]:
        """The given names of datasets, followed by the names of all other datasets if `every` is set.

        Raises UsageError for an unknown name.
        """
        selected = [self.existing(name).name for name in names]
        return list(dict.fromkeys([*selected, *(self.all_or_errors() if every else ())]))


def stored_datasets(store: IcebergStore, namespace: str) -> DatasetRegistry[IcebergTable]:
    """The datasets of a schema, loaded by a store."""
    return DatasetRegistry(namespace, partial(tables, store, namespace), partial(load, store))


def described_datasets(catalog: Catalog, namespace: str) -> DatasetRegistry[TableMetadata]:
    """The datasets of a schema, according to a catalog's metadata."""
    return DatasetRegistry(
        namespace,
        lambda: (table for table in catalog.tables() if table.schema == namespace),
        catalog.describe,
    )


def refuse_taken(store: IcebergStore, name: TableName) -> None:
    """Raise UsageError if another table has the name of a new dataset or of its log.

    A log never has the name of a dataset, because names of datasets contain no underscores.
    """
    for table in tables(store, name.schema):
        if same_name(table.name, name.name):
            raise _name_in_use(name, f"the table {table} exists and is not a dataset")
        if same_name(table.name, log_of(name).name):
            other = load(store, table)
            if other and other.shape.layout is not Layout.ODF_LOG:
                raise _name_in_use(name, f"its log would be {table}, which is another table")


def _name_in_use(name: TableName, why: str) -> UsageError:
    return UsageError("name-taken", f"A dataset cannot be called {name}: {why}.", "Give it another name.")


def dataset_of(table: Table | None) -> KnownDataset[Table] | None:
    """The dataset of a table, or None if there is no table, or if the table is not a dataset."""
    manifest = None if table is None else table.properties.get(MANIFEST)
    if table is None or manifest is None or table.shape.layout is not Layout.ODF:
        return None
    dataset = from_document(json.loads(manifest), Path(table.properties.get(FOLDER) or "."))
    return KnownDataset(dataset, table.shape.table, table)


def renamings(table: TableLike, manifest: Mapping[str, Any]) -> Mapping[str, str] | None:
    """A mapping of system columns' present names to their names in an older manifest.

    The mapping contains only renamed columns, and is empty if the encodings differ. Returns None if the table
    is not a dataset, or if the manifest is invalid, e.g. forged.
    """
    now = dataset_of(table)
    if now is None:
        return None
    try:
        then = log_columns(from_document(manifest, Path()))
    except (UsageError, KeyError, TypeError):
        return None
    if then.encoding is not now.columns.encoding:
        return {}
    return {new: old for new, old in zip(now.columns.system, then.system, strict=False) if new != old}


def reload(store: IcebergStore, name: TableName) -> RegisteredDataset:
    """Load the dataset of a table again."""
    dataset = dataset_of(load(store, name))
    if dataset is None:
        raise UsageError(
            "no-dataset", f"There is no dataset {name}.", "Add its manifest with `backstory add`."
        )
    if dataset.table is not None:
        require_columns(dataset.table, *dataset.columns.system)
    return dataset


# A dataset's name or a path as a string, a path, or the table of a dataset.
Argument = str | Path | TableName
NAMED: Final = ("content", "name")


def is_file(one: str | Path) -> bool:
    """Whether an argument is a file of manifests instead of the name of a dataset."""
    path = Path(one)
    return isinstance(one, Path) or path.suffix.lower() in ENDINGS or path.is_file()


def require_some(wanted: Sequence[Argument], *, every: bool) -> None:
    """Raise UsageError if there are no arguments, unless `every` is set."""
    if not wanted and not every:
        raise UsageError(
            "no-dataset", "No dataset is named.", "Name datasets or manifests, or use `all=True`."
        )


def find_datasets(datasets: DatasetRegistry[Table], wanted: Iterable[Argument]) -> list[KnownDataset[Table]]:
    """The datasets that files, folders and names refer to, without repeats.

    Raises UsageError for any other argument.
    """
    datasets_read = [dataset for argument in wanted for dataset in _datasets_of(datasets, argument)]
    refuse_repeated(dataset for dataset in datasets_read if dataset.dataset.written is not None)
    return list({dataset.name: dataset for dataset in datasets_read}.values())


def _datasets_of(datasets: DatasetRegistry[Table], argument: Argument) -> list[KnownDataset[Table]]:
    if isinstance(argument, TableName):
        return [datasets.existing(argument.name)]
    path = Path(argument)
    if path.is_dir() and (isinstance(argument, Path) or argument.endswith("/")):
        return [
            dataset
            for file in find_manifests(path)
            for dataset in read_datasets(datasets, file, recursive=True)
        ]
    return read_datasets(datasets, path) if is_file(argument) else [datasets.existing(str(argument))]


def read_datasets(
    datasets: DatasetRegistry[Table], path: Path, *, recursive: bool = False
) -> list[KnownDataset[Table]]:
    """The datasets of a file, as they will be once the file is added.

    Raises UsageError if two manifests are for the same dataset.
    """
    datasets_read = []
    for document, snapshot in read_manifests(path, recursive=recursive):
        known = datasets.find(snapshot.content.name)
        dataset = fold(snapshot, path.absolute().parent, known=known is not None, written=document)
        name = known.name if known else TableName(datasets.namespace, dataset.name)
        datasets_read.append(KnownDataset(dataset, name, known.table if known else None))
    refuse_repeated(datasets_read)
    return datasets_read


def refuse_repeated(
    datasets: Iterable[KnownDataset[TableLike]], first: dict[str, Dataset] | None = None
) -> None:
    """Raise UsageError for a second manifest of a dataset.

    Names are compared without case (R7). `first` has the first manifest of each earlier name, and the new
    manifests are added to `first`. The same manifest may occur twice, once in a folder and once under its own
    path.
    """
    first = {} if first is None else first
    for known in datasets:
        dataset = known.dataset
        other = first.setdefault(dataset.name.lower(), dataset)
        if _origin(dataset) != _origin(other):
            raise UsageError(
                "repeated-name",
                f"{dataset.place(NAMED)}: the dataset {dataset.name} is already defined in "
                f"{other.place(NAMED)}.",
                "Give one of them another name.",
            )


def _origin(dataset: Dataset) -> tuple[Path, str, int | None]:
    """The folder, file name and line of a manifest, however its path was written."""
    name = dataset.written.name if dataset.written else ""
    return dataset.folder.resolve(), Path(name).name, dataset.line(NAMED)
