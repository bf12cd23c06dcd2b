"""dbt snapshots with strategy check over all columns and deleted records closed; one run for all cases.

In a feed each delivery is the source, with strategy timestamp: a record that it lacks is not deleted.
"""

import json

from dbt.cli.main import dbtRunner
from on_spark import Source
from pyspark.sql import SparkSession
from telling import CASES, FOLDER, first_line, table, told

PROJECT = FOLDER / "dbt"
HOW = {
    False: "strategy='check', check_cols='all', hard_deletes='invalidate'",
    True: "strategy='timestamp', updated_at='updated'",
}
PLACES = ["--project-dir", str(PROJECT), "--profiles-dir", str(PROJECT)]


class Dbt:
    """The source on Spark and the tables that dbt writes."""

    def __init__(self):
        spark = SparkSession.builder.enableHiveSupport().getOrCreate()
        self.source = Source(spark)

    def rows(self, case):
        return self.source.rows(case, f"backstory.kept.{table(case)}", "dbt_valid_from", "dbt_valid_to")


def project():
    """Write a project with a snapshot for each case."""
    (PROJECT / "snapshots").mkdir(parents=True)
    (PROJECT / "dbt_project.yml").write_text(
        "name: cases\nversion: '1.0.0'\nprofile: cases\nflags: {send_anonymous_usage_stats: false}\n"
    )
    (PROJECT / "profiles.yml").write_text(
        "cases: {target: dev, outputs: {dev: {type: spark, method: session, schema: kept, host: NA, threads: 1}}}\n"
    )
    for case in CASES:
        key = json.dumps(case["key"] if len(case["key"]) > 1 else case["key"][0])
        (PROJECT / "snapshots" / f"{table(case)}.sql").write_text(
            f"{{% snapshot {table(case)} %}}\n{{{{ config(unique_key={key}, {HOW[case['feed'] is not None]}, "
            "file_format='iceberg') }}\n"
            f"select * from src.{table(case)}\n{{% endsnapshot %}}\n"
        )


def main():
    """Load the first copy of every case, then the second, and so on, grouped by the session's time zone."""
    project()
    tool, runner = Dbt(), dbtRunner()
    failed = {}
    for number in range(max(len(case["copies"]) for case in CASES)):
        going = [case for case in CASES if number < len(case["copies"]) and case["name"] not in failed]
        for zone in sorted({case["copies"][number]["zone"] for case in going}):
            chosen = [case for case in going if case["copies"][number]["zone"] == zone]
            for case in chosen:
                tool.source.put(case, case["copies"][number])
            words = ["--quiet", "snapshot", "--select", *map(table, chosen), *PLACES]
            done = runner.invoke(words)
            found = {each.node.name: each for each in done.result or []}
            for case in chosen:
                result = found.get(table(case))
                if result is None:
                    failed[case["name"]] = number, first_line(done.exception or RuntimeError("not run"))
                elif str(result.status) not in {"success", "NodeStatus.Success", "pass"}:
                    failed[case["name"]] = number, first_line(RuntimeError(result.message))
    found = {case["name"]: told(tool, case, *failed.get(case["name"], (None, None))) for case in CASES}
    (FOLDER / "found.json").write_text(json.dumps(found), "utf-8")


main()
