"""A load as one MERGE (section 9.3)."""

from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.statement import Statement
from backstory.strategies.scd2.pair import Pair
from backstory.strategies.scd2.statements.cases import begun_states, by_past, is_absent
from backstory.strategies.scd2.transitions import TRANSITIONS, Now, Past, State

# Columns of the MERGE's source beside the user's, which cannot have such names.
OPEN_KEY, MATCH_KEY, ACTION = "open key", "match key", "record action"


def actions(pair: Pair) -> str:
    """Each version that ends, by its key, and each that begins, with its row; both with their state."""
    match_key, action, rows = pair.name(MATCH_KEY), pair.of("a", ACTION), _rows(pair)
    key_type = pair.dialect.map_logical_type(Datatype.STRING, 64)
    begun = ", ".join(f"{value} AS {name}" for name, value in pair.payload("a").items())
    closes = (
        f"SELECT {pair.of('a', OPEN_KEY)} AS {match_key}, {action}{_nothing(pair)}\n"
        f"FROM (\n{rows}\n) AS a WHERE {pair.of('a', OPEN_KEY)} IS NOT NULL"
    )
    inserts = (
        f"SELECT {pair.dialect.cast_expression('NULL', key_type)} AS {match_key}, {action}, {begun}\n"
        f"FROM (\n{rows}\n) AS a"
    )
    vanished = (
        f"SELECT {pair.of('h', pair.hist_key)} AS {match_key}, "
        f"{_closed(pair, Now.ABSENT)} AS {pair.name(ACTION)}{_nothing(pair)}\n"
        f"FROM {pair.table} AS h WHERE {pair.is_open('h')} AND {is_absent(pair)}"
    )
    return "\nUNION ALL\n".join([closes, *([vanished] if pair.closes_deleted else []), inserts])


def _rows(pair: Pair) -> str:
    """The base's rows that begin a version, with the state of it and the key of the open one that it ends."""
    opened = pair.of("h", pair.hist_key)
    unopened = by_past(pair, begun_states(pair, [past for past in Past if past is not Past.OPEN]))
    return (
        f"SELECT r.*, {opened} AS {pair.name(OPEN_KEY)},\n"
        f"  CASE WHEN {opened} IS NOT NULL THEN {_closed(pair, Now.OTHER)}\n"
        f"    ELSE {unopened} END AS {pair.name(ACTION)}\n"
        f"FROM {pair.base} AS r\nLEFT JOIN {pair.table} AS h ON {pair.same_key('h', 'r')}"
        f" AND {pair.is_open('h')}\n"
        f"WHERE ({opened} IS NULL OR {pair.other_hash('r', 'h')}){pair.live('r')}"
    )


def _closed(pair: Pair, now: Now) -> str:
    """The state as which an open version ends; a version that follows it begins as the same."""
    step = TRANSITIONS[Past.OPEN, now]
    assert isinstance(step.closes, State)
    assert step.begins in {None, step.closes}
    return pair.word(step.closes)


def _nothing(pair: Pair) -> str:
    """A typed NULL for each column that a row of the base would bring."""
    cast = pair.dialect.cast_expression
    return "".join(f", {cast('NULL', pair.types[name])} AS {name}" for name in pair.payload("a"))


def hist_merge(pair: Pair, kept: str | None = None) -> Statement:
    """The single pass as one MERGE; of actions that are `kept` elsewhere, if they are."""
    state = pair.of("s", ACTION)
    begun = pair.lifetime(state)
    sql = pair.dialect.render_hist_merge_statement(
        pair.table,
        f"SELECT * FROM {kept} AS k" if kept else actions(pair),
        f"{pair.of('t', pair.hist_key)} = {pair.of('s', MATCH_KEY)} AND {pair.is_open('t')}",
        pair.ending(state),
        pair.columns,
        [begun.get(name, f"s.{name}") for name in pair.columns],
    )
    return Statement("merge", sql)
