"""The steps of a load: what each statement does; a dialect gives it its shape (sections 3.3, 3.7, 9.3)."""

from typing import NamedTuple

from backstory.doors.historize.columns import base_columns, user_columns
from backstory.doors.historize.expressions import LOAD_RUN_ID, LOAD_TIMESTAMP
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import Role
from backstory.stores.sql.columns import Datatype

# Columns of the MERGE's source beside the user's, which cannot have such names.
OPEN_KEY, MATCH_KEY, ACTION = "open key", "match key", "record action"


class Statement(NamedTuple):
    """One statement of a load, by the name that the log has for it."""

    step: str
    sql: str


def base_steps(load: Load) -> list[Statement]:
    """Delete what is gone, delete what changed, insert what is not there."""
    columns = [load.name(column.name) for column in base_columns(load.dataset)]
    stage_key = f"SELECT 1 FROM {load.staged} AS s WHERE {load.same_key('s', 'b')}"
    steps = []
    if load.deletes_base:
        scope = f"({load.delete_scope}) AND " if load.delete_scope else ""
        steps.append(Statement("base_delete", _gone(load, f"{scope}NOT EXISTS ({stage_key})")))
    changed = f"EXISTS ({stage_key} AND ({load.differs('s', 'b')}))"
    delete = load.dialect.render_delete_detection_statement(load.base_table, "b", changed)
    absent = f"NOT EXISTS (SELECT 1 FROM {load.base_table} AS b WHERE {load.same_key('b', 's')})"
    insert = load.dialect.render_insert_select_guarded(
        load.base_table, columns, [f"s.{name}" for name in columns], load.staged, "s", absent
    )
    return [*steps, Statement("base_replace", delete), Statement("base_insert", insert)]


def _gone(load: Load, condition: str) -> str:
    soft = load.dataset.historization.soft_delete
    if soft is None or soft.on_delete == "delete":
        return load.dialect.render_delete_detection_statement(load.base_table, "b", condition)
    flag = next(column for column in user_columns(load.dataset) if column.name == soft.column)
    value = load.dialect.cast_expression(load.text(soft.deleted_values[0]), load.dialect.type_of(flag))
    flags = {load.name(soft.column): value}
    if soft.deleted_at:
        flags[load.name(soft.deleted_at)] = LOAD_TIMESTAMP
    return load.dialect.render_update_exists(load.base_table, "b", flags, condition + load.live("b"))


def hist_steps(load: Load) -> list[Statement]:
    """The four steps, in their order."""
    steps = [Statement("close_changed", _close(load, load.labels.changed, load.changed()))]
    if load.closes_deleted:
        steps.append(Statement("close_deleted", _close(load, load.labels.deleted, load.gone())))
    return [
        *steps,
        Statement(
            "insert_changed",
            _insert(load, load.text(load.labels.changed), f"{load.closed_now()} AND {load.no_open()}"),
        ),
        Statement("insert_new", _insert(load, load.new_label(), load.no_open())),
    ]


def _close(load: Load, state: str, condition: str) -> str:
    values = {
        load.name(Role.ENDED): LOAD_TIMESTAMP,
        load.name(Role.STATE): load.text(state),
        load.name(Role.LOAD_RUN_ID): LOAD_RUN_ID,
    }
    return load.dialect.render_update_exists(
        load.hist_table, "h", values, f"{load.open('h')}\n  AND {condition}"
    )


def _insert(load: Load, state: str, condition: str) -> str:
    return load.dialect.render_insert_select_guarded(
        load.hist_table,
        load.hist_columns,
        load.hist_values(state),
        load.base,
        "r",
        condition + load.live("r"),
    )


def actions(load: Load) -> str:
    """Each record that changes, its action and its open version's key (section 9.1)."""
    changed, deleted = load.text(load.labels.changed), load.text(load.labels.deleted)
    other = load.dialect.null_safe_ne(load.of("r", Role.ROW_HASH), load.of("h", Role.ROW_HASH))
    back = f"{load.new_label()}"
    match_key, action = load.name(MATCH_KEY), load.of("a", ACTION)
    rows = (
        f"SELECT r.*, {load.of('h', load.dataset.hist_key)} AS {load.name(OPEN_KEY)},\n"
        f"  CASE WHEN {load.of('h', load.dataset.hist_key)} IS NOT NULL THEN {changed}\n"
        f"    WHEN {load.closed_now()} THEN {changed} ELSE {back} END AS {load.name(ACTION)}\n"
        f"FROM {load.base} AS r\nLEFT JOIN {load.hist_table} AS h ON {load.same_key('h', 'r')}"
        f" AND {load.open('h')}\n"
        f"WHERE ({load.of('h', load.dataset.hist_key)} IS NULL OR {other}){load.live('r')}"
    )
    closes = (
        f"SELECT {load.of('a', OPEN_KEY)} AS {match_key}, {action}{_nothing(load)}\n"
        f"FROM (\n{rows}\n) AS a WHERE {load.of('a', OPEN_KEY)} IS NOT NULL"
    )
    begun = ", ".join(
        f"{value} AS {name}"
        for name, value in zip(load.hist_columns, load.hist_values(action, "a"), strict=True)
        if name in _payload(load)
    )
    key_type = _key_type(load)
    inserts = (
        f"SELECT {load.dialect.cast_expression('NULL', key_type)} AS {match_key}, {action}, {begun}\n"
        f"FROM (\n{rows}\n) AS a"
    )
    if not load.closes_deleted:
        return f"{closes}\nUNION ALL\n{inserts}"
    vanished = (
        f"SELECT {load.of('h', load.dataset.hist_key)} AS {match_key}, "
        f"{deleted} AS {load.name(ACTION)}{_nothing(load)}\n"
        f"FROM {load.hist_table} AS h WHERE {load.open('h')} AND {load.gone()}"
    )
    return f"{closes}\nUNION ALL\n{vanished}\nUNION ALL\n{inserts}"


def _payload(load: Load) -> list[str]:
    """The inserted columns that the source of the MERGE brings."""
    fixed = {
        load.name(role) for role in (Role.STARTED, Role.ENDED, Role.STATE, Role.LOAD_RUN_ID, Role.LOADED_AT)
    }
    return [name for name in load.hist_columns if name not in fixed]


def _key_type(load: Load) -> str:
    return load.dialect.map_logical_type(Datatype.STRING, 64)


def _nothing(load: Load) -> str:
    """A typed NULL for each payload column."""
    types = {load.name(column.name): load.dialect.type_of(column) for column in load.hist.target_columns}
    return "".join(
        f", {load.dialect.cast_expression('NULL', types[name])} AS {name}" for name in _payload(load)
    )


def hist_merge(load: Load, kept: str | None = None) -> Statement:
    """The single pass as one MERGE (section 9.3); of actions that are `kept` elsewhere, if they are."""
    values = {
        load.name(Role.STARTED): LOAD_TIMESTAMP,
        load.name(Role.ENDED): "NULL",
        load.name(Role.STATE): load.of("s", ACTION),
        load.name(Role.LOAD_RUN_ID): LOAD_RUN_ID,
        load.name(Role.LOADED_AT): LOAD_TIMESTAMP,
    }
    update = {
        load.name(Role.ENDED): LOAD_TIMESTAMP,
        load.name(Role.STATE): load.of("s", ACTION),
        load.name(Role.LOAD_RUN_ID): LOAD_RUN_ID,
    }
    sql = load.dialect.render_hist_merge_statement(
        load.hist_table,
        f"SELECT * FROM {kept} AS k" if kept else actions(load),
        f"{load.of('t', load.dataset.hist_key)} = {load.of('s', MATCH_KEY)} AND {load.open('t')}",
        update,
        load.hist_columns,
        [values.get(name, f"s.{name}") for name in load.hist_columns],
    )
    return Statement("merge", sql)
