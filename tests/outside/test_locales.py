"""Names beyond ASCII are the same for Python and Java in every locale, including cron's, or are refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import java
import pytest

pytestmark = pytest.mark.process

BACKSTORY = str(Path(sys.executable).parent / "backstory")
# The locale of cron and of many containers. Python uses UTF-8 in it, unless that is forbidden.
BARE = {"LC_ALL": "C", "LANG": ""}
NO_UTF8 = BARE | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
# A session whose Java was started by another program, in that locale.
OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
import backstory
from backstory.errors import UsageError
from backstory.settings import Settings
from backstory.spark.jars import jar_properties
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name, value in jar_properties({}).items():
    builder = builder.config(name, value)
builder = (
    builder.config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "hadoop")
    .config("spark.sql.catalog.lake.warehouse", sys.argv[1])
)
try:
    backstory.open(spark=builder.getOrCreate(), catalog="lake").tables()
except UsageError as refusal:
    print(refusal.code)
"""


def run(folder, *words, **environment):
    done = subprocess.run(
        words, cwd=folder, env=os.environ | environment, capture_output=True, check=False, timeout=600
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace")


def configured(folder):
    (folder / "backstory.toml").write_text(f"[spark]\n{java.in_toml(java.PLANS)}")


def test_non_ascii_names_are_the_same_in_every_locale(tmp_path):
    """Names written in the locale C are correct on disk, and are read in UTF-8 and in C."""
    configured(tmp_path)
    (tmp_path / "öffnung.csv").write_text("größe,n\nä,1\n", "utf-8")
    warehouse = ("--warehouse", "données", "--output", "json")
    copy = (BACKSTORY, "snapshot", "öffnung.csv", "--into", "crm.straße", "--key", "größe", *warehouse)

    code, output, warned = run(tmp_path, *copy, **BARE)
    assert code == 0, (output, warned)
    assert json.loads(output)["counts"]["new"] == 1
    code, output, warned = run(tmp_path, *copy, LC_ALL="C.UTF-8")
    assert (code, json.loads(output)["counts"]["unchanged"]) == (0, 1), warned
    for locale in (BARE, {"LC_ALL": "C.UTF-8"}):
        code, output, warned = run(tmp_path, BACKSTORY, "current", "crm.straße", *warehouse, **locale)
        assert (code, [row["größe"] for row in json.loads(output)]) == (0, ["ä"]), warned
    assert {each.name for each in tmp_path.iterdir()} == {"backstory.toml", "données", "öffnung.csv"}


def test_a_folder_name_unsupported_by_java_is_refused(tmp_path):
    """Nothing is written next to it."""
    configured(tmp_path)
    (tmp_path / "a.csv").write_text("id,n\n1,1\n")
    words = (
        "snapshot",
        "a.csv",
        "--into",
        "crm.a",
        "--key",
        "id",
        "--warehouse",
        "données",
        "--output",
        "json",
    )
    code, output, warned = run(tmp_path, BACKSTORY, *words, **NO_UTF8)
    assert (code, json.loads(output)["error"]["code"]) == (2, "no-warehouse"), warned

    code, output, warned = run(tmp_path, sys.executable, "-c", OWN_SESSION, str(tmp_path / "données"), **BARE)
    assert (code, output.split()) == (0, ["no-warehouse"]), warned
    assert {each.name for each in tmp_path.iterdir()} - {"données"} == {"backstory.toml", "a.csv"}
    assert not list(tmp_path.glob("*/*.parquet"))
