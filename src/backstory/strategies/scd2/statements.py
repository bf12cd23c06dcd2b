"""The load of a history as SQL for any dialect: four statements or one MERGE, and the counts of both.

All of them are derived from the table of transitions (sections 3.3 and 9.3). Conditions apply to a row of the
base (alias `r`) or to an open version (alias `h`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from backstory.model.layout import ENDED, LOAD_RUN_ID, LOADED_AT, ROW_HASH, STARTED, STATE
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialect import SqlNames
from backstory.stores.sql.engine import LOAD_RUN_ID as RUN
from backstory.stores.sql.engine import LOAD_TIMESTAMP, Statement
from backstory.strategies.scd2.transitions import BEGINNINGS, TRANSITIONS, Case, Now, Past, State, Tally


class ArchiveTable(NamedTuple):
    """The archive of a history's pruned versions, by name or as SQL, and its column with the record's key."""

    table: str
    key: str


@dataclass(frozen=True)
class Pair(SqlNames):
    """A base and its history in one dialect.

    * `table`, `base`: the history and the base as SQL relations.
    * `key`, `hist_key`: the columns of the record's key and of the version's key.
    * `mirrored`: the copied columns, each with its name in the base.
    * `types`: the types of the history's columns.
    * `words`: the states as they are stored.
    * `version_key`: SQL for the key of the version that a row of an alias begins.
    * `live`: a condition with a leading AND, which holds if a row of the base is not flagged as deleted; may
      be empty.
    * `scope`: a condition on the alias `h`; other versions are never closed as deleted.
    * `closes_deleted`: whether any version is closed as deleted.
    * `filled`: the copied columns that a history may gain while hashes stay the same, each with its name in
      the base.
    """

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
    archive: ArchiveTable | None = None
    filled: Mapping[str, str] = field(default_factory=dict)

    def word(self, state: State) -> str:
        """The SQL literal of a state."""
        return self.text(self.words[state])

    def same_key(self, left: str, right: str) -> str:
        """SQL for whether the rows of two aliases belong to the same record."""
        return f"{self.of(left, self.key)} = {self.of(right, self.key)}"

    def is_open(self, alias: str) -> str:
        """SQL for whether a version is open."""
        return f"{self.of(alias, ENDED)} IS NULL"

    def other_hash(self, left: str, right: str) -> str:
        """SQL for whether the rows of two aliases have different hashes. NULL equals NULL."""
        return self.dialect.null_safe_ne(self.of(left, ROW_HASH), self.of(right, ROW_HASH))

    def is_other(self, row: str, version: str) -> str:
        """SQL for whether a base row begins another version: its hash differs, or it fills a column."""
        fills = (
            f"({self.of(version, name)} IS NULL AND {self.of(row, source)} IS NOT NULL)"
            for name, source in self.filled.items()
        )
        return f"({' OR '.join([self.other_hash(row, version), *fills])})"

    @cached_property
    def columns(self) -> list[str]:
        """The columns of an INSERT, in order."""
        fixed = (ROW_HASH, STARTED, ENDED, STATE, LOAD_RUN_ID, LOADED_AT)
        return [self.name(column) for column in (self.hist_key, self.key, *self.mirrored, *fixed)]

    def payload(self, alias: str) -> dict[str, str]:
        """The columns that a version copies from its base row: both keys, the copied columns, the hash."""
        copied = {self.key: self.key, **self.mirrored, ROW_HASH: ROW_HASH}
        values = {self.name(column): self.of(alias, source) for column, source in copied.items()}
        return {self.name(self.hist_key): self.version_key(alias), **values}

    def lifetime(self, state: str) -> dict[str, str]:
        """The other columns of a version that this load begins: start and end, state, and run."""
        values = {
            STARTED: LOAD_TIMESTAMP,
            ENDED: "NULL",
            STATE: state,
            LOAD_RUN_ID: RUN,
            LOADED_AT: LOAD_TIMESTAMP,
        }
        return {self.name(column): value for column, value in values.items()}

    def ending(self, state: str) -> dict[str, str]:
        """The columns that change when this load closes a version."""
        values = {ENDED: LOAD_TIMESTAMP, STATE: state, LOAD_RUN_ID: RUN}
        return {self.name(column): value for column, value in values.items()}


def is_changed(pair: Pair) -> str:
    """SQL for whether the base has the record of an open version with other values."""
    return (
        f"EXISTS (SELECT 1 FROM {pair.base} AS r WHERE {pair.same_key('r', 'h')}{pair.live('r')}"
        f" AND {pair.is_other('r', 'h')})"
    )


def is_absent(pair: Pair) -> str:
    """SQL for whether the base lacks the record of an open version, within the scope of deletes."""
    scope = f"({pair.scope}) AND " if pair.scope else ""
    return (
        f"{scope}NOT EXISTS (SELECT 1 FROM {pair.base} AS r WHERE {pair.same_key('r', 'h')}{pair.live('r')})"
    )


def has_no_open(pair: Pair) -> str:
    """SQL for whether a base row's record has no open version."""
    same = f"{pair.same_key('o', 'r')} AND {pair.is_open('o')}"
    return f"NOT EXISTS (SELECT 1 FROM {pair.table} AS o WHERE {same})"


def is_interrupted(pair: Pair) -> str:
    """SQL for whether this load closed a version of the base row's record because it changed."""
    return (
        f"EXISTS (SELECT 1 FROM {pair.table} AS h WHERE {pair.of('h', ENDED)} = {LOAD_TIMESTAMP}"
        f" AND {pair.of('h', STATE)} = {pair.word(State.CHANGED)} AND {pair.same_key('h', 'r')})"
    )


def has_past(pair: Pair) -> str:
    """SQL for whether a base row's record has any version, including archived versions."""
    here = f"EXISTS (SELECT 1 FROM {pair.table} AS p WHERE {pair.same_key('p', 'r')})"
    return f"({here}{or_in_archive(pair, 'r')})"


def or_in_archive(pair: Pair, alias: str) -> str:
    """SQL with a leading OR for whether a row's record has archived versions.

    It is empty without an archive.
    """
    if pair.archive is None:
        return ""
    same = f"{pair.of('z', pair.archive.key)} = {pair.of(alias, pair.key)}"
    return f" OR EXISTS (SELECT 1 FROM {pair.archive.table} AS z WHERE {same})"


# Conditions on an open version, by its state in the base, and on a base row without an open version, by its
# past.
NOW: Final[Mapping[Now, Callable[[Pair], str]]] = {Now.OTHER: is_changed, Now.ABSENT: is_absent}
UNOPENED: Final = tuple(past for past in Past if past is not Past.OPEN)
PAST: Final[Mapping[Past, Callable[[Pair], str]]] = {Past.INTERRUPTED: is_interrupted, Past.CLOSED: has_past}


def closing_conditions(pair: Pair) -> dict[Now, str]:
    """For each case in which a load closes a version, the condition on the open version."""
    return {
        now: condition(pair) for now, condition in NOW.items() if now is not Now.ABSENT or pair.closes_deleted
    }


def case_of_past(pair: Pair, values: Mapping[Past, str]) -> str:
    """A CASE expression with the value for a base row's past. `values` has the possible pasts."""
    pasts = [past for past in Past if past in values]
    last = values[pasts[-1]]
    branches = [(past, values[past]) for past in pasts[:-1]]
    while branches and branches[-1][1] == last:
        branches.pop()
    whens = " ".join(f"WHEN {PAST[past](pair)} THEN {value}" for past, value in branches)
    return f"CASE {whens} ELSE {last} END" if whens else last


def opening_words(pair: Pair, pasts: Collection[Past]) -> dict[Past, str]:
    """For each past, the literal of the state with which versions begin."""
    steps = {past: TRANSITIONS[past, Now.PRESENT] for past in pasts}
    return {past: pair.word(step.begins) for past, step in steps.items() if step.begins}


def hist_steps(pair: Pair) -> list[Statement]:
    """The four statements of a load (section 3.3). Versions close before other versions begin.

    A changed record then has no open version, as after a load that was interrupted at this point. Versions
    that one statement begins are open for the next statement.
    """
    write, steps = pair.dialect, []
    for now, condition in closing_conditions(pair).items():
        where = f"{pair.is_open('h')}\n  AND {condition}"
        update = write.render_update_exists(pair.table, "h", pair.ending(_closing_word(pair, now)), where)
        steps.append(Statement(str(TRANSITIONS[Past.OPEN, now].closing), update))
    for name in BEGINNINGS:
        pasts = [past for past in UNOPENED if TRANSITIONS[past, Now.PRESENT].beginning == name]
        values = {**pair.payload("r"), **pair.lifetime(case_of_past(pair, opening_words(pair, pasts)))}
        begun = [values[column] for column in pair.columns]
        either = " OR ".join(PAST[past](pair) for past in pasts if past in PAST)
        either = f"({either})" if len(pasts) > 1 else either
        narrowed = "" if Past.NOTHING in pasts else f"{either} AND "
        where = f"{narrowed}{has_no_open(pair)}{pair.live('r')}"
        insert = write.render_insert_select_guarded(pair.table, pair.columns, begun, pair.base, "r", where)
        steps.append(Statement(name, insert))
    return steps


# No column of a model has a space in its name.
PAST_NAME = "record past"


def count_cases(pair: Pair, query: Callable[[str], Sequence[Sequence[Any]]]) -> Tally:
    """The number of records of base and history by case.

    Each key must be unique in the base and among open versions. `query` runs a query, which may have
    placeholders, and returns its rows.
    """

    def count(source: str) -> int:
        return int(query(f"SELECT COUNT(*) FROM {source}")[0][0])

    live = pair.live("r")
    opened = f"{pair.table} AS h WHERE {pair.is_open('h')}"
    cases: Counter[Case] = Counter()
    for now, condition in closing_conditions(pair).items():
        cases[Past.OPEN, now] = count(f"{opened} AND {condition}")
    for past, number in query(_past_counts(pair)):
        cases[Past[past], Now.PRESENT] = int(number)
    base = count(f"{pair.base} AS r WHERE {live.removeprefix(' AND ') or '1 = 1'}")
    same = base - sum(number for (_, now), number in cases.items() if now is not Now.ABSENT)
    spared = count(opened) - same - cases[Past.OPEN, Now.OTHER] - cases[Past.OPEN, Now.ABSENT]
    return Tally(cases + Counter({(Past.OPEN, Now.SAME): same, (Past.OPEN, Now.SPARED): spared}))


def _past_counts(pair: Pair) -> str:
    """The query for the number of base records without an open version, by past."""
    value = case_of_past(pair, {past: pair.dialect.string_literal(past.name) for past in UNOPENED})
    name = pair.name(PAST_NAME)
    rows = f"SELECT {value} AS {name} FROM {pair.base} AS r WHERE {has_no_open(pair)}{pair.live('r')}"
    return f"SELECT u.{name}, COUNT(*) FROM (\n{rows}\n) AS u GROUP BY u.{name}"


# Extra columns of the MERGE's source. No column of a model has a space in its name.
OPEN_KEY, MATCH_KEY, ACTION = "open key", "match key", "record action"


def actions(pair: Pair) -> str:
    """The query for a MERGE's source: versions that end, by key, and rows that begin versions."""
    match_key, action, rows = pair.name(MATCH_KEY), pair.of("a", ACTION), _beginning_rows(pair)
    key_type = pair.dialect.map_logical_type(Datatype.STRING, 64)
    begun = ", ".join(f"{value} AS {name}" for name, value in pair.payload("a").items())
    closes = (
        f"SELECT {pair.of('a', OPEN_KEY)} AS {match_key}, {action}{_typed_nulls(pair)}\n"
        f"FROM (\n{rows}\n) AS a WHERE {pair.of('a', OPEN_KEY)} IS NOT NULL"
    )
    inserts = (
        f"SELECT {pair.dialect.cast_expression('NULL', key_type)} AS {match_key}, {action}, {begun}\n"
        f"FROM (\n{rows}\n) AS a"
    )
    vanished = (
        f"SELECT {pair.of('h', pair.hist_key)} AS {match_key}, "
        f"{_closing_word(pair, Now.ABSENT)} AS {pair.name(ACTION)}{_typed_nulls(pair)}\n"
        f"FROM {pair.table} AS h WHERE {pair.is_open('h')} AND {is_absent(pair)}"
    )
    return "\nUNION ALL\n".join([closes, *([vanished] if pair.closes_deleted else []), inserts])


def _beginning_rows(pair: Pair) -> str:
    """The query for base rows that begin a version, with its state and the key of its open predecessor."""
    opened = pair.of("h", pair.hist_key)
    unopened = case_of_past(pair, opening_words(pair, UNOPENED))
    return (
        f"SELECT r.*, {opened} AS {pair.name(OPEN_KEY)},\n"
        f"  CASE WHEN {opened} IS NOT NULL THEN {_closing_word(pair, Now.OTHER)}\n"
        f"    ELSE {unopened} END AS {pair.name(ACTION)}\n"
        f"FROM {pair.base} AS r\nLEFT JOIN {pair.table} AS h ON {pair.same_key('h', 'r')}"
        f" AND {pair.is_open('h')}\n"
        f"WHERE ({opened} IS NULL OR {pair.is_other('r', 'h')}){pair.live('r')}"
    )


def _closing_word(pair: Pair, now: Now) -> str:
    """The literal of the state with which an open version ends. Its successor begins with the same state."""
    step = TRANSITIONS[Past.OPEN, now]
    assert isinstance(step.closes, State)
    assert step.begins in {None, step.closes}
    return pair.word(step.closes)


def _typed_nulls(pair: Pair) -> str:
    """SQL with a typed NULL for each column that a version copies from its base row."""
    cast = pair.dialect.cast_expression
    return "".join(f", {cast('NULL', pair.types[name])} AS {name}" for name in pair.payload("a"))


def hist_merge(pair: Pair, actions_table: str | None = None) -> Statement:
    """A load as one MERGE (section 9.3).

    `actions_table` is the table with the actions, if they are stored.
    """
    state = pair.of("s", ACTION)
    begun = pair.lifetime(state)
    sql = pair.dialect.render_hist_merge_statement(
        pair.table,
        f"SELECT * FROM {actions_table} AS k" if actions_table else actions(pair),
        f"{pair.of('t', pair.hist_key)} = {pair.of('s', MATCH_KEY)} AND {pair.is_open('t')}",
        pair.ending(state),
        pair.columns,
        [begun.get(name, f"s.{name}") for name in pair.columns],
    )
    return Statement("merge", sql)
