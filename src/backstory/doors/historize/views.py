"""The views of a history: all versions with the archived ones, labelled states, effective time (section 7).

A view has the columns that the history had when it was made. So the views go before a history's columns
change, and are made anew after that, and after pruning.
"""

from collections.abc import Iterator

from backstory.doors.historize.effective import EFFECTIVE, effective
from backstory.doors.historize.histories import History, select, shown
from backstory.doors.historize.labels import LABELED, labeled
from backstory.doors.historize.model import Historization
from backstory.doors.historize.steps import Statement

ALL = "_all"
SUFFIXES = (ALL, LABELED, EFFECTIVE)


def drop_views(history: History) -> list[Statement]:
    """Statements after which the history has no view."""
    return [
        Statement("drop_view", f"DROP VIEW IF EXISTS {history.named(suffix)}")
        for suffix in reversed(SUFFIXES)
    ]


def create_views(history: History, rules: Historization) -> list[Statement]:
    """Statements that make the views which the model asks for; what was pruned asks for `_all`."""
    return [
        Statement("create_view", f"CREATE VIEW {history.named(suffix)} AS\n{sql}")
        for suffix, sql in definitions(history, rules)
    ]


def definitions(history: History, rules: Historization) -> Iterator[tuple[str, str]]:
    """The suffixes of the views that the model asks for, and the query of each."""
    if history.everything != history.table:
        whole = select(
            history.dialect, shown(history, "v", history.columns), f"FROM {history.everything} AS v"
        )
        yield ALL, whole.sql
    if rules.state_labels and rules.state_labels.mode == "view":
        yield LABELED, labeled(history, rules.state_labels).sql
    if rules.effective_dating:
        yield EFFECTIVE, effective(history, rules.effective_dating).sql
