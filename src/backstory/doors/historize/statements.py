"""The other statements of a load: those for the base, and for maintenance that users request."""

from collections.abc import Iterator, Mapping

from backstory.doors.historize.hashes import Expressions
from backstory.doors.historize.load import Load, words_of
from backstory.doors.historize.model import ColumnRole, StateLabels, base_columns, user_columns
from backstory.doors.historize.resolve import schema_of
from backstory.doors.historize.runs import LoadRun
from backstory.stores.sql.statements import LOAD_TIMESTAMP, Statement
from backstory.strategies.scd2.statements import or_in_archive
from backstory.strategies.scd2.transitions import State


def base_steps(load: Load) -> list[Statement]:
    """The statements of a base's load: delete vanished and changed rows, then insert (section 3.7)."""
    columns = [load.name(column.name) for column in base_columns(load.dataset)]
    stage_key = f"SELECT 1 FROM {load.unique_stage_rows} AS s WHERE {load.same_key('s', 'b')}"
    steps = []
    if load.deletes_base:
        scope = f"({load.delete_scope}) AND " if load.delete_scope else ""
        steps.append(Statement("base_delete", _deletion(load, f"{scope}NOT EXISTS ({stage_key})")))
    changed = f"EXISTS ({stage_key} AND ({load.differs('s', 'b')}))"
    delete = load.dialect.render_delete_detection_statement(load.base_table, "b", changed)
    absent = f"NOT EXISTS (SELECT 1 FROM {load.base_table} AS b WHERE {load.same_key('b', 's')})"
    insert = load.dialect.render_insert_select_guarded(
        load.base_table, columns, [f"s.{name}" for name in columns], load.unique_stage_rows, "s", absent
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


def maintenance(load: Load, run: LoadRun) -> Iterator[Statement]:
    """The statements that recompute hashes of open versions and relabel states (sections 7.2 and 7.6)."""
    if run.rehash:
        yield _rehash(load)
    if run.relabel is not None:
        yield _relabel(load, run.relabel)


def _rehash(load: Load) -> Statement:
    values = {load.name(ColumnRole.ROW_HASH): new_hash(load)}
    return Statement(
        "rehash", load.dialect.render_update_exists(load.hist_table, "h", values, load.pair.is_open("h"))
    )


def base_maintenance(load: Load, run: LoadRun) -> Iterator[Statement]:
    """The statement that recomputes the base's hashes, because a delta contains only some of its rows."""
    if run.rehash_base:
        values = {load.name(ColumnRole.ROW_HASH): new_hash(load, "b")}
        every = f"{load.of('b', load.dataset.key)} IS NOT NULL"
        yield Statement("rehash_base", load.dialect.render_update_exists(load.base_table, "b", values, every))


def new_hash(load: Load, alias: str = "h") -> str:
    """SQL for the hash of a stored row by the current definition."""
    return Expressions(load.dialect, schema_of(load.model, load.dataset)).row_hash(load.dataset, alias)


def label_changes(before: StateLabels, after: StateLabels) -> dict[str, str]:
    """A mapping of changed labels to their new labels.

    If several states had the same label, the first state in the order of `State` determines the new label.
    """
    old, new = words_of(before), words_of(after)
    pairs = {old[state]: new[state] for state in reversed(State)}
    return {old: new for old, new in pairs.items() if old != new}


def _relabel(load: Load, before: StateLabels) -> Statement:
    pairs, state = label_changes(before, load.labels), load.of("h", ColumnRole.STATE)
    value, old = new_label(load, pairs), dict.fromkeys(pairs)
    if load.labels.new != load.labels.reappeared:
        old |= dict.fromkeys((before.new, before.reappeared))
        again = load.text(load.labels.reappeared)
        value = f"CASE WHEN {_is_return(load, before)} THEN {again} ELSE {value} END"
    listed = ", ".join(load.text(each) for each in old) or "NULL"
    values = {load.name(ColumnRole.STATE): value}
    sql = load.dialect.render_update_exists(load.hist_table, "h", values, f"{state} IN ({listed})")
    return Statement("relabel", sql)


def _is_return(load: Load, before: StateLabels) -> str:
    """SQL for whether a version (alias `h`) is open and began when its record returned."""
    state, started = load.of("h", ColumnRole.STATE), load.of("h", ColumnRole.STARTED)
    earlier = f"SELECT 1 FROM {load.hist_table} AS p WHERE {load.same_key('p', 'h')}"
    continued = f"{load.of('p', ColumnRole.ENDED)} = {started} AND {load.of('p', ColumnRole.STATE)} = "
    return (
        f"{load.pair.is_open('h')} AND {state} IN ({load.text(before.new)}, {load.text(before.reappeared)})"
        f" AND (EXISTS ({earlier} AND {load.of('p', ColumnRole.STARTED)} < {started})"
        f"{or_in_archive(load.pair, 'h')})"
        f" AND NOT EXISTS ({earlier} AND {continued}{load.text(before.changed)})"
    )


def new_label(load: Load, pairs: Mapping[str, str]) -> str:
    """SQL for the state of a version (alias `h`) under its new label."""
    state = load.of("h", ColumnRole.STATE)
    cases = " ".join(f"WHEN {load.text(old)} THEN {load.text(new)}" for old, new in pairs.items())
    return f"CASE {state} {cases} ELSE {state} END" if cases else state
