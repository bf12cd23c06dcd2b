"""The additional jars of Spark are downloaded completely, once per machine, and then reused."""

import fcntl
import os
import zipfile
from threading import Thread

import pytest

from backstory.errors import Failed
from backstory.settings import Settings
from backstory.spark import jars
from backstory.spark.jars import jar_properties, must_fetch, packages_of
from backstory.spark.launch import failure_reason
from backstory.spark.session import session_properties

OWN = "org.example:one:1"


def lay_down(folder, properties):
    """The files that a download leaves for the packages in these properties."""
    packages = packages_of(properties)
    came = folder / "came" / "jars"
    came.mkdir(parents=True)
    for package in packages:
        group, name, number = package.split(":")
        with zipfile.ZipFile(came / f"{group}_{name}-{number}.jar", "w") as jar:
            jar.writestr("one.py" if package == OWN else "a", "a" * 1000)
    place = folder / "backstory"
    place.mkdir(mode=0o700, exist_ok=True)
    return jars._publish(came, place / jars._folder_name(packages, properties))


@pytest.fixture
def ivy(tmp_path):
    """The properties for a folder with both jars."""
    properties = {"spark.jars.ivy": str(tmp_path)}
    lay_down(tmp_path, properties)
    return properties


def test_jars_already_present_are_not_fetched_again(ivy, tmp_path):
    named = session_properties(Settings(tmp_path, spark=ivy))
    assert named["spark.jars"].count("iceberg-spark-runtime") == named["spark.jars"].count("sqlite-jdbc") == 1
    assert "spark.jars.packages" not in named
    assert not must_fetch(ivy)


def cut(jar):
    jar.write_bytes(jar.read_bytes()[:500])


def empty(jar):
    jar.write_bytes(b"")


def zero(jar):
    """Fill the file with zeros of the same size, as after a power failure."""
    jar.write_bytes(bytes(jar.stat().st_size))
    os.utime(jar, (1, 1))


@pytest.mark.parametrize("spoil", [cut, empty, zero, os.unlink])
def test_a_damaged_jar_is_fetched_again(ivy, spoil):
    spoil(next(iter(jars.kept_jars(packages_of(ivy), ivy))))
    assert must_fetch(ivy)


def test_a_copied_folder_needs_no_network(ivy):
    """The copied files have other times but the same digests."""
    for jar in jars.kept_jars(packages_of(ivy), ivy):
        os.utime(jar, (1, 1))
    assert not must_fetch(ivy)


def test_user_packages_are_added_to_the_default_jars(ivy, tmp_path):
    """Packages of the user are next to ours. A package with Python modules is on Python's path."""
    properties = ivy | {"spark.jars.packages": OWN}
    assert must_fetch(properties)
    lay_down(tmp_path, properties)
    named = jar_properties(properties)
    assert named["spark.jars"].count(",") == 2
    assert named["spark.submit.pyFiles"].endswith("org.example_one-1.jar")


def test_explicit_jars_replace_default_jars_but_not_user_packages(tmp_path):
    properties = {"spark.jars": "a.jar", "spark.jars.ivy": str(tmp_path)}
    assert jar_properties(properties) == {}
    assert not must_fetch(properties)
    properties |= {"spark.jars.packages": OWN}
    lay_down(tmp_path, properties)
    assert jar_properties(properties)["spark.jars"].split(",")[0] == "a.jar"
    assert jar_properties(properties)["spark.jars"].count(",") == 1


@pytest.mark.parametrize("version", ["1.+", "1-SNAPSHOT", "latest.release", "[1]"])
def test_a_package_with_an_open_version_is_fetched_every_time(tmp_path, version):
    properties = {"spark.jars.ivy": str(tmp_path), "spark.jars.packages": f"org.example:one:{version}"}
    lay_down(tmp_path, properties)
    assert must_fetch(properties)


@pytest.mark.parametrize("name", ["spark.jars.repositories", "spark.jars.ivySettings", "spark.jars.excludes"])
def test_another_source_setting_requires_a_new_fetch(ivy, name):
    assert must_fetch(ivy | {name: "other"})


def test_jars_in_world_writable_folders_are_not_used(ivy, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "backstory").mkdir(exist_ok=True)
    (tmp_path / "backstory" / "jars").mkdir()
    (tmp_path / "backstory" / "jars").chmod(0o777)
    assert tmp_path / "backstory" / "jars" not in jars._folders({})


def test_an_unwritable_cache_is_replaced_by_a_temporary_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = jars._writable_folder({})
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder in jars._folders({})


def test_a_concurrent_fetch_waits_and_reuses_the_fetched_jars(tmp_path):
    properties = {"spark.jars.ivy": str(tmp_path)}
    (tmp_path / "backstory").mkdir(mode=0o700)
    came = []
    with (tmp_path / "backstory" / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = Thread(target=lambda: came.extend(jars.fetch_jars(packages_of(properties), properties)))
        waiting.start()
        laid = lay_down(tmp_path, properties)
    waiting.join(60)
    assert came == [*laid]


def test_fetched_bytes_are_counted_during_the_download(tmp_path):
    """Copies from earlier fetches are not counted."""
    properties = {"spark.jars.ivy": str(tmp_path)}
    assert jars.fetched_bytes(properties) == 0
    coming = tmp_path / "backstory" / "part-1" / "cache" / "org.xerial" / "sqlite-jdbc" / "jars"
    coming.mkdir(parents=True)
    (coming / "sqlite-jdbc.jar.part").write_bytes(b"x" * 42)
    assert jars.fetched_bytes(properties) == 42
    earlier = tmp_path / "backstory" / "part-2" / "cache"
    earlier.parent.mkdir()
    earlier.symlink_to(tmp_path / "backstory" / "part-1" / "cache")
    assert jars.fetched_bytes(properties) == 42


@pytest.mark.process
def test_an_unresolvable_package_is_named_in_the_error(tmp_path):
    """The failed attempt leaves no file."""
    (tmp_path / "none").mkdir()
    settings = "<ivysettings><settings defaultResolver='here'/><resolvers><filesystem name='here'>"
    settings += (
        f"<artifact pattern='{tmp_path}/none/[artifact].[ext]'/></filesystem></resolvers></ivysettings>"
    )
    (tmp_path / "ivy.xml").write_text(settings)
    properties = {"spark.jars": "a.jar", "spark.jars.packages": OWN, "spark.jars.ivy": str(tmp_path)}
    with pytest.raises(Failed) as stop:
        jar_properties(properties | {"spark.jars.ivySettings": str(tmp_path / "ivy.xml")})
    assert stop.value.code == "spark-did-not-start"
    assert "unresolved dependency: org.example#one;1" in stop.value.message
    assert [each.name for each in (tmp_path / "backstory").iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "x\nError: Could not find or load main class a.B\nCaused by: y\n",
            "Could not find or load main class a.B",
        ),
        ("#\n#  SIGBUS (0x7) at pc=0x1\n#\n", "SIGBUS (0x7) at pc=0x1"),
        (
            "Error occurred during initialization of boot layer\njava.lang.module.FindException: Module x not found\n",
            "Module x not found",
        ),
        (
            "Error occurred during initialization of VM\nToo small maximum heap\n",
            "during initialization of VM",
        ),
        (
            'Exception in thread "main" java.lang.X: y\n\tat z\nCaused by: java.io.IOException: full\n',
            "java.io.IOException: full",
        ),
        ("only this\n\n", "only this"),
        ("", "Java printed nothing"),
    ],
)
def test_the_failure_reason_is_the_decisive_line(text, line):
    assert failure_reason(text) == line
