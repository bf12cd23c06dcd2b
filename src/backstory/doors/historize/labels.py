"""Other words for the states of versions, in a view; stored values stay as they are (section 7.2)."""

from backstory.doors.historize.histories import History, Query, Shown, select
from backstory.doors.historize.model import Role, StateLabels

LABELED = "_labeled"
_FIRST = "first_started_at"


def labeled(history: History, labels: StateLabels) -> Query:
    """The versions with these labels; an open version of a record that was there before is `reappeared`."""
    stored, text = history.labels, history.text
    state, key = history.of("h", Role.STATE), history.dialect.render_identifier(history.key)
    words = {
        stored.new: text(labels.new),
        stored.changed: text(labels.changed),
        stored.deleted: text(labels.deleted),
    }
    again = f"{state} = {text(stored.new)} AND f.{_FIRST} < {history.of('h', Role.STARTED)}"
    cases = [f"WHEN {again} THEN {text(labels.reappeared)}"]
    cases += [f"WHEN {state} = {text(old)} THEN {new}" for old, new in words.items()]
    label = f"CASE {' '.join(cases)} ELSE {state} END"
    first = (
        f"SELECT e.{key}, MIN({history.of('e', Role.STARTED)}) AS {_FIRST} FROM {history.everything} AS e"
        f" GROUP BY e.{key}"
    )
    return select(
        history.dialect,
        [
            Shown(column.name, label if column.system_role is Role.STATE else history.of("h", column.name))
            for column in history.columns
        ],
        f"FROM {history.table} AS h\nJOIN (\n{first}\n) AS f ON f.{key} = h.{key}",
    )
