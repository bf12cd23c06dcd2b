"""How a dataset is loaded, in which way and with what scopes; and what its table records of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from backstory.doors.historize.columns import base_columns
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import TECHNICAL, ColumnRole, HistState, Model, ModelColumn, ModelDataset
from backstory.doors.historize.scopes import hist_scope, increment_scope
from backstory.doors.historize.stored_histories import PrunedRecords
from backstory.errors import Refused, UsageError
from backstory.model.history import ARCHIVE_SUFFIX
from backstory.stores.sql.columns import Datatype, TableColumn
from backstory.stores.sql.ddl import logical
from backstory.stores.sql.dialects.dialect import Dialect


def prepare_load(model: Model, dataset: ModelDataset, hist: HistState, dialect: Dialect) -> Load:
    """A dataset's load in a dialect: how it deletes, and which way the history is loaded."""
    rules = dataset.historization
    merges = rules.engine == "merge" or (
        rules.engine == "auto" and dialect.supports_hist_merge and not dialect.supports_transactions
    )
    if merges and not dialect.supports_hist_merge:
        raise UsageError(
            "wrong-engine", f"{dialect.DIALECT_NAME} has no MERGE for histories.", "Use engine: auto."
        )
    scope = increment_scope(model, dataset, dialect, "b") if dataset.incremental_strategy == "merge" else None
    full = dataset.incremental_strategy == "full"
    return Load(
        model,
        _pinned(dataset, hist),
        hist,
        dialect,
        delete_scope=scope,
        deletes_base=full or (dataset.handle_deletes and scope is not None),
        hist_scope=hist_scope(dataset, hist, dialect),
        closes_deleted=rules.snapshot == "full" or rules.delete_scope is not None,
        merges=merges,
    )


def refuse_swaps(dataset: ModelDataset) -> None:
    """Raises Refused for columns that take each other's names (R41): no table tells whether they have."""
    today = {column.name: column for column in dataset.target_columns if column.active}
    for column in today.values():
        before, waiting = set[str](), [name for name in column.former_names if name != column.name]
        while waiting:
            name = waiting.pop()
            if name in today and name not in before:
                before.add(name)
                waiting += today[name].former_names
        if column.name in before:
            raise Refused(
                "AMBIGUOUS_RENAME",
                f"In {dataset.name} {column.name} takes the name of a column that takes its own, and "
                "whether they are renamed already is unknown.",
                "Load with a new name for one of them first; or rename by hand, and remove the former_names.",
                [column.name, *sorted(before - {column.name})],
            )


def _pinned(dataset: ModelDataset, hist: HistState) -> ModelDataset:
    """The dataset, its attributes pinned to their first names: the model may tell of later ones only."""
    known = {each.name: each.former_names for each in hist.target_columns}
    return dataset.model_copy(
        update={"target_columns": tuple(_by_first_name(each, known) for each in dataset.target_columns)}
    )


def _by_first_name(column: ModelColumn, known: Mapping[str, Sequence[str]]) -> ModelColumn:
    former = known.get(column.name, ())
    pinned = column.key_name or column.system_role is not None or not former
    if pinned or not {*column.former_names[:1]} <= {*former}:  # the model tells of an earlier one
        return column
    return column.model_copy(update={"key_name": former[0]})


def with_archive(load: Load, columns: Callable[[str, str], Mapping[str, str] | None]) -> Load:
    """The load, knowing the archive of its history, under a former name if it has that still (section 7.5).

    `columns` tells the columns of a table, None if there is no such table.
    """
    hist = load.hist
    key = next(each for each in hist.target_columns if each.system_role is ColumnRole.ENTITY_KEY)
    for name in (hist.target_dataset_name, *reversed(hist.former_names)):
        table = f"{name}{ARCHIVE_SUFFIX}"
        stored = columns(load.schema, table) or ()
        named = next((each for each in (key.name, *reversed(key.former_names)) if each in stored), None)
        if named:
            return replace(load, archive=PrunedRecords(table, named))
    return load


def adopted(dataset: ModelDataset, name: str, stored: Mapping[str, str], dialect: Dialect) -> HistState:
    """A history's metadata as its table tells it: every business column as if the base still had it."""
    base = {column.name: column for column in base_columns(dataset)}
    fixed = {role.value for role in TECHNICAL} | {f"{name}_hist_key", f"{name}_key", dataset.key}
    columns = []
    for column, type_ in stored.items():
        if column in fixed:
            continue
        known = base.get(column) or _as_stored(column, logical(type_, dialect))
        columns.append(
            known.model_copy(update={"target_column_name": column, "input": column, "nullable": True})
        )
    return HistState(
        target_dataset_name=f"{name}_hist",
        lineage_key=dataset.lineage_key or dataset.name,
        target_columns=tuple(columns),
    )


def _as_stored(name: str, found: TableColumn | None) -> ModelColumn:
    """A column that only the table tells; one of a type that we do not know is read as text."""
    if found is None:
        return ModelColumn(target_column_name=name, datatype=Datatype.STRING)
    return ModelColumn(
        target_column_name=name,
        datatype=found.datatype,
        max_length=found.max_length,
        decimal_precision=found.decimal_precision,
        decimal_scale=found.decimal_scale,
    )
