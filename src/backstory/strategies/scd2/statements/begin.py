"""The statements that begin versions (section 3.3, steps 3 and 4)."""

from collections.abc import Iterator

from backstory.stores.sql.statement import Statement
from backstory.strategies.scd2.pair import Pair
from backstory.strategies.scd2.statements.cases import PAST, begun_states, by_past, no_open
from backstory.strategies.scd2.transitions import BEGINNINGS, TRANSITIONS, Now, Past


def begins(pair: Pair) -> Iterator[Statement]:
    """A statement for the cases of the table that begin versions under one name.

    What the closing statements left has no open version any more: a record that changed looks like one whose
    load was interrupted there. What an earlier statement began is open for the later ones.
    """
    for name in BEGINNINGS:
        pasts = [past for past in Past if _beginning(past) == name]
        state = by_past(pair, begun_states(pair, pasts))
        known = [PAST[past](pair) for past in pasts if past in PAST]
        told = f"({' OR '.join(known)})" if len(known) > 1 else "".join(known)
        narrowed = "" if Past.NOTHING in pasts else f"{told} AND "
        values = {**pair.payload("r"), **pair.lifetime(state)}
        insert = pair.dialect.render_insert_select_guarded(
            pair.table,
            pair.columns,
            [values[column] for column in pair.columns],
            pair.base,
            "r",
            f"{narrowed}{no_open(pair)}{pair.live('r')}",
        )
        yield Statement(name, insert)


def _beginning(past: Past) -> str | None:
    return (past is not Past.OPEN and TRANSITIONS[past, Now.PRESENT].beginning) or None
