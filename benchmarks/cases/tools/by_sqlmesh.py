"""SQLMesh models of kind SCD_TYPE_2_BY_COLUMN over all columns, on DuckDB; copies are a day apart.

A copy with a time of its own is later by that time. In a feed each delivery is the source of a model of kind
SCD_TYPE_2_BY_TIME, by the time of each change.
"""

import json
from datetime import UTC, datetime, timedelta

from sqlmesh import Context
from sqlmesh.core.config import Config, DuckDBConnectionConfig, GatewayConfig, ModelDefaultsConfig
from telling import CASES, FOLDER, cells, first_line, literal, names_of, select, table

NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)


def quote(name):
    return '"' + name.replace('"', '""') + '"'


def model(case, copy):
    """The model with the columns of a copy."""
    columns = ", ".join(f"{quote(name)} {type_}" for name, type_ in copy["columns"].items())
    names = ", ".join(map(quote, copy["columns"]))
    key = ", ".join(map(quote, case["key"]))
    kind = f"SCD_TYPE_2_BY_COLUMN (unique_key ({key}), columns *, invalidate_hard_deletes true)"
    if case["feed"] is not None:
        kind = (
            f"SCD_TYPE_2_BY_TIME (unique_key ({key}), updated_at_name updated, updated_at_as_valid_from true)"
        )
    return (
        f"MODEL (name kept.{table(case)}, kind {kind}, columns ({columns}), cron '@daily');\n"
        f"SELECT {names} FROM src.{table(case)}"
    )


def source(case, copy):
    """A query of the copy's rows."""
    if copy["csv"] is not None:
        path = FOLDER / f"{table(case)}.csv"
        path.write_text(copy["csv"], "utf-8")
        return f"SELECT * FROM read_csv({literal(str(path))}, header=true)"
    return select(copy, quote)


def bring(case):
    """Load all copies of a case in its own project and database; return where it failed, and its rows."""
    folder = FOLDER / table(case)
    (folder / "models").mkdir(parents=True)
    gateway = GatewayConfig(
        connection=DuckDBConnectionConfig(database=str(folder / "lake.duckdb")),
        state_connection=DuckDBConnectionConfig(database=str(folder / "state.duckdb")),
    )
    defaults = ModelDefaultsConfig(dialect="duckdb", start="2026-01-01")
    config = Config(gateways={"": gateway}, model_defaults=defaults, disable_anonymized_analytics=True)
    context, failed_at, error, columns = None, None, None, None
    file = folder / "models" / "model.sql"
    for number, copy in enumerate(case["copies"]):
        try:
            changed, columns = columns != copy["columns"], copy["columns"]
            if changed:
                file.write_text(model(case, copy), "utf-8")
            if context is None:
                context = Context(paths=str(folder), config=config)
                context.engine_adapter.execute("CREATE SCHEMA IF NOT EXISTS src")
            elif changed:
                context.load()
            put = context.engine_adapter
            put.execute(f"CREATE OR REPLACE TABLE src.{table(case)} AS {source(case, copy)}")
            put.execute(f"SET TimeZone = {literal(copy['zone'])}")
            when = NOON + timedelta(days=number) + timedelta(milliseconds=copy["at"] or 0)
            if changed:
                more = {"execution_time": when} if number else {}
                context.plan(auto_apply=True, no_prompts=True, forward_only=bool(number), **more)
            if number:
                context.run(execution_time=when, end=when, ignore_cron=True)
        except Exception as stop:  # noqa: BLE001 - any error of the tool is its refusal
            failed_at, error = number, first_line(stop)
            break
    try:
        rows = stored(context, case)
    except Exception as stop:  # noqa: BLE001 - an unreadable table has no history
        rows, error = [], error or f"cannot be read: {first_line(stop)}"
    return {"failed_at": failed_at, "error": error, "rows": rows}


def stored(context, case):
    """The rows of the model's table as texts."""
    context.engine_adapter.execute("SET TimeZone = 'UTC'")
    name = f"kept.{table(case)}"
    has = {row[0] for row in context.engine_adapter.fetchall(f"DESCRIBE {name}")}
    columns = [f"CAST({quote(n)} AS STRING)" if n in has else "NULL" for n in names_of(case)]
    ends = "CAST(valid_from AS STRING), CAST(valid_to AS STRING)"
    return [
        cells(row)
        for row in context.engine_adapter.fetchall(f"SELECT {', '.join(columns)}, {ends} FROM {name}")
    ]


found = {}
for each in CASES:
    found[each["name"]] = bring(each)
    (FOLDER / "found.json").write_text(json.dumps(found), "utf-8")
