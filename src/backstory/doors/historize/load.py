"""A load as the dialect writes its parts: names, relations, conditions (sections 3.3, 3.7)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from backstory.doors.historize.columns import FORKED, base_columns, foreign_keys, user_columns
from backstory.doors.historize.expressions import Expressions
from backstory.doors.historize.model import (
    ColumnRole,
    HistState,
    Model,
    ModelColumn,
    ModelDataset,
    StateLabels,
)
from backstory.doors.historize.resolve import namespace_of, schema_of
from backstory.doors.historize.stored_histories import PrunedRecords
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialects.dialect import Dialect
from backstory.stores.sql.placeholders import LOAD_RUN_ID, LOAD_TIMESTAMP, without_placeholders
from backstory.strategies.scd2.pair import Archived, Pair
from backstory.strategies.scd2.transitions import State

COPY = "copy number"  # no column of a model is called so
_HASH = ModelColumn(target_column_name="row_hash", datatype=Datatype.STRING, max_length=64)
# Types that some database cannot compare or sort as they are.
_AS_TEXT = {Datatype.JSON}
# Types that a stage may hold as text.
_READ = {Datatype.JSON, Datatype.TIME, Datatype.UUID}


@dataclass(frozen=True)
class Load:
    """A dataset's load in one dialect.

    `hist` is the history's metadata. `stage` is the relation that the base is loaded from, and
    `brought` names its load columns, which are then taken from it (decision H9); `spelled` has the
    stage's own spelling of columns. `delete_scope` is SQL on the alias `b` of the base: rows outside it
    are never deleted; `hist_scope` the same on the alias `h` of the history. With `merges` the
    history is loaded by one MERGE. `archive` is there once something was pruned.
    """

    model: Model
    dataset: ModelDataset
    hist: HistState
    dialect: Dialect
    stage: str = ""
    brought: frozenset[str] = frozenset()
    spelled: Mapping[str, str] = field(default_factory=dict)
    delete_scope: str | None = None
    deletes_base: bool = True
    hist_scope: str | None = None
    closes_deleted: bool = True
    merges: bool = False
    archive: PrunedRecords | None = None

    @cached_property
    def expressions(self) -> Expressions:
        """Keys and hashes."""
        return Expressions(self.dialect, schema_of(self.model, self.dataset))

    @cached_property
    def schema(self) -> str:
        """The namespace of both tables."""
        return namespace_of(self.model, self.dataset)

    @cached_property
    def base_table(self) -> str:
        """The base table."""
        return self._placed(self.dataset.name)

    @cached_property
    def hist_table(self) -> str:
        """The history table."""
        return self._placed(self.dataset.hist_name)

    @cached_property
    def labels(self) -> StateLabels:
        """The words for states that are stored."""
        labels = self.dataset.historization.state_labels
        return labels if labels and labels.mode == "stored" else StateLabels()

    def name(self, column: str) -> str:
        """A column's name."""
        return self.dialect.render_identifier(column)

    def of(self, alias: str, column: str) -> str:
        """`alias.column`."""
        return f"{alias}.{self.name(column)}"

    def text(self, text: str) -> str:
        """A text's literal, which has no placeholder whatever the text is."""
        return self.dialect.concat_expression(
            [self.dialect.string_literal(part) for part in without_placeholders(text)]
        )

    def same_key(self, left: str, right: str) -> str:
        """Whether the rows of two aliases are of one record."""
        return f"{self.of(left, self.dataset.key)} = {self.of(right, self.dataset.key)}"

    @cached_property
    def base_columns(self) -> list[ModelColumn]:
        """The base's columns, and those that a column of today forked from (section 4.4)."""
        forks = [each for each in self.hist.target_columns if not each.active and FORKED in each.name]
        free = {None, ColumnRole.BUSINESS_KEY}  # the load refuses NULL where the model does, and may stop to
        columns = [
            each.model_copy(update={"nullable": each.nullable or each.system_role in free})
            for each in base_columns(self.dataset)
        ]
        return [*columns, *forks]

    # The base as the history sees it

    @cached_property
    def base(self) -> str:
        """The relation of the base's rows, each key once where identical rows collapse."""
        if self.dataset.historization.duplicate_keys == "reject":
            return self.base_table
        columns = base_columns(self.dataset)
        return self._once(self.base_table, columns)

    def _once(self, source: str, columns: Sequence[ModelColumn]) -> str:
        """The rows of a relation, one for each key: the one with the least texts."""
        compared = [
            column
            for column in columns
            if column.system_role not in {ColumnRole.LOAD_RUN_ID, ColumnRole.LOADED_AT}
        ]
        order = ", ".join(self._ordered(column) for column in compared)
        if live := self.live("d").removeprefix(" AND "):  # a row that is flagged as deleted is no duplicate
            order = f"CASE WHEN {live} THEN 0 ELSE 1 END, {order}"
        names = ", ".join(self.of("d", column.name) for column in columns)
        kept = ", ".join(self.of("k", column.name) for column in columns)
        number = f"ROW_NUMBER() OVER (PARTITION BY {self.of('d', self.dataset.key)} ORDER BY {order})"
        return (
            f"(SELECT {kept} FROM (SELECT {names}, {number} AS {self.name(COPY)} FROM {source} AS d) AS k "
            f"WHERE {self.of('k', COPY)} = 1)"
        )

    def _ordered(self, column: ModelColumn) -> str:
        value = self.of("d", column.name)
        hashed = column.datatype is not Datatype.FLOAT or column.hash_as is not None
        return self.expressions.canonical(column, value) if hashed else value

    def live(self, alias: str) -> str:
        """Whether a base row is not flagged as deleted; empty without such a flag (section 7.3)."""
        soft = self.dataset.historization.soft_delete
        if soft is None:
            return ""
        flag = next(column for column in user_columns(self.dataset) if column.name == soft.column)
        value = self.of(alias, soft.column)
        gone = ", ".join(self.text(each) for each in soft.deleted_values)
        return f" AND ({value} IS NULL OR {self.expressions.canonical(flag, value)} NOT IN ({gone}))"

    # The base load

    @cached_property
    def staged(self) -> str:
        """The stage's rows as rows of the base, each key once where identical rows collapse."""
        if self.dataset.historization.duplicate_keys == "reject":
            return self.staged_rows
        return self._once(self.staged_rows, base_columns(self.dataset))

    @cached_property
    def staged_rows(self) -> str:
        """The stage's rows as rows of the base, keys and hashes computed."""
        inner = ",\n    ".join(
            f"{self._from_stage(column)} AS {self.name(column.name)}" for column in user_columns(self.dataset)
        )
        brought = "".join(
            f",\n    {self.of('i', self.in_stage(name))} AS {self.name(name)}"
            for name in sorted(self.brought)
        )
        values = self.base_values("s", self.brought)
        outer = ",\n  ".join(f"{value} AS {self.name(name)}" for name, value in values.items())
        return (
            f"(SELECT\n  {outer}\nFROM (\n  SELECT\n    {inner}{brought}\n  FROM {self.stage} AS i\n) AS s)"
        )

    def base_values(self, alias: str, brought: Collection[str]) -> dict[str, str]:
        """The base's columns of a stage row that has the base's names."""
        return {
            self.dataset.key: self.expressions.base_key(self.dataset, alias),
            **{column.name: self.of(alias, column.name) for column in user_columns(self.dataset)},
            **self._foreign_keys(alias),
            ColumnRole.ROW_HASH: self.expressions.row_hash(self.dataset, alias),
            ColumnRole.LOAD_RUN_ID: LOAD_RUN_ID,
            ColumnRole.LOADED_AT: LOAD_TIMESTAMP,
            **{name: self.of(alias, name) for name in sorted(brought)},
        }

    def in_stage(self, column: str) -> str:
        """A column as the stage spells it."""
        return self.spelled.get(column, column)

    def _from_stage(self, column: ModelColumn) -> str:
        """A stage column's value; text becomes a time or an id here, and what is none is an error."""
        value = self.of("i", self.in_stage(column.input or column.name))
        return (
            self.dialect.cast_expression(value, self.dialect.type_of(column))
            if column.datatype in _READ
            else value
        )

    def _foreign_keys(self, alias: str) -> dict[str, str]:
        children = {column.name: column for column in user_columns(self.dataset)}
        parents = {dataset.name: dataset for dataset in self.model.target_datasets}
        return {
            reference.column: self.expressions.foreign_key(
                reference, parents[reference.referenced_dataset], children, alias
            )
            for reference in self.dataset.references
            if reference.active
        }

    def differs(self, left: str, right: str) -> str:
        """Whether two base rows of one key are not the same, load columns aside."""
        compared = [*user_columns(self.dataset), *foreign_keys(self.dataset), _HASH]
        return " OR ".join(
            self.other_text(column, left, right)
            if column.datatype in _AS_TEXT
            else self.dialect.null_safe_ne(self.of(left, column.name), self.of(right, column.name))
            for column in compared
        )

    def other_text(self, column: ModelColumn, left: str, right: str) -> str:
        """Whether two rows have other canonical texts of a column."""
        sides = (self.of(alias, column.name) for alias in (left, right))
        return self.dialect.null_safe_ne(*(self.expressions.canonical(column, each) for each in sides))

    # The history load

    @cached_property
    def mirrored(self) -> list[ModelColumn]:
        """The history's columns that are copied from the base."""
        return [
            column
            for column in self.hist.target_columns
            if column.active and column.input and column.system_role is not ColumnRole.ENTITY_KEY
        ]

    @cached_property
    def pair(self) -> Pair:
        """The two tables, as the statements of a history's load know them."""
        return Pair(
            self.dialect,
            self.hist_table,
            self.base,
            self.dataset.key,
            self.dataset.hist_key,
            {column.name: column.input or column.name for column in self.mirrored},
            {self.name(column.name): self.dialect.type_of(column) for column in self.hist.target_columns},
            words_of(self.labels),
            lambda alias: self.expressions.hist_key(self.dataset, alias),
            self.live,
            self.hist_scope,
            self.closes_deleted,
            self.archive and Archived(self._placed(self.archive.table), self.archive.key),
        )

    def _placed(self, table: str) -> str:
        return self.dialect.render_table_identifier(self.schema, table)


def words_of(labels: StateLabels) -> dict[State, str]:
    """The words for states that a model gives."""
    return {state: getattr(labels, state) for state in State}
