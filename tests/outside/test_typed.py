"""README, the demo and pages are typed as by a reader, in one folder per set and in this order."""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import java
import pytest
from documented import ROOT, blocks
from typing_session import HEIGHT, TERMINAL, WIDTH, session

pytestmark = pytest.mark.process

# The first hour. `make wheel-check` runs the demo in its own process.
FIRST = ("README.md", "backstory demo", "docs/tutorial.md")
# The pages that use the tutorial's table, and the notebook.
LATER = tuple(f"docs/how-to/{name}.md" for name in ("reading", "changes", "keeping", "operate"))
NOTEBOOK = "examples/countries.ipynb"
TOGETHER = {  # a page may need the tables of the page before it
    "analyst": ("docs/how-to/analyst.md",),
    "snapshot": ("docs/how-to/snapshot.md",),
    "without a key": ("docs/how-to/without-key.md",),
    "preview": ("docs/how-to/preview.md",),
    "feeds, growth": ("docs/how-to/feeds.md", "docs/how-to/growth.md"),  # one table to maintain
    "historize": ("docs/how-to/historize.md",),
    "open data fabric": ("docs/how-to/open-data-fabric.md",),
    "from dbt, adopt": ("docs/how-to/from-dbt.md", "docs/how-to/adopt.md"),
}
FOLLOWED = {  # pages that other tests follow, with everything that the page needs
    "docs/how-to/backup.md": "tests/outside/test_platform.py",
    "docs/how-to/every-night.md": "tests/outside/test_every_night.py",
    "docs/how-to/spark-job.md": "tests/outside/test_spark_job.py",
    "docs/how-to/debezium-kafka.md": "tests/outside/test_streams.py",
}
NOT_TYPED = {
    "docs/how-to/configure.md": "needs a catalog and an object store",
    "docs/how-to/databases.md": "needs a database server",
    "docs/how-to/explore.md": "serves until it is stopped",
    "docs/how-to/fivetran-destination.md": "needs Fivetran and certificates",
    "docs/how-to/read-in-plain-sql.md": "shows SQL for any engine",
    "docs/how-to/spark-connect.md": "needs a server of Spark Connect and a catalog",
    "docs/how-to/troubleshoot.md": "shows no commands",
}
# The only parts that differ between runs: ids of snapshots, and recorded times.
TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
CHANGING = re.compile(rf"\b\d{{15,19}}\b|{TIME.pattern}")


def test_every_how_to_page_is_typed_or_listed_as_an_exception():
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "how-to").glob("*.md")}
    typed = {*LATER, *(page for pages in TOGETHER.values() for page in pages)}
    assert pages - typed == FOLLOWED.keys() | NOT_TYPED.keys()
    for page, test in FOLLOWED.items():
        text = (ROOT / test).read_text("utf-8")
        assert f'PAGE = ROOT / "docs" / "how-to" / "{Path(page).name}"' in text
        assert "blocks(PAGE)" in text


def test_commands_of_the_first_pages_print_the_shown_output(tmp_path, commands_of_one_process):
    """All pages with the tutorial's table share a folder. Before a release, each command is a process."""
    begin(tmp_path)
    type_pages((*FIRST, *LATER, NOTEBOOK), tmp_path, commands_of_one_process)
    assert (tmp_path / "kazakhstan.svg").read_text("utf-8").startswith("<svg")


@pytest.mark.parametrize("pages", TOGETHER.values(), ids=TOGETHER.keys())
def test_commands_of_how_to_pages_print_the_shown_output(tmp_path, pages, commands_of_one_process):
    """Pages begin in an empty folder, and all their commands and programs share one process."""
    begin(tmp_path)
    type_pages(pages, tmp_path, commands_of_one_process)


@pytest.fixture(scope="module")
def commands_of_one_process():
    with session() as folder:
        yield folder


def begin(folder):
    """The content of a reader's folder before the first page."""
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "backstory.toml").write_text(f"[spark]\n{java.in_toml(java.PLANS)}")


def type_pages(pages, folder, first_on_path):
    """Each command succeeds, or fails with the page's error, and prints the page's output."""
    shell = Shell(folder, first_on_path)
    for page in pages:
        if page.startswith("backstory "):
            shell.type(page)
            continue
        for block in blocks(ROOT / page):
            where = f"{page}, line {block.line}"
            if block.title:
                file = folder / block.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text)
            elif block.language == "python":
                (folder / "typed.py").write_text(block.text)
                shell.type("python typed.py", where)
            elif block.language == "sql" and block.text.startswith("SELECT"):
                shell.type(shlex.join(["backstory", "sql", block.text]), where)
            else:
                for line, shown in commands(block):
                    shell.type(line, where, shown)


def commands(block):
    """The command lines of a block, each with the output below it."""
    if block.language not in ("", "console"):
        return
    text = block.text.replace("\\\n", " ")
    prompted = text.startswith("$ ")
    lines = re.split(r"(?m)^\$ ", text)[1:] if prompted else text.splitlines()
    for each in lines:
        line, _, shown = each.partition("\n")
        if prompted or line.startswith(("backstory ", "export ")):
            yield line, shown


def settled(text):
    return [CHANGING.sub("ID", line).rstrip() for line in text.strip().splitlines()]


class Shell:
    """A terminal of a given width in a folder, which keeps exported variables."""

    def __init__(self, folder, first_on_path):
        self.folder, self.exported, self.times = folder, [], {}
        places = [first_on_path, Path(sys.executable).parent, os.environ["PATH"]]
        path = os.pathsep.join(map(str, places))
        self.settings = {**os.environ, "PATH": path, **TERMINAL}

    def type(self, line, where="", shown=""):
        """Execute a line, and compare its output, including errors, with the page."""
        if line.startswith("export "):
            self.exported.append(line)
        line = TIME.sub(lambda time: self.times.get(time[0], time[0]), line)
        code, printed, errors = self.run("\n".join([*self.exported, line]))
        if code:
            assert shown, f"{where}: {line}\nended with {code}\n{printed}{errors[-2000:]}"
            printed += errors
        # If a command fails, the order of its two streams is unknown here.
        order = sorted if code else list
        assert not shown or order(settled(printed)) == order(settled(shown)), (
            f"{where}: {line}\n{printed}{errors[-2000:]}"
        )
        # A later line may contain a time of the page. It gets the time that was printed in its place.
        self.times |= dict(zip(TIME.findall(shown), TIME.findall(printed), strict=False))

    def run(self, script):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
            os.fdopen(ours, "rb", 0) as terminal,
        ):
            process = subprocess.Popen(
                ["bash", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=errors,
                cwd=self.folder,
                env=self.settings,
            )
            os.close(theirs)
            printed = b"".join(iter(lambda: part(terminal), b""))
            code = process.wait()
            errors.seek(0)
            return code, printed.decode().replace("\r\n", "\n"), errors.read()


def part(terminal):
    try:
        return terminal.read(65536)
    except OSError:  # nothing writes to the terminal any more
        return b""
