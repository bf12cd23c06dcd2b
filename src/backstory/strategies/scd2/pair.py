"""A base and its history in one dialect: what statements need to know of the two."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from backstory.model.layout import ENDED, LOAD_RUN_ID, LOADED_AT, ROW_HASH, STARTED, STATE
from backstory.stores.sql.dialects.dialect import Dialect
from backstory.stores.sql.placeholders import LOAD_RUN_ID as RUN
from backstory.stores.sql.placeholders import LOAD_TIMESTAMP, without_placeholders
from backstory.strategies.scd2.transitions import State


class Archived(NamedTuple):
    """The table of what was pruned out of a history, as SQL, and the record's key in it."""

    table: str
    key: str


@dataclass(frozen=True)
class Pair:
    """A base and its history.

    `table` and `base` are the two as SQL relations, `key` and `hist_key` the columns of the record's and of
    the version's key, `mirrored` the columns that are copied, with their names in the base, and `types` the
    types of the history's columns. `version_key` is the key of the version that a row of an alias begins.
    `live` is the condition, after an AND, that a row of the base is not flagged as deleted; empty without a
    flag. `scope` is SQL on the alias `h` of the history: other versions are never closed as deleted, and
    without `closes_deleted` none is. `words` are the states as they are stored.
    """

    dialect: Dialect
    table: str
    base: str
    key: str
    hist_key: str
    mirrored: Mapping[str, str]
    types: Mapping[str, str]
    words: Mapping[State, str]
    version_key: Callable[[str], str]
    live: Callable[[str], str]
    scope: str | None = None
    closes_deleted: bool = True
    archive: Archived | None = None

    def name(self, column: str) -> str:
        """A column's name."""
        return self.dialect.render_identifier(column)

    def of(self, alias: str, column: str) -> str:
        """`alias.column`."""
        return f"{alias}.{self.name(column)}"

    def word(self, state: State) -> str:
        """A state's literal, which has no placeholder whatever its word is."""
        parts = without_placeholders(self.words[state])
        return self.dialect.concat_expression([self.dialect.string_literal(part) for part in parts])

    def same_key(self, left: str, right: str) -> str:
        """Whether the rows of two aliases are of one record."""
        return f"{self.of(left, self.key)} = {self.of(right, self.key)}"

    def is_open(self, alias: str) -> str:
        """Whether a version is open."""
        return f"{self.of(alias, ENDED)} IS NULL"

    def other_hash(self, left: str, right: str) -> str:
        """Whether the rows of two aliases have different hashes; NULL is one."""
        return self.dialect.null_safe_ne(self.of(left, ROW_HASH), self.of(right, ROW_HASH))

    @cached_property
    def columns(self) -> list[str]:
        """The columns that an insert names."""
        fixed = (ROW_HASH, STARTED, ENDED, STATE, LOAD_RUN_ID, LOADED_AT)
        return [self.name(column) for column in (self.hist_key, self.key, *self.mirrored, *fixed)]

    def payload(self, alias: str) -> dict[str, str]:
        """What a version takes of its row of the base: its key, the record's, the copies, the hash."""
        copied = {self.key: self.key, **self.mirrored, ROW_HASH: ROW_HASH}
        values = {self.name(column): self.of(alias, source) for column, source in copied.items()}
        return {self.name(self.hist_key): self.version_key(alias), **values}

    def lifetime(self, state: str) -> dict[str, str]:
        """What a version that this load begins has beside: its span, its state and its run."""
        values = {
            STARTED: LOAD_TIMESTAMP,
            ENDED: "NULL",
            STATE: state,
            LOAD_RUN_ID: RUN,
            LOADED_AT: LOAD_TIMESTAMP,
        }
        return {self.name(column): value for column, value in values.items()}

    def ending(self, state: str) -> dict[str, str]:
        """What a version gets that this load closes."""
        values = {ENDED: LOAD_TIMESTAMP, STATE: state, LOAD_RUN_ID: RUN}
        return {self.name(column): value for column, value in values.items()}
