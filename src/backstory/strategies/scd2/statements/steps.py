"""A load as the four statements, in their order (section 3.3)."""

from backstory.stores.sql.statement import Statement
from backstory.strategies.scd2.pair import Pair
from backstory.strategies.scd2.statements.begin import begins
from backstory.strategies.scd2.statements.close import closes


def hist_steps(pair: Pair) -> list[Statement]:
    """Every version that ends does so before one begins."""
    return [*closes(pair), *begins(pair)]
