"""Commands in separate processes without Java."""

import json
import subprocess
import sys

import pytest
from histories_as_text import written
from manifesting import manifest, polling

from backstory.doors.odf.door import IngestRequest, pull_all
from backstory.model.layout import Layout

# The commands' modules are imported once, but each command is still its own process.
COMMANDS = """
import json, os, sys
import duckdb, pyarrow.parquet, pyiceberg.catalog.sql
from backstory.cli.app import run
from backstory.doors.odf import adding, door

for words in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        code = run(words)
        sys.stdout.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"words": words, "exit code": code}), flush=True)
"""
READ = "{kind: csv, header: true, schema: {fields: [{name: id, type: Int32}, {name: city, type: String}]}}"
SOURCE = polling("{kind: snapshot, primaryKey: [id]}", fetch="{kind: url, url: alone.csv}", read=READ)


@pytest.mark.process
def test_small_datasets_need_no_java(store, warehouse, tmp_path):
    """Each is the first query of its process, and exits with 0."""
    (tmp_path / "alone.csv").write_text("id,city\n1,Bern\n2,Rome\n")
    path = tmp_path / "alone.yaml"
    path.write_text(manifest(SOURCE).replace("name: cities", "name: alone"))
    pull_all(store, [path], IngestRequest(), namespace="without")
    table = str(written(store, "without_java", Layout.VERSIONS, "k v from to recorded\na x T1 - T1\n"))
    commands = [
        ["list"],
        ["tail", "alone"],
        ["inspect", "alone"],
        ["verify", "alone"],
        ["pull", "alone"],
        ["pull", str(path)],
    ]
    commands = [[*words, "--namespace", "without"] for words in commands] + [["repair", table]]

    commands = [[*words, "--warehouse", str(warehouse), "--output", "json"] for words in commands]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=tmp_path,
        env={"PATH": "", "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Spark" in done.stderr) == (0, False), done.stderr
    answers = documents(done.stdout)
    assert answers[1::2] == [{"words": words, "exit code": 0} for words in commands], done.stderr
    assert all(answers[::2])


def documents(text):
    """The JSON documents in a text, one after the other."""
    results, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        results.append(document)
        text = text[end:]
    return results
