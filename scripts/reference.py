"""Write the reference pages from the code: the command line, Python, layouts. With --check only compare."""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from error_codes import error_codes

import backstory
from backstory import errors, table, warehouse
from backstory.cli.app import COMMANDS, app
from backstory.doors.native.options import FeedOptions, SnapshotOptions
from backstory.model.layout import VERSIONS_OWN, Layout
from backstory.model.versions_layout import MEMORY_TYPE, OWN_COLUMNS, RESERVED

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
WRITTEN = "<!-- Written by scripts/reference.py from the code; `make reference` writes it again. -->"
JSON = """`--output json` prints one document on standard output and nothing else; an error is then
`{"error": {"code", "message", "keys", "remedy"}}`."""
ERRORS = """A code never changes its meaning, so that programs can decide by it; messages may become clearer.
Words in ‹angle marks›, and …, are filled in. Each message is shown with its own remedy, and a code with at
most three messages. What exit codes mean stands with [the command line](command-line.md);
why a delivery is refused, in [refuse rather than guess](../why/refuse.md)."""
EXIT_CODES = (
    ("0", "done, also when there was nothing to change"),
    ("1", "failed: something outside the input's control, or a bug"),
    ("2", "wrong usage, configuration, manifest or model: nothing was started"),
    ("3", "refused: the input would have corrupted the history; nothing was written"),
    ("4", "`check`, `verify` or `repair` left a violation, or `fresh` found something late"),
    ("75", "failed for now: the same call may succeed later"),
    ("130", "interrupted; what was committed stays (`run` ends with 75)"),
)


def command_line() -> str:
    """Every command with its options, in the groups of `backstory --help`."""
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES)
    lines = [
        "# The command line",
        WRITTEN,
        "`backstory --install-completion` completes commands and options in bash, zsh and fish.",
        JSON,
        f"| exit code | meaning |\n|---|---|\n{codes}",
    ]
    for group, commands in COMMANDS.items():
        lines.append(f"## {group.name}")
        lines += [_command(command.__name__.replace("_", "-")) for command in commands]
        lines += [_command("list")] if group.name.startswith("Open") else []
    return _page(lines)


def _command(name: str) -> str:
    told = app[name].generate_docs(heading_level=3)
    told = re.sub(r"^### .*", f"### backstory {name}", told, count=1)
    # The usage line names some commands alone, and some with the program before them.
    return re.sub(rf"(?<=```console\n)(?:backstory )?{name}", f"backstory {name}", told, count=1).strip()


def python() -> str:
    """What the package exports, with the text that stands beside the code."""
    lines = ["# Python", WRITTEN, "```python\nimport backstory\n```"]
    lines += _function("backstory.open", warehouse.open)
    lines += _function("backstory.relocate", backstory.relocate)
    for title, each in (
        ("Warehouse", warehouse.Warehouse),
        ("Table", table.Table),
        ("Timeline", backstory.Timeline),
    ):
        lines += [f"## {title}", _text(each), *_members(each)]
    lines += ["## Options of snapshot", f"```text\n{_text(SnapshotOptions)}\n```"]
    lines += ["## Options of apply", f"```text\n{_text(FeedOptions)}\n```"]
    lines += ["## Errors", f"```text\n{inspect.getdoc(errors)}\n```", _text(errors.BackstoryError)]
    return _page(lines)


def _members(of: type) -> Iterator[str]:
    members = {
        name: member for each in of.__mro__[::-1] if each is not object for name, member in vars(each).items()
    }
    for name, member in members.items():
        if name.startswith("_") or not inspect.getdoc(member):
            continue
        if isinstance(member, property):
            yield f"### {name}\n\n{_text(member)}"
        elif inspect.isfunction(member):
            yield from _function(name, member, "###")


def _function(name: str, function: object, level: str = "##") -> list[str]:
    signature = str(inspect.signature(function)).replace("(self, ", "(").replace("(self)", "()")  # type: ignore[arg-type]
    told = re.sub(r"(?<=: )'([^']*)'|(?<=-> )'([^']*)'", r"\1\2", signature)
    told = re.sub(r"(?<![\w.])(?:[A-Za-z_]\w*\.)+(\w+)", r"\1", told)
    return [f"{level} {name}", f"```text\n{name.removeprefix('backstory.')}{told}\n```", _text(function)]


def _text(of: object) -> str:
    return inspect.getdoc(of) or ""


def layouts() -> str:
    """What the rows of each layout mean."""
    rows = []
    for each in Layout:
        span = each.span
        valid = f"`{span.start}` up to `{span.end}`" if span else "–"
        apart = ", ".join(f"{kind} of `{column}`" for kind, column in each.partitioning) or "–"
        rows.append(f"| `{each}` | {each.door} | {valid} | {f'`{span.open}`' if span else '–'} | {apart} |")
    own = [f"| `{column.name}` | {column.type} |" for column in OWN_COLUMNS]
    fields = [f"| `{name}` | {part} |" for name, part in MEMORY_TYPE.parts]
    reserved = ", ".join(f"`{name}`" for name in sorted(RESERVED))
    return _page(
        [
            "# Layouts",
            WRITTEN,
            "What the rows of a table mean stands in its property `backstory.layout`.",
            "| layout | door | true from and up to | open where | partitions |\n|---|---|---|---|---|\n"
            + "\n".join(rows),
            f"## The columns of `{Layout.VERSIONS}`",
            f"The user's own columns, then {len(VERSIONS_OWN)} more:",
            "| column | type |\n|---|---|\n" + "\n".join(own),
            "`_memory` is NULL where all its fields are:",
            "| field | type |\n|---|---|\n" + "\n".join(fields),
            f"No column of a source may be called {reserved}.",
        ]
    )


def error_page() -> str:
    """What errors say, by their code."""
    return _page(
        [
            "# Errors",
            WRITTEN,
            ERRORS,
            error_codes(),
        ]
    )


def _page(parts: list[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


PAGES = {
    "command-line.md": command_line,
    "errors.md": error_page,
    "layouts.md": layouts,
    "python.md": python,
}


def main() -> int:
    """Write the pages; with --check tell which would change, by the exit code too."""
    stale = [name for name, page in PAGES.items() if _standing(name) != page()]
    for name in stale:
        if "--check" not in sys.argv:
            REFERENCE.mkdir(exist_ok=True)
            (REFERENCE / name).write_text(PAGES[name](), encoding="utf-8")
        print(name)
    return int(bool(stale) and "--check" in sys.argv)


def _standing(name: str) -> str:
    path = REFERENCE / name
    return path.read_text("utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
