"""The tables in docs/requirements/ name the tests of each requirement."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "requirements").glob("*.md"))
NOT_RUN = "**not run:** "
# Requirements that no test of ours can run, or that are left out by decision. Their rows give the reason.
ODF = "open-data-fabric.md"
MAY_GIVE_A_REASON = {
    ("fivetran.md", "112"),
    *((ODF, number) for number in ("R77", "R93", "R94", "R95")),
}
MODULE = re.compile(r"`([\w/]+\.py)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
MARKS = re.compile(r"\b(missing|pending)\b|\bT[O]DO\b", re.IGNORECASE)


def rows(page: str) -> list[list[str]]:
    """The cells of each row of a page's tables, without their headers."""
    table_rows = []
    for table in re.findall(r"(?:^\|.*\n?)+", page, re.MULTILINE):
        _, rule, *lines = table.splitlines()
        assert set(rule) <= set("|-: "), f"a table without a header: {rule}"
        table_rows += [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return table_rows


@cache
def known_tests(path: Path) -> dict[str, set[str]]:
    """The tests of a file, including tests in classes, with their marks."""
    tree = ast.parse(path.read_text("utf-8"))
    return {
        node.name: {word for mark in node.decorator_list for word in re.findall(r"\w+", ast.unparse(mark))}
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def fault(page: str, cells: list[str], root: Path = ROOT) -> str | None:
    """The fault of a row, or None."""
    if len(cells) not in {3, 4} or not all(cells):
        return "it needs a number, a requirement and tests; modules may stand before the tests"
    number, _, *where, tests = cells
    if where and (wrong := fault_of_modules(where[0], root)):
        return wrong
    reason = tests.startswith(NOT_RUN)
    tests = tests.removeprefix(NOT_RUN)
    named = TEST.findall(tests)
    rest = TEST.sub("", tests).replace("<br>", "").strip(" ,")
    if reason and ((page, number) not in MAY_GIVE_A_REASON or not rest):
        return "it may not give a reason"
    if not reason and MARKS.search(tests):
        return "it is not tested yet"
    if not reason and (not named or rest):
        return "its tests are not written as `tests/file.py::test_name`"
    return next(filter(None, (fault_of_test(root / file, name) for file, name in named)), None)


def fault_of_modules(modules: str, root: Path) -> str | None:
    """The fault in a row's modules, or None. A dash means no module."""
    named = MODULE.findall(modules)
    if modules != "—" and (not named or MODULE.sub("", modules).replace("<br>", "")):
        return "its modules are not written as `room/file.py`"
    gone = [name for name in named if not (root / "src" / "backstory" / name).is_file()]
    return f"there is no module {gone[0]}" if gone else None


def fault_of_test(path: Path, name: str) -> str | None:
    """The fault of a test in a row, or None."""
    tests = known_tests(path) if path.is_file() else {}
    if name not in tests:
        return f"there is no {path.name}::{name}"
    if tests[name] & {"skip", "skipif", "xfail"}:
        return f"{path.name}::{name} may be skipped"
    return None


def numbering(numbers: list[str], promised: int) -> str | None:
    """The fault in a page's numbers 1, 2, 3 (or R1, R2, R3), compared with the promised number."""
    letter = re.sub(r"\d+$", "", numbers[0]) if numbers else ""
    if numbers != [f"{letter}{number}" for number in range(1, promised + 1)]:
        return f"the numbers are not {letter}1 to {letter}{promised}, each once and in order"
    return None


def test_there_are_pages_of_requirements():
    """The law below applies to at least one page."""
    assert PAGES


def test_every_requirement_names_tests_that_exist():
    """Each row has a number and existing tests, and each page has the promised number of rows."""
    assert [wrong for page in PAGES for wrong in faults(page.name, page.read_text("utf-8"))] == []


def faults(page: str, text: str) -> list[str]:
    """The faults of a page."""
    promised = re.search(r"\b(\d+) requirements\b", text)
    if not promised:
        return [f"{page} does not say how many requirements it has"]
    page_rows = rows(text)
    wrong = {"": numbering([cells[0] for cells in page_rows], int(promised[1]))}
    wrong |= {cells[0]: fault(page, cells) for cells in page_rows}
    return [f"{page} {number}: {why}" for number, why in wrong.items() if why]


GOOD = "`tests/test_requirements.py::test_there_are_pages_of_requirements`"


@pytest.mark.parametrize(
    ("row", "right"),
    [
        (f"| 1 | a | {GOOD} |", True),
        (f"| 1 | a | {GOOD}<br>{GOOD} |", True),
        (f"| 1 | a \\| b | {GOOD}, {GOOD} |", True),
        ("| 112 | a | **not run:** because |", True),
        ("| 112 | a | **not run:** |", False),
        ("| 111 | a | **not run:** because |", False),
        ("| 1 | a | |", False),
        (f"| 1 | | {GOOD} |", False),
        (f"| | a | {GOOD} |", False),
        ("| 1 | a | **missing** |", False),
        (f"| 1 | a | {GOOD}<br>pending |", False),
        ("| 1 | a | see the code |", False),
        (f"| 1 | a | {GOOD} and others |", False),
        (f"| 1 | a | {GOOD.replace('::test_there', '::test_nowhere')} |", False),
        (f"| 1 | a | {GOOD.replace('test_req', 'test_no_req')} |", False),
        ("| 1 | a | `tests/conftest.py::spark` |", False),
        (f"| 1 | a | {GOOD} | more |", False),
        (f"| 1 | a | `errors.py`<br>`doors/odf/door.py` | {GOOD} |", True),
        (f"| 1 | a | — | {GOOD} |", True),
        (f"| 1 | a | `no_errors.py` | {GOOD} |", False),
        (f"| 1 | a | errors | {GOOD} |", False),
        ("| 1 | a | `errors.py` | |", False),
        (f"| 112 | a | **not run:** because<br>{GOOD} |", True),
        (f"| 112 | a | **not run:** because<br>{GOOD.replace('::test_there', '::test_nowhere')} |", False),
        (f"| 112 | a | **not run:** {GOOD} |", False),
    ],
)
def test_requirement_rows_are_accepted_or_refused(row, right):
    """A test of the law: accepted and refused rows."""
    [cells] = rows(f"| number | requirement | tests |\n|---|---|---|\n{row}\n")
    assert (fault("fivetran.md", cells) is None) is right


def test_a_skippable_test_proves_no_requirement(tmp_path):
    """A skipped test does not count, but a test in a class does."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text(
        "@pytest.mark.skipif(True)\ndef test_a(): ...\n@pytest.mark.xfail\ndef test_b(): ...\n"
        "class TestC:\n    def test_c(self): ...\n"
    )
    faults = [fault("x.md", ["1", "a", f"`tests/a.py::test_{name}`"], tmp_path) for name in "abc"]
    assert [bool(wrong) for wrong in faults] == [True, True, False]


@pytest.mark.parametrize(
    ("numbers", "promised", "right"),
    [
        ("1 2 3", 3, True),
        ("R1 R2", 2, True),
        ("1 2 3", 4, False),
        ("1 3", 3, False),
        ("1 2 2", 3, False),
        ("2 1", 2, False),
        ("R1 S2", 2, False),
        ("", 1, False),
    ],
)
def test_requirement_numbers_are_complete_and_in_order(numbers, promised, right):
    """A test of the law: no number is missing, repeated or out of order."""
    assert (numbering(numbers.split(), promised) is None) is right
