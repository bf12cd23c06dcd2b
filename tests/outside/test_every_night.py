"""The page on nightly runs is followed as written: its file, its commands, its programs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import BACKSTORY, configure
from documented import ROOT, blocks
from typing_session import session

pytestmark = pytest.mark.process

PAGE = ROOT / "docs" / "how-to" / "every-night.md"
FILES_OF_PAGE = [each.text for each in blocks(PAGE) if each.language == "yaml"]
(RESTART,) = (text for text in FILES_OF_PAGE if "restart: true" in text and "erp." not in text)
FILES = {
    "exports/customer-2026-01-01.csv": "customer_id,name,note\n1,Ann,\n2,Bob,\n",
    "exports/customer-2026-01-02.csv": "customer_id,name,note\n1,Anna,\n2,Bob,x\n3,Cid,\n",
    "exports/order-2026-01-02.csv": "order_id,total\n1,5\n2,7\n",
    "feeds/prices/1.jsonl": '{"product": 1, "changed_at": "2026-01-01T08:00:00Z", "price": 3}\n',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's file, the files it names, and the command on the path."""
    made = tmp_path_factory.mktemp("nightly")
    configure(made)
    for name, text in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    (made / "histories.yaml").write_text(FILES_OF_PAGE[0])
    return made


@pytest.fixture(scope="module")
def one_process():
    """The path of commands that share one process, as on typed pages."""
    with session() as first:
        yield first


def do(folder, *words, first=Path(BACKSTORY).parent):
    path = os.pathsep.join(map(str, (first, Path(BACKSTORY).parent, os.environ["PATH"])))
    return subprocess.run(
        [*map(str, words)], capture_output=True, text=True, cwd=folder, env={**os.environ, "PATH": path}
    )


def test_the_commands_of_the_page_have_the_described_results(folder, one_process):
    """They share one process. Before a release, each is a separate one."""
    commands = [words for each in blocks(PAGE) if each.language == "console" for words in each.commands]
    ended = [do(folder, *words, "--output", "json", first=one_process) for words in commands]
    assert [each.returncode for each in ended] == [0] * len(commands), [each.stderr for each in ended]
    first = {each["name"]: each for each in json.loads(ended[0].stdout)}
    assert {each["status"] for each in first.values()} == {"changed"}
    assert len(first["crm.customer"]["files"]) == 2
    assert [row["changed"] for row in json.loads(ended[5].stdout)] == [
        0,
        0,
        4,
    ]  # none failed, none in a dry run
    assert [row["late"] for row in json.loads(ended[6].stdout)] == [False, False]


def test_a_source_with_a_changed_shape_is_reported_as_on_the_page(tmp_path, one_process):
    configure(tmp_path)
    (tmp_path / "histories.yaml").write_text(RESTART.replace("customer_no", "customer_id"))
    (tmp_path / "customer.csv").write_text("customer_id,name\n1,Ann\n")
    assert do(tmp_path, "backstory", "run", first=one_process).returncode == 0
    (tmp_path / "histories.yaml").write_text(RESTART)
    (tmp_path / "customer.csv").write_text("customer_no,name\n7,Ann\n")
    again = do(tmp_path, "backstory", "run", "--output", "table", first=one_process)
    assert again.returncode == 0, again.stderr
    (shown,) = (each.text for each in blocks(PAGE) if "the former history is" in each.text)
    printed = _one_line(again.stdout + again.stderr)
    assert [line for line in map(_one_line, shown.splitlines()) if line not in printed] == []


def _one_line(text):
    """The text without the terminal's line breaks, and without the time of an archive."""
    return " ".join(re.sub(r"_until_\d{8}_\d{6}", "_until_TIME", text).split())


@pytest.mark.parametrize("number", [0, 1], ids=["other schedulers", "a Spark job"])
def test_the_programs_run(folder, one_process, number):
    """The first one is a separate process, whose command uses the shared process."""
    (folder / "program.py").write_text(
        [each.text for each in blocks(PAGE) if each.language == "python"][number]
    )
    done = do(folder, [sys.executable, "python"][number], "program.py", first=one_process)
    assert done.returncode == 0, done.stderr
    assert "crm.order unchanged" in done.stdout
