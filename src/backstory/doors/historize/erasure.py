"""Forget a record's values, or the record, in a history and its archive (section 7.5)."""

from collections.abc import Sequence

from backstory.doors.historize.histories import ARCHIVE, History, Key
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import TECHNICAL, Role
from backstory.doors.historize.pruning import archive_columns
from backstory.errors import Refused
from backstory.stores.sql.engines.engine import Engine

ERASED = "erased"


def is_in_base(load: Load, history: History, key: Key) -> str:
    """The query of how many rows of the base would give the record a new version at the next load."""
    condition = history.is_record(
        "r", key, {each.name: each.input or each.name for each in history.business_keys}
    )
    return f"SELECT COUNT(*) FROM {load.base_table} AS r WHERE {condition}{load.live('r')}"


def forget_values(history: History, table: str, stored: Sequence[str], key: Key) -> str:
    """The statement that leaves of a record its keys and intervals: values NULL, `row_hash` `erased`."""
    kept = {each.name for each in history.identifying} | {history.hist_key, *TECHNICAL}
    kept |= {each.name for each in archive_columns(history)[len(history.columns) :]}
    name = history.dialect.render_identifier
    values = {name(each): "NULL" for each in stored if each not in kept}
    values[name(Role.ROW_HASH)] = history.text(ERASED)
    return history.dialect.render_update_exists(table, "h", values, history.is_record("h", key))


def forget_rows(history: History, table: str, key: Key) -> str:
    """The statement that deletes all versions of a record."""
    return history.dialect.render_delete_detection_statement(table, "h", history.is_record("h", key))


def versions_of(history: History, table: str, key: Key) -> str:
    """The query of how many versions of a record a table has."""
    return f"SELECT COUNT(*) FROM {table} AS h WHERE {history.is_record('h', key)}"


def refuse_present(load: Load, history: History, engine: Engine, key: Key) -> None:
    """Refused while the base has the record, because the next load would bring it back."""
    if engine.introspect_table(load.schema, load.dataset.name) and engine.execute_scalar(
        is_in_base(load, history, key)
    ):
        raise Refused(
            "KEY_PRESENT",
            f"{load.dataset.name} has this record, so the next load would bring it back.",
            "Take it out of the base first, or flag it as deleted.",
        )


def tables(history: History, engine: Engine) -> dict[str, list[str]]:
    """History and archive, as far as they are there, with the columns that stand in them."""
    name = history.hist.target_dataset_name
    found = {
        history.table: engine.introspect_table(history.schema, name),
        history.archive: engine.introspect_table(history.schema, history.archive_name or f"{name}{ARCHIVE}"),
    }
    return {table: list(stored) for table, stored in found.items() if stored}


def erase(history: History, engine: Engine, key: Key, *, rows: bool = False) -> int:
    """Erase a record's values, or its rows, wherever they stand; the count of its versions."""
    count = 0
    for table, stored in tables(history, engine).items():
        count += int(engine.execute_scalar(versions_of(history, table, key)))
        statement = forget_rows(history, table, key) if rows else forget_values(history, table, stored, key)
        engine.execute(statement)
    return count
