"""Archive the loaded classes of Spark and Iceberg, so that Java starts a third faster.

The archive is made again if the locked packages are newer. Without it the tests are only slower.
"""

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from java import ARCHIVE, SHORT  # noqa: E402 - a module of the tests


def make(part: Path) -> None:
    """Load the classes of a typical start: open a session, then create, change and read a table."""
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
            running.stdin.close()  # this ends Java
            running.wait(180)


if __name__ == "__main__":
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    if not ARCHIVE.exists() or ARCHIVE.stat().st_mtime < (ROOT / ".venv" / "ready").stat().st_mtime:
        part = ARCHIVE.with_suffix(f".{os.getpid()}")
        make(part)
        part.replace(ARCHIVE)
