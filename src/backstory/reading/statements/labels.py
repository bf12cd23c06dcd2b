"""Other words for the states of versions, in a view; stored values stay as they are (section 7.2)."""

from backstory.model.history import Labels
from backstory.model.layout import STATE
from backstory.reading.statements.stored_history import Query, Shown, StoredHistory, select

_FIRST = "first_started_at"


def labeled(history: StoredHistory, labels: Labels) -> Query:
    """The versions with these labels; an open version of a record that was there before is `reappeared`."""
    stored, text = history.model.labels, history.text
    state, key = history.of("h", STATE), history.dialect.render_identifier(history.key)
    words = {
        stored.new: text(labels.new),
        stored.changed: text(labels.changed),
        stored.deleted: text(labels.deleted),
    }
    again = f"{state} = {text(stored.new)} AND f.{_FIRST} < {history.started('h')}"
    cases = [f"WHEN {again} THEN {text(labels.reappeared)}"]
    cases += [f"WHEN {state} = {text(old)} THEN {new}" for old, new in words.items()]
    label = f"CASE {' '.join(cases)} ELSE {state} END"
    first = (
        f"SELECT e.{key}, MIN({history.started('e')}) AS {_FIRST} FROM {history.everything} AS e"
        f" GROUP BY e.{key}"
    )
    return select(
        history.dialect,
        [Shown(name, label if name == STATE else history.of("h", name)) for name in history.names],
        f"FROM {history.table} AS h\nJOIN (\n{first}\n) AS f ON f.{key} = h.{key}",
    )
