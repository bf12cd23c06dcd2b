"""The work of a platform's owner: back up during writes, restore elsewhere, check, maintain, forget.

The commands for backup and restore are the page's, in a shell, with folders below the test's.
The commands of backstory share one process; before a release each has its own.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import java
import pytest
from documented import ROOT, blocks
from typing_session import session

pytestmark = pytest.mark.process

PAGE = ROOT / "docs" / "how-to" / "backup.md"
# The series starts after its second copy, which contains a key twice.
COPIES = sorted((ROOT / "examples" / "data" / "countries").glob("countries-*.csv"))[2:]
# Writes one copy after another until it is stopped. Each is a commit, and the first lines report its
# beginning.
WRITER = """
import itertools, pathlib, sys
import backstory
with backstory.open("warehouse") as warehouse:
    for copy in sys.argv[1:3]:
        warehouse.snapshot(copy, into="demo.lands", key="code", at=copy[-14:-4])
    print("writing", flush=True)
    for copy in itertools.cycle(sys.argv[3:]):
        if pathlib.Path("enough").exists():
            break
        warehouse.snapshot(copy, into="demo.lands", key="code")
"""


class Platform:
    """A warehouse in a folder, the page's folders next to it, and an owner's commands."""

    def __init__(self, folder: Path, commands: Path) -> None:
        self.folder = folder
        places = (commands, Path(sys.executable).parent, os.environ["PATH"])
        self.env = os.environ | {"PATH": ":".join(map(str, places))}
        (folder / "backstory.toml").write_text(f"[spark]\n{java.in_toml(java.PLANS)}")

    def shell(self, line: str) -> str:
        """The output of a line of the page, which must succeed."""
        for place in ("/backup", "/srv"):
            line = line.replace(f"{place}/", f"{self.folder}{place}/")
        done = subprocess.run(
            ["/bin/sh", "-c", line], cwd=self.folder, env=self.env, capture_output=True, text=True
        )
        assert done.returncode == 0, (line, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def json(self, line: str):
        """The document that a command returns."""
        return json.loads(self.shell(f"{line} --output json"))


def shown(heading: str) -> list[str]:
    """The lines of the first block of commands below a heading."""
    begins = PAGE.read_text("utf-8").partition(f"## {heading}\n")[0].count("\n")
    return next(
        each for each in blocks(PAGE) if each.line > begins and each.language == "console"
    ).text.splitlines()


def files(folder: Path) -> dict[str, str]:
    """Digests of all files except the catalog's."""
    paths = (each for each in folder.rglob("*") if each.is_file() and not each.name.startswith("catalog.db"))
    return {str(each.relative_to(folder)): sha256(each.read_bytes()).hexdigest() for each in paths}


@pytest.fixture
def commands():
    """The folder of a command whose runs share a process."""
    with session() as folder:
        yield folder


def test_a_backup_during_writes_is_restored_as_an_independent_copy(tmp_path, commands):
    """The backup is one complete copy, and maintenance and erasure there do not affect the original."""
    platform = Platform(tmp_path, commands)
    (tmp_path / "backup").mkdir()
    (tmp_path / "srv").mkdir()
    command = [sys.executable, "-c", WRITER, *map(str, COPIES[:2]), *map(str, COPIES[2:])]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "writing\n"
        for line in shown("Back up"):
            platform.shell(line)
        (tmp_path / "enough").touch()
    assert writer.returncode == 0

    shutil.move(tmp_path / "warehouse", tmp_path / "original")  # the disk is lost, and only the backup exists
    shutil.move(tmp_path / "backup" / "warehouse", tmp_path / "warehouse")
    restored = platform.json("backstory current demo.lands")
    assert {(each["code"], each["capital"]) for each in restored} in [capitals(copy) for copy in COPIES]
    before = files(tmp_path / "warehouse")
    for line in shown("Restore, copy and move"):
        platform.shell(line)
    copy = "--warehouse srv/copy"
    assert {each["status"] for each in platform.json(f"backstory check --all {copy}")} == {"ok"}
    assert platform.json(f"backstory current demo.lands {copy}") == restored
    assert [each["error"] for each in platform.json(f"backstory maintain --all {copy}")] == [None]
    assert platform.json(f"backstory forget demo.lands KAZ --apply {copy}")["left"] == 0
    assert platform.json(f"backstory timeline demo.lands DEU {copy}")
    assert "KAZ" not in {each["code"] for each in platform.json(f"backstory current demo.lands {copy}")}

    assert files(tmp_path / "warehouse") == before
    assert platform.json("backstory current demo.lands") == restored


def capitals(copy: Path) -> set[tuple[str, str | None]]:
    with copy.open(encoding="utf-8") as lines:
        return {(row["code"], row["capital"] or None) for row in csv.DictReader(lines)}
