"""The page about one's own Spark job is followed as written, and its session then runs all foreign-session
tests."""

import os
import subprocess
import sys
from importlib.metadata import version

import java
import pytest
from depth import deep
from documented import ROOT, blocks

from backstory.spark.jars import jar_properties

pytestmark = pytest.mark.process

PAGE = ROOT / "docs" / "how-to" / "spark-job.md"
# Delta for the installed Spark.
DELTA = f"io.delta:delta-spark_{version('pyspark')[:3]}_2.13:4.3.1"
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
BESIDE_DELTA = {
    "spark.sql.extensions": EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# One catalog of each type in addition to the page's, all with Iceberg's defaults: cached, without extensions.
WALKS = """
import sys
from pathlib import Path
from own_sessions import ANSWERS, FIRST, catalog_of, copy, own_session, walk
folder = Path(sys.argv[1])
(folder / "own").mkdir()
assert spark._jvm.java.util.TimeZone.getDefault().getID() == "America/New_York"
extensions = spark.conf.get("spark.sql.extensions", "none")
if "delta" in extensions:
    spark.range(3).write.format("delta").save(str(folder / "delta"))
    extensions += str(spark.sql(f"DESCRIBE HISTORY delta.`{folder}/delta`").count())
print("extensions", extensions)
for kind in sys.argv[2:]:
    name = kind if kind == "spark_catalog" else f"own_{kind}"
    settings = catalog_of(kind, folder / "own")
    other = None if kind == "in-memory" else own_session(spark, name, settings, "false")
    session = own_session(spark, name, settings)
    found = walk(session, name, other)
    assert found == ANSWERS, (kind, found)
    print("walked", kind, flush=True)
if not sys.argv[2:]:
    sys.exit()
session = own_session(spark, "own_views", catalog_of("jdbc", folder / "own"))
lake = backstory.open(spark=session, catalog="own_views")
lake.snapshot(copy(session, "a"), into="views.c", key="id", at=FIRST)
try:
    lake.table("views.c").views()
except backstory.UsageError as refusal:
    print(refusal.code, refusal.remedy)
"""


def run_page(folder, settings, *kinds):
    """The output of a user's program, with these settings instead of the page's packages."""
    (page,) = (each.text for each in blocks(PAGE) if each.language == "python")
    lines = "".join(
        f'    .config("{name}", "{value}")\n' for name, value in {**settings, **java.PLANS}.items()
    )
    line = next(each for each in page.splitlines(keepends=True) if "spark.jars.packages" in each)
    program = folder / "job.py"
    program.write_text(page.replace(line, lines) + WALKS, encoding="utf-8")
    options = {
        "SPARK_SUBMIT_OPTS": f"{java.OPTIONS} -Duser.timezone=America/New_York",
        "TZ": "America/New_York",
    }
    env = {
        **os.environ,
        **options,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": java.PYTHONPATH,
    }
    done = subprocess.run(
        [sys.executable, program, folder, *kinds],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Its output with jars that were already downloaded."""
    # At the gate, test_session_caches tests a JDBC catalog in the session of the tests.
    kinds = ["spark_catalog", *(["hadoop", "in-memory", "jdbc"] if deep(1, 0) else [])]
    return run_page(tmp_path_factory.mktemp("job"), jar_properties({}), *kinds), kinds


def test_the_program_of_the_page_has_the_shown_result(job):
    """Two copies of a frame become versions, in a session that only its author configured."""
    printed, _ = job
    assert "{'new': 1, 'changed': 1, 'closed': 1, 'reopened': 0, 'unchanged': 0}" in printed
    assert "Bonn → Köln" in printed


def test_catalogs_of_every_type_behave_identically_in_the_session(job):
    """The session has no extensions, no ANSI mode, New York's zone, and names that ignore case."""
    printed, kinds = job
    assert "extensions none" in printed
    assert [line for line in printed.splitlines() if line.startswith("walked")] == [
        f"walked {each}" for each in kinds
    ]


def test_a_refused_view_names_its_required_setting(job):
    """Only views need Iceberg's extensions."""
    printed, _ = job
    assert 'no-extensions Start the session with .config("spark.sql.extensions", ' in printed


@pytest.mark.laws("it starts a session of its own with the jars of another project")
def test_the_page_also_works_with_deltas_extension(tmp_path):
    """Its catalog is the session's own. It has Delta's tables, and the page's table works as always.

    All other ways of reading and writing follow before a release.
    """
    kinds = ["jdbc"] if deep(1, 0) else []
    printed = run_page(tmp_path, jar_properties({"spark.jars.packages": DELTA}) | BESIDE_DELTA, *kinds)
    assert f"extensions {EXTENSION}1\n" in printed
    assert "Bonn → Köln" in printed
    assert [line for line in printed.splitlines() if line.startswith("walked")] == [
        f"walked {kind}" for kind in kinds
    ]
