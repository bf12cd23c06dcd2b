"""Forget a record's values, or the record, in a history and its archive (section 7.5)."""

from collections.abc import Sequence

from backstory.model.layout import ROW_HASH
from backstory.reading.statements.stored_history import Key, StoredHistory
from backstory.stores.sql.engines.engine import Engine
from backstory.upkeep.pruning import archive_columns

ERASED = "erased"


def forget_values(history: StoredHistory, table: str, stored: Sequence[str], key: Key) -> str:
    """The statement that leaves of a record its keys and intervals: values NULL, `row_hash` `erased`."""
    users = {each.name for each in history.model.attributes}
    kept = {name for name in history.names if name not in users}
    kept |= {each.name for each in archive_columns(history)[len(history.columns) :]}
    name = history.dialect.render_identifier
    values = {name(each): "NULL" for each in stored if each not in kept}
    values[name(ROW_HASH)] = history.text(ERASED)
    return history.dialect.render_update_exists(table, "h", values, history.is_record("h", key))


def forget_rows(history: StoredHistory, table: str, key: Key) -> str:
    """The statement that deletes all versions of a record."""
    return history.dialect.render_delete_detection_statement(table, "h", history.is_record("h", key))


def versions_of(history: StoredHistory, table: str, key: Key) -> str:
    """The query of how many versions of a record a table has."""
    return f"SELECT COUNT(*) FROM {table} AS h WHERE {history.is_record('h', key)}"


def tables(history: StoredHistory, engine: Engine) -> dict[str, list[str]]:
    """History and archive, as far as they are there, with the columns that stand in them."""
    found = {
        history.table: engine.introspect_table(history.schema, history.model.name),
        history.archive: engine.introspect_table(history.schema, history.model.archive_name),
    }
    return {table: list(stored) for table, stored in found.items() if stored}


def erase(history: StoredHistory, engine: Engine, key: Key, *, rows: bool = False) -> int:
    """Erase a record's values, or its rows, wherever they stand; the count of its versions."""
    count = 0
    for table, stored in tables(history, engine).items():
        count += int(engine.execute_scalar(versions_of(history, table, key)))
        statement = forget_rows(history, table, key) if rows else forget_values(history, table, stored, key)
        engine.execute(statement)
    return count
