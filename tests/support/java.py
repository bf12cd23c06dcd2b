"""The start of every Java of the tests, and the execution of its plans.

Tests run many short queries, and the JVM's second compiler would take most of their time. Half of the remaining
time of a start is the loading of classes, so `scripts/class_archive.py` archives the loaded classes. Compiled code
is kept. With only one compiler, Java would have a fifth of the space for it, and would compile much of it again.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from depth import DEPTH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = Path(__file__).parents[2] / ".pytest_cache" / "java" / "classes.jsa"
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
# Room for the garbage of plans, so that it is rarely collected, and for classes, so that they cause no
# collection.
ROOM = "-Xmn256m -XX:MetaspaceSize=256m"
# A missing archive, or one of other classes, is silently left unused.
SMALL = f"{SHORT} -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off"
OPTIONS = f"{SMALL} {ROOM}"
# A plan of a few rows runs faster without compilation, and without its description on a web page. Before a
# release, plans run as for users.
PLANS = (
    {}
    if DEPTH == "laws"
    else {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.ui.explainMode": "simple",
    }
)

# The session of the tests plans a query once, before it runs. Other programs adapt their plans, as for users.
UNADAPTED = {} if DEPTH == "laws" else {"spark.sql.adaptive.enabled": "false"}

# Processes that tests start import from these folders.
PYTHONPATH = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])

# The process from which Python workers are forked (tests/support/task_workers.py).
WORKERS = (
    {}
    if DEPTH == "laws"
    else {
        "spark.python.daemon.module": "task_workers",
        "spark.executorEnv.PYTHONPATH": PYTHONPATH,
    }
)


def without_checksums(spark: "SparkSession") -> None:
    """Write no checksum files next to the files of the session, except before a release.

    For each file that Hadoop writes, it starts a process that sets the permissions.
    """
    if DEPTH != "laws":
        java, session = spark._jvm, spark._jsparkSession
        root = java.java.net.URI("file:///")
        file_system = java.org.apache.hadoop.fs.FileSystem.get(root, session.sessionState().newHadoopConf())
        file_system.setWriteChecksum(False)


def in_toml(settings: dict[str, str]) -> str:
    """The settings as lines of a section of `backstory.toml`."""
    return "".join(f'"{name}" = "{value}"\n' for name, value in settings.items())
