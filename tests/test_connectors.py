"""The jars that Spark needs beside itself are fetched once."""

import zipfile

import pytest

from backstory.settings import Settings
from backstory.spark.connectors import bytes_so_far, connectors, fetched, missing
from backstory.spark.session import properties


@pytest.fixture
def ivy(tmp_path):
    """The folder of a resolver that has fetched both jars."""
    given = {"spark.jars.ivy": str(tmp_path)}
    (tmp_path / "jars").mkdir()
    for package in connectors(given)["spark.jars.packages"].split(","):
        group, name, number = package.split(":")
        with zipfile.ZipFile(tmp_path / "jars" / f"{group}_{name}-{number}.jar", "w") as jar:
            jar.writestr("a", "a" * 1000)
    return given


def test_what_is_there_is_not_asked_for_again(ivy, tmp_path):
    found = properties(Settings(tmp_path, spark=ivy))
    assert found["spark.jars"] == ",".join(map(str, fetched(ivy)))
    assert "spark.jars.packages" not in found
    assert not missing(ivy)


def test_a_jar_that_was_cut_short_is_fetched_again(ivy):
    cut = fetched(ivy)[0]
    cut.write_bytes(cut.read_bytes()[:500])
    assert missing(ivy)
    assert "spark.jars" not in connectors(ivy)


def test_packages_of_ones_own_are_fetched_with_them(ivy):
    """The resolver knows what they need in turn."""
    told = connectors(ivy | {"spark.jars.packages": "org.example:one:1"})["spark.jars.packages"]
    assert told.endswith(",org.example:one:1")
    assert told.count(",") == 2


def test_jars_that_are_named_replace_them(ivy, tmp_path):
    assert connectors({"spark.jars": "a.jar"}) == {}
    assert not missing({"spark.jars": "a.jar"})


def test_how_much_is_there_is_known_while_it_comes(tmp_path):
    given = {"spark.jars.ivy": str(tmp_path)}
    assert bytes_so_far(given) == 0
    coming = tmp_path / "cache" / "org.xerial" / "sqlite-jdbc" / "jars"
    coming.mkdir(parents=True)
    (coming / "sqlite-jdbc.jar.part").write_bytes(b"x" * 42)
    assert bytes_so_far(given) == 42
