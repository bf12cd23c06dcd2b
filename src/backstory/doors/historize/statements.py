"""The statements of a load: what is done; a dialect gives each its shape (sections 3.3, 3.7, 9.3)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from backstory.doors.historize.columns import FORKED, base_columns, foreign_keys, user_columns
from backstory.doors.historize.dialects.base import Dialect
from backstory.doors.historize.expressions import LOAD_RUN_ID, LOAD_TIMESTAMP, Expressions
from backstory.doors.historize.model import Column, Dataset, Datatype, HistState, Model, Role, StateLabels
from backstory.doors.historize.placeholders import without_placeholders
from backstory.doors.historize.resolve import schema_of

COPY = "backstory_copy"
# Types that some database cannot compare or sort as they are.
_AS_TEXT = {Datatype.JSON}
# Types that a stage may hold as text.
_READ = {Datatype.JSON, Datatype.TIME, Datatype.UUID}


class Statement(NamedTuple):
    """One statement of a load, by the name that the log has for it."""

    step: str
    sql: str


@dataclass(frozen=True)
class Load:
    """A dataset's load in one dialect.

    `hist` is the history's metadata. `stage` is the relation that the base is loaded from, and
    `brought` names its load columns, which are then taken from it (decision H9). `delete_scope` is
    SQL on the alias `b` of the base: rows outside it are never deleted; `hist_scope` the same on the
    alias `h` of the history. With `merges` the history is loaded by one MERGE.
    """

    model: Model
    dataset: Dataset
    hist: HistState
    dialect: Dialect
    stage: str = ""
    brought: frozenset[str] = frozenset()
    delete_scope: str | None = None
    deletes_base: bool = True
    hist_scope: str | None = None
    closes_deleted: bool = True
    merges: bool = False

    # Names

    @cached_property
    def expressions(self) -> Expressions:
        """Keys and hashes."""
        return Expressions(self.dialect, schema_of(self.model, self.dataset))

    @cached_property
    def schema(self) -> str:
        """The namespace of both tables."""
        schema = schema_of(self.model, self.dataset)
        return schema.schema_name or schema.short_name

    @cached_property
    def base_table(self) -> str:
        """The base table."""
        return self.dialect.render_table_identifier(self.schema, self.dataset.name)

    @cached_property
    def hist_table(self) -> str:
        """The history table."""
        return self.dialect.render_table_identifier(self.schema, self.dataset.hist_name)

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
    def base_columns(self) -> list[Column]:
        """The base's columns, and those that a column of today forked from (section 4.4)."""
        forks = [each for each in self.hist.target_columns if not each.active and FORKED in each.name]
        return [*base_columns(self.dataset), *forks]

    # The base as the history sees it

    @cached_property
    def base(self) -> str:
        """The relation of the base's rows, each key once where identical rows collapse."""
        if self.dataset.historization.duplicate_keys == "reject":
            return self.base_table
        columns = base_columns(self.dataset)
        return self._once(self.base_table, columns)

    def _once(self, source: str, columns: Sequence[Column]) -> str:
        """The rows of a relation, one for each key: the one with the least texts."""
        compared = [
            column for column in columns if column.system_role not in {Role.LOAD_RUN_ID, Role.LOADED_AT}
        ]
        order = ", ".join(
            self.expressions.canonical(column, self.of("d", column.name)) for column in compared
        )
        names = ", ".join(self.of("d", column.name) for column in columns)
        kept = ", ".join(self.of("k", column.name) for column in columns)
        number = f"ROW_NUMBER() OVER (PARTITION BY {self.of('d', self.dataset.key)} ORDER BY {order})"
        return (
            f"(SELECT {kept} FROM (SELECT {names}, {number} AS {COPY} FROM {source} AS d) AS k "
            f"WHERE k.{COPY} = 1)"
        )

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
            f",\n    {self.of('i', name)} AS {self.name(name)}" for name in sorted(self.brought)
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
            Role.ROW_HASH: self.expressions.row_hash(self.dataset, alias),
            Role.LOAD_RUN_ID: LOAD_RUN_ID,
            Role.LOADED_AT: LOAD_TIMESTAMP,
            **{name: self.of(alias, name) for name in sorted(brought)},
        }

    def _from_stage(self, column: Column) -> str:
        """A stage column's value; text becomes a time or an id here, and what is none is an error."""
        value = self.of("i", column.input or column.name)
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
        }

    def differs(self, left: str, right: str) -> str:
        """Whether two base rows of one key are not the same, load columns aside."""
        compared = [*user_columns(self.dataset), *foreign_keys(self.dataset)]
        pairs = [(column, self.of(left, column.name), self.of(right, column.name)) for column in compared]
        return " OR ".join(
            self.dialect.null_safe_ne(*(self.expressions.canonical(column, each) for each in (a, b)))
            if column.datatype in _AS_TEXT
            else self.dialect.null_safe_ne(a, b)
            for column, a, b in [*pairs, (_HASH, self.of(left, Role.ROW_HASH), self.of(right, Role.ROW_HASH))]
        )

    def base_steps(self) -> list[Statement]:
        """Delete what is gone, delete what changed, insert what is not there."""
        columns = [self.name(column.name) for column in base_columns(self.dataset)]
        stage_key = f"SELECT 1 FROM {self.staged} AS s WHERE {self.same_key('s', 'b')}"
        steps = []
        if self.deletes_base:
            scope = f"({self.delete_scope}) AND " if self.delete_scope else ""
            steps.append(Statement("base_delete", self._gone(f"{scope}NOT EXISTS ({stage_key})")))
        changed = f"EXISTS ({stage_key} AND ({self.differs('s', 'b')}))"
        delete = self.dialect.render_delete_detection_statement(self.base_table, "b", changed)
        absent = f"NOT EXISTS (SELECT 1 FROM {self.base_table} AS b WHERE {self.same_key('b', 's')})"
        insert = self.dialect.render_insert_select_guarded(
            self.base_table, columns, [f"s.{name}" for name in columns], self.staged, "s", absent
        )
        return [*steps, Statement("base_replace", delete), Statement("base_insert", insert)]

    def _gone(self, condition: str) -> str:
        soft = self.dataset.historization.soft_delete
        if soft is None or soft.on_delete == "delete":
            return self.dialect.render_delete_detection_statement(self.base_table, "b", condition)
        flag = next(column for column in user_columns(self.dataset) if column.name == soft.column)
        value = self.dialect.cast_expression(self.text(soft.deleted_values[0]), self.dialect.type_of(flag))
        flags = {self.name(soft.column): value}
        if soft.deleted_at:
            flags[self.name(soft.deleted_at)] = LOAD_TIMESTAMP
        return self.dialect.render_update_exists(self.base_table, "b", flags, condition + self.live("b"))

    # The history load

    @cached_property
    def mirrored(self) -> list[Column]:
        """The history's columns that are copied from the base."""
        return [
            column
            for column in self.hist.target_columns
            if column.active and column.input and column.system_role is not Role.ENTITY_KEY
        ]

    @cached_property
    def hist_columns(self) -> list[str]:
        """The columns that an insert names."""
        fixed = (Role.ROW_HASH, Role.STARTED, Role.ENDED, Role.STATE, Role.LOAD_RUN_ID, Role.LOADED_AT)
        names = [self.dataset.hist_key, self.dataset.key, *(column.name for column in self.mirrored), *fixed]
        return [self.name(name) for name in names]

    def hist_values(self, state: str, alias: str = "r") -> list[str]:
        """The values of a version that this load begins, in the order of `hist_columns`."""
        return [
            self.expressions.hist_key(self.dataset, alias),
            self.of(alias, self.dataset.key),
            *(self.of(alias, column.input or column.name) for column in self.mirrored),
            self.of(alias, Role.ROW_HASH),
            LOAD_TIMESTAMP,
            "NULL",
            state,
            LOAD_RUN_ID,
            LOAD_TIMESTAMP,
        ]

    def open(self, alias: str) -> str:
        """Whether a version is open."""
        return f"{self.of(alias, Role.ENDED)} IS NULL"

    def changed(self, alias: str = "h") -> str:
        """Whether the base has the record of an open version with another hash."""
        return (
            f"EXISTS (SELECT 1 FROM {self.base} AS r WHERE {self.same_key('r', alias)}{self.live('r')}"
            f" AND {self.dialect.null_safe_ne(self.of('r', Role.ROW_HASH), self.of(alias, Role.ROW_HASH))})"
        )

    def gone(self, alias: str = "h") -> str:
        """Whether the base lacks the record of an open version, within the scope of deletes."""
        scope = f"({self.hist_scope}) AND " if self.hist_scope else ""
        return (
            f"{scope}NOT EXISTS (SELECT 1 FROM {self.base} AS r"
            f" WHERE {self.same_key('r', alias)}{self.live('r')})"
        )

    def no_open(self, alias: str = "r") -> str:
        """Whether a base row's record has no open version."""
        return (
            f"NOT EXISTS (SELECT 1 FROM {self.hist_table} AS o"
            f" WHERE {self.same_key('o', alias)} AND {self.open('o')})"
        )

    def closed_now(self, alias: str = "r") -> str:
        """Whether this load closed a version of the base row's record because it changed."""
        return (
            f"EXISTS (SELECT 1 FROM {self.hist_table} AS h"
            f" WHERE {self.of('h', Role.ENDED)} = {LOAD_TIMESTAMP}"
            f" AND {self.of('h', Role.STATE)} = {self.text(self.labels.changed)}"
            f" AND {self.same_key('h', alias)})"
        )

    def seen_before(self, alias: str = "r") -> str:
        """Whether a base row's record has any version at all."""
        return f"EXISTS (SELECT 1 FROM {self.hist_table} AS p WHERE {self.same_key('p', alias)})"

    def hist_steps(self) -> list[Statement]:
        """The four steps, in their order."""
        steps = [Statement("close_changed", self._close(self.labels.changed, self.changed()))]
        if self.closes_deleted:
            steps.append(Statement("close_deleted", self._close(self.labels.deleted, self.gone())))
        return [
            *steps,
            Statement(
                "insert_changed",
                self._insert(self.text(self.labels.changed), f"{self.closed_now()} AND {self.no_open()}"),
            ),
            Statement("insert_new", self._insert(self._new_label(), self.no_open())),
        ]

    def _new_label(self) -> str:
        new, again = self.text(self.labels.new), self.text(self.labels.reappeared)
        return new if new == again else f"CASE WHEN {self.seen_before()} THEN {again} ELSE {new} END"

    def _close(self, state: str, condition: str) -> str:
        values = {
            self.name(Role.ENDED): LOAD_TIMESTAMP,
            self.name(Role.STATE): self.text(state),
            self.name(Role.LOAD_RUN_ID): LOAD_RUN_ID,
        }
        return self.dialect.render_update_exists(
            self.hist_table, "h", values, f"{self.open('h')}\n  AND {condition}"
        )

    def _insert(self, state: str, condition: str) -> str:
        return self.dialect.render_insert_select_guarded(
            self.hist_table,
            self.hist_columns,
            self.hist_values(state),
            self.base,
            "r",
            condition + self.live("r"),
        )

    def actions(self) -> str:
        """Each record that changes, its action and its open version's key (section 9.1)."""
        changed, deleted = self.text(self.labels.changed), self.text(self.labels.deleted)
        other = self.dialect.null_safe_ne(self.of("r", Role.ROW_HASH), self.of("h", Role.ROW_HASH))
        back = f"{self._new_label()}"
        rows = (
            f"SELECT r.*, {self.of('h', self.dataset.hist_key)} AS open_key,\n"
            f"  CASE WHEN {self.of('h', self.dataset.hist_key)} IS NOT NULL THEN {changed}\n"
            f"    WHEN {self.closed_now()} THEN {changed} ELSE {back} END AS action\n"
            f"FROM {self.base} AS r\nLEFT JOIN {self.hist_table} AS h ON {self.same_key('h', 'r')}"
            f" AND {self.open('h')}\n"
            f"WHERE ({self.of('h', self.dataset.hist_key)} IS NULL OR {other}){self.live('r')}"
        )
        closes = (
            f"SELECT {self.of('a', 'open_key')} AS match_key, a.action{self._nothing()}\n"
            f"FROM (\n{rows}\n) AS a WHERE {self.of('a', 'open_key')} IS NOT NULL"
        )
        begun = ", ".join(
            f"{value} AS {name}"
            for name, value in zip(self.hist_columns, self.hist_values("a.action", "a"), strict=True)
            if name in self._payload
        )
        key_type = self._string_type()
        inserts = (
            f"SELECT {self.dialect.cast_expression('NULL', key_type)} AS match_key, a.action, {begun}\n"
            f"FROM (\n{rows}\n) AS a"
        )
        if not self.closes_deleted:
            return f"{closes}\nUNION ALL\n{inserts}"
        vanished = (
            f"SELECT {self.of('h', self.dataset.hist_key)} AS match_key, "
            f"{deleted} AS action{self._nothing()}\n"
            f"FROM {self.hist_table} AS h WHERE {self.open('h')} AND {self.gone()}"
        )
        return f"{closes}\nUNION ALL\n{vanished}\nUNION ALL\n{inserts}"

    @cached_property
    def _payload(self) -> list[str]:
        """The inserted columns that the source of the MERGE brings."""
        fixed = {
            self.name(role)
            for role in (Role.STARTED, Role.ENDED, Role.STATE, Role.LOAD_RUN_ID, Role.LOADED_AT)
        }
        return [name for name in self.hist_columns if name not in fixed]

    def _string_type(self) -> str:
        return self.dialect.map_logical_type(Datatype.STRING, 64)

    def _nothing(self) -> str:
        """A typed NULL for each payload column."""
        types = {self.name(column.name): self.dialect.type_of(column) for column in self.hist.target_columns}
        return "".join(
            f", {self.dialect.cast_expression('NULL', types[name])} AS {name}" for name in self._payload
        )

    def hist_merge(self, kept: str | None = None) -> Statement:
        """The single pass as one MERGE (section 9.3); of actions that are `kept` elsewhere, if they are."""
        values = {
            self.name(Role.STARTED): LOAD_TIMESTAMP,
            self.name(Role.ENDED): "NULL",
            self.name(Role.STATE): "s.action",
            self.name(Role.LOAD_RUN_ID): LOAD_RUN_ID,
            self.name(Role.LOADED_AT): LOAD_TIMESTAMP,
        }
        update = {
            self.name(Role.ENDED): LOAD_TIMESTAMP,
            self.name(Role.STATE): "s.action",
            self.name(Role.LOAD_RUN_ID): LOAD_RUN_ID,
        }
        sql = self.dialect.render_hist_merge_statement(
            self.hist_table,
            f"SELECT * FROM {kept} AS k" if kept else self.actions(),
            f"{self.of('t', self.dataset.hist_key)} = s.match_key AND {self.open('t')}",
            update,
            self.hist_columns,
            [values.get(name, f"s.{name}") for name in self.hist_columns],
        )
        return Statement("merge", sql)


_HASH = Column(target_column_name="row_hash", datatype=Datatype.STRING, max_length=64)
