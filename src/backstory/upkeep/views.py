"""The views of a history: all versions with the archived ones, labelled states, effective time (section 7).

A view has the columns that the history had when it was made. So the views go before a history's columns
change, and are made anew after that, and after pruning.
"""

from collections.abc import Iterator

from backstory.reading.statements.effective import effective
from backstory.reading.statements.labels import labeled
from backstory.reading.statements.stored_history import StoredHistory, columns_of, select

ALL, LABELED, EFFECTIVE = "_all", "_labeled", "_effective"
SUFFIXES = (ALL, LABELED, EFFECTIVE)


def drop_views(history: StoredHistory) -> list[str]:
    """Statements after which the history has no view."""
    return [f"DROP VIEW IF EXISTS {history.named(suffix)}" for suffix in reversed(SUFFIXES)]


def create_views(history: StoredHistory) -> list[str]:
    """Statements that make the views which the history asks for."""
    return [f"CREATE VIEW {history.named(suffix)} AS\n{sql}" for suffix, sql in definitions(history)]


def definitions(history: StoredHistory) -> Iterator[tuple[str, str]]:
    """The suffixes of the views that the history asks for, and the query of each.

    What was pruned asks for `_all`.
    """
    if history.model.archive:
        everything = f"FROM {history.everything} AS v"
        yield ALL, select(history.dialect, columns_of(history, "v", history.names), everything).sql
    if history.model.shown_labels:
        yield LABELED, labeled(history, history.model.shown_labels).sql
    if history.model.dating:
        yield EFFECTIVE, effective(history, history.model.dating).sql
