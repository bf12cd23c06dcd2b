"""Add a manifest: a new dataset gets its table, a known one what is new in its manifest (decision O22)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from backstory.doors.odf import registry
from backstory.doors.odf.arguments import check_manifest, is_same, read_datasets, refuse_repeated
from backstory.doors.odf.columns import batch_columns, expected_of
from backstory.doors.odf.data_types import arrow_schema, data_schema_of
from backstory.doors.odf.lints import Lint
from backstory.doors.odf.log_columns import log_columns
from backstory.doors.odf.manifest.data_schema import DataSchema
from backstory.doors.odf.manifest.dataset import Dataset, find_manifests
from backstory.doors.odf.manifest.merge import key_of
from backstory.doors.odf.preprocess import lint_dataset
from backstory.doors.odf.registry import SCHEMA, RegisteredDataset, properties_of
from backstory.engine.deliver import TableChange, deliver_once
from backstory.errors import BackstoryError, UsageError
from backstory.journal.chain import canonical
from backstory.journal.log_table import DOOR
from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.receipt import Receipt
from backstory.model.table import Shape
from backstory.stores.iceberg.spark_types import columns_from
from backstory.stores.iceberg.store import Store, StoredTable, load

Status = Literal["added", "updated", "unchanged", "failed"]


@dataclass(frozen=True, slots=True, repr=False)
class Added(Receipt):
    """A manifest that was added, and what the lints say of it; its name is None if not even that is known."""

    dataset: str | None
    file: Path | None
    status: Status
    lints: tuple[Lint, ...] = ()
    error: BackstoryError | None = None


def add(store: Store, namespace: str, path: Path, *, dry_run: bool = False) -> list[Added]:
    """Add every manifest of a file, or of a folder and those in it; UsageError for a wrong one."""
    files = find_manifests(path) if path.is_dir() else [path]
    found = [
        each
        for file in files
        for each in read_datasets(registry.stored_datasets(store, namespace), file, recursive=path.is_dir())
    ]
    refuse_repeated(found)
    return [add_one(store, each, dry_run=dry_run) for each in found]


def add_each(store: Store, namespace: str, paths: Iterable[Path], *, dry_run: bool = False) -> list[Added]:
    """Add the manifests of files and folders; one that is wrong fails alone, and the others are added."""
    found: list[Added] = []
    first: dict[str, Dataset] = {}
    for path in paths:
        try:
            files = find_manifests(path) if path.is_dir() else [path]
        except BackstoryError as error:
            found.append(Added(None, path, "failed", error=error))
            continue
        for file in files:
            found += _of_file(store, namespace, file, first, recursive=path.is_dir(), dry_run=dry_run)
    return found


def _of_file(
    store: Store, namespace: str, file: Path, first: dict[str, Dataset], *, recursive: bool, dry_run: bool
) -> list[Added]:
    found: list[Added] = []
    name = None
    try:
        for each in read_datasets(registry.stored_datasets(store, namespace), file, recursive=recursive):
            name = each.dataset.name
            refuse_repeated([each], first)
            found.append(replace(add_one(store, each, dry_run=dry_run), file=file))
    except BackstoryError as error:
        found.append(Added(name, file, "failed", error=error))
    return found


def add_one(store: Store, wanted: RegisteredDataset, *, dry_run: bool = False) -> Added:
    """Create the dataset's table, or bring what is new in its manifest to the table.

    Raises UsageError for what the lints call an error, for a query that does not fit the declared columns,
    and for a change that would give stored rows another meaning.
    """
    dataset = wanted.dataset
    told = check_manifest(dataset, partial(lint_dataset, store, wanted))
    if wanted.table is None:
        try:
            registry.refuse_taken(store, wanted.name)
            _create(store, wanted, dry_run=dry_run)
        except BackstoryError:
            meanwhile = load(store, wanted.name)  # another process may have added it since it was looked for
            if meanwhile is None or registry.dataset_of(meanwhile) is None:
                raise
            return add_one(store, replace(wanted, table=meanwhile), dry_run=dry_run)
        return Added(dataset.name, None, "added", told)
    before = registry.dataset_of(wanted.table)
    assert before is not None
    if is_same(before.dataset, dataset):
        return Added(dataset.name, None, "unchanged", told)
    _refuse_other_meaning(before, dataset)
    properties = properties_of(dataset)
    schema = _extended_schema(before, wanted)
    if schema is not None:
        properties[SCHEMA] = canonical(schema)
    table, change = _change_of_manifest(before, wanted, properties, schema)
    _deliver(store, wanted, table, change, dry_run=dry_run)
    return Added(dataset.name, None, "updated", told)


def _create(store: Store, wanted: RegisteredDataset, *, dry_run: bool) -> None:
    dataset, columns = wanted.dataset, log_columns(wanted.dataset)
    document = wanted.schema
    expected = expected_of(document, columns.system, columns.time)
    fields = columns.schema(expected.fields if expected else [], dated=bool(expected and expected.dated))
    more = {SCHEMA: canonical(document)} if document else {}
    shape = Shape(wanted.name, columns_from(fields), _key(dataset), Layout.ODF)
    change = Change(into=shape, properties=properties_of(dataset) | more)
    _deliver(store, wanted, None, change, dry_run=dry_run)


def _change_of_manifest(
    before: RegisteredDataset, wanted: RegisteredDataset, properties: Mapping[str, str], schema: Any
) -> tuple[StoredTable, Change]:
    """A dataset's table, and the change of its columns and properties for another manifest."""
    from pyspark.sql.types import StructType

    assert before.table is not None
    old, new = before.columns, log_columns(wanted.dataset)
    expected = expected_of(schema or before.schema, new.system, new.time)
    shape = replace(before.table.shape, key=_key(wanted.dataset))
    if old.encoding is not new.encoding:  # there are no rows, and other system columns
        anew = new.schema(expected.fields if expected else [], dated=bool(expected and expected.dated))
        into = replace(shape, columns=columns_from(anew))
        return before.table, Change(into=into, properties=properties)
    renamed = {a: b for a, b in zip(old.system, new.system, strict=True) if a != b}
    kept = [replace(each, name=renamed.get(each.name, each.name)) for each in shape.columns]
    fields = [each for each in (expected.fields if expected else ()) if shape.column(each.name) is None]
    into = replace(shape, columns=(*kept, *columns_from(StructType(fields))))
    return before.table, Change(into=into, renamed=renamed, properties=properties)


def _deliver(
    store: Store, wanted: RegisteredDataset, table: StoredTable | None, change: Change, *, dry_run: bool
) -> None:
    """The manifest was read against this table: another writer's change is told, and not tried again."""
    note = Note(DOOR, wanted.manifest_hash)
    deliver_once(store, TableChange([wanted.name], note, lambda: (table, change), dry_run))


def _key(dataset: Dataset) -> tuple[str, ...]:
    sources = [source for _, source in dataset.sources()]
    return tuple(key_of(sources[0].merge)) if sources else ()


def _refuse_other_meaning(before: RegisteredDataset, dataset: Dataset) -> None:
    """What is stored keeps its meaning: strategy, key and encoding of a dataset with rows stay."""
    assert before.table is not None
    if not before.table.rows:
        return
    old = {(type(s.merge).__name__, key_of(s.merge)) for _, s in before.dataset.sources()}
    new = {(type(s.merge).__name__, key_of(s.merge)) for _, s in dataset.sources()}
    other = log_columns(before.dataset).encoding is not log_columns(dataset).encoding
    data = {each["name"] for each in (before.schema or {}).get("fields", ())} - {*before.columns.system}
    taken = sorted(data & {*log_columns(dataset).system})
    if taken:
        raise _incompatible_error(dataset, f"uses the column {taken[0]} as a system column")
    if other or (new and old and not new & old):
        raise UsageError(
            "other-meaning",
            f"The manifest of {dataset.name} changes the strategy, key or encoding of a dataset that has "
            "rows.",
            "Add it under another dataset name.",
        )


def _extended_schema(before: RegisteredDataset, wanted: RegisteredDataset) -> Mapping[str, Any] | None:
    """The dataset's columns with the optional ones that are new; None if nothing is new.

    Raises UsageError for a column that is gone, renamed, retyped, or new and required (section 2.8).
    """
    known = before.schema
    told = _manifest_schema(wanted.dataset)
    if known is None:
        return told if wanted.dataset.schema is not None else None
    names = dict(zip(before.columns.vocabulary, wanted.columns.vocabulary, strict=True))
    fields: list[Mapping[str, Any]] = [
        {**each, "name": names.get(each["name"], each["name"])} for each in known["fields"]
    ]
    if told is not None:
        fields += _additions(before, wanted, known, told)
    return {**known, "fields": fields} if fields != known["fields"] else None


def _additions(
    before: RegisteredDataset, wanted: RegisteredDataset, known: Mapping[str, Any], told: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """The new columns of what a manifest tells."""
    system = {*before.columns.system, *wanted.columns.system}
    old = {each["name"]: each["type"] for each in known["fields"] if each["name"] not in system}
    new = {each["name"]: each["type"] for each in told["fields"] if each["name"] not in system}
    gone = [name for name in old if name not in new]
    if gone:
        raise _incompatible_error(wanted.dataset, f"leaves out the column {gone[0]}")
    retyped = [name for name in old if old[name] != new[name]]
    days, time = before.is_dated, wanted.columns.time
    expected = expected_of(told, wanted.columns.system, time)
    if expected and None not in {days, expected.dated} and days is not expected.dated:
        retyped.append(time)
    if retyped:
        raise _incompatible_error(wanted.dataset, f"changes the type of the column {retyped[0]}")
    required = [name for name in new if name not in old and new[name].get("kind") != "Option"]
    if required:
        raise _incompatible_error(wanted.dataset, f"adds the required column {required[0]}")
    return [each for each in told["fields"] if each["name"] in new and each["name"] not in old]


def _manifest_schema(dataset: Dataset) -> Mapping[str, Any] | None:
    """The columns that a manifest says that the dataset has, in full types."""
    if dataset.schema is not None:
        return _in_full(dataset.schema)
    for _, source in dataset.sources():
        found = batch_columns(dataset, source, None)
        if found is not None:
            return data_schema_of(found.schema)
    return None


def _in_full(schema: DataSchema) -> Mapping[str, Any]:
    return data_schema_of(arrow_schema(schema))


def _incompatible_error(dataset: Dataset, what: str) -> UsageError:
    return UsageError(
        "incompatible-schema",
        f"The manifest of {dataset.name} {what}.",
        "Only optional columns can be added; for another schema use another dataset name.",
    )
