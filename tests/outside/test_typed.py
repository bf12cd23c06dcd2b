"""README, the demo and pages are typed as a reader types them, in one folder for each set and in this order."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import java
import pytest
from documented import ROOT, blocks

pytestmark = pytest.mark.process

SETS = {
    "first hour": ("README.md", "backstory demo", "docs/tutorial.md"),
    "analyst": ("docs/how-to/analyst.md",),
}
FOLLOWED = {  # by other tests, with what the page needs
    "docs/how-to/backup.md": "tests/outside/test_platform.py",
    "docs/how-to/changes.md": "tests/outside/test_tutorial.py",
    "docs/how-to/every-night.md": "tests/outside/test_every_night.py",
    "docs/how-to/keeping.md": "tests/outside/test_tutorial.py",
    "docs/how-to/reading.md": "tests/outside/test_tutorial.py",
    "docs/how-to/spark-job.md": "tests/outside/test_spark_job.py",
    "docs/how-to/debezium-kafka.md": "tests/outside/test_debezium.py",
}
NOT_TYPED = {
    "docs/how-to/adopt.md": "needs a table that another tool wrote",
    "docs/how-to/configure.md": "needs a catalog and an object store",
    "docs/how-to/databases.md": "needs a database server",
    "docs/how-to/explore.md": "serves until it is stopped",
    "docs/how-to/feeds.md": "shows commands for files of the reader",
    "docs/how-to/fivetran-destination.md": "needs Fivetran and certificates",
    "docs/how-to/from-dbt.md": "needs a table that dbt wrote",
    "docs/how-to/growth.md": "shows settings for large tables",
    "docs/how-to/historize.md": "shows a model of the reader",
    "docs/how-to/open-data-fabric.md": "fetches from addresses of the world",
    "docs/how-to/operate.md": "shows one query for a table of the reader",
    "docs/how-to/read-in-plain-sql.md": "shows SQL for any engine",
    "docs/how-to/snapshot.md": "shows commands for files of the reader",
    "docs/how-to/troubleshoot.md": "shows no commands",
}
WIDTH = 100
# What differs from run to run, and nothing else: ids of snapshots.
CHANGING = re.compile(r"\b\d{15,19}\b")


def test_each_page_with_commands_is_typed_or_says_why_not():
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "how-to").glob("*.md")}
    assert pages - {page for pages in SETS.values() for page in pages} == FOLLOWED.keys() | NOT_TYPED.keys()
    assert all((ROOT / test).exists() for test in FOLLOWED.values())


@pytest.mark.parametrize("pages", SETS.values(), ids=SETS.keys())
def test_what_pages_show_is_what_their_commands_print(tmp_path, pages):
    """Each command ends well; where a page shows what one prints, it prints this."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "backstory.toml").write_text(f"[spark]\n{java.in_toml(java.PLANS)}")
    for page in pages:
        if not page.endswith(".md"):
            typed(page, tmp_path)
            continue
        for block in blocks(ROOT / page):
            where = f"{page}, line {block.line}"
            if block.language == "python":
                (tmp_path / "typed.py").write_text(block.text)
                typed(f"{sys.executable} typed.py", tmp_path, where)
            for line, shown in commands(block):
                printed = typed(line, tmp_path, where)
                assert not shown or settled(printed) == settled(shown), f"{where}: {line}\n{printed}"


def commands(block):
    """The command lines of a block, each with the text that is shown below it."""
    if block.language not in ("", "console"):
        return
    prompted = block.text.startswith("$ ")
    lines = re.split(r"(?m)^\$ ", block.text)[1:] if prompted else block.text.splitlines()
    for each in lines:
        line, _, shown = each.partition("\n")
        if prompted or line.startswith("backstory "):
            yield line, shown


def settled(text):
    return [CHANGING.sub("ID", line).rstrip() for line in text.strip().splitlines()]


def typed(line, folder, where=""):
    """What a command prints on a terminal of a given width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, "TERM": "dumb", "COLUMNS": str(WIDTH)}
    with (folder / "stderr").open("w+", encoding="utf-8") as errors, os.fdopen(ours, "rb", 0) as terminal:
        process = subprocess.Popen(
            ["bash", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=errors,
            cwd=folder,
            env=settings,
        )
        os.close(theirs)
        printed = b"".join(iter(lambda: part(terminal), b""))
        assert process.wait() == 0, (
            f"{where}: {line}\n{printed.decode()}\n{(folder / 'stderr').read_text()[-2000:]}"
        )
    return printed.decode().replace("\r\n", "\n")


def part(terminal):
    try:
        return terminal.read(65536)
    except OSError:  # of a terminal that nobody writes to any more
        return b""
