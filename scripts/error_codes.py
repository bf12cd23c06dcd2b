"""The codes of errors, with messages and remedies as the source raises them."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from backstory import errors

SOURCE: Final = Path(errors.__file__).parent
KINDS: Final = {
    each.__name__: each.exit_code
    for each in (errors.Failed, errors.UsageError, errors.Refused, errors.Violated, errors.TryAgain)
}
SHOWN: Final = 3  # messages of a code
UNKNOWN: Final = "…"
# Names of variables that do not describe their value, with a noun that does.
NOUNS: Final = {
    "all_": "option",
    "asked": "request",
    "before": "earlier value",
    "broken": "cause",
    "busy": "cause",
    "called": "file",
    "change": "option",
    "claimed": "other column",
    "closed": "count",
    "counts": "columns",
    "delivered": "type",
    "dict": "names",
    "differing": "count",
    "each": "column",
    "error": "cause",
    "expected": "type",
    "form": "form",
    "gc": "property",
    "hidden": "column",
    "given": "value",
    "inside": "file",
    "kept": "file",
    "known": "known names",
    "lack": "cause",
    "lacking": "columns",
    "message": "cause",
    "mirror": "column",
    "missing": "missing name",
    "most": "limit",
    "named": "name",
    "near": "files",
    "narrow": "time",
    "old": "former type",
    "one": "type",
    "only": "dataset",
    "other": "other name",
    "own": "columns",
    "owner": "folder",
    "reserved": "columns",
    "retyped": "column",
    "rows": "count",
    "settled": "time span",
    "several": "names",
    "short": "cause",
    "shown": "layout",
    "sql": "table",
    "stop": "cause",
    "strerror": "cause",
    "text": "value",
    "theirs": "type",
    "there": "count",
    "timeless": "columns",
    "told": "cause",
    "told there": "value",
    "twice": "column",
    "unknown": "unknown name",
    "untyped": "column",
    "users": "tables",
    "wanted": "expected name",
    "what": "source",
    "where": "place",
    "why": "cause",
    "within": "folders",
    "word": "word",
    "words": "value",
    "wrong": "cause",
    "young": "count",
}
# The same for functions whose value an error shows; of any other, its first argument names the value.
CALLS: Final = {
    "_changes": "changes have",
    "_helping": "command",
    "_line": "setting",
    "_option_text": "option",
    "_rewrite_remedy": "rewrite the files",
    "_scope_words": "scope",
    "_type": "type",
    "cause_of": "cause",
    "iso": "time",
    "len": "count",
    "remedy": "use the separator that fits",
    "spark_type": "type",
    "str": "cause",
    "type_name": "type",
}
OF_OWNER: Final = {"name", "table", "message", "title"}  # attributes that the owner's noun says better
VAGUE: Final = {"self", "shape", "table", "history", "model", "load"}
TEXTUAL: Final = (ast.Constant, ast.JoinedStr, ast.BinOp, ast.IfExp)


class Raised(NamedTuple):
    """One message and its remedy, from one place that raises them; empty if they are built elsewhere."""

    code: str
    exit_code: int
    message: str
    remedy: str


def error_codes() -> str:
    """A table of the codes: each row has a message and the remedy that the same place raises with it."""
    by_code: dict[str, list[Raised]] = defaultdict(list)
    for each in dict.fromkeys(sorted(raised(), key=_order)):
        by_code[each.code].append(each)
    rows = (row for every in by_code.values() for row in _rows(every))
    return "| code | exit | message, for example | its remedy |\n|---|---|---|---|\n" + "\n".join(rows)


def _order(each: Raised) -> tuple[str, bool, int, str, str]:
    # The clearest examples come first: complete ones, with few words to fill in.
    filled_in = each.message.count("‹") + 3 * each.remedy.count(UNKNOWN)
    return each.code, not (each.message and each.remedy), filled_in, each.message, each.remedy


def _rows(every: list[Raised]) -> Iterator[str]:
    clear = [each for each in every if re.search(r"\w{3}", re.sub("‹.*?›", "", each.message))]
    for each in (clear or [Raised(every[0].code, every[0].exit_code, "", "")])[:SHOWN]:
        message, remedy = (_cell(text) or "–" for text in (each.message, each.remedy))
        yield f"| `{each.code}` | {each.exit_code} | {message} | {remedy} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def raised() -> Iterator[Raised]:
    """Every message of every place that raises an error, with its remedy."""
    for file in sorted(SOURCE.rglob("*.py")):
        for call, function in _calls(_tree(file)):
            arguments: dict[str, ast.expr] = dict(zip(("code", "message", "remedy"), call.args, strict=False))
            arguments |= {each.arg: each.value for each in call.keywords if each.arg}
            texts = Texts(file, function, call.lineno)
            exit_code = KINDS[call.func.id]  # type: ignore[attr-defined]
            remedies: set[tuple[str, str]] = set()
            for chosen in texts.choices(arguments.values()):
                code, message, remedy = (
                    texts.text(arguments[name], chosen) if name in arguments else ""
                    for name in ("code", "message", "remedy")
                )
                # One place's messages with one remedy differ in a word, such as "row" and "rows".
                if code and not re.search("[‹…]", code) and (code, remedy) not in remedies:
                    remedies.add((code, remedy))
                    yield Raised(code, exit_code, _known(message), _known(remedy))


def _known(text: str) -> str:
    return "" if re.fullmatch(r"(‹[^›]*›|…|\W)*", text) else text


def _calls(tree: ast.AST, function: ast.AST | None = None) -> Iterator[tuple[ast.Call, ast.AST | None]]:
    for node in ast.iter_child_nodes(tree):
        within = node if isinstance(node, ast.FunctionDef) else function
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            yield node, within
        yield from _calls(node, within)


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


@cache
def _constants(file: Path) -> dict[str, ast.expr]:
    """Texts that a module names, and those that it imports from another module of ours."""
    texts: dict[str, ast.expr] = {}
    for node in _tree(file).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            texts[node.target.id] = node.value
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            texts[node.targets[0].id] = node.value
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("backstory."):
            origin = SOURCE.parent / (node.module.replace(".", "/") + ".py")
            if origin.exists() and origin != file:
                known = _constants(origin)
                texts |= {
                    each.asname or each.name: known[each.name] for each in node.names if each.name in known
                }
    return texts


class Texts:
    """The texts of one place that raises an error: constants and local variables are looked up."""

    def __init__(self, file: Path, function: ast.AST | None, line: int) -> None:
        self.values = dict(_constants(file))
        arguments = function.args if isinstance(function, ast.FunctionDef) else None
        for each in [*arguments.args, *arguments.kwonlyargs] if arguments else []:
            self.values.pop(each.arg, None)
        assigned: dict[str, list[ast.expr | None]] = defaultdict(list)
        for node in ast.walk(function) if function else ():
            for target in getattr(node, "targets", ()) if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Name):
                    assigned[target.id].append(node.value if node.lineno < line else None)  # type: ignore[attr-defined]
        # Of a variable with several values, this place's is not certain.
        self.values |= {name: every[0] for name, every in assigned.items() if len(every) == 1 and every[0]}

    def choices(self, arguments: object) -> Iterator[Mapping[str, bool]]:
        """Each way in which the conditions of the texts can come out, the same for message and remedy."""
        tests = dict.fromkeys(
            ast.unparse(node.test)
            for argument in arguments  # type: ignore[attr-defined]
            for part in self._reached(argument)
            for node in ast.walk(part)
            if isinstance(node, ast.IfExp)
        )
        for outcome in product((True, False), repeat=min(len(tests), 3)):
            yield dict(zip(tests, outcome, strict=False))

    def _reached(self, argument: ast.expr) -> Iterator[ast.expr]:
        yield argument
        if isinstance(argument, ast.Name) and argument.id in self.values:
            yield self.values[argument.id]

    def text(self, node: ast.expr, chosen: Mapping[str, bool]) -> str:
        """A text, with nouns in angle marks for what is filled in, or … if it is built elsewhere."""
        text = UNKNOWN
        match node:
            case ast.Constant(value=value) if value is not None:
                text = str(value)
            case ast.JoinedStr(values=parts):
                text = "".join(self.text(part, chosen) for part in parts)
            case ast.FormattedValue(value=filled_in):
                text = self._filled(filled_in, chosen)
            case ast.BinOp(op=ast.Add()):
                text = self.text(node.left, chosen) + self.text(node.right, chosen)
            case ast.IfExp():
                text = self.text(_branch(node, chosen), chosen)
            case ast.Name(id=name) if isinstance(value := self.values.get(name), TEXTUAL):
                text = self.text(value, chosen)
        return text

    def _filled(self, node: ast.expr, chosen: Mapping[str, bool]) -> str:
        match node:
            case ast.BoolOp(op=ast.And()):  # a detail that may be missing
                return ""
            case ast.Call(func=ast.Name(id="option"), args=[ast.Constant(), *_]):
                return self._option(node)
            case ast.IfExp():
                return self._filled(_branch(node, chosen), chosen)
            case ast.Name() | ast.Constant() | ast.JoinedStr() if UNKNOWN not in (
                text := self.text(node, chosen)
            ):
                return text
        return f"‹{noun(node)}›"

    @staticmethod
    def _option(call: ast.expr) -> str:
        assert isinstance(call, ast.Call)
        arguments = [*call.args, *(each.value for each in call.keywords)]
        name, value, *_ = (each.value if isinstance(each, ast.Constant) else UNKNOWN for each in arguments)
        return f"`{name}={UNKNOWN}`" if value == UNKNOWN else errors.option(str(name), value)


def _branch(node: ast.IfExp, chosen: Mapping[str, bool]) -> ast.expr:
    return node.body if chosen.get(ast.unparse(node.test), True) else node.orelse


def noun(node: ast.expr) -> str:
    """A word for the value of an expression, by the names in it."""
    word = "value"
    match node:
        case ast.Name(id=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            word = _word(name)
        case ast.Attribute(value=of, attr=name):
            owner = noun(of)
            word = _word(name) if name not in OF_OWNER or owner in VAGUE else owner
        case ast.Call(func=ast.Attribute(attr="join"), args=[ast.GeneratorExp()]):
            word = "names"
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            word = CALLS[name]
        case (
            ast.Call(func=ast.Attribute(attr="join"), args=[of, *_])
            | ast.Call(func=ast.Name(), args=[of, *_])
            | ast.Call(func=ast.Attribute(value=of))
            | ast.Subscript(value=of)
            | ast.BinOp(left=of)
            | ast.BoolOp(values=[of, *_])
            | ast.Starred(value=of)
            | ast.List(elts=[of, *_])
        ):
            word = noun(of)
    return word


def _word(name: str) -> str:
    words = re.sub(r"_+", " ", name).strip().lower()
    return NOUNS.get(words, words)
