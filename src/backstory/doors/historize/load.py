"""A dataset's load in one dialect: names, keys, hashes, conditions, and method (sections 2.3 to 3.7).

The tests compare the keys and hashes of every dialect with `testing.conformance_bench`.
"""

import re
from calendar import monthrange
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from backstory.doors.historize.model import (
    FORKED,
    LOAD_COLUMNS,
    LONGEST_FORKED,
    STRICT,
    ColumnRole,
    HistState,
    IncrementPolicy,
    Model,
    ModelColumn,
    ModelDataset,
    StateLabels,
    TargetSchema,
    base_columns,
    business_keys,
    foreign_keys,
    hashed_columns,
    identity,
    key_name,
    stored_labels,
    user_columns,
    words_of,
)
from backstory.doors.historize.resolve import active_policy, namespace_of, schema_of, source_of
from backstory.errors import Refused, UsageError
from backstory.model.layout import STARTED
from backstory.model.table import ARCHIVE_SUFFIX, Archive
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialect import Dialect, SqlNames
from backstory.stores.sql.engine import (
    LOAD_RUN_ID,
    LOAD_TIMESTAMP,
    LOAD_TIMESTAMP_TEXT,
    PEPPER,
    PLACEHOLDER,
)
from backstory.stores.sql.row_hashes import HashedColumn, RowHash, hashable_text, joined_hash
from backstory.strategies.scd2.statements import ArchiveTable, Pair

CUTOFF = re.compile(r"\{\{\s*DELTA_CUTOFF\s*\}\}")
_CUTOFF_NAME = "backstory_delta_cutoff"
_FORBIDDEN = (exp.Query, exp.Exists, exp.AggFunc, exp.Window, exp.Star, exp.Placeholder)


def increment_scope(model: Model, dataset: ModelDataset, dialect: Dialect, alias: str) -> str | None:
    """The source's filter as a condition on the base's columns, or None if there is no source or filter.

    Identifiers are matched to the stage columns from which the base is loaded. The match ignores case and all
    characters except letters and digits. `{{DELTA_CUTOFF}}` stays in the condition. Raises UsageError for a
    name that matches no column.
    """
    source = source_of(model, dataset)
    if source is None or not source.increment_filter:
        return None
    names = [(column.source, column.name) for column in user_columns(dataset)]
    text = CUTOFF.sub(_CUTOFF_NAME, source.increment_filter)
    return _bind_condition(text, names, dialect, alias, f"the increment_filter of {source.name}")


def hist_scope(dataset: ModelDataset, hist: HistState, dialect: Dialect, alias: str = "h") -> str | None:
    """The scope in which a partial snapshot may close versions as deleted, or None.

    Raises UsageError for a condition that cannot be bound.
    """
    scope = dataset.historization.delete_scope
    if scope is None:
        return None
    names = [(column.name, column.name) for column in hist.target_columns]
    return _bind_condition(scope, names, dialect, alias, f"the delete_scope of {dataset.name}")


def _bind_condition(
    text: str, names: Sequence[tuple[str, str]], dialect: Dialect, alias: str, what: str
) -> str:
    """The condition, with its names replaced by the alias's columns.

    Each pair in `names` consists of a name that the condition may use, and the name of its column.
    """

    def wrong(why: str) -> UsageError:
        return UsageError("wrong-model", f"{what} {why}", "Fix the model.")

    if PLACEHOLDER.search(text):
        raise wrong("has an unknown placeholder.")
    try:
        parsed = sqlglot.parse_one(text, read=dialect.SQLGLOT_NAME or None, into=exp.Condition)
    except SqlglotError:
        raise wrong(f"is not a condition: {text!r}.") from None
    if not isinstance(parsed, exp.Condition) or any(parsed.find(kind) for kind in _FORBIDDEN):
        raise wrong("is more than a condition on columns.")

    def column(name: str) -> exp.Expression:
        matches = [ours for theirs, ours in names if theirs == name]
        matches = matches or [ours for theirs, ours in names if _normal(theirs) == _normal(name)]
        if len(matches) != 1:
            raise wrong(f"names {name!r}, which matches {'several' if matches else 'none'} of its columns.")
        return exp.column(exp.to_identifier(matches[0], quoted=True), table=alias)

    def bind(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column | exp.Literal) and node.name == _CUTOFF_NAME:
            return exp.column(_CUTOFF_NAME)  # even in quotes, because the cutoff replaces the whole literal
        if isinstance(node, exp.Anonymous) and str(node.this).lower() == "col" and len(node.expressions) == 1:
            return column(node.expressions[0].name)
        return column(node.name) if isinstance(node, exp.Column) else node

    sql = str(parsed.transform(bind).sql(dialect=dialect.SQLGLOT_NAME or None, comments=False))
    return sql.replace(_CUTOFF_NAME, "{{ DELTA_CUTOFF }}")


def _normal(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def delta_cutoff(model: Model, dataset: ModelDataset, now: datetime) -> datetime | None:
    """The instant to which a delta reaches back, or None if no policy is active."""
    source = source_of(model, dataset)
    policy = None if source is None else active_policy(model, source)
    if policy is None:
        return None
    try:
        return _step_back(now, policy)
    except (OverflowError, ValueError):  # before the first year
        return datetime.min.replace(tzinfo=UTC)


def _step_back(now: datetime, policy: IncrementPolicy) -> datetime:
    length = policy.increment_interval_length
    if policy.increment_interval_unit == "day":
        return now - timedelta(days=length)
    months = length * (12 if policy.increment_interval_unit == "year" else 1)
    year, month = divmod(now.year * 12 + now.month - 1 - months, 12)
    day = min(now.day, monthrange(year, month + 1)[1])
    return now.replace(year=year, month=month + 1, day=day)


NO_COLUMNS = "no_columns"
STRICT_NULL = "^0"


def hash_order(columns: Sequence[ModelColumn], *, strict: bool) -> list[ModelColumn]:
    """The attributes in hashing order: in the base's order or, if strict, by identity."""
    return sorted(columns, key=identity) if strict else list(columns)


def row_hash_of(schema: TargetSchema, dataset: ModelDataset) -> RowHash:
    """The definition of the row hash for a dataset."""
    strict, pair = schema.hash_profile == STRICT, schema.surrogate_key_pair_separator
    columns = tuple(
        HashedColumn(
            column.name, column.datatype, *_digits(column), f"{identity(column)}{pair}" if strict else ""
        )
        for column in hash_order(hashed_columns(dataset), strict=strict)
    )
    return RowHash(columns, schema.surrogate_key_component_separator, _null_token(schema), strict)


def _digits(column: ModelColumn) -> tuple[int | None, int | None]:
    if column.hash_as:
        return column.hash_as.precision, column.hash_as.scale
    return column.decimal_precision, column.decimal_scale


def _null_token(schema: TargetSchema) -> str:
    return STRICT_NULL if schema.hash_profile == STRICT else schema.surrogate_key_null_token


COPY = "copy number"  # no column of a model has a blank in its name
_HASH = ModelColumn(target_column_name="row_hash", datatype=Datatype.STRING, max_length=64)
# Types that not all databases can compare or sort.
_AS_TEXT = {Datatype.JSON}
# Types that a stage may contain as strings.
_READ = {Datatype.JSON, Datatype.TIME, Datatype.UUID}


@dataclass(frozen=True)
class Load(SqlNames):
    """A dataset's load in one dialect.

    * `hist`: the history's metadata.
    * `stage`: the relation from which the base is loaded.
    * `spellings`: the names of columns as they are written in the stage.
    * `stage_load_columns`: the load columns of the stage, which the base then copies (decision H9).
    * `delete_scope`: a condition on the alias `b` of the base; rows outside it are never deleted.
    * `hist_scope`: a condition on the alias `h`; versions outside it are never closed as deleted.
    * `merges`: whether the history is loaded by one MERGE.
    * `archive`: the archive table, if versions have been pruned.
    """

    model: Model
    dataset: ModelDataset
    hist: HistState
    stage: str = ""
    stage_load_columns: frozenset[str] = frozenset()
    spellings: Mapping[str, str] = field(default_factory=dict)
    delete_scope: str | None = None
    deletes_base: bool = True
    hist_scope: str | None = None
    closes_deleted: bool = True
    merges: bool = False
    archive: ArchiveTable | None = None

    @cached_property
    def schema(self) -> str:
        """The namespace of both tables."""
        return namespace_of(self.model, self.dataset)

    @cached_property
    def base_table(self) -> str:
        """The qualified name of the base table in SQL."""
        return self._table_name(self.dataset.name)

    @cached_property
    def hist_table(self) -> str:
        """The qualified name of the history table in SQL."""
        return self._table_name(self.dataset.hist_name)

    @cached_property
    def labels(self) -> StateLabels:
        """The names of the states as they are stored in the table."""
        return stored_labels(self.dataset.historization.state_labels)

    # Keys and hashes

    def base_key(self, alias: str) -> str:
        """SQL for the surrogate key of a row. The alias must have the base's columns."""
        return self._record_key(alias, {key_name(key): key for key in business_keys(self.dataset)})

    def hist_key(self, alias: str) -> str:
        """SQL for the key of the version that this load begins."""
        key = self.dataset.key
        return self._key({key: self.of(alias, key), STARTED: LOAD_TIMESTAMP_TEXT})

    def row_hash(self, alias: str) -> str:
        """SQL for the hash of a row's attributes."""
        hashed = row_hash_of(schema_of(self.model, self.dataset), self.dataset)
        return hashed.sql(self.dialect, lambda name: self.of(alias, name))

    def canonical(self, column: ModelColumn, sql: str) -> str:
        """SQL for the canonical string of a column's value."""
        return self.dialect.canonical_text(sql, column.datatype, *_digits(column))

    def _record_key(self, alias: str, columns: Mapping[str, ModelColumn]) -> str:
        """SQL for the key of a record, from columns of the alias by their names in the key."""
        return self._key(
            {name: self.canonical(each, self.of(alias, each.name)) for name, each in columns.items()}
        )

    def _key(self, parts: Mapping[str, str]) -> str:
        """SQL for the key made from these canonical strings, in the order of their names."""
        layer, named = schema_of(self.model, self.dataset), []
        strict = layer.hash_profile == STRICT
        for name, value in sorted(parts.items()):
            label = self.dialect.string_literal(f"{name}{layer.surrogate_key_pair_separator}")
            text = hashable_text(self.dialect, value, _null_token(layer), escaped=strict)
            named.append(self.dialect.concat_expression([label, text]))
        return joined_hash(self.dialect, [*named, PEPPER], layer.surrogate_key_component_separator)

    @cached_property
    def base_columns(self) -> list[ModelColumn]:
        """The base's columns, and the forks of columns whose type changed (section 4.4)."""
        forks = [each for each in self.hist.target_columns if not each.active and FORKED in each.name]
        free = {None, ColumnRole.BUSINESS_KEY}  # checks refuse NULLs, and a model may drop that rule
        columns = [
            each.model_copy(update={"nullable": each.nullable or each.system_role in free})
            for each in base_columns(self.dataset)
        ]
        return [*columns, *forks]

    # The base as the history's source

    @cached_property
    def base(self) -> str:
        """The relation with the base's rows, with one row for each key if identical rows are collapsed."""
        return self._unique_rows(self.base_table)

    def _unique_rows(self, source: str) -> str:
        """A relation with the base's columns, with one row for each key if identical rows are collapsed.

        This is the row whose strings sort first.
        """
        if self.dataset.historization.duplicate_keys == "reject":
            return source
        columns = base_columns(self.dataset)
        compared = [column for column in columns if column.system_role not in LOAD_COLUMNS]
        order = ", ".join(self._sort_value(column) for column in compared)
        if live := self.live("d").removeprefix(" AND "):  # a row flagged as deleted is not a duplicate
            order = f"CASE WHEN {live} THEN 0 ELSE 1 END, {order}"
        names = ", ".join(self.of("d", column.name) for column in columns)
        listed = ", ".join(self.of("k", column.name) for column in columns)
        number = f"ROW_NUMBER() OVER (PARTITION BY {self.of('d', self.dataset.key)} ORDER BY {order})"
        return (
            f"(SELECT {listed} FROM (SELECT {names}, {number} AS {self.name(COPY)} FROM {source} AS d) AS k "
            f"WHERE {self.of('k', COPY)} = 1)"
        )

    def _sort_value(self, column: ModelColumn) -> str:
        value = self.of("d", column.name)
        hashed = column.datatype is not Datatype.FLOAT or column.hash_as is not None
        return self.canonical(column, value) if hashed else value

    def live(self, alias: str) -> str:
        """SQL with a leading AND that tests whether a base row is live (7.3).

        The string is empty if the base has no deletion flag.
        """
        soft, flag = self.dataset.historization.soft_delete, self.deletion_flag
        if soft is None or flag is None:
            return ""
        value = self.of(alias, soft.column)
        deleted = ", ".join(self.text(value) for value in soft.deleted_values)
        return f" AND ({value} IS NULL OR {self.canonical(flag, value)} NOT IN ({deleted}))"

    @property
    def deletion_flag(self) -> ModelColumn | None:
        """The base's column that flags deleted rows, or None if rows are not flagged."""
        soft = self.dataset.historization.soft_delete
        return next((each for each in user_columns(self.dataset) if soft and each.name == soft.column), None)

    @cached_property
    def flag_values(self) -> dict[str, str]:
        """SQL for the columns that flag a base row as deleted. Empty if missing rows are deleted instead."""
        soft, flag = self.dataset.historization.soft_delete, self.deletion_flag
        if soft is None or flag is None or soft.on_delete != "flag":
            return {}
        value = self.dialect.cast_expression(self.text(soft.deleted_values[0]), self.dialect.type_of(flag))
        return {soft.column: value} | ({soft.deleted_at: LOAD_TIMESTAMP} if soft.deleted_at else {})

    # The base load

    @cached_property
    def unique_stage_rows(self) -> str:
        """The relation of `stage_rows`, with one row for each key if identical rows are collapsed."""
        return self._unique_rows(self.stage_rows)

    @cached_property
    def stage_rows(self) -> str:
        """The relation with the stage's rows as rows of the base, with keys and hashes."""
        inner = ",\n    ".join(
            f"{self._from_stage(column)} AS {self.name(column.name)}" for column in user_columns(self.dataset)
        )
        brought = "".join(
            f",\n    {self.of('i', self.in_stage(name))} AS {self.name(name)}"
            for name in sorted(self.stage_load_columns)
        )
        values = self.base_values("s", self.stage_load_columns)
        outer = ",\n  ".join(f"{value} AS {self.name(name)}" for name, value in values.items())
        return (
            f"(SELECT\n  {outer}\nFROM (\n  SELECT\n    {inner}{brought}\n  FROM {self.stage} AS i\n) AS s)"
        )

    def base_values(self, alias: str, load_columns: Collection[str]) -> dict[str, str]:
        """SQL for each column of the base, computed from a stage row under the base's names."""
        return {
            self.dataset.key: self.base_key(alias),
            **{column.name: self.of(alias, column.name) for column in user_columns(self.dataset)},
            **self._foreign_keys(alias),
            ColumnRole.ROW_HASH: self.row_hash(alias),
            ColumnRole.LOAD_RUN_ID: LOAD_RUN_ID,
            ColumnRole.LOADED_AT: LOAD_TIMESTAMP,
            **{name: self.of(alias, name) for name in sorted(load_columns)},
        }

    def in_stage(self, column: str) -> str:
        """The name of a column as it is written in the stage."""
        return self.spellings.get(column, column)

    def _from_stage(self, column: ModelColumn) -> str:
        """SQL for the value of a stage column. Strings are cast to the types in `_READ`."""
        value = self.of("i", self.in_stage(column.source))
        cast = self.dialect.cast_expression
        return cast(value, self.dialect.type_of(column)) if column.datatype in _READ else value

    def _foreign_keys(self, alias: str) -> dict[str, str]:
        """SQL for the key of each parent, computed from the child's columns."""
        children = {column.name: column for column in user_columns(self.dataset)}
        parents = {dataset.name: dataset for dataset in self.model.target_datasets}
        keys = {}
        for reference in self.dataset.references:
            if reference.active:
                source = {part.to: children[part.from_] for part in reference.key_components}
                parent = business_keys(parents[reference.referenced_dataset])
                columns = {key_name(key): source[key.name] for key in parent}
                keys[reference.column] = self._record_key(alias, columns)
        return keys

    def differs(self, left: str, right: str) -> str:
        """SQL that tests whether two base rows with the same key differ, apart from load columns."""
        compared = [*user_columns(self.dataset), *foreign_keys(self.dataset), _HASH]
        return " OR ".join(
            self.other_text(column, left, right)
            if column.datatype in _AS_TEXT
            else self.dialect.null_safe_ne(self.of(left, column.name), self.of(right, column.name))
            for column in compared
        )

    def other_text(self, column: ModelColumn, left: str, right: str) -> str:
        """SQL that tests whether the canonical strings of a column differ between two rows."""
        sides = (self.of(alias, column.name) for alias in (left, right))
        return self.dialect.null_safe_ne(*(self.canonical(column, each) for each in sides))

    # The history load

    @cached_property
    def mirrored_columns(self) -> list[ModelColumn]:
        """The history's columns that are copied from the base."""
        return [
            column
            for column in self.hist.target_columns
            if column.active and column.input and column.system_role is not ColumnRole.ENTITY_KEY
        ]

    @property
    def mirrored_keys(self) -> list[str]:
        """The history's columns with business keys."""
        keys = (each for each in self.mirrored_columns if each.system_role is ColumnRole.BUSINESS_KEY)
        return [each.name for each in keys]

    @cached_property
    def filled_columns(self) -> dict[str, str]:
        """The columns that a history may gain while hashes stay the same, each with its name in the base.

        These are foreign keys, which no hash covers, and forks, whose text may be the same in both types.
        """
        columns = [each for each in self.hist.target_columns if not each.active and FORKED in each.name]
        forks = {each.name.rpartition(FORKED)[0] for each in columns}
        forked = [*business_keys(self.dataset), *hashed_columns(self.dataset)]
        gained = [each.name for each in forked if each.name[:LONGEST_FORKED] in forks]
        gained += [each.name for each in foreign_keys(self.dataset)]
        return {each.name: each.source for each in self.mirrored_columns if each.source in gained}

    @cached_property
    def pair(self) -> Pair:
        """The base and the history, in the form that a history load's statements need."""
        return Pair(
            self.dialect,
            self.hist_table,
            self.base,
            self.dataset.key,
            self.dataset.hist_key,
            {column.name: column.source for column in self.mirrored_columns},
            {self.name(column.name): self.dialect.type_of(column) for column in self.hist.target_columns},
            words_of(self.labels),
            self.hist_key,
            self.live,
            self.hist_scope,
            self.closes_deleted,
            self.archive and ArchiveTable(self._table_name(self.archive.table), self.archive.key),
            self.filled_columns,
        )

    def _table_name(self, table: str) -> str:
        return self.dialect.render_table_identifier(self.schema, table)


def new_label(load: Load, pairs: Mapping[str, str]) -> str:
    """SQL for the state of a version (alias `h`), with old labels replaced by new labels."""
    state = load.of("h", ColumnRole.STATE)
    cases = " ".join(f"WHEN {load.text(old)} THEN {load.text(new)}" for old, new in pairs.items())
    return f"CASE {state} {cases} ELSE {state} END" if cases else state


def prepare_load(model: Model, dataset: ModelDataset, hist: HistState, dialect: Dialect) -> Load:
    """Prepare a dataset's load in a dialect.

    This binds the scopes of deletes, and decides whether the load uses MERGE.
    """
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
        dialect,
        model,
        _pin_names(dataset, hist),
        hist,
        delete_scope=scope,
        deletes_base=full or (dataset.handle_deletes and scope is not None),
        hist_scope=hist_scope(dataset, hist, dialect),
        closes_deleted=rules.snapshot == "full" or rules.delete_scope is not None,
        merges=merges,
    )


def refuse_swaps(dataset: ModelDataset) -> None:
    """Raise Refused for columns that swap names (R41), because a table does not record a swap."""
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
                f"{column.name} and another column of {dataset.name} swap names, and it is unknown whether "
                "they are already renamed.",
                "Load with a new name for one of them first; or rename by hand, and remove the former_names.",
                [column.name, *sorted(before - {column.name})],
            )


def _pin_names(dataset: ModelDataset, hist: HistState) -> ModelDataset:
    """The dataset, with attributes pinned to their original names, which the model may no longer list."""
    former = {column.name: column.former_names for column in hist.target_columns}

    def pin(column: ModelColumn) -> ModelColumn:
        names = former.get(column.name, ())
        pinned = column.key_name or column.system_role is not None or not names
        if pinned or not {*column.former_names[:1]} <= {*names}:  # the model lists an earlier name
            return column
        return column.model_copy(update={"key_name": names[0]})

    return dataset.model_copy(update={"target_columns": tuple(map(pin, dataset.target_columns))})


# A function that returns the columns of a table with their types, or None if the table does not exist.
StoredColumns = Callable[[str, str], Mapping[str, str] | None]


def find_archive(schema: str, hist: HistState, columns: StoredColumns) -> Archive | None:
    """The archive of a history, which may still have a former name (section 7.5), or None."""
    names = (f"{name}{ARCHIVE_SUFFIX}" for name in hist.names)
    tables = ((name, columns(schema, name)) for name in names)
    return next((Archive(name, frozenset(stored)) for name, stored in tables if stored), None)


def with_archive(load: Load, columns: StoredColumns) -> Load:
    """The load with the archive of its history, if there is one."""
    archive = find_archive(load.schema, load.hist, columns)
    key = next(each for each in load.hist.target_columns if each.system_role is ColumnRole.ENTITY_KEY)
    stored = (archive and archive.columns) or ()
    named = next((each for each in (key.name, *reversed(key.former_names)) if each in stored), None)
    return replace(load, archive=ArchiveTable(archive.name, named)) if archive and named else load
