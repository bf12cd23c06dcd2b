"""Run a plan on plain rows, without Spark. The result is the table's rows."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa

from backstory.formats.rows import Rows
from backstory.model.layout import ACTIVE, END, FILE, POSITION, START, SYNCED
from backstory.model.values import UNMODIFIED
from backstory.strategies import live_rows
from backstory.strategies import versions as intervals
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan

Row = dict[str, object]
INSTANT = pa.timestamp("us", tz="UTC")
TYPES = {
    "id": pa.int64(),
    "part": pa.string(),
    "a": pa.string(),
    "b": pa.int64(),
    "left_over": pa.string(),
    SYNCED: INSTANT,
    START: INSTANT,
    END: INSTANT,
    ACTIVE: pa.bool_(),
}


def schema(names: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, TYPES[name]) for name in names])


def delivered(rows: Sequence[Row], names: Sequence[str]) -> Rows:
    """Plain rows as delivered ones. An absent or unmodified cell is unknown."""
    plain = [{n: None if row.get(n) is UNMODIFIED else row.get(n) for n in names} for row in rows]
    known = [{n: row.get(n, UNMODIFIED) is not UNMODIFIED for n in names} for row in rows]
    flags = pa.schema([pa.field(name, pa.bool_()) for name in names])
    return Rows(pa.Table.from_pylist(plain, schema=schema(names)), pa.Table.from_pylist(known, schema=flags))


def stored_table(rows: Sequence[Row], names: Sequence[str]) -> pa.Table:
    """Rows as a slice of a table contains them, in two files."""
    table = delivered(rows, names).values
    files = [f"file-{place % 2}" for place in range(len(rows))]
    return table.append_column(FILE, pa.array(files, pa.string())).append_column(
        POSITION, pa.array(range(len(rows)), pa.int64())
    )


def applied(stored: Sequence[Row], names: Sequence[str], plan: PartPlan) -> list[Row]:
    """The table after the plan."""
    gone = set(plan.rows[REMOVED][POSITION].to_pylist())
    remaining = [{n: row.get(n) for n in names} for place, row in enumerate(stored) if place not in gone]
    return [*remaining, *in_utc(plan.rows[ADDED].to_pylist())]


def in_utc(rows: Sequence[Row]) -> list[Row]:
    """Times in the zone UTC. Arrow names the zone differently, and tests compare rows as strings."""
    return [{n: v.astimezone(UTC) if isinstance(v, datetime) else v for n, v in row.items()} for row in rows]


def plan_live(
    stored: Sequence[Row],
    names: Sequence[str],
    key: Sequence[str],
    columns: Sequence[str],
    replace: Sequence[Row] = (),
    update: Sequence[Row] = (),
    delete: Sequence[Row] = (),
) -> PartPlan:
    delivery = live_rows.LiveDelivery(
        key,
        columns,
        delivered(replace, names),
        delivered(update, names),
        delivered(delete, key).values,
    )
    return live_rows.plan_live_rows(stored_table(stored, names), delivery)


def plan_history(
    stored: Sequence[Row],
    names: Sequence[str],
    key: Sequence[str],
    earliest: Sequence[Row] = (),
    replace: Sequence[Row] = (),
    update: Sequence[Row] = (),
    delete: Sequence[Row] = (),
) -> PartPlan:
    delivery = intervals.HistoryDelivery(
        key,
        delivered(earliest, [*key, START]).values,
        delivered(replace, names),
        delivered(update, names),
        delivered(delete, [*key, END]).values,
    )
    return intervals.plan_versions(stored_table(stored, names), delivery)
