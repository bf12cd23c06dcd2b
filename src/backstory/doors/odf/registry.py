"""Which datasets a warehouse has: each is a table, whose properties hold its manifest."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from backstory.doors.odf.columns import ExpectedColumns, expected_of
from backstory.doors.odf.log_columns import LogColumns, log_columns
from backstory.doors.odf.manifest.dataset import Dataset, from_document, same_name
from backstory.doors.odf.manifest.merge import Append, Ledger
from backstory.errors import BackstoryError, UsageError
from backstory.journal.chain import canonical, sha3
from backstory.journal.log_table import log_of
from backstory.model.layout import Layout
from backstory.model.receipt import attempt_each
from backstory.model.table import TableName
from backstory.model.types import Kind
from backstory.reading.histories import SYSTEM_COLUMNS
from backstory.stores.iceberg.store import Store, StoredTable, load, tables
from backstory.stores.metadata.table_metadata import Catalog, TableMetadata
from backstory.stores.port import TableLike, require_columns

MANIFEST, FOLDER, SCHEMA = "backstory.odf.manifest", "backstory.odf.folder", "backstory.odf.schema"
Table = TypeVar("Table", bound=TableLike)
Told_co = TypeVar("Told_co", bound=TableLike, covariant=True)


@dataclass(frozen=True)  # no slots: a class that is called with its parameter notes this on what it makes
class KnownDataset(Generic[Told_co]):
    """A dataset and its table as it stands, whoever reads it; no table if it is not added yet."""

    dataset: Dataset
    name: TableName
    table: Told_co | None = None

    @property
    def columns(self) -> LogColumns:
        """The table's system columns."""
        return log_columns(self.dataset)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The columns as a DataSchema document; None before the first rows, unless they were set."""
        text = self.table.properties.get(SCHEMA) if self.table else None
        return json.loads(text) if text else schema_document(self.dataset)

    @property
    def expected_columns(self) -> ExpectedColumns | None:
        """The columns that a batch must have; None before the first rows, unless they were set."""
        columns = self.columns
        found = expected_of(self.schema, columns.system, columns.time)
        dated = self.is_dated
        return found if found is None or dated is None else replace(found, dated=dated)

    @property
    def is_dated(self) -> bool | None:
        """Whether the stored event times are days; None as long as there are none."""
        if self.table is None or not self.table.rows:
            return None
        time = self.table.shape.column(self.columns.time)
        return time is not None and time.type.kind is Kind.NAIVE_DATE

    @property
    def manifest_hash(self) -> str:
        """What tells the manifest from another."""
        return sha3(canonical(self.dataset.document))


RegisteredDataset: TypeAlias = KnownDataset[StoredTable]


def schema_document(dataset: Dataset) -> Mapping[str, Any] | None:
    """The columns that a manifest sets, as a document."""
    if dataset.schema is None:
        return None
    return dataset.schema.model_dump(mode="json", by_alias=True, exclude_unset=True)


def properties_of(dataset: Dataset) -> dict[str, str]:
    """What a table keeps of its manifest."""
    merges = [source.merge for _, source in dataset.sources()]
    told = {
        **log_columns(dataset).names,
        "events": all(isinstance(merge, Append | Ledger) for merge in merges),
    }
    return {
        MANIFEST: canonical(dataset.document),
        FOLDER: str(dataset.folder),
        SYSTEM_COLUMNS: json.dumps(told),
    }


@dataclass(frozen=True, slots=True)
class DatasetRegistry(Generic[Table]):
    """The datasets of a schema, in a catalog that tells its tables and describes each."""

    namespace: str
    tables: Callable[[], Iterable[TableName]]
    load: Callable[[TableName], Table | None]

    def find(self, name: str) -> KnownDataset[Table] | None:
        """The dataset of this name, whatever its case; None if the warehouse has none."""
        wanted = name.rpartition("/")[2]
        table = self.load(TableName(self.namespace, wanted))
        if table is None:
            other = next((each for each in self.tables() if same_name(each.name, wanted)), None)
            table = None if other is None else self.load(other)
        return None if table is None else dataset_of(table)

    def existing(self, name: str) -> KnownDataset[Table]:
        """The dataset of this name; UsageError if there is none."""
        found = self.find(name)
        if found is None:
            known = ", ".join(each.name.name for each in self.every()[:10]) or "none"
            raise UsageError(
                "no-dataset",
                f"There is no dataset {name} in {self.namespace}.",
                f"Add its manifest with `backstory add`; known datasets are: {known}.",
            )
        return found

    def every(self) -> list[KnownDataset[Table]]:
        """Every dataset, by name, whose metadata can be read."""
        return [each for each in self.all_or_errors().values() if isinstance(each, KnownDataset)]

    def all_or_errors(self) -> dict[TableName, KnownDataset[Table] | BackstoryError]:
        """Every dataset by its name, and for each table whose metadata cannot be read the error."""
        entries: dict[TableName, KnownDataset[Table] | BackstoryError | None] = attempt_each(
            self.tables(), self._load_dataset, every=True
        )
        return {name: each for name, each in entries.items() if each is not None}

    def _load_dataset(self, name: TableName) -> KnownDataset[Table] | None:
        table = self.load(name)
        return None if table is None else dataset_of(table)

    def select_names(self, names: Iterable[str], *, every: bool = False) -> list[TableName]:
        """The datasets of these names, and all others behind them; UsageError for an unknown name."""
        found = [self.existing(name).name for name in names]
        return list(dict.fromkeys([*found, *(self.all_or_errors() if every else ())]))


def stored_datasets(store: Store, namespace: str) -> DatasetRegistry[StoredTable]:
    """The datasets of a schema as a store loads them."""
    return DatasetRegistry(namespace, partial(tables, store, namespace), partial(load, store))


def described_datasets(catalog: Catalog, namespace: str) -> DatasetRegistry[TableMetadata]:
    """The datasets of a schema as their metadata tell of them."""
    return DatasetRegistry(
        namespace, lambda: (each for each in catalog.tables() if each.schema == namespace), catalog.describe
    )


def refuse_taken(store: Store, name: TableName) -> None:
    """Raise UsageError for the name of a new dataset that another table has, or whose log's name one has.

    No dataset has a name like that of a log: names of datasets have no underscores.
    """
    for table in tables(store, name.schema):
        if same_name(table.name, name.name):
            raise _name_in_use(name, f"the table {table} exists and is not a dataset")
        if same_name(table.name, log_of(name).name):
            found = load(store, table)
            if found and found.shape.layout is not Layout.ODF_LOG:
                raise _name_in_use(name, f"its log would be {table}, which is another table")


def _name_in_use(name: TableName, why: str) -> UsageError:
    return UsageError("name-taken", f"A dataset cannot be called {name}: {why}.", "Give it another name.")


def dataset_of(table: Table) -> KnownDataset[Table] | None:
    """A table as the dataset that it is; None if it is another table."""
    properties = table.properties
    manifest = properties.get(MANIFEST)
    if manifest is None or table.shape.layout is not Layout.ODF:
        return None
    dataset = from_document(json.loads(manifest), Path(properties.get(FOLDER) or "."))
    return KnownDataset(dataset, table.shape.table, table)


def renamings(table: TableLike, manifest: Mapping[str, Any]) -> Mapping[str, str] | None:
    """The names that system columns had by a manifest, where they have others now.

    None if the table is no dataset, or the manifest is none: a forged one names other columns.
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


def reload(store: Store, name: TableName) -> RegisteredDataset:
    """The dataset that a table is, as it stands now."""
    table = load(store, name)
    found = None if table is None else dataset_of(table)
    if found is None:
        raise UsageError(
            "no-dataset", f"There is no dataset {name}.", "Add its manifest with `backstory add`."
        )
    if found.table is not None:
        require_columns(found.table, *found.columns.system)
    return found
