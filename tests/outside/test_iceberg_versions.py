"""The store on the other supported Iceberg, in a separate process, because a session has only one Iceberg."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from java import PYTHONPATH

from backstory.spark.jars import ICEBERG, iceberg_package
from backstory.spark.versions import is_older

pytestmark = pytest.mark.process

OTHER = "1.11.0"
OLDER = Path(sys.prefix) / "spark35"  # as in test_spark_versions
WALK = """
import sys
from pathlib import Path
from destination import serving
from older_spark import ask_as_spark_4
from java import PLANS
from own_sessions import ANSWERS, catalog_of, own_session, walk
from store_contract import check
import backstory
from backstory.settings import Settings
from backstory.spark.session import start_session
from backstory.stores.iceberg.jvm import version
from backstory.stores.iceberg.store import IcebergStore
from backstory.testing.sender import Sender
folder, package = Path(sys.argv[1]), sys.argv[2]
ask_as_spark_4()
own = {"spark.master": "local[2]", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"} | PLANS
spark = start_session(Settings(folder / "warehouse", spark={**own, "spark.jars.packages": package}))
backstory.open(spark=spark)
store = IcebergStore(spark)
print("Iceberg", version(store.jvm), "Spark", spark.version[:3], flush=True)
with serving({"backstory": store}) as address:
    check(Sender.to(address, folder), store, "contract")
settings = catalog_of("jdbc", folder)
sessions = own_session(spark, "own", settings), own_session(spark, "own", settings, "false")
found = walk(sessions[0], "own", sessions[1])
assert found == ANSWERS, found
print("done", flush=True)
"""


@pytest.mark.laws("an older Iceberg changes only with its release, and each case starts a session of its own")
@pytest.mark.parametrize("spark", [version("pyspark"), "3.5.9"], ids=lambda each: each[:3])
def test_the_store_behaves_identically_on_the_older_iceberg(tmp_path, spark):
    """The package in the settings replaces ours, and fulfils the contract of the store.

    This includes a session that caches, where this Iceberg compares tables only by name.
    """
    assert ICEBERG != OTHER
    package = iceberg_package(spark).replace(ICEBERG, OTHER)
    paths = [str(OLDER)] * is_older(spark, (4, 0)) + [PYTHONPATH]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", WALK, str(tmp_path), package]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)
    assert f"Iceberg {OTHER} Spark {spark[:3]}" in done.stdout, done.stderr
    assert done.stdout.endswith("done\n"), done.stderr
