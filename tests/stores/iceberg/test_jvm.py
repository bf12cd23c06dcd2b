"""Iceberg's own Java is called in one place, which is asked for as a whole before it is used."""

import re

import pytest
from destination import LIVE, Place
from test_architecture import MODULES, SOURCE, shown

from backstory.stores.iceberg import jvm
from backstory.stores.iceberg.scripts import planned
from backstory.stores.iceberg.store import existing

FACADE = SOURCE / "stores" / "iceberg" / "jvm.py"
SCRIPTS = SOURCE / "stores" / "iceberg" / "scripts.py"
# What settings name: jars and classes that Spark loads by itself.
SETTINGS = {"spark/connectors.py", "spark/session.py", "stores/metadata/with_pyiceberg.py"}
# Spark's own Java, which is no part of a store.
OF_SPARK = {"spark/parsed_queries.py", "strategies/observed.py"}


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_icebergs_java_is_called_in_one_place(path):
    """No other module names a class of Iceberg's, or asks a session for its Java."""
    text = path.read_text(encoding="utf-8")
    if path in {FACADE, SCRIPTS}:
        return
    assert "org.apache.iceberg" not in text or shown(path) in SETTINGS
    assert "._jvm" not in text or shown(path) in OF_SPARK


def test_all_that_is_called_is_asked_for_at_the_start(spark):
    """Each class that the module calls stands in the list that a session is asked for, and no other does."""
    text = FACADE.read_text(encoding="utf-8") + SCRIPTS.read_text(encoding="utf-8")
    called = set(re.findall(r'_iceberg\([^"]*"([^"]+)"\)', text))
    called |= set(re.findall(r"\{ICEBERG\}\.((?:[a-z]+\.)*[A-Z]\w*)", text)) - {"spark.SparkCatalog"}
    assert called | {"spark.source.SparkRewriteTable"} == set(jvm.NEEDED)
    assert not jvm.lacking(spark._jvm)


def test_only_the_files_that_are_asked_for_are_planned(sender, store, schema):
    """In one call, with what hides rows of them; a file that is none of the table's has no answer."""
    place = Place.made(sender, store, schema, LIVE, "id v n synced \n 1 a 1 T1 \n 2 b 1 T1")
    place.write(replace="id v n synced \n 3 c 1 T1")
    place.write(delete="id \n 1")
    table = existing(store, place.name)
    rows = store.spark.sql(f"SELECT id, _file FROM {store.sql_name(place.name)}").collect()
    files = {row.id: row["_file"] for row in rows}
    found = planned(store.jvm, table.iceberg, [files[2], "s3://elsewhere/file.parquet"])
    assert list(found) == [files[2]]
    assert len(found[files[2]].deletes()) == 1
    assert len(planned(store.jvm, table.iceberg, files.values())) == 2
