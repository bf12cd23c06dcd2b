"""The cases of the table as conditions: on a row of the base (alias `r`), on an open version (alias `h`)."""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from backstory.model.layout import ENDED, STATE
from backstory.stores.sql.placeholders import LOAD_TIMESTAMP
from backstory.strategies.scd2.pair import Pair
from backstory.strategies.scd2.transitions import TRANSITIONS, Now, Past, State


def changed(pair: Pair, alias: str = "h") -> str:
    """Whether the base has the record of an open version with another hash."""
    return (
        f"EXISTS (SELECT 1 FROM {pair.base} AS r WHERE {pair.same_key('r', alias)}{pair.live('r')}"
        f" AND {pair.other_hash('r', alias)})"
    )


def is_absent(pair: Pair, alias: str = "h") -> str:
    """Whether the base lacks the record of an open version, within the scope of deletes."""
    scope = f"({pair.scope}) AND " if pair.scope else ""
    return (
        f"{scope}NOT EXISTS (SELECT 1 FROM {pair.base} AS r"
        f" WHERE {pair.same_key('r', alias)}{pair.live('r')})"
    )


def no_open(pair: Pair, alias: str = "r") -> str:
    """Whether a base row's record has no open version."""
    same = f"{pair.same_key('o', alias)} AND {pair.is_open('o')}"
    return f"NOT EXISTS (SELECT 1 FROM {pair.table} AS o WHERE {same})"


def interrupted(pair: Pair, alias: str = "r") -> str:
    """Whether this load closed a version of the base row's record because it changed."""
    return (
        f"EXISTS (SELECT 1 FROM {pair.table} AS h WHERE {pair.of('h', ENDED)} = {LOAD_TIMESTAMP}"
        f" AND {pair.of('h', STATE)} = {pair.word(State.CHANGED)} AND {pair.same_key('h', alias)})"
    )


def has_past(pair: Pair, alias: str = "r") -> str:
    """Whether a base row's record has any version at all, be it an archived one."""
    here = f"EXISTS (SELECT 1 FROM {pair.table} AS p WHERE {pair.same_key('p', alias)})"
    return f"({here}{or_archived(pair, alias)})"


def or_archived(pair: Pair, alias: str) -> str:
    """Or whether the record of a row has versions in the archive; empty where there is none."""
    if pair.archive is None:
        return ""
    same = f"{pair.of('z', pair.archive.key)} = {pair.of(alias, pair.key)}"
    return f" OR EXISTS (SELECT 1 FROM {pair.archive.table} AS z WHERE {same})"


# Of an open version, what the base has of it now; of a base row without one, what it has of a past.
NOW: Final[Mapping[Now, Callable[[Pair], str]]] = {Now.OTHER: changed, Now.ABSENT: is_absent}
PAST: Final[Mapping[Past, Callable[[Pair], str]]] = {Past.INTERRUPTED: interrupted, Past.CLOSED: has_past}


def closing(pair: Pair) -> dict[Now, str]:
    """What the base has of the open versions that a load closes, as conditions on them."""
    return {now: told(pair) for now, told in NOW.items() if now is not Now.ABSENT or pair.closes_deleted}


def by_past(pair: Pair, values: Mapping[Past, str]) -> str:
    """The value for a base row's past, which is one of these, in the order of the table."""
    pasts = [past for past in Past if past in values]
    last = values[pasts[-1]]
    told = [(past, values[past]) for past in pasts[:-1]]
    while told and told[-1][1] == last:
        told.pop()
    whens = " ".join(f"WHEN {PAST[past](pair)} THEN {value}" for past, value in told)
    return f"CASE {whens} ELSE {last} END" if whens else last


def begun_states(pair: Pair, pasts: Collection[Past]) -> dict[Past, str]:
    """The state, as a literal, that the version of a base row without an open one begins as."""
    steps = {past: TRANSITIONS[past, Now.PRESENT] for past in pasts}
    return {past: pair.word(step.begins) for past, step in steps.items() if step.begins}
