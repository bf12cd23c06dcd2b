"""Write pages from the code: the reference, and the modules of each room. With --check only compare."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from error_codes import error_codes
from law_texts import laws_page

import backstory
from backstory import errors, table, warehouse
from backstory.cli.app import COMMANDS, app
from backstory.doors.native.whole_rows import COPIES, DERIVED, ROW_KEY
from backstory.model.layout import VERSIONS_OWN, Layout
from backstory.model.versions_layout import MEMORY_TYPE, OWN_COLUMNS, RESERVED
from backstory.strategies.whole_rows import DIGITS

DOCS = Path(__file__).parents[1] / "docs"
SOURCE = Path(backstory.__file__).parent
MODULES = "\n## Modules\n"
WHOLE_ROW_COLUMNS = """If the key is the whole row ([`key: row`](../how-to/without-key.md)), the table has two
more columns after the columns of the first copy:"""
WHOLE_ROWS = {
    COPIES: "the number of equal rows in the copy",
    ROW_KEY: f"the key: {DIGITS} hexadecimal digits, a digest of the row's values",
}
WRITTEN = "<!-- Written by scripts/reference.py from the code; `make reference` writes it again. -->"
JSON = """`--output json` prints one document on standard output and nothing else; an error is then
`{"error": {"code", "message", "keys", "remedy"}}`."""
ERRORS = """The meaning of a code never changes, so programs can rely on it. Messages may become clearer.
Words in ‹angle marks›, and …, are placeholders. Each message is shown with its own remedy, and each code
with at most three messages. [The command line](command-line.md) explains the exit codes, and
[refuse rather than guess](../why/refuse.md) explains why a delivery is refused."""
COMMON_HEADING = "**Common options**:"
EXIT_CODES = (
    ("0", "done, even if there was nothing to change"),
    ("1", "failed: something outside the input's control, or a bug"),
    ("2", "wrong usage, configuration, manifest or model: nothing was started, or in a batch, not this part"),
    ("3", "refused: the input would have corrupted the history; nothing was written"),
    ("4", "`check` or `verify` found a violation, `repair` left one, or `fresh` found a late delivery"),
    ("75", "failed for now: the same call may succeed later"),
    ("130", "interrupted; commits are kept (`run` ends with 75)"),
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
    lines += ["## Common options", "Every command has these options:", "\n".join(common_options("tables"))]
    for group, commands in COMMANDS.items():
        lines.append(f"## {group.name}")
        lines += [_command(command.__name__.replace("_", "-")) for command in commands]
        lines += [_command("list")] if group.name.startswith("Open") else []
    return _page(lines)


def _command(name: str) -> str:
    """The usage, text and options of a command, without the options that every command has."""
    page = app[name].generate_docs(heading_level=3).partition(COMMON_HEADING)[0]
    page = re.sub(r"^### .*", f"### backstory {name}", page, count=1)
    # The usage line names some commands alone, and some with the program before them.
    page = re.sub(rf"(?<=```console\n)(?:backstory )?{name}", f"backstory {name}", page, count=1).strip()
    own = [line for line in common_options(name) if line not in common_options("tables")]
    return "\n\n".join([page, *(["**Branches**:", "\n".join(own)] if own else [])])


def common_options(name: str) -> list[str]:
    """The lines of a command's common options."""
    page = app[name].generate_docs(heading_level=3)
    return [line for line in page.partition(COMMON_HEADING)[2].splitlines() if line]


def python() -> str:
    """The interface of the package, with its docstrings."""
    lines = ["# Python", WRITTEN, "```python\nimport backstory\n```"]
    lines += _function("backstory.open", warehouse.open)
    lines += _function("backstory.relocate", backstory.relocate)
    for title, each in (
        ("Warehouse", warehouse.Warehouse),
        ("Table", table.Table),
        ("Timeline", backstory.Timeline),
    ):
        lines += [f"## {title}", _text(each), *_members(each)]
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
        elif inspect.isfunction(member) and member.__name__ == name:  # not a second name
            yield from _function(name, member, "###")


def _function(name: str, function: object, level: str = "##") -> list[str]:
    signature = str(inspect.signature(function)).replace("(self, ", "(").replace("(self)", "()")  # type: ignore[arg-type]
    text = re.sub(r"(?<=: )'([^']*)'|(?<=-> )'([^']*)'", r"\1\2", signature)
    text = re.sub(r"(?<![\w.])(?:[A-Za-z_]\w*\.)+(\w+)", r"\1", text)
    return [f"{level} {name}", f"```text\n{name.removeprefix('backstory.')}{text}\n```", _text(function)]


def _text(of: object) -> str:
    return inspect.getdoc(of) or ""


def layouts() -> str:
    """The meaning of the rows of each layout."""
    rows = []
    for each in Layout:
        span = each.span
        valid = f"`{span.start}` up to `{span.end}`" if span else "–"
        apart = ", ".join(f"{kind} of `{column}`" for kind, column in each.partitioning) or "–"
        rows.append(f"| `{each}` | {each.door} | {valid} | {f'`{span.open}`' if span else '–'} | {apart} |")
    own = [f"| `{column.name}` | `{column.type}` |" for column in OWN_COLUMNS]
    fields = [f"| `{name}` | `{part}` |" for name, part in MEMORY_TYPE.parts]
    derived = [f"| `{each.name}` | `{each.type}` | {WHOLE_ROWS[each]} |" for each in DERIVED]
    reserved = ", ".join(f"`{name}`" for name in sorted(RESERVED))
    return _page(
        [
            "# Layouts",
            WRITTEN,
            "The property `backstory.layout` of a table defines the meaning of its rows.",
            "| layout | door | valid from and until | open if | partitions |\n|---|---|---|---|---|\n"
            + "\n".join(rows),
            f"## The columns of `{Layout.VERSIONS}`",
            f"The user's own columns are first, then these {len(VERSIONS_OWN)}:",
            "| column | type |\n|---|---|\n" + "\n".join(own),
            "`_memory` is a struct, which is NULL if all of its fields are NULL:",
            "| field | type |\n|---|---|\n" + "\n".join(fields),
            f"No column of a source may be named {reserved}.",
            "## Tables without a key",
            WHOLE_ROW_COLUMNS,
            "| column | type | meaning |\n|---|---|---|\n" + "\n".join(derived),
        ]
    )


def error_page() -> str:
    """Messages and remedies of errors, by their code."""
    return _page(
        [
            "# Errors",
            WRITTEN,
            ERRORS,
            error_codes(),
        ]
    )


def laws() -> str:
    """The laws that `check` reports, with causes and remedies."""
    title, *parts = laws_page()
    return _page([title, WRITTEN, *parts])


def _page(parts: list[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


# The folders that each page of the architecture lists.
ROOMS = {
    "cli": ("", "cli", "testing"),
    "doors": ("doors/fivetran", "doors/historize", "doors/native", "doors/odf"),
    "engine": ("engine",),
    "explorer": ("explorer",),
    "formats": ("formats", "sources"),
    "journal": ("journal",),
    "model": ("model",),
    "projects": ("projects",),
    "reading": ("reading",),
    "spark": ("spark", "observe"),
    "stores": ("stores",),
    "strategies": ("strategies",),
    "upkeep": ("upkeep",),
}


def room(name: str) -> str:
    """The page of a room: the text that is written by hand, then its modules with their first sentence."""
    text = _read(f"architecture/{name}.md").partition(MODULES)[0].rstrip()
    packages = sorted(path.parent for path in SOURCE.rglob("__init__.py"))
    inside = [path for path in packages if any(folder in _names(path) for folder in ROOMS[name])]
    return _page([text, MODULES.strip(), *filter(None, map(_modules, inside))])


def _names(package: Path) -> list[str]:
    """The folder of a package, and those above it but the first: `""` is the first one itself."""
    path = package.relative_to(SOURCE)
    return [""] if package == SOURCE else [str(path), *map(str, list(path.parents)[:-1])]


def _modules(package: Path) -> str:
    paths = sorted(
        path for path in package.glob("*.py") if path.stem != "__init__" and "_pb2" not in path.stem
    )
    rows = "\n".join(f"| `{path.stem}` | {_first_sentence(path)} |" for path in paths)
    return rows and f"`{package.relative_to(SOURCE.parent)}/`\n\n| module | what it is |\n|---|---|\n{rows}"


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return text.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


PAGES = {
    "reference/command-line.md": command_line,
    "reference/errors.md": error_page,
    "reference/laws.md": laws,
    "reference/layouts.md": layouts,
    "reference/python.md": python,
    **{f"architecture/{name}.md": partial(room, name) for name in ROOMS},
}


def main() -> int:
    """Write the pages; with --check only print the names of pages that would change, and exit with 1."""
    stale = [name for name, page in PAGES.items() if _read(name) != page()]
    for name in stale:
        if "--check" not in sys.argv:
            (DOCS / name).parent.mkdir(exist_ok=True)
            (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        print(name)
    return int(bool(stale) and "--check" in sys.argv)


def _read(name: str) -> str:
    path = DOCS / name
    return path.read_text("utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
