"""The common ground of all contestants: one warehouse, one source table, the same Spark settings."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backstory.settings import Settings
from backstory.spark.session import session_properties

COLUMNS = ("id", "name", "email", "city", "credit", "since", "seen", "note")
# Every step has its own copy: the ids whose last two digits are `moved` have another city. The rows are
# hashes, names and decimals of ordinary width, and hardly compress.
ROWS = (
    "SELECT id, concat('Customer ', substr(md5(CAST(id AS STRING)), 1, 10)) AS name, "
    "concat(substr(md5(concat('mail', id)), 1, 14), '@example.com') AS email, "
    "if(id % 100 = {moved}, 'elsewhere', concat('city ', pmod(xxhash64(id, 1), 30000))) AS city, "
    "CAST(pmod(xxhash64(id, 2), 1000000000) / 100 AS DECIMAL(12,2)) AS credit, "
    "date_add(DATE '2000-01-01', CAST(pmod(xxhash64(id, 3), 9000) AS INT)) AS since, "
    "timestamp_micros(1700000000000000 + pmod(xxhash64(id, 4), 50000000000000)) AS seen, "
    "md5(concat('note', id)) AS note FROM range({first}, {last})"
)
NOBODY = -1
SCHEMAS = ("src", "native", "rawcore", "dbt", "mesh", "hand", "floor", "default")
# The product's settings that the others get too. They affect Spark's speed, not its results.
SHARED = (
    "spark.master",
    "spark.driver.memory",
    "spark.ui.enabled",
    "spark.ui.showConsoleProgress",
    "spark.scheduler.mode",
    "spark.sql.shuffle.partitions",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.extensions",
    "spark.jars",
    "spark.jars.packages",
)
MODEL = """
format: historize/1
target_schemas: [{short_name: rawcore}]
target_datasets:
  - target_schema: rawcore
    target_dataset_name: customer_NUMBER
    input: src.current
    target_columns:
      - {target_column_name: id, datatype: BIGINT, system_role: business_key}
      - {target_column_name: name, datatype: STRING}
      - {target_column_name: email, datatype: STRING}
      - {target_column_name: city, datatype: STRING}
      - {target_column_name: credit, datatype: DECIMAL, decimal_precision: 12, decimal_scale: 2}
      - {target_column_name: since, datatype: DATE}
      - {target_column_name: seen, datatype: TIMESTAMP}
      - {target_column_name: note, datatype: STRING}
"""
DBT_PROJECT = "name: peers\nversion: '1.0.0'\nprofile: peers\nflags: {send_anonymous_usage_stats: false}\n"
DBT_PROFILE = "peers: {target: dev, outputs: {dev: {type: spark, method: session, schema: dbt, host: NA, threads: 1}}}\n"
DBT_SNAPSHOT = """
{% snapshot customer_NUMBER %}
{{ config(unique_key='id', strategy='check', check_cols='all', file_format='iceberg', hard_deletes='invalidate') }}
select * from src.current
{% endsnapshot %}
"""
SQLMESH_MODEL = """
MODEL (
  name mesh.customer_NUMBER,
  kind SCD_TYPE_2_BY_COLUMN (unique_key id, columns *, invalidate_hard_deletes true),
  columns (id BIGINT, name STRING, email STRING, city STRING, credit DECIMAL(12,2), since DATE, seen TIMESTAMP, note STRING),
  table_format iceberg,
  cron '@daily'
);
SELECT id, name, email, city, credit, since, seen, note FROM src.current
"""


@dataclass(frozen=True)
class Ground:
    """A folder with a warehouse, and the session that prepares and judges."""

    folder: Path
    warehouse: Any
    rows: int

    @property
    def spark(self) -> Any:
        """The judge's session."""
        return self.warehouse.spark

    def copy(self, moved: int, first: int = 0, last: int | None = None) -> None:
        """Replace the source by a copy of these ids in which some have moved."""
        query = ROWS.format(moved=moved, first=first, last=self.rows if last is None else last)
        self.spark.sql(f"INSERT OVERWRITE backstory.src.current {query}")

    def one(self, query: str) -> tuple[Any, ...]:
        """The only row of a query's result."""
        return tuple(self.spark.sql(query).collect()[0])


def settle(folder: Path, rows: int, numbers: list[int], memory: str) -> Ground:
    """Make the folder: the warehouse with its source, Spark's settings, and every tool's project."""
    import backstory

    lines = {"spark.master": "local[2]", "spark.driver.memory": memory, "spark.sql.shuffle.partitions": "4"}
    told = "".join(f'"{name}" = "{value}"\n' for name, value in lines.items())
    (folder / "backstory.toml").write_text(f"[spark]\n{told}")
    judge = folder / "judge.toml"
    judge.write_text(f"[spark]\n{told}".replace(memory, "1g"))
    projects(folder, numbers)
    warehouse = backstory.open(folder / "warehouse", config=judge)
    for schema in SCHEMAS:
        warehouse.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS backstory.{schema}")
    query = ROWS.format(moved=NOBODY, first=0, last=rows)
    warehouse.spark.sql(f"CREATE TABLE backstory.src.current USING iceberg AS {query}")
    write_conf(folder, session_properties(Settings(folder / "warehouse", spark=lines)))
    return Ground(folder, warehouse, rows)


def write_conf(folder: Path, found: Mapping[str, str]) -> None:
    """Write Spark's own settings file for tools that start Spark: the same catalog, with the same name."""
    chosen = {name: found[name] for name in SHARED if name in found}
    chosen |= {name: value for name, value in found.items() if name.startswith("spark.sql.catalog.backstory")}
    chosen |= {
        "spark.sql.defaultCatalog": "backstory",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Dderby.system.home={folder / 'derby'}",
    }
    conf = folder / "conf"
    conf.mkdir()
    told = "".join(f"{name} {value}\n" for name, value in chosen.items())
    (conf / "spark-defaults.conf").write_text(told)
    quiet = "rootLogger.level = error\nrootLogger.appenderRef.stderr.ref = stderr\nappender.console.type = Console\nappender.console.name = stderr\nappender.console.target = SYSTEM_ERR\nappender.console.layout.type = PatternLayout\nappender.console.layout.pattern = %m%n\n"
    (conf / "log4j2.properties").write_text(quiet)


def projects(folder: Path, numbers: list[int]) -> None:
    """Write every tool's project with a table for each number."""
    for place in ("dbt/snapshots", "sqlmesh/models"):
        (folder / place).mkdir(parents=True)
    (folder / "dbt" / "dbt_project.yml").write_text(DBT_PROJECT)
    (folder / "dbt" / "profiles.yml").write_text(DBT_PROFILE)
    for number in map(str, numbers):
        (folder / f"model_{number}.yaml").write_text(MODEL.replace("NUMBER", number))
        snapshot = folder / "dbt" / "snapshots" / f"customer_{number}.sql"
        snapshot.write_text(DBT_SNAPSHOT.replace("NUMBER", number))
        model = folder / "sqlmesh" / "models" / f"customer_{number}.sql"
        model.write_text(SQLMESH_MODEL.replace("NUMBER", number))


def environ(folder: Path) -> dict[str, str]:
    """The environment of every contestant."""
    return os.environ | {
        "BENCH_FOLDER": str(folder),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "BACKSTORY_PEPPER": "pepper",
        "SQLMESH__DISABLE_ANONYMIZED_ANALYTICS": "true",
        "DO_NOT_TRACK": "1",
    }
