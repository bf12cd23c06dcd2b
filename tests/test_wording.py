"""The wording of users' texts, as far as a program can check it (CONTRIBUTING.md, "How it is worded").

The tests read every room of the source, and the pages for users.
"""

import ast
import re
from functools import cache
from pathlib import Path

from documented import ROOT

from backstory.doors.historize.model import Model
from backstory.doors.odf.manifest.dataset import json_schema

SOURCE = ROOT / "src" / "backstory"
PAGES = (
    *(f"docs/decisions/{each.name}" for each in sorted((ROOT / "docs" / "decisions").glob("*.md"))),
    *(f"docs/how-to/{each.name}" for each in sorted((ROOT / "docs" / "how-to").glob("*.md"))),
    *(f"docs/why/{each.name}" for each in sorted((ROOT / "docs" / "why").glob("*.md"))),
    "CONTRIBUTING.md",
    "README.md",
    "docs/glossary.md",
    "docs/index.md",
    "docs/tutorial.md",
    "examples/README.md",
)
# Phrases to avoid, and their alternatives.
PHRASES = {
    r"\banew\b": "again",
    r"\bcolumn \S+ .*\bcomes\b": "new column",
    r"(?-i:\bSay (?!how|what))": "use",
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
# Flags outside of `cli/` that are not options in an error.
FLAGS = {
    ("doors/fivetran/server.py", "--tls-cert"),  # a warning of `serve`
    ("doors/fivetran/server.py", "--tls-key"),
    ("doors/fivetran/server.py", "--host"),
    ("doors/native/options.py", "--help"),
    ("doors/odf/polling.py", "--fetch-uncacheable"),  # published by Open Data Fabric
    ("doors/odf/polling.py", "--refetch"),  # a warning of `pull`
    ("doors/odf/door.py", "--set-watermark"),  # the log names it instead of a file
    *(
        ("explorer/questions.py", f"--{name}") for name in ("known-at", "limit", "axis", "change")
    ),  # commands to copy
    *(  # for spark-submit
        ("spark/jars.py", f"--{name}") for name in ("master", "class", "properties-file")
    ),
    ("spark/versions.py", "--load-spark-defaults"),
    ("spark/launch.py", "--properties-file"),
}
# Texts for Spark, Java and style sheets, which users do not read.
CODE = re.compile(r"java\.util|StringBuilder|\.append\(|\{ --[a-z]|FileContent\.")
SQL = re.compile(
    r"\bif\(|\b(tinyint|SELECT|CASE|CAST|WHERE|NULL AS|ALTER|CREATE|DROP|AS \{|UNION|ORDER BY)\b"
)


# Names of options that are not words of a sentence. The command line prints `name=` as a flag.
OPTIONS = {
    flag[2:].replace("-", "_")
    for flag in FLAG.findall((ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8"))
    if "-" in flag[2:]
}
OPTION = re.compile(rf"(?<![\w.])(?:{'|'.join(sorted(OPTIONS))})(?!\w)")
# Arguments that no command has, or that are also names of the table's columns.
PYTHON_ALONE = {("reading/joins.py", "known_at")}


@cache
def texts():
    """Every text of the source, with its module and line."""
    return [
        (str(module.relative_to(SOURCE)), line, text)
        for module in sorted(SOURCE.rglob("*.py"))
        for line, text in written(module)
        if not CODE.search(text)
    ]


def texts_outside_of_the_command_line():
    return [each for each in texts() if not each[0].startswith("cli/")]


def written(module: Path):
    """The texts of a module with their lines: literals without docstrings, and the help texts of commands."""
    return _written(ast.parse(module.read_text("utf-8")), commands=module.parent.name == "cli")


def _written(tree, *, commands):
    elsewhere = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            elsewhere.add(node.body[0].value)
            if commands and "Args:" in (help_ := ast.get_docstring(node)):
                yield node.lineno, help_
        if isinstance(node, ast.JoinedStr):
            elsewhere |= set(node.values)
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in elsewhere:
            yield node.lineno, node.value


def test_texts_contain_no_forbidden_phrases():
    """A text of four words or more contains no phrase of `PHRASES`, which lists the alternatives."""
    assert [
        f"{module}, line {line}: {phrase[0]!r} in {text!r}"
        for module, line, text in texts()
        if len(text.split()) >= 4 and not SQL.search(text) and (phrase := FORBIDDEN.search(text))
    ] == []


def test_only_the_command_line_writes_flags():
    """Outside of `cli/`, texts name options as Python arguments, which the command line translates."""
    assert [
        f"{module}, line {line}: {flag} in {text!r}"
        for module, line, text in texts_outside_of_the_command_line()
        for flag in FLAG.findall(text)
        if (module, flag) not in FLAGS
    ] == []


def test_options_in_texts_exist_as_command_line_flags():
    """The command line has a flag for each `name=value` in backticks."""
    flags = set(FLAG.findall((ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")))
    named = {
        (module, f"--{name.replace('_', '-')}")
        for module, _, text in texts()
        for name in re.findall(r"`([a-z][a-z_]*)=", text)
    }
    assert len(named) > 10
    python_alone = {  # of `backstory.open`
        ("stores/iceberg/sessions.py", "--catalog"),
        ("settings.py", "--driver-memory"),
        ("settings.py", "--format-version"),
    }
    assert [] == sorted(named - python_alone - {each for each in named if each[1] in flags})


def test_options_in_sentences_are_in_backticks():
    """Without backticks, the command line would print `max_delete_ratio`, which is not an option."""
    assert [
        f"{module}, line {line}: {bare} in {text!r}"
        for module, line, text in texts_outside_of_the_command_line()
        if re.search(r"[a-z] .*[.;]", text) and not SQL.search(text)
        for bare in OPTION.findall(re.sub(r"`[^`]*`", "", text))
        if (module, bare) not in PYTHON_ALONE
    ] == []


def test_schema_descriptions_contain_no_forbidden_phrases():
    """Editors show the descriptions of a JSON Schema."""
    assert [
        f"{name}: {phrase[0]!r} in {part['description']!r}"
        for schema in (json_schema(), Model.model_json_schema())
        for name, part in schema["$defs"].items()
        if (phrase := FORBIDDEN.search(part.get("description", "")))
    ] == []


def test_pages_contain_no_forbidden_phrases():
    """Code and output in fences and backticks are ignored."""
    assert [
        f"{page}: {phrase[0]!r} in {line!r}"
        for page in PAGES
        for line in prose(page).splitlines()
        if (phrase := FORBIDDEN.search(line))
    ] == []


def prose(page):
    """A page without its code, and without CONTRIBUTING.md's pairs, whose left side is bad wording."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$|`[^`\n]*`", "", (ROOT / page).read_text("utf-8"))
    return re.sub(r"(?m)^\|.*$", "", text) if page == "CONTRIBUTING.md" else text
