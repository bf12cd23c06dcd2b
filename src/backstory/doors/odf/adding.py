"""Add manifests: create the tables of new datasets, and apply changed manifests to tables (decision O22)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from backstory.doors.odf import registry
from backstory.doors.odf.batch import expected_of
from backstory.doors.odf.columns import arrow_schema, batch_columns, data_schema_of
from backstory.doors.odf.manifest.dataset import Dataset, find_manifests
from backstory.doors.odf.manifest.events import Append, key_of, meaning_of
from backstory.doors.odf.polling import check_manifest
from backstory.doors.odf.preprocess import lint_dataset
from backstory.doors.odf.receipts import Added
from backstory.doors.odf.registry import (
    SCHEMA,
    RegisteredDataset,
    log_columns,
    properties_of,
    read_datasets,
    refuse_repeated,
)
from backstory.doors.odf.sides import log_schema
from backstory.engine.deliver import commit_change
from backstory.errors import BackstoryError, UsageError
from backstory.journal.chain import DOOR, canonical
from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape
from backstory.stores.iceberg.schema import columns_from
from backstory.stores.iceberg.store import IcebergStore, load


def add_each(
    store: IcebergStore, namespace: str, paths: Iterable[Path], *, dry_run: bool = False
) -> list[Added]:
    """Add the manifests of files and folders.

    If a manifest is invalid, its receipt has the error, and the other manifests are added.
    """
    receipts: list[Added] = []
    first: dict[str, Dataset] = {}
    datasets = registry.stored_datasets(store, namespace)
    for path in paths:
        for file in find_manifests(path) if path.is_dir() else [path]:
            name = None
            try:
                for dataset in read_datasets(datasets, file, recursive=path.is_dir()):
                    name = dataset.dataset.name
                    refuse_repeated([dataset], first)
                    receipts.append(replace(add_one(store, dataset, dry_run=dry_run), file=file))
            except BackstoryError as error:
                receipts.append(Added(name, file, "failed", error=error))
    return receipts


def add_one(store: IcebergStore, wanted: RegisteredDataset, *, dry_run: bool = False) -> Added:
    """Create the dataset's table, or apply its changed manifest to the table.

    Raises UsageError for lints that are errors, and for a query that does not fit the declared columns. Also
    raises UsageError if the manifest would change the meaning of stored rows.
    """
    dataset = wanted.dataset
    lints = check_manifest(dataset, lint_dataset(store, wanted))
    if wanted.table is None:
        try:
            registry.refuse_taken(store, wanted.name)
            _create(store, wanted, dry_run=dry_run)
        except BackstoryError:
            table_now = load(store, wanted.name)  # another process may have added it in the meantime
            if registry.dataset_of(table_now) is None:
                raise
            return add_one(store, replace(wanted, table=table_now), dry_run=dry_run)
        return Added(dataset.name, None, "added", lints)
    before = registry.dataset_of(wanted.table)
    assert before is not None
    if before.dataset.has_manifest_of(dataset):
        return Added(dataset.name, None, "unchanged", lints)
    _refuse_other_meaning(before, dataset)
    change = _change_of_manifest(before, wanted, _extended_schema(before, wanted))
    commit_change(store, before.table, change, Note(DOOR, wanted.manifest_hash), dry_run=dry_run)
    return Added(dataset.name, None, "updated", lints)


def _create(store: IcebergStore, wanted: RegisteredDataset, *, dry_run: bool) -> None:
    columns, _ = _columns(wanted, wanted.schema)
    shape = Shape(wanted.name, columns, _key(wanted.dataset), Layout.ODF)
    change = Change(into=shape, properties=_properties(wanted.dataset, wanted.schema))
    # Neither creation nor updates are retried, because the manifest was checked against this state.
    commit_change(store, None, change, Note(DOOR, wanted.manifest_hash), dry_run=dry_run)


def _properties(dataset: Dataset, schema: Mapping[str, Any] | None) -> dict[str, str]:
    """The table properties that store a manifest and the document of the columns, if there is a new one."""
    return properties_of(dataset) | ({SCHEMA: canonical(schema)} if schema else {})


def _columns(
    wanted: RegisteredDataset, schema: Mapping[str, Any] | None
) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """All columns of a dataset's table, and only the data columns, from the document of its columns."""
    columns = wanted.columns
    expected = expected_of(schema, columns.system, columns.time)
    data, dated = (expected.fields, bool(expected.dated)) if expected else ([], False)
    return columns_from(log_schema(columns, data, dated=dated)), columns_from(StructType(list(data)))


def _change_of_manifest(
    before: RegisteredDataset, wanted: RegisteredDataset, schema: Mapping[str, Any] | None
) -> Change:
    """The change to columns and properties for a changed manifest. `schema` is the columns' new document."""
    assert before.table is not None
    old, new = before.columns, wanted.columns
    every, data = _columns(wanted, schema or before.schema)
    properties = _properties(wanted.dataset, schema)
    shape = replace(before.table.shape, key=_key(wanted.dataset))
    if old.encoding is not new.encoding:  # the system columns differ, and there are no rows yet
        return Change(into=replace(shape, columns=every), properties=properties)
    renamed = {a: b for a, b in zip(old.system, new.system, strict=True) if a != b}
    columns = [replace(column, name=renamed.get(column.name, column.name)) for column in shape.columns]
    added = [column for column in data if shape.column(column.name) is None]
    return Change(into=replace(shape, columns=(*columns, *added)), renamed=renamed, properties=properties)


def _key(dataset: Dataset) -> tuple[str, ...]:
    sources = [source for _, source in dataset.sources()]
    return tuple(key_of(sources[0].merge)) if sources else ()


def _refuse_other_meaning(before: RegisteredDataset, dataset: Dataset) -> None:
    """Raise UsageError if a dataset with rows would have another strategy, key or encoding.

    A dataset without sources appends all rows, so another dataset with rows cannot lose its sources.
    """
    assert before.table is not None
    if not before.table.rows:
        return
    is_encoding_changed = log_columns(before.dataset).encoding is not log_columns(dataset).encoding
    data = {column["name"] for column in (before.schema or {}).get("fields", ())} - {*before.columns.system}
    taken = sorted(data & {*log_columns(dataset).system})
    if taken:
        raise _incompatible_error(dataset, f"uses the column {taken[0]} as a system column")
    if is_encoding_changed or not _meanings(dataset) <= _meanings(before.dataset):
        stop = "" if dataset.sources() else "; to stop a source, keep it and add an event that disables it"
        raise UsageError(
            "other-meaning",
            f"The manifest of {dataset.name} changes the strategy, primaryKey, eventTimeInKey or encoding of "
            "a dataset that has rows.",
            f"Add it under another dataset name{stop}.",
        )


def _meanings(dataset: Dataset) -> set[tuple[str, tuple[str, ...], bool]]:
    return {meaning_of(source.merge) for _, source in dataset.sources()} or {meaning_of(Append())}


def _extended_schema(before: RegisteredDataset, wanted: RegisteredDataset) -> Mapping[str, Any] | None:
    """The dataset's schema document with new optional columns, or None if there are no new columns.

    Raises UsageError for a removed, renamed or retyped column, and for a new required column (section 2.8).
    """
    known = before.schema
    declared = _manifest_schema(wanted.dataset)
    if known is None:
        return declared if wanted.dataset.schema is not None else None
    names = dict(zip(before.columns.vocabulary, wanted.columns.vocabulary, strict=True))
    fields: list[Mapping[str, Any]] = [
        {**column, "name": names.get(column["name"], column["name"])} for column in known["fields"]
    ]
    if declared is not None:
        fields += _additions(before, wanted, known, declared)
    return {**known, "fields": fields} if fields != known["fields"] else None


def _additions(
    before: RegisteredDataset,
    wanted: RegisteredDataset,
    known: Mapping[str, Any],
    declared: Mapping[str, Any],
) -> list[Mapping[str, Any]]:
    """The new columns in the schema of a manifest."""
    system = {*before.columns.system, *wanted.columns.system}
    freed = {*before.columns.system}.intersection(before.columns.vocabulary).difference(wanted.columns.system)
    for column in declared["fields"]:
        if column["name"] in freed:
            raise UsageError(
                "incompatible-schema",
                f"The manifest of {wanted.dataset.name} renames the system column {column['name']}, and "
                "declares a column with its former name.",
                "Give the declared column another name, or leave it out.",
            )
    old = {column["name"]: column["type"] for column in known["fields"] if column["name"] not in system}
    new = {column["name"]: column["type"] for column in declared["fields"] if column["name"] not in system}
    removed = [name for name in old if name not in new]
    if removed:
        raise _incompatible_error(wanted.dataset, f"leaves out the column {removed[0]}")
    retyped = [name for name in old if old[name] != new[name]]
    days, time = before.is_dated, wanted.columns.time
    expected = expected_of(declared, wanted.columns.system, time)
    if expected and None not in {days, expected.dated} and days is not expected.dated:
        retyped.append(time)
    if retyped:
        raise _incompatible_error(wanted.dataset, f"changes the type of the column {retyped[0]}")
    required = [name for name in new if name not in old and new[name].get("kind") != "Option"]
    if required:
        raise _incompatible_error(wanted.dataset, f"adds the required column {required[0]}")
    return [column for column in declared["fields"] if column["name"] in new and column["name"] not in old]


def _manifest_schema(dataset: Dataset) -> Mapping[str, Any] | None:
    """The schema document of a manifest, with full types, or None if it declares no columns."""
    if dataset.schema is not None:
        return data_schema_of(arrow_schema(dataset.schema))
    for _, source in dataset.sources():
        columns = batch_columns(dataset, source, None)
        if columns is not None:
            return data_schema_of(columns.schema)
    return None


def _incompatible_error(dataset: Dataset, reason: str) -> UsageError:
    return UsageError(
        "incompatible-schema",
        f"The manifest of {dataset.name} {reason}.",
        "Only optional columns can be added; for another schema use another dataset name.",
    )
