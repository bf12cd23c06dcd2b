"""Java's classes are cached for the next start, only for the same Java and owner."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from depth import deep
from java import SHORT
from serving import SECONDS, within

from backstory.spark import launch
from backstory.spark.launch import VARIABLE, use_class_archive

BACKSTORY = Path(sys.executable).parent / "backstory"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A Java, its jars, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for each in (VARIABLE, *launch._FOLDERS):
        monkeypatch.delenv(each, raising=False)
    java, jars = tmp_path / "bin" / "java", tmp_path / "jars"
    java.parent.mkdir()
    java.touch()
    jars.mkdir()
    return java, jars


def options(java, jars, *, keeps=True):
    with use_class_archive(java, jars, keeps=keeps):
        return os.environ.get(VARIABLE, "")


def archive_of(text):
    return Path(text.rpartition("=")[2])


def whole(archive, age=0.0):
    archive.write_bytes(bytes.fromhex("a8ab0bf0") + b"classes")
    os.utime(archive, (time.time() - age,) * 2)
    return archive


def test_a_missing_archive_is_created_and_then_used(place):
    made = options(*place)
    assert "ArchiveClassesAtExit" in made
    archive = whole(archive_of(made))
    assert f"-XX:SharedArchiveFile={archive}" in options(*place)
    assert VARIABLE not in os.environ


def test_a_long_running_process_uses_an_archive_but_creates_none(place):
    assert options(*place, keeps=False) == ""
    whole(archive_of(options(*place)))
    assert "SharedArchiveFile" in options(*place, keeps=False)


def test_an_unfinished_archive_is_ignored_until_abandoned(place):
    archive = archive_of(options(*place))
    archive.write_bytes(b"\0" * 8)
    assert options(*place) == ""
    os.utime(archive, (time.time() - 2 * launch._ABANDONED,) * 2)
    assert "ArchiveClassesAtExit" in options(*place)


def test_another_java_or_other_jars_use_another_archive(place):
    java, jars = place
    first = archive_of(options(java, jars))
    os.utime(java, (1, 1))
    second = archive_of(options(java, jars))
    os.utime(jars, (1, 1))
    assert len({first, second, archive_of(options(java, jars))}) == 3


def test_no_archive_is_made_or_used_with_a_settings_folder(place, tmp_path, monkeypatch):
    """HotSpot fails if it must archive classes next to such a folder."""
    java, jars = place
    whole(archive_of(options(java, jars)))
    (tmp_path / "conf").mkdir()  # next to the jars, like Spark's own
    assert options(java, jars) == ""
    (tmp_path / "conf").rmdir()
    assert options(java, jars)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert options(java, jars) == ""


def test_long_unused_archives_are_deleted(place):
    java, jars = place
    old = whole(archive_of(options(java, jars)), 2 * launch._UNUSED)
    os.utime(java, (1, 1))
    options(java, jars)
    assert not old.exists()


def test_user_options_of_java_are_kept(place, monkeypatch):
    monkeypatch.setenv(VARIABLE, "-Xint")
    assert options(*place).endswith(" -Xint")
    assert os.environ[VARIABLE] == "-Xint"
    for own in ("-XX:SharedArchiveFile=/x.jsa", "-Xshare:off"):
        monkeypatch.setenv(VARIABLE, own)
        assert options(*place) == own


def test_no_archive_is_kept_in_an_unsafe_or_unwritable_folder(place, tmp_path, monkeypatch):
    options(*place)
    (tmp_path / "cache" / "backstory" / "java").chmod(0o777)
    assert options(*place) == ""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert options(*place) == ""
    assert options(tmp_path / "no" / "java", place[1]) == ""


def start(folder, day, options=""):
    """A first command of a user with the folder's cache. Java compiles as in other tests."""
    own = {"XDG_CACHE_HOME": str(folder / "cache"), "JAVA_TOOL_OPTIONS": f"{SHORT} {options}"}
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE} | own
    command = [BACKSTORY, "snapshot", "copy.csv", "--into", "a.b", "--key", "id", "--at", day]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


@pytest.fixture(scope="module")
def after_a_start(tmp_path_factory):
    """A folder with a command's cached classes, which tests copy."""
    folder = tmp_path_factory.mktemp("started")
    (folder / "copy.csv").write_text("id,name\n1,Ada\n")
    start(folder, "2026-01-01")
    archives = folder / "cache" / "backstory" / "java"
    assert within(SECONDS, lambda: any(map(launch._is_whole, archives.glob("*.jsa"))), 0.2)
    return folder


@pytest.fixture
def again(after_a_start, tmp_path):
    """A copy of that folder and its archive, with another warehouse."""
    folder = shutil.copytree(after_a_start, tmp_path / "again", ignore=shutil.ignore_patterns("warehouse"))
    (archive,) = (folder / "cache" / "backstory" / "java").glob("*.jsa")
    assert launch._is_whole(archive)
    return folder, archive


@pytest.mark.process
def test_the_second_start_takes_its_classes_from_the_archive(again):
    folder, _ = again
    log = folder / "classes.log"
    start(folder, "2026-01-02", f"-Xlog:class+load:file={log}")
    assert log.read_text().count("shared objects file (top)") > 1000


def flip(archive):
    with archive.open("r+b") as file:
        file.seek(archive.stat().st_size // 2)
        file.write(b"\xff" * 8192)


def shorten(archive):
    os.truncate(archive, archive.stat().st_size - 4096)


@pytest.mark.process
# A shortened archive is detected before Java starts: `test_a_truncated_archive_is_created_again`.
@pytest.mark.parametrize("spoil", [flip, shorten][: deep(2, 1)])
def test_a_start_succeeds_despite_a_damaged_archive(again, spoil):
    """The command succeeds without the archive, whether or not its size was known."""
    folder, archive = again
    archive.chmod(0o600)
    spoil(archive)
    start(folder, "2026-01-02")
    assert not list(folder.glob("hs_err*"))


def test_a_truncated_archive_is_created_again(place):
    archive = whole(archive_of(options(*place)))
    launch.seal_archive(archive)
    assert "SharedArchiveFile" in options(*place)
    archive.write_bytes(archive.read_bytes()[:-1])
    assert "ArchiveClassesAtExit" in options(*place)
    assert not archive.exists()
