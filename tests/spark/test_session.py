"""The embedded session: its clients, and its visibility to others."""

import sqlite3
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from copied_warehouses import embedded
from serving import command_line, processes

from backstory.errors import Failed
from backstory.settings import CATALOG_FILE, Settings
from backstory.spark import session
from backstory.spark.jars import has_modules
from backstory.spark.session import session_properties, start_session


def test_settings_reach_java_but_appear_on_no_command_line(spark):
    """This holds for any characters, including catalogs' secrets."""
    name = "spark.backstory.secret"
    secret = spark.conf.get(name)
    assert spark._jvm.java.lang.System.getProperty(name) == secret
    assert [] == [each for each in processes() if b"canary-1f83" in command_line(each)]


def test_clients_without_the_secret_are_refused(spark):
    """Spark's own ports require a secret, including on loopback."""
    from py4j.protocol import Py4JJavaError

    jvm, conf = spark._jvm, spark.sparkContext.getConf()
    address, port = conf.get("spark.driver.host"), int(conf.get("spark.driver.port"))
    assert address == "127.0.0.1"
    own = jvm.org.apache.spark.SparkConf(False)
    nothing = jvm.scala.Option.empty()
    file = getattr(jvm, "org.apache.spark.internal.config.package$").__getattr__("MODULE$").AUTH_SECRET_FILE()
    rpc = jvm.org.apache.spark.rpc
    manager = jvm.org.apache.spark.SecurityManager(own, nothing, file)
    stranger = rpc.RpcEnv.create("stranger", address, 0, own, manager, True)
    try:
        with pytest.raises(Py4JJavaError):
            stranger.setupEndpointRef(rpc.RpcAddress(address, port), "BlockManagerMaster")
    finally:
        stranger.shutdown()


@pytest.mark.parametrize(
    ("own", "bound", "authenticated"),
    [
        ({}, "127.0.0.1", "true"),
        ({"spark.master": "local"}, "127.0.0.1", "true"),
        ({"spark.driver.bindAddress": "0.0.0.0", "spark.authenticate": "false"}, "0.0.0.0", "false"),
        ({"spark.master": "spark://host:7077"}, None, None),
        ({"spark.master": "local-cluster[2,1,1024]"}, None, None),
    ],
)
def test_only_embedded_sessions_are_local_and_authenticated(tmp_path, own, bound, authenticated):
    """A cluster must reach its driver. The configuration takes precedence."""
    properties = session_properties(Settings(tmp_path, spark=own))
    assert (properties.get("spark.driver.bindAddress"), properties.get("spark.authenticate")) == (
        bound,
        authenticated,
    )


@pytest.mark.parametrize("content", [None, b"this is no database\n" * 9, b"SQLite format 2"])
def test_an_invalid_catalog_file_is_reported_before_java_starts(tmp_path, monkeypatch, content):
    """7.1: A folder or another file in the place of the catalog's database is an error."""
    monkeypatch.setattr(session, "launch", lambda *_, **__: pytest.fail("Java was started"))
    catalog = tmp_path / CATALOG_FILE
    catalog.mkdir() if content is None else catalog.write_bytes(content)
    with pytest.raises(Failed, match="not the database of a catalog") as error:
        start_session(Settings(tmp_path))
    assert (error.value.code, error.value.exit_code) == ("no-catalog", 1)


def columns(folder):
    """The tables of a catalog, with SQLite's description of columns and keys."""
    with closing(sqlite3.connect(folder / CATALOG_FILE)) as catalog:
        names = [name for (name,) in catalog.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: list(catalog.execute(f"PRAGMA table_info({name})")) for name in names}


def test_a_new_catalog_has_the_same_tables_as_icebergs(spark, warehouse, tmp_path):
    """They exist before Java starts, so that two first programs do not both create them."""
    embedded(spark, "made_by_iceberg", tmp_path)
    spark.sql("CREATE NAMESPACE made_by_iceberg.one")
    made, ours = columns(tmp_path), columns(warehouse)
    assert {"iceberg_tables", "iceberg_namespace_properties"} <= made.keys()
    assert {name: ours.get(name) for name in made} == made


def test_python_workers_search_no_downloaded_jars_for_modules(spark):
    """Reading the directories of downloaded jars takes a second per job."""

    def paths(batches):
        import sys

        import pyarrow as pa

        for _ in batches:
            yield pa.record_batch([pa.array([each for each in sys.path if each.endswith(".jar")])], ["path"])

    jars = {Path(row.path).name for row in spark.range(1).mapInArrow(paths, "path string").collect()}
    assert [each for each in jars if not each.startswith("spark-core_")] == []  # Spark's own is always there
    assert [each for each in sys.path if "iceberg" in each] == []


def test_jars_with_python_modules_are_recognised(tmp_path):
    """Packages such as GraphFrames contain Python modules."""
    for name, entries in (("with", ["org/a.class", "graph/frames.py"]), ("without", ["org/a.class"])):
        with zipfile.ZipFile(tmp_path / f"{name}.jar", "w") as jar:
            for each in entries:
                jar.writestr(each, "")
    assert has_modules(tmp_path / "with.jar")
    assert not has_modules(tmp_path / "without.jar")
