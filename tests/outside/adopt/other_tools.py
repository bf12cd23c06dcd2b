"""Write one life with dbt, dlt and SQLMesh, on DuckDB, and print the rows.

Run it with a Python that has one of the tools: `python other_tools.py dbt|dlt|sqlmesh FOLDER`. Its output,
the rows with the types of their columns, is stored in `<tool>.json`. Tests create tables from these files.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

COPIES = [
    ("2026-01-01", [(1, "anna", "oslo", "2026-01-01"), (2, "bob", "rome", "2026-01-01")]),
    ("2026-02-01", [(1, "anna", "bern", "2026-02-01"), (2, "bob", "rome", "2026-01-01")]),
    ("2026-03-01", [(1, "anna", "bern", "2026-02-01"), (3, "cleo", "nice", "2026-03-01")]),
]
SNAPSHOT = """
snapshots:
  - name: customer
    relation: ref('source')
    config: {unique_key: id, strategy: timestamp, updated_at: updated_at, hard_deletes: HARD}
"""
PROFILE = "life: {target: dev, outputs: {dev: {type: duckdb, path: FOLDER/life.duckdb}}}"
PROJECT = "name: life\nversion: '1.0.0'\nprofile: life\nflags: {send_anonymous_usage_stats: false}\n"


def values(rows):
    tuples = ", ".join(f"({i}, '{name}', '{city}', TIMESTAMP '{at}')" for i, name, city, at in rows)
    return f"SELECT * FROM (VALUES {tuples}) AS t(id, name, city, updated_at)"


def rows_of(connection, query):
    relation = connection.sql(query)
    names, types = relation.columns, [str(each) for each in relation.types]
    rows = [[None if cell is None else str(cell) for cell in row] for row in relation.fetchall()]
    return {"columns": dict(zip(names, types, strict=True)), "rows": sorted(rows, key=str)}


def by_dbt(folder, hard="invalidate"):
    import duckdb

    for part in ("models", "snapshots"):
        (folder / part).mkdir(parents=True)
    (folder / "dbt_project.yml").write_text(PROJECT)
    (folder / "profiles.yml").write_text(PROFILE.replace("FOLDER", str(folder)))
    (folder / "snapshots" / "customer.yml").write_text(SNAPSHOT.replace("HARD", hard))
    dbt = Path(sys.executable).with_name("dbt")
    for _, rows in COPIES:
        (folder / "models" / "source.sql").write_text(values(rows))
        command = [dbt, "--quiet", "build", "--project-dir", folder, "--profiles-dir", folder]
        subprocess.run(command, check=True, cwd=folder)
    return rows_of(duckdb.connect(str(folder / "life.duckdb")), "SELECT * FROM customer")


def by_dlt(folder):
    import dlt
    import duckdb

    file = folder / "life.duckdb"
    pipeline = dlt.pipeline(
        "life", pipelines_dir=str(folder), destination=dlt.destinations.duckdb(str(file)), dataset_name="crm"
    )
    for at, rows in COPIES:
        merging = {"disposition": "merge", "strategy": "scd2", "boundary_timestamp": f"{at}T00:00:00Z"}
        records = [dict(zip(("id", "name", "city"), row, strict=False)) for row in rows]
        pipeline.run(dlt.resource(records, name="customer", write_disposition=merging))
    return rows_of(duckdb.connect(str(file)), "SELECT * FROM crm.customer")


def by_sqlmesh(folder):
    import duckdb
    from sqlmesh import Context
    from sqlmesh.core.config import Config, DuckDBConnectionConfig, GatewayConfig, ModelDefaultsConfig
    from sqlmesh.core.dialect import parse
    from sqlmesh.core.model import load_sql_based_model

    file = str(folder / "life.duckdb")
    config = Config(
        gateways={"": GatewayConfig(connection=DuckDBConnectionConfig(database=file))},
        model_defaults=ModelDefaultsConfig(dialect="duckdb", start="2026-01-01"),
    )
    context = Context(paths=str(folder), config=config)
    context.engine_adapter.execute(f"CREATE TABLE source AS {values(COPIES[0][1])}")
    text = "MODEL (name crm.customer, kind SCD_TYPE_2_BY_TIME (unique_key id, invalidate_hard_deletes true), columns (id INT, name TEXT, city TEXT, updated_at TIMESTAMP), cron '@daily'); SELECT id, name, city, updated_at FROM source"
    context.upsert_model(
        load_sql_based_model(parse(text), dialect="duckdb", default_catalog=context.default_catalog)
    )
    today = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    for number, (_, rows) in enumerate(COPIES):
        context.engine_adapter.execute(f"CREATE OR REPLACE TABLE source AS {values(rows)}")
        if number:
            context.run(execution_time=today + timedelta(days=number), ignore_cron=True)
        else:
            context.plan(auto_apply=True, no_prompts=True)
    context.close()
    return rows_of(duckdb.connect(file), "SELECT * FROM crm.customer")


if __name__ == "__main__":
    tool, into = sys.argv[1], Path(sys.argv[2]).resolve()
    into.mkdir(parents=True, exist_ok=True)
    made = {
        "dbt": by_dbt,
        "dbt-deleted": lambda folder: by_dbt(folder, "new_record"),
        "dlt": by_dlt,
        "sqlmesh": by_sqlmesh,
    }
    table = made[tool](into)
    sys.stdout.write(
        json.dumps({"tool": tool, "written": datetime.now(UTC).date().isoformat(), **table}, indent=1) + "\n"
    )
