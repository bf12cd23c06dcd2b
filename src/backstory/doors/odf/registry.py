"""The datasets of a warehouse. Each is a table whose properties contain its manifest."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from backstory.doors.odf.log_columns import LogColumns, log_columns
from backstory.doors.odf.manifest.dataset import Dataset, from_document, same_name
from backstory.doors.odf.manifest.merge import Append, Ledger
from backstory.errors import BackstoryError, UsageError
from backstory.journal.chain import canonical, log_of, sha3
from backstory.model.layout import Layout
from backstory.model.receipt import attempt_each
from backstory.model.table import TableName
from backstory.model.types import Kind
from backstory.reading.histories import SYSTEM_COLUMNS
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, load, tables
from backstory.stores.metadata.table_metadata import Catalog, TableMetadata
from backstory.stores.port import TableLike, require_columns

MANIFEST, FOLDER, SCHEMA = "backstory.odf.manifest", "backstory.odf.folder", "backstory.odf.schema"
Table = TypeVar("Table", bound=TableLike)
Table_co = TypeVar("Table_co", bound=TableLike, covariant=True)


@dataclass(frozen=True)  # no slots: calling `KnownDataset[T]` sets an attribute on the instance
class KnownDataset(Generic[Table_co]):
    """A dataset and its table, loaded by a store or a catalog.

    The table is None before the dataset is added.
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

        They are None before the first rows, unless the manifest sets them.
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
    """The datasets of a schema. It is made from functions that list the schema's tables and load one."""

    namespace: str
    tables: Callable[[], Iterable[TableName]]
    load: Callable[[TableName], Table | None]

    def find(self, name: str) -> KnownDataset[Table] | None:
        """The dataset with this name, ignoring case, or None if there is none."""
        wanted = name.rpartition("/")[2]
        table = self.load(TableName(self.namespace, wanted))
        if table is None:
            other = next(
                (table_name for table_name in self.tables() if same_name(table_name.name, wanted)), None
            )
            table = None if other is None else self.load(other)
        return None if table is None else dataset_of(table)

    def existing(self, name: str) -> KnownDataset[Table]:
        """The dataset with this name. Raises UsageError if there is none."""
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
            self.tables(), self._load_dataset, every=True
        )
        return {name: entry for name, entry in entries.items() if entry is not None}

    def _load_dataset(self, name: TableName) -> KnownDataset[Table] | None:
        table = self.load(name)
        return None if table is None else dataset_of(table)

    def select_names(self, names: Iterable[str], *, every: bool = False) -> list[TableName]:
        """The names of these datasets and, with `every`, then those of all others.

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
    """Raise UsageError if another table has the name of a new dataset, or the name of its log.

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


def dataset_of(table: Table) -> KnownDataset[Table] | None:
    """The dataset of a table, or None if the table is not a dataset."""
    properties = table.properties
    manifest = properties.get(MANIFEST)
    if manifest is None or table.shape.layout is not Layout.ODF:
        return None
    dataset = from_document(json.loads(manifest), Path(properties.get(FOLDER) or "."))
    return KnownDataset(dataset, table.shape.table, table)


def renamings(table: TableLike, manifest: Mapping[str, Any]) -> Mapping[str, str] | None:
    """A mapping of system columns' present names to their names in an older manifest.

    It contains only renamed columns. Returns None if the table is not a dataset, or if the manifest is
    invalid, e.g. forged.
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
    table = load(store, name)
    dataset = None if table is None else dataset_of(table)
    if dataset is None:
        raise UsageError(
            "no-dataset", f"There is no dataset {name}.", "Add its manifest with `backstory add`."
        )
    if dataset.table is not None:
        require_columns(dataset.table, *dataset.columns.system)
    return dataset
