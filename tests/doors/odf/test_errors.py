"""Every error of the door and of its readers has a stable code, a cause and a remedy (R92)."""

import ast
import re
from pathlib import Path

import pytest

from backstory import errors
from backstory.doors.odf import delivery
from backstory.strategies.events.terms import RowProblem

HOUSE = Path(errors.__file__).parent
ROOMS = (HOUSE / "doors" / "odf", HOUSE / "formats", HOUSE / "sources", HOUSE / "journal")
KINDS = {kind.__name__ for kind in errors.BackstoryError.__subclasses__()}
CODE = re.compile(r"[a-z]+(-[a-z]+)*")
FILES = sorted(path for room in ROOMS for path in room.rglob("*.py"))


def raised(path):
    """The errors that a module creates."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_each_error_has_code_message_and_remedy(path):
    """R92: Each error has separate arguments. A code is one word, or several with hyphens."""
    for call in raised(path):
        place = f"{path.name}:{call.lineno}"
        assert len(call.args) >= 3, f"{place} says not what to do"
        code, message, remedy = call.args[:3]
        if isinstance(code, ast.Constant):
            assert CODE.fullmatch(code.value), f"{place} has the code {code.value}"
        for part in (message, remedy):
            assert not (isinstance(part, ast.Constant) and not part.value), f"{place} leaves a sentence empty"


def test_each_problem_of_rows_has_its_sentences():
    """R92: Each problem of sections 2.3 to 2.6 has its sentences."""
    assert set(delivery.PROBLEMS) == set(RowProblem)
    for what, remedy in delivery.PROBLEMS.values():
        assert what
        assert remedy.endswith(".")


def test_more_than_fifty_errors_are_checked():
    """The law above applies to at least one error."""
    assert sum(len(list(raised(path))) for path in FILES) > 50
