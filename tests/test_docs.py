"""README and docs are correct: links, code, commands and references."""

import ast
import re
import tomllib
from collections import defaultdict
from functools import cache

import sqlglot
from documented import PAGES, ROOT, anchors, blocks, links
from ruamel.yaml import YAML

from backstory.cli.app import app
from backstory.settings import SECTIONS

GENERATED = ROOT / "docs" / "reference"
TARGETS = {line.split(":")[0] for line in (ROOT / "Makefile").read_text("utf-8").splitlines()}
WRITTEN = [page for page in PAGES if GENERATED not in page.parents]


def shown(page):
    return str(page.relative_to(ROOT))


def leads(page, target):
    """Whether the page of a link exists, and has its heading."""
    path, _, anchor = target.partition("#")
    linked_page = (page.parent / path).resolve() if path else page
    return linked_page.exists() and (not anchor or anchor in anchors(linked_page))


def test_links_lead_to_pages_and_headings():
    assert [(shown(page), each) for page in PAGES for each in links(page) if not leads(page, each)] == []


def test_code_blocks_parse_and_shown_commands_exist():
    """Python compiles, YAML, TOML and SQL are parsed, and each command accepts its shown options."""
    wrong = [
        f"{shown(page)}, line {block.line}: {fault}"
        for page in WRITTEN
        for block in blocks(page)
        if (fault := fault_of(block))
    ]
    assert wrong == []


def fault_of(block):
    """The reason why a block is wrong, or None."""
    try:
        check(block)
    except Exception as wrong:  # noqa: BLE001 - each parser has errors of its own
        return repr(wrong)
    return None


def check(block):
    if block.language == "python":
        ast.parse(block.text)
    elif block.language == "yaml":
        list(YAML(typ="safe").load_all(block.text))
    elif block.language == "toml":
        sections = {name for name in tomllib.loads(block.text) if not name.startswith("spark.")}
        assert sections <= SECTIONS, sections
    elif block.language == "sql":
        sqlglot.parse(block.text, read="spark")
    for words in block.commands:
        if words[0] == "make":
            assert set(words[1:]) <= TARGETS, words
        elif "--help" not in words:
            app.parse_args(words[1:], exit_on_error=False, print_error=False)


def test_the_usage_of_a_command_names_program_and_command_once():
    """Below each heading `backstory NAME`, one usage line begins with `backstory NAME`."""
    page = (GENERATED / "command-line.md").read_text("utf-8")
    usages = re.findall(r"(?m)^### backstory (.+)\n\n```console\n(.+)\n```$", page)
    assert len(usages) == page.count("\n### backstory ")
    for name, usage in usages:
        words = usage.split()
        assert words[:2] == ["backstory", name]
        assert not {"backstory", name} & set(words[2:])


def test_the_operations_page_lists_every_command():
    """The table under *What each command starts* names every command, and no others."""
    page = (ROOT / "docs" / "how-to" / "operate.md").read_text("utf-8")
    table = page.partition("## What each command starts")[2].partition("| holds in memory")[0]
    named = {words.split()[0] for words in re.findall(r"`([a-z][^`]*)`", table)}
    commands = set(
        re.findall(r"(?m)^### backstory (.+)$", (GENERATED / "command-line.md").read_text("utf-8"))
    )
    assert commands - named == set()
    assert named - commands == {"duckdb", "postgres"}


ERRORS = [
    [cell.strip().replace("\\|", "|").replace("&lt;", "<") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in (GENERATED / "errors.md").read_text("utf-8").splitlines()
    if line.startswith("| `")
]


@cache
def sources():
    """The code of all modules, read once per worker."""
    return [ast.parse(file.read_text("utf-8")) for file in sorted((ROOT / "src").rglob("*.py"))]


def test_every_documented_error_matches_an_error_in_the_source():
    """One call in the source can create each row of the reference."""
    made = [patterns_of(node) for tree in sources() for node in ast.walk(tree) if is_error(node)]
    made = [each for each in made if re.search("[a-z]{4}", "".join(each))]  # others raise an error again
    compiled = cache(re.compile)  # there are more patterns than `re` keeps
    assert len(ERRORS) > 200
    for code, _, message, remedy in ERRORS:
        texts = code, message, remedy
        assert any(
            all(compiled(pattern).fullmatch(text) for pattern, text in zip(each, texts, strict=True))
            for each in made
        ), texts


def test_documented_errors_show_no_variable_names_in_capitals():
    """Placeholders are in angle marks, and words in capitals are literally in the source."""
    literal = {
        word
        for tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in re.findall(r"[A-Z][A-Z_]+", node.value)
    }
    for _, _, *texts in ERRORS:
        for text in texts:
            assert set(re.findall(r"[A-Z][A-Z_]+", text)) <= literal, text
            assert all(each.islower() for each in re.findall("‹(.*?)›", text)), text


@cache
def constants():
    """The texts of each module-level name."""
    texts = defaultdict(list)
    for node in (node for tree in sources() for node in tree.body):
        if isinstance(node, ast.AnnAssign) and isinstance(
            node.value, ast.Constant | ast.JoinedStr | ast.BinOp
        ):
            texts[node.target.id].append(node.value)
    return texts


def is_error(node):
    kinds = {"Failed", "UsageError", "Refused", "Violated", "TryAgain"}
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds


def patterns_of(call):
    """Patterns of code, message and remedy, with literal parts and anything in between."""
    arguments = dict(zip(("code", "message", "remedy"), call.args, strict=False))
    arguments |= {each.arg: each.value for each in call.keywords}
    code, *texts = (arguments.get(name, ast.Constant("")) for name in ("code", "message", "remedy"))
    # A dash is shown for a text that is empty or built elsewhere.
    return f"`{literal_parts(code)}`", *(f"(?:{literal_parts(text)}|–)" for text in texts)


def literal_parts(node):
    match node:
        case ast.Constant(value=text):
            return re.escape(" ".join(str(text).split()))
        case ast.JoinedStr(values=parts):
            return "".join(map(literal_parts, parts))
        case ast.BinOp(left=left, right=right):
            return f"{literal_parts(left)} ?{literal_parts(right)}"  # a space at an end is not in the pattern
        case ast.IfExp(body=body, orelse=orelse):
            return f"(?:{literal_parts(body)}|{literal_parts(orelse)})"
        case ast.Name() as name if name.id in constants():
            return f"(?:{'|'.join(map(literal_parts, constants()[name.id]))})"
    return ".*"


def test_every_page_of_the_site_is_in_its_navigation():
    site = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    pages = {f"docs/{page}" for page in leaves(site["nav"])}
    assert pages == {
        shown(page) for page in PAGES if page.is_relative_to(ROOT / "docs") and page.parent.name not in LEFT
    }


def test_site_pages_link_only_within_the_docs_folder():
    """The site is built only from `docs/`, so a link to another folder would be broken."""
    site = ROOT / "docs"
    for page in PAGES:
        for target in links(page) if page.is_relative_to(site) else ():
            assert (page.parent / target.partition("#")[0]).resolve().is_relative_to(site), (page, target)


LEFT = {"decisions", "requirements"}  # for developers of the project


CODE = [
    path
    for folder in ("src/backstory", "tests", "scripts", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
]
DEVELOPERS = [page for page in PAGES if page.parent.name in {"architecture", "decisions"}] + [
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
]


ROOMS = {path.name for folder in ("", "src", "src/backstory") for path in (ROOT / folder).iterdir()}


@cache
def words_of(path):
    return {*re.findall(r"\w+", path.read_text("utf-8"))}


@cache
def exists(place, name):
    """Whether a path in backticks, with the name after its dot, exists if it looks like a path or a module."""
    if (ROOT / f"{place}.{name}").exists() or name == "yaml":
        return True
    # The modules whose path, or the path of one of their folders, ends with these names.
    modules = [path for path in CODE if f"/{place}/" in f"{path.with_suffix('')}/"]
    if modules and name not in {"", "py"}:
        return any(name in words_of(path) for path in modules)
    is_path = name == "py" or place.partition("/")[0] in ROOMS - {place}
    return not is_path or bool(modules) or (ROOT / place).exists()


def test_modules_named_on_developer_pages_exist():
    """A path in backticks is the path of a module or a folder, and `module.name` is in that module."""
    named = re.compile(r"`((?:\w+/)*\w+)(?:\.(\w+)|/)?`")
    assert [
        (shown(page), place, name)
        for page in DEVELOPERS
        for place, name in named.findall(page.read_text("utf-8"))
        if not exists(place, name)
    ] == []


def leaves(entries):
    for entry in entries:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else leaves(value)
