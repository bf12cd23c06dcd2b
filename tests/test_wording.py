"""The wording of what users read, as far as a program can hold it (CONTRIBUTING.md, "How it is worded").

A room that is reworded is added to `ROOMS`, a page to `PAGES_REWORDED`: from then on it keeps to this.
"""

import ast
import re
from pathlib import Path

import pytest
from documented import ROOT

from backstory.doors.historize.model import Model
from backstory.doors.odf.manifests import json_schema

SOURCE = ROOT / "src" / "backstory"
# Modules and folders of modules that are reworded.
ROOMS = (
    "cli/add.py",
    "cli/datasets.py",
    "cli/demo.py",
    "cli/historize.py",
    "cli/options.py",
    "cli/outcomes.py",
    "cli/pull.py",
    "cli/send.py",
    "cli/serve.py",
    "cli/sql.py",
    "cli/starting.py",
    "documents.py",
    "doors/fivetran",
    "doors/historize",
    "doors/odf",
    "engine",
    "formats",
    "journal",
    "observe",
    "settings.py",
    "sources",
    "spark",
    "stores/sql",
    "strategies",
    "testing",
    "yaml_trees.py",
)
PAGES_REWORDED = (
    *(f"docs/decisions/{each.name}" for each in sorted((ROOT / "docs" / "decisions").glob("*.md"))),
    "docs/glossary.md",
    "docs/how-to/adopt.md",
    "docs/how-to/fivetran-destination.md",
    "docs/how-to/growth.md",
    "docs/how-to/historize.md",
    "docs/how-to/open-data-fabric.md",
    "docs/why/not-merge.md",
    "docs/why/one-row-two-steps.md",
    "docs/why/refuse.md",
    "examples/README.md",
)
# What is not said, and what is said instead.
PHRASES = {
    r"\banew\b": "again",
    r"(?-i:\bis none\b)": "is not one",
    r"(?<!there )\bis no (?!longer)": "is not a",
    r"\bsay --": "use --",
    r"\b(tell|tells|told)\b": "say, show, contain",
    r"\bstands? (at|there|in|by|for)\b": "is in, occurs, exists",
    r"\bcomes? (to|in|as|back|late)\b": "is added, is sent, arrives",
    r"\bgoes (on|away|back)\b": "continues, is removed",
    r"\bof which\b": "whose, where",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\blooked? (at|into|for)\b": "checked, searched",
    r"\b(pass|passed|passes) over\b": "skip",
    r"\b(take|takes|took|taken) (it |them |one )?(out|for)\b": "remove, count as",
    r"\bso many\b": "the largest number of",
    r"\bmakes? (it|one|them) (whole|anew)\b": "complete",
    r"\b(brought|brings?)\b": "provide, load",
    r"\bodd\b": "a warning",
    r"\bin the (place|midst) of\b": "instead of, within",
    r"\b(has|have) to be\b": "must be",
    r"\blies?\b": "is",
}
FORBIDDEN = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES), re.IGNORECASE)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# Flags outside of `cli/` that are no options in an error.
FLAGS = {
    ("doors/fivetran/serving.py", "--tls-cert"),  # a warning of `serve`
    ("doors/fivetran/serving.py", "--tls-key"),
    ("doors/fivetran/serving.py", "--host"),
    ("doors/odf/polling.py", "--fetch-uncacheable"),  # published by Open Data Fabric
    ("doors/odf/pulling.py", "--set-watermark"),  # what the log names instead of a file
    ("spark/launch.py", "--load-spark-defaults"),  # for spark-submit
    ("spark/launch.py", "--properties-file"),
}
SQL = re.compile(
    r"\bif\(|\b(tinyint|SELECT|CASE|CAST|WHERE|NULL AS|ALTER|CREATE|DROP|AS \{|UNION|ORDER BY)\b"
)


def texts(room):
    """Every text of a room, with the module and the line that it is written in."""
    place = SOURCE / room
    for module in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        for line, text in written(module):
            yield str(module.relative_to(SOURCE)), line, text


def written(module: Path):
    """The texts of a module with their lines: literals without docstrings, and its commands' helps."""
    tree = ast.parse(module.read_text("utf-8"))
    documented = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            documented.add(node.body[0].value)
            if module.parent.name == "cli" and "Args:" in (help_ := ast.get_docstring(node)):
                yield node.lineno, help_
    whole = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            whole |= set(node.values)
            yield (
                node.lineno,
                "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values),
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documented | whole:
            yield node.lineno, node.value


@pytest.mark.parametrize("room", ROOMS)
def test_texts_say_it_plainly(room):
    """No phrase of the list stands in a text of four words or more; `PHRASES` names what is said instead."""
    for module, line, text in texts(room):
        if len(text.split()) >= 4 and not SQL.search(text):
            phrase = FORBIDDEN.search(text)
            assert phrase is None, f"{module}, line {line}: {phrase[0]!r} in {text!r}"


@pytest.mark.parametrize("room", [each for each in ROOMS if not each.startswith("cli/")])
def test_flags_are_written_by_the_command_line_alone(room):
    """Outside of `cli/` a text names an option as an argument in Python, which the command line translates."""
    for module, line, text in texts(room):
        for flag in FLAG.findall(text):
            assert (module, flag) in FLAGS, f"{module}, line {line}: {flag} in {text!r}"


def test_options_in_texts_are_options_of_commands():
    """What a text writes as `name=value` in backticks, the command line prints as a flag that it has."""
    flags = set(FLAG.findall((ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")))
    named = {
        (module, f"--{name.replace('_', '-')}")
        for module, _, text in texts("")
        for name in re.findall(r"`([a-z][a-z_]*)=", text)
    }
    assert len(named) > 10
    python_alone = {("stores/iceberg/given.py", "--catalog")}  # of `backstory.open(spark=...)`
    assert [] == sorted(named - python_alone - {each for each in named if each[1] in flags})


@pytest.mark.parametrize("schema", [json_schema(), Model.model_json_schema()], ids=["manifests", "models"])
def test_schemas_say_it_plainly(schema):
    """Editors show the descriptions of a JSON Schema beside what is typed."""
    for name, part in schema["$defs"].items():
        phrase = FORBIDDEN.search(part.get("description", ""))
        assert phrase is None, f"{name}: {phrase[0]!r} in {part['description']!r}"


@pytest.mark.parametrize("page", PAGES_REWORDED)
def test_pages_say_it_plainly(page):
    """Code and output in fences and backticks is left alone."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$|`[^`\n]*`", "", (ROOT / page).read_text("utf-8"))
    for line in text.splitlines():
        phrase = FORBIDDEN.search(line)
        assert phrase is None, f"{phrase[0]!r} in {line!r}"
