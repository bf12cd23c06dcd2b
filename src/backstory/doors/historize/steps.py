"""The steps of a base's load: what each statement does; a dialect gives it its shape (section 3.7)."""

from backstory.doors.historize.columns import base_columns, user_columns
from backstory.doors.historize.load import Load
from backstory.stores.sql.placeholders import LOAD_TIMESTAMP
from backstory.stores.sql.statement import Statement


def base_steps(load: Load) -> list[Statement]:
    """Delete what is gone, delete what changed, insert what is not there."""
    columns = [load.name(column.name) for column in base_columns(load.dataset)]
    stage_key = f"SELECT 1 FROM {load.staged} AS s WHERE {load.same_key('s', 'b')}"
    steps = []
    if load.deletes_base:
        scope = f"({load.delete_scope}) AND " if load.delete_scope else ""
        steps.append(Statement("base_delete", _deletion(load, f"{scope}NOT EXISTS ({stage_key})")))
    changed = f"EXISTS ({stage_key} AND ({load.differs('s', 'b')}))"
    delete = load.dialect.render_delete_detection_statement(load.base_table, "b", changed)
    absent = f"NOT EXISTS (SELECT 1 FROM {load.base_table} AS b WHERE {load.same_key('b', 's')})"
    insert = load.dialect.render_insert_select_guarded(
        load.base_table, columns, [f"s.{name}" for name in columns], load.staged, "s", absent
    )
    return [*steps, Statement("base_replace", delete), Statement("base_insert", insert)]


def _deletion(load: Load, condition: str) -> str:
    soft = load.dataset.historization.soft_delete
    if soft is None or soft.on_delete == "delete":
        return load.dialect.render_delete_detection_statement(load.base_table, "b", condition)
    flag = next(column for column in user_columns(load.dataset) if column.name == soft.column)
    value = load.dialect.cast_expression(load.text(soft.deleted_values[0]), load.dialect.type_of(flag))
    flags = {load.name(soft.column): value}
    if soft.deleted_at:
        flags[load.name(soft.deleted_at)] = LOAD_TIMESTAMP
    return load.dialect.render_update_exists(load.base_table, "b", flags, condition + load.live("b"))
