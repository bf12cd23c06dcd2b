"""The command line: exit codes, and one document on standard output."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documented import ROOT

pytestmark = pytest.mark.process

BACKSTORY = str(Path(sys.executable).parent / "backstory")


def run(*arguments, cwd=None, env=None):
    return subprocess.run(
        [BACKSTORY, *arguments], capture_output=True, text=True, cwd=cwd, env=env, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "nonsense"),
        (["as-of", "a.b", "yesterday", "--output", "table"], "not a time"),
        (["send", "a.csv", "b.csv", "--to", "localhost:1"], "schema"),
        (["current", "a.b", "--config", "missing.toml", "--output", "table"], "missing.toml"),
        (["current", "a.b", "--output", "xml"], "xml"),
    ],
)
def test_wrong_usage_exits_with_code_2(arguments, words, tmp_path):
    """Nothing is started, and the error is on standard error."""
    done = run(*arguments, cwd=tmp_path)

    assert 2 == done.returncode
    assert words in done.stderr
    assert not done.stdout
    assert "Traceback" not in done.stderr


def test_an_error_as_json_is_one_document(tmp_path):
    """With --output json an error is a document on standard output."""
    done = run("as-of", "a.b", "soon", "--output", "json", cwd=tmp_path)

    assert 2 == done.returncode
    assert {"code", "message", "keys", "remedy"} == set(json.loads(done.stdout)["error"])


def test_help_names_every_command():
    """These are the commands of the reference."""
    reference = (ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")
    commands = re.findall(r"^### backstory ([\w-]+)$", reference, re.MULTILINE)

    done = run("--help")

    assert 0 == done.returncode
    assert sorted(commands) == sorted(re.findall(r"^│ ([a-z][\w-]*) ", done.stdout, re.MULTILINE))


def test_an_unknown_table_exits_with_code_2(tmp_path):
    """A missing table is wrong usage, reported as JSON to a program."""
    done = run("current", "no.table", "--output", "json", cwd=tmp_path)

    assert 2 == done.returncode, done.stderr
    assert "no-table" == json.loads(done.stdout)["error"]["code"]


def test_send_with_dry_run_counts_the_differences(tmp_path):
    """--dry-run counts the difference of two copies and needs no destination."""
    (tmp_path / "a.csv").write_text("id,name\n1,a\n2,b\n")
    (tmp_path / "b.csv").write_text("id,name\n1,z\n3,c\n3,d\n")
    to = ["--to", "127.0.0.1:1", "--schema", "s", "--table", "t", "--key", "id"]

    done = run("send", "a.csv", "b.csv", *to, "--dry-run", "--output", "json", cwd=tmp_path)

    assert 0 == done.returncode, done.stderr
    [counts] = json.loads(done.stdout)
    assert (1, 1, 1, [[3]]) == tuple(counts[n] for n in ("replace", "update", "delete", "repeated_keys"))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["tables"], "There are no tables in the warehouse "),
        (["--help"], ""),
        (["timeline", "--help"], ""),
    ],
)
def test_commands_without_spark_need_no_java(words, hint, tmp_path):
    """Standard error contains only the warehouse without tables."""
    done = run(*words, cwd=tmp_path, env={"PATH": "", "JAVA_HOME": str(tmp_path)})
    assert (done.returncode, bool(done.stderr)) == (0, bool(hint))
    assert done.stderr.startswith(hint)
    assert not list(tmp_path.iterdir())


# One process without Java runs many commands, so none of them needs it.
ONE_AFTER_THE_OTHER = """
import contextlib, io, json, os, sys
from backstory.cli.app import run
ended = []
for folder, words, environment in json.load(sys.stdin):
    os.chdir(folder)
    os.environ.pop("BACKSTORY_PEPPER", None)
    os.environ.update(environment)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = run(words)
    ended.append((code, json.loads(said.getvalue())))
json.dump(ended, sys.stdout)
"""


def without_java(*commands):
    """The exit code and the document of each command, from a folder, words and variables, without Java."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER],
        input=json.dumps([(str(folder), words, environment) for folder, words, environment in commands]),
        capture_output=True,
        text=True,
        env={"PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FILES = [
    ("a;b\n1;2\n", ["--key", "a"], 3, "wrong-separator"),
    ("a,b\n1,\xe9\n", ["--key", "a"], 3, "unreadable-file"),
    ("a,b\n1,2\n", ["--key", "c"], 2, "missing-column"),
    ("a,b\n1\n", ["--key", "a"], 3, "broken-csv"),
    ("a,b\n", ["--key", "a"], 3, "empty-snapshot"),
    ("a,b\n1,2\n,3\n", ["--key", "a"], 3, "null-key"),
    ("a,b\n,2\n,3\n", ["--key", "a"], 3, "null-key"),
    ("a,b\n1,2\n1,3\n", ["--key", "a"], 3, "duplicate-key"),
]


def test_unacceptable_files_are_refused_without_java(tmp_path):
    """Java is missing, and no warehouse is created."""
    commands = []
    for number, (content, words, *_) in enumerate(FILES):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a.csv").write_bytes(content.encode("latin-1"))
        commands.append((folder, ["snapshot", "a.csv", "--into", "s.t", *words, "--output", "json"], {}))
    ended = without_java(*commands)
    assert [(code, document["error"]["code"]) for code, document in ended] == [
        (code, error_code) for *_, code, error_code in FILES
    ]
    assert [[each.name for each in folder.iterdir()] for folder, *_ in commands] == [["a.csv"]] * len(FILES)


MODEL = """format: historize/1
target_schemas: [{short_name: rawcore}]
target_datasets:
  - target_schema: rawcore
    target_dataset_name: rc_crm_customer
    input: customers.csv
    target_columns:
      - {target_column_name: id, datatype: INTEGER, system_role: business_key, nullable: false}
      - {target_column_name: sum, datatype: BIGINT}
"""


STAGES = [
    (None, "no-stage"),
    ("id;sum\n1;2\n", "wrong-separator"),
    ("id,sum\n1,x\n", "unreadable-cell"),
    ("id\n1\n", "missing-column"),
]


def test_models_with_refused_files_are_refused_without_java(tmp_path):
    """Java is missing, and no warehouse is created. Without a pepper, no file is read."""
    commands, words = [], ["historize", "model.yaml", "--output", "json"]
    for number, (content, _) in enumerate(STAGES):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "model.yaml").write_text(MODEL)
        if content is not None:
            (folder / "customers.csv").write_text(content)
        commands += [(folder, words, {"BACKSTORY_PEPPER": "p"}), (folder, words, {})]
    ended = without_java(*commands)
    refused = [(code, receipt["status"], receipt["error"]["code"]) for code, (receipt,) in ended[::2]]
    assert refused == [(3, "rejected", code) for _, code in STAGES]
    assert [(code, document["error"]["code"]) for code, document in ended[1::2]] == [(2, "no-pepper")] * len(
        STAGES
    )
    assert not [*tmp_path.glob("*/warehouse")]
