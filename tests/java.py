"""How every Java of the tests is started, and how it runs plans.

Tests are many short queries, of which the JVM's second compiler would make most of the work. Half of what is left
of a start is the loading of classes: `scripts/class_archive.py` keeps them as they are once loaded. What is compiled
stays so: with the one compiler alone Java would have a fifth of the room for it, and compile much again and again.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from depth import DEPTH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = Path(__file__).parents[1] / ".pytest_cache" / "java" / "classes.jsa"
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
# Room for what plans leave behind, so that it is collected seldom; for classes, so that they bring no collection.
ROOM = "-Xmn256m -XX:MetaspaceSize=256m"
# An archive that is not there or of other classes is not used, and nothing is said of it.
SMALL = f"{SHORT} -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off"
OPTIONS = f"{SMALL} {ROOM}"
# A plan of a few rows runs sooner than it is compiled, and sooner than it is described to a web page that nobody
# looks at; before a release plans run as they do for users.
PLANS = (
    {}
    if DEPTH == "laws"
    else {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.ui.explainMode": "simple",
    }
)

# What workers of Python fork off from (tests/task_workers.py).
WORKERS = (
    {}
    if DEPTH == "laws"
    else {
        "spark.python.daemon.module": "task_workers",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parent),
    }
)


def without_checksums(spark: "SparkSession") -> None:
    """No file of the session has a second one beside it, with its checksums; before a release each has.

    For each file that Hadoop writes it starts a process that says who may read it.
    """
    if DEPTH != "laws":
        java, session = spark._jvm, spark._jsparkSession
        root = java.java.net.URI("file:///")
        found = java.org.apache.hadoop.fs.FileSystem.get(root, session.sessionState().newHadoopConf())
        found.setWriteChecksum(False)


def in_toml(settings: dict[str, str]) -> str:
    """The settings as lines of a section of `backstory.toml`."""
    return "".join(f'"{name}" = "{value}"\n' for name, value in settings.items())
