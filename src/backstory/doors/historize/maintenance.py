"""What is done to stored versions before a load when the user asks for it (sections 7.2 and 7.6)."""

from collections.abc import Iterator

from backstory.doors.historize.expressions import Expressions
from backstory.doors.historize.model import Role, StateLabels
from backstory.doors.historize.resolve import schema_of
from backstory.doors.historize.statements import Load, Statement
from backstory.doors.historize.work import Run


def maintenance(load: Load, run: Run) -> Iterator[Statement]:
    """Statements that make the open versions' hashes anew, and that give states other labels."""
    if run.rehash:
        yield _rehash(load)
    if run.relabel is not None:
        yield _relabel(load, run.relabel)


def _rehash(load: Load) -> Statement:
    """Hashes of open versions by today's definition, of their own columns."""
    expressions = Expressions(load.dialect, schema_of(load.model, load.dataset))
    value = expressions.row_hash(load.dataset, "h")
    sql = load.dialect.render_update_exists(
        load.hist_table, "h", {load.name(Role.ROW_HASH): value}, load.open("h")
    )
    return Statement("rehash", sql)


def relabels(before: StateLabels, after: StateLabels) -> dict[str, str]:
    """For each label that is another now, the new one."""
    pairs = [
        (getattr(before, state), getattr(after, state))
        for state in ("new", "changed", "deleted", "reappeared")
    ]
    return {old: new for old, new in pairs if old != new}


def _relabel(load: Load, before: StateLabels) -> Statement:
    state = load.of("h", Role.STATE)
    pairs = relabels(before, load.labels)
    cases = " ".join(f"WHEN {load.text(old)} THEN {load.text(new)}" for old, new in pairs.items())
    value = f"CASE {state} {cases} ELSE {state} END" if cases else state
    listed = ", ".join(load.text(old) for old in pairs) or "NULL"
    sql = load.dialect.render_update_exists(
        load.hist_table, "h", {load.name(Role.STATE): value}, f"{state} IN ({listed})"
    )
    return Statement("relabel", sql)
