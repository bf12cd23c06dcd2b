"""The codes of errors, with what they say, as they stand in the source."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from backstory import errors

SOURCE: Final = Path(errors.__file__).parent
KINDS: Final = {
    each.__name__: each.exit_code
    for each in (errors.Failed, errors.UsageError, errors.Refused, errors.Violated, errors.TryAgain)
}
SHOWN: Final = 3  # messages of a code


class Raised(NamedTuple):
    """An error at one place of the source; `remedy` is empty where it is put together elsewhere."""

    code: str
    exit_code: int
    message: str
    remedy: str


def error_codes() -> str:
    """A table of the codes: the exit code, messages, remedies."""
    by_code: dict[str, list[Raised]] = {}
    for raised in sorted(_raised()):
        by_code.setdefault(raised.code, []).append(raised)
    return "| code | exit | says, for example | remedy |\n|---|---|---|---|\n" + "\n".join(
        _row(code, every) for code, every in by_code.items()
    )


def _row(code: str, every: list[Raised]) -> str:
    exits = ", ".join(dict.fromkeys(str(each.exit_code) for each in every))
    messages, remedies = (
        "<br>".join([each for each in dict.fromkeys(texts) if each][:SHOWN])
        for texts in ((each.message for each in every), (each.remedy for each in every))
    )
    return f"| `{code}` | {exits} | {messages or '–'} | {remedies or '–'} |"


def _raised() -> Iterator[Raised]:
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
                code, message, remedy, *_ = [*map(_text, node.args), "", "", ""]
                if code and "…" not in code:
                    yield Raised(code, KINDS[node.func.id], message, remedy)


def _text(node: ast.expr) -> str:
    """A text with names in capitals, or …, for what is filled in; empty for what is no text here."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _cell(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "…")
        return name.strip("_").upper()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
