"""How many records a load will find in each case of the table, by queries."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from backstory.strategies.scd2.pair import Pair
from backstory.strategies.scd2.statements.cases import by_past, closing, no_open
from backstory.strategies.scd2.transitions import Case, Now, Past, Tally

# A column of a model has no blank in its name.
PAST_NAME = "record past"


def tally(pair: Pair, query: Callable[[str], Sequence[Sequence[Any]]]) -> Tally:
    """The records of base and history by their cases, where each key stands there once.

    `query` gives the rows of a query with placeholders.
    """

    def count(of: str) -> int:
        return int(query(f"SELECT COUNT(*) FROM {of}")[0][0])

    live = pair.live("r")
    opened = f"{pair.table} AS h WHERE {pair.is_open('h')}"
    cases: Counter[Case] = Counter()
    for now, condition in closing(pair).items():
        cases[Past.OPEN, now] = count(f"{opened} AND {condition}")
    for past, number in query(_unopened(pair)):
        cases[Past[past], Now.PRESENT] = int(number)
    base = count(f"{pair.base} AS r WHERE {live.removeprefix(' AND ') or '1 = 1'}")
    same = base - sum(number for (_, now), number in cases.items() if now is not Now.ABSENT)
    spared = count(opened) - same - cases[Past.OPEN, Now.OTHER] - cases[Past.OPEN, Now.ABSENT]
    return Tally(cases + Counter({(Past.OPEN, Now.SAME): same, (Past.OPEN, Now.SPARED): spared}))


def _unopened(pair: Pair) -> str:
    """The base's records without an open version, counted by their past."""
    pasts = [past for past in Past if past is not Past.OPEN]
    value = by_past(pair, {past: pair.dialect.string_literal(past.name) for past in pasts})
    name = pair.name(PAST_NAME)
    rows = f"SELECT {value} AS {name} FROM {pair.base} AS r WHERE {no_open(pair)}{pair.live('r')}"
    return f"SELECT u.{name}, COUNT(*) FROM (\n{rows}\n) AS u GROUP BY u.{name}"
