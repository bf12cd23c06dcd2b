"""The history's metadata: derived from the base's metadata (section 4.2), and kept in a lock file.

The model's folder contains one lock file for each warehouse or database into which a history is loaded
(section 1.3). Programs that read or maintain a history get its description from this metadata.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel
from ruamel.yaml import YAML

from backstory.doors.historize.load import StoredColumns, find_archive
from backstory.doors.historize.model import (
    FORKED,
    LONGEST_FORKED,
    TAIL,
    TECHNICAL,
    ColumnRole,
    Historization,
    HistState,
    Model,
    ModelColumn,
    ModelDataset,
    StateLabels,
    base_columns,
    mirrored_columns,
    stored_labels,
    technical_column,
)
from backstory.doors.historize.resolve import HIST, namespace_of, read_state
from backstory.doors.historize.runs import Target
from backstory.doors.historize.stage import column_type
from backstory.errors import BackstoryError, Failed, Refused
from backstory.model.instant import parse_instant
from backstory.model.layout import Layout
from backstory.model.table import Archive, Column, Dating, History, Labels, Shape, TableName
from backstory.reading.history_queries import StoredHistory
from backstory.stores.sql.columns import EQUAL, WIDENING, Datatype, TableColumn, drift, instant_text
from backstory.stores.sql.ddl import logical_type
from backstory.stores.sql.dialect import Dialect

ROUNDS = 4
FIXED = frozenset({ColumnRole.SURROGATE_KEY, ColumnRole.ENTITY_KEY, *TAIL})


def sync_hist(base: ModelDataset, previous: HistState | None, now: datetime) -> HistState:
    """The metadata of a base's history.

    Columns are matched by their input, their lineage key, their name or a former name. A column that is no
    longer in the base is retired, and remains in the table. Raises Refused if a retired column returns with
    another type. The function changes nothing if it is applied to its own result.
    """
    state = _sync_once(base, previous, now)
    for _ in range(ROUNDS):
        again = _sync_once(base, state, now)
        if again == state:
            break
        state = again  # a second round resolves swapped names of columns that also forked
    return state


def _sync_once(base: ModelDataset, previous: HistState | None, now: datetime) -> HistState:
    old = (
        [column for column in previous.target_columns if column.system_role not in FIXED] if previous else []
    )
    forked = base.historization.on_incompatible_type == "fork"
    mirrored = mirrored_columns(base_columns(base))
    claimed = _claim_names(mirrored, old)
    live, forks, used, settled = [], list[ModelColumn](), set(), set()
    for column in mirrored:
        match = _match(column, old, claimed)
        mirror, fork = _mirror(column, match, now, forked=forked)
        if match:
            used.add(match.name)
            settled |= {match.name} & {mirror.name} if fork is None else set()
        live.append(mirror)
        forks += [fork] if fork else []
    left = {column.name: column for column in old if column.name not in used}
    for column in live:
        if column.name in left:
            raise Refused(
                "DUPLICATE_COLUMN",
                f"The history still has an earlier column {column.name}, so {column.former_names[-1]} "
                "cannot be renamed to it.",
                "Give the column another name.",
                [column.name],
            )
    retired = [_retire(column, now) for column in left.values()]
    theirs = {name for column in [*retired, *forks] for name in (column.name, *column.former_names)}
    live = _without_names(theirs, live)
    forks = _without_names(settled, forks)
    former_tables = _former_tables(base, previous)
    former_bases = dict.fromkeys([*(name.removesuffix(HIST) for name in former_tables), *base.former_names])
    return HistState(
        target_dataset_name=base.hist_name,
        lineage_key=base.lineage_key or base.name,
        former_names=tuple(former_tables),
        hash_profile=previous.hash_profile if previous else None,
        state_labels=previous.state_labels if previous else base.historization.state_labels,
        prune_watermark=previous.prune_watermark if previous else None,
        target_columns=(
            technical_column(base.hist_key, ColumnRole.SURROGATE_KEY, former=_key_names(former_tables)),
            technical_column(base.key, ColumnRole.ENTITY_KEY, former=_key_names(former_bases)),
            *live,
            *retired,
            *forks,
            *(technical_column(role, role, nullable=role is ColumnRole.ENDED) for role in TAIL),
        ),
    )


def _claim_names(columns: Sequence[ModelColumn], previous: Sequence[ModelColumn]) -> dict[str, str]:
    """The current name of each renamed base column, by its former name in the history.

    If `b` was renamed to `c`, today's `b` is another column. The search continues with the former name of
    that column.
    """
    active = {old.name for old in previous if old.active}
    today = {column.name: column for column in columns}
    claimed: dict[str, str] = {}
    missing = [column for column in columns if column.name not in active]
    while missing:
        column = missing.pop(0)
        former = [name for name in dict.fromkeys(column.former_names) if name in active]
        if len(former) > 1:  # a former name that is in use again belongs to its present column
            former = [name for name in former if name not in today] or former
        for name in former:
            if name in claimed:
                raise Refused(
                    "AMBIGUOUS_RENAME",
                    f"Both {claimed[name]} and {column.name} name {name} as a former name.",
                    "Remove it from one of them.",
                    [claimed[name], column.name],
                )
            claimed[name] = column.name
            missing += [today[name]] if name in today else []
    return claimed


def _match(
    column: ModelColumn, previous: Sequence[ModelColumn], claimed: Mapping[str, str]
) -> ModelColumn | None:
    """The history's column that has mirrored this column until now, or None."""
    free = [old for old in previous if claimed.get(old.name, column.name) == column.name]
    free.sort(key=lambda old: old.name not in claimed)
    tests: Sequence[Callable[[ModelColumn], bool]] = (
        lambda old: old.active and old.name == column.name,
        lambda old: old.active and old.input in {column.name, *column.former_names},
        lambda old: old.lineage_key is not None and old.lineage_key == column.lineage_key,
        lambda old: old.name == column.name,
        lambda old: old.active and old.name in column.former_names,
    )
    return next((old for test in tests for old in free if test(old)), None)


def _without_names(others: Iterable[str], columns: Sequence[ModelColumn]) -> list[ModelColumn]:
    """The columns, without the former names that now belong to other columns."""
    taken = frozenset(others)
    return [
        column.model_copy(
            update={"former_names": tuple(name for name in column.former_names if name not in taken)}
        )
        for column in columns
    ]


def _mirror(
    column: ModelColumn, match: ModelColumn | None, now: datetime, *, forked: bool
) -> tuple[ModelColumn, ModelColumn | None]:
    """The history's column, and a fork that keeps the old values if the new type cannot hold them."""
    former = list(match.former_names) if match else []
    former += column.former_names
    if match and match.name != column.name:
        former.append(match.name)
    mirror = column.model_copy(
        update={
            "nullable": True,
            "former_names": tuple(name for name in dict.fromkeys(former) if name != column.name),
            "input": column.name,
            "active": True,
            "retired_at": None,
            "is_system_managed": True,
        }
    )
    if match is None or drift(match, mirror) in {EQUAL, WIDENING}:
        return mirror, None
    if not forked:
        raise Refused(
            "HIST_TYPE_CONFLICT" if match.active else "REINTRODUCED_TYPE_CONFLICT",
            f"The history has {match.name} as {_type(match)}, the base as {_type(mirror)}.",
            "Give the column another name, or set on_incompatible_type: fork.",
            [match.name],
        )
    name = f"{match.name[:LONGEST_FORKED]}{FORKED}{now:%Y%m%d%H%M%S}"
    fork = _retire(match, now).model_copy(update={"target_column_name": name})
    fork = fork.model_copy(update={"former_names": (*match.former_names, match.name)})
    return mirror, fork


def _type(column: ModelColumn) -> str:
    if column.decimal_precision:
        return f"{column.datatype}({column.decimal_precision},{column.decimal_scale})"
    return f"{column.datatype}({column.max_length})" if column.max_length else str(column.datatype)


def _retire(column: ModelColumn, now: datetime) -> ModelColumn:
    return column.model_copy(
        update={"active": False, "retired_at": column.retired_at or instant_text(now), "input": None}
    )


def _former_tables(base: ModelDataset, previous: HistState | None) -> list[str]:
    """Former names of the history's table, except names of base tables."""
    known = list(previous.former_names) if previous else []
    known += [f"{name}{HIST}" for name in base.former_names]
    if previous and previous.target_dataset_name != base.hist_name:
        known.append(previous.target_dataset_name)
    return [name for name in dict.fromkeys(known) if name.endswith(HIST) and name != base.hist_name]


def _key_names(tables: Iterable[str]) -> list[str]:
    return [f"{name}_key" for name in tables]


HEAD = (
    "# Written by backstory historize: the history's columns, retired ones too. Keep it beside the model.\n"
)
ENDING = ".hist.lock.yaml"


def find_only_state(model: Model, dataset: ModelDataset, folder: Path) -> HistState | None:
    """The state of a history, from its lock file if there is exactly one, or else from the model.

    Lock files of other datasets are ignored.
    """
    schema = namespace_of(model, dataset)
    paths = [(name, path) for name in dataset.names for path in folder.glob(f"*.{_file(schema, name)}")]
    states = [state for name, path in paths if (state := _read_own_state(model, dataset, name, path))]
    return states[0] if len(states) == 1 else dataset.hist_state


@dataclass(frozen=True)
class ModelPlace:
    """A model, the folder of its lock files, and the warehouse or database that holds its tables."""

    model: Model
    folder: Path
    target: Target

    def find_state(self, dataset: ModelDataset) -> HistState | None:
        """The state of a history, from a lock file under one of its names, or else from the model.

        If the target does not have the history, lock files are ignored. Lock files of other datasets are also
        ignored, and former names under which another dataset has been loaded are left out.
        """
        schema, dataset = namespace_of(self.model, dataset), self.without_lost_names(dataset)
        if not any(self.target.columns(schema, name) for name in dataset.hist_names):
            return dataset.hist_state
        paths = ((name, self._path(schema, name)) for name in dataset.names)
        states = (_read_own_state(self.model, dataset, name, path) for name, path in paths)
        state = next(filter(None, states), dataset.hist_state)
        if state is None:
            return None
        own = self._own_names(dataset, state.former_names)
        return state.model_copy(update={"former_names": own})

    def adopt_state(self, dataset: ModelDataset) -> HistState | None:
        """The metadata of a history without a lock file, derived from its table, or None without a table."""
        for name in dataset.names:
            stored = self.target.columns(namespace_of(self.model, dataset), f"{name}{HIST}")
            if stored is not None:
                return _state_of_table(dataset, name, stored, self.target.dialect)
        return None

    def write_state(self, dataset: ModelDataset, state: HistState) -> None:
        """Write the lock file if the state changed, and delete files under former names.

        If this dataset already has a file under its current name, a file whose name now belongs to another
        dataset is kept.
        """
        schema = namespace_of(self.model, dataset)
        path = self._path(schema, dataset.name)
        others = {other.name for other in self.model.target_datasets} if path.exists() else {dataset.name}
        try:
            if read_state(path) != state:
                fresh = path.with_suffix(".new")
                fresh.write_text(HEAD + as_yaml(state), encoding="utf-8")
                fresh.replace(path)
            for name in set(dataset.former_names) - others:
                self._path(schema, name).unlink(missing_ok=True)
        except OSError as stop:
            raise Failed(
                "HIST_STATE",
                f"{path} cannot be written: {stop.strerror}.",
                "Make the model's folder writable.",
            ) from None

    def without_lost_names(self, dataset: ModelDataset) -> ModelDataset:
        """The dataset without former names under which another dataset has been loaded.

        A load of the dataset then never takes the tables of the other one.
        """
        return dataset.model_copy(update={"former_names": self._own_names(dataset, dataset.former_names)})

    def _own_names(self, dataset: ModelDataset, former: Sequence[str]) -> tuple[str, ...]:
        """The former names of a base or a history, without names under which another dataset has been loaded.

        Only lock files show this. A name is left out if another dataset of the model has it now, and the lock
        file under it contains the lineage key of that dataset. Without a lock file, or with a broken one, the
        name is kept.
        """
        lost, schema = set[str](), namespace_of(self.model, dataset)
        for other in self.model.target_datasets if former else ():
            names = {other.name, other.hist_name} & {*former}
            if names and other.name != dataset.name and other.target_schema == dataset.target_schema:
                with suppress(BackstoryError):  # the load of the other dataset reports a broken lock file
                    state = read_state(self._path(schema, other.name))
                    lost |= names if state and state.lineage_key == other.lineage_key else set()
        return tuple(name for name in former if name not in lost)

    def _path(self, schema: str, name: str) -> Path:
        return self.folder / f"{self.target.place}.{_file(schema, name)}"


def _read_own_state(model: Model, dataset: ModelDataset, name: str, path: Path) -> HistState | None:
    """The state in the lock file under one of a dataset's names, or None if it belongs to another dataset.

    It belongs to the dataset of the model that has its lineage key. If no dataset has this key, the key was
    changed, and the state is the dataset's own. A file under the dataset's current name is also its own if
    the dataset with the key never had this name.
    """
    state = read_state(path)
    if state is None:
        return None
    for other in model.target_datasets:
        differs = (other.target_schema, other.name) != (dataset.target_schema, dataset.name)
        if differs and (other.lineage_key or other.name) == state.lineage_key:
            return state if name == dataset.name and name not in other.names else None
    return state


def as_yaml(part: BaseModel) -> str:
    """A part of a model as YAML. Equal parts have equal YAML."""
    sink = StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 1 << 16
    yaml.dump(part.model_dump(mode="json", by_alias=True), sink)
    return sink.getvalue()


def _file(schema: str, name: str) -> str:
    """The end of a lock file's name. Characters of the schema that a file name cannot contain are escaped."""
    return f"{quote(schema, safe='').replace('.', '%2E')}.{name}{ENDING}"


def stored_history(
    dialect: Dialect,
    schema: str,
    hist: HistState,
    rules: Historization | None = None,
    columns: StoredColumns | None = None,
    catalog: str | None = None,
) -> StoredHistory:
    """The history described by this metadata, in a dialect.

    With `columns`, which reads the columns of tables, it has only the stored columns, and its archive.
    """
    archive = None
    if columns is not None:
        stored = columns(schema, hist.target_dataset_name) or {}
        known = tuple(each for each in hist.target_columns if each.name in stored)
        hist = hist.model_copy(update={"target_columns": known})
        archive = find_archive(schema, hist, columns)
    return StoredHistory(dialect, history_of(schema, hist, rules, archive), hist.target_columns, catalog)


def history_of(
    schema: str, hist: HistState, rules: Historization | None = None, archive: Archive | None = None
) -> History:
    """The history that a model's metadata describes. `rules` define its views."""
    columns = hist.target_columns
    shown = rules and rules.state_labels
    dating = rules and rules.effective_dating
    return History(
        Shape(
            TableName(schema, hist.target_dataset_name),
            tuple(Column(each.name, column_type(each)) for each in columns),
            tuple(each.name for each in columns if each.system_role is ColumnRole.BUSINESS_KEY),
            Layout.HIST,
        ),
        labels=_labels_of(stored_labels(hist.state_labels)),
        references=frozenset(each.name for each in columns if each.system_role is ColumnRole.FOREIGN_KEY),
        former_names=hist.former_names,
        archive=archive,
        whole_since=parse_instant(hist.prune_watermark) if hist.prune_watermark else None,
        shown_labels=_labels_of(shown) if shown and shown.mode == "view" else None,
        dating=Dating(dating.column, dating.granularity) if dating else None,
    )


def _labels_of(labels: StateLabels) -> Labels:
    return Labels(labels.new, labels.changed, labels.deleted, labels.reappeared)


def _state_of_table(
    dataset: ModelDataset, name: str, stored: Mapping[str, str], dialect: Dialect
) -> HistState:
    """The metadata of a history table, as if the base still had every business column."""
    base = {column.name: column for column in base_columns(dataset)}
    fixed = {role.value for role in TECHNICAL} | {f"{name}_hist_key", f"{name}_key", dataset.key}
    columns = []
    for column, type_ in stored.items():
        if column in fixed:
            continue
        known = base.get(column) or _as_stored(column, logical_type(type_, dialect))
        columns.append(
            known.model_copy(update={"target_column_name": column, "input": column, "nullable": True})
        )
    return HistState(
        target_dataset_name=f"{name}_hist",
        lineage_key=dataset.lineage_key or dataset.name,
        target_columns=tuple(columns),
    )


def _as_stored(name: str, stored: TableColumn | None) -> ModelColumn:
    """A column that exists only in the table. If its type is unknown, it is read as text."""
    fields = ("datatype", "max_length", "decimal_precision", "decimal_scale")
    type_ = {each: getattr(stored, each) for each in fields} if stored else {"datatype": Datatype.STRING}
    return ModelColumn(target_column_name=name, **type_)
