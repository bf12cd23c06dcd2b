"""Keep the classes of Spark and Iceberg as Java has them once loaded: starts take a third less.

It is made anew when the locked packages are newer; without it tests are slower and no other.
"""

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from java import ARCHIVE, SHORT  # noqa: E402 - a module of the tests


def make(part: Path) -> None:
    """Run what every start runs: a session, a table, a row in it, and a look at it."""
    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT} -XX:ArchiveClassesAtExit={part}"
    from backstory.settings import Settings
    from backstory.spark.launch import java_of
    from backstory.spark.session import start_session

    with tempfile.TemporaryDirectory() as folder:
        spark = start_session(
            Settings(Path(folder), spark={"spark.master": "local[1]", "spark.driver.memory": "700m"})
        )
        spark.sql("CREATE NAMESPACE backstory.s")
        spark.sql("CREATE TABLE backstory.s.t USING iceberg AS SELECT 1 AS id")
        spark.sql(
            "MERGE INTO backstory.s.t USING (SELECT 2 AS id) n ON t.id = n.id WHEN NOT MATCHED THEN INSERT *"
        )
        spark.table("backstory.s.t").toArrow()
        running = java_of(spark)
        spark.stop()
        if running and running.stdin:
            running.stdin.close()  # which ends it
            running.wait(180)


if __name__ == "__main__":
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    if not ARCHIVE.exists() or ARCHIVE.stat().st_mtime < (ROOT / ".venv" / "ready").stat().st_mtime:
        part = ARCHIVE.with_suffix(f".{os.getpid()}")
        make(part)
        part.replace(ARCHIVE)
