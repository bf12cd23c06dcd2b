"""The plain rule: a record's version lasts while copies hold it with the same values.

And what is right, refused or wrong by it.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from benchmarks.cases.book import Case, Cells, Copy

RIGHT: Final = "right"
REFUSED: Final = "refused"
WRONG: Final = "silently wrong"
LOUD: Final = "failed, and left something wrong"
NOT_ASKED: Final = "not told when"
# A record's life: the values of its versions in order, each with what ended it.
Life = list[tuple[tuple[str | None, ...], str]]
OPEN, CHANGED, GONE = "open", "changed", "gone"


class Contradiction(Exception):
    """A copy tells two things of one record."""


def names_of(case: Case) -> list[str]:
    """Every column of the case, the key first."""
    found = dict.fromkeys(name for copy in case.copies for name in copy.columns)
    return [*case.key, *(name for name in found if name not in case.key)]


def expected(case: Case, copies: Sequence[Copy]) -> dict[Any, Life]:
    """The life of each record by the rule; raises Contradiction."""
    names = names_of(case)
    ordered = sorted(copies, key=lambda copy: copy.at) if all(c.at is not None for c in copies) else copies
    lives: dict[Any, Life] = {}
    for copy in ordered:
        records = _records(case, copy, names)
        for key, life in lives.items():
            if life[-1][1] == OPEN and records.get(key) != life[-1][0]:
                life[-1] = (life[-1][0], CHANGED if key in records else GONE)
        for key, values in records.items():
            life = lives.setdefault(key, [])
            if not life or life[-1][1] != OPEN:
                life.append((values, OPEN))
    return lives


def _records(case: Case, copy: Copy, names: Sequence[str]) -> dict[Any, tuple[str | None, ...]]:
    found: dict[Any, tuple[str | None, ...]] = {}
    for row in copy.rows:
        cells = dict(zip(copy.columns, row, strict=True))
        values = tuple(cells.get(name) for name in names)
        if found.setdefault(values[: len(case.key)], values) != values:
            raise Contradiction(case.name)
    return found


def stored_lives(case: Case, rows: Sequence[Cells]) -> dict[Any, Life]:
    """The lives in a table's rows: the cells of all columns, then from when and to when."""
    types = {name: type_ for copy in case.copies for name, type_ in copy.columns.items()}
    named = [types[name] for name in names_of(case)]
    by_key: dict[Any, list[Cells]] = {}
    for row in rows:
        cells = [_plain(cell, type_) for cell, type_ in zip(row[:-2], named, strict=True)]
        by_key.setdefault(tuple(cells[: len(case.key)]), []).append((*cells, *row[-2:]))
    return {key: _life(sorted(found, key=_start)) for key, found in by_key.items()}


def _plain(cell: str | None, type_: str) -> str | None:
    """A cell as the book writes it: databases print the same number or time in several ways."""
    if cell is None:
        return None
    if type_.startswith("DECIMAL"):
        scale = int(type_.rstrip(")").split(",")[1])
        return f"{Decimal(cell):.{scale}f}" if cell.lower() != "nan" else "NaN"
    if type_ == "TIMESTAMP":
        return cell.removesuffix("+00").removesuffix(".000000")
    return cell


def _start(row: Cells) -> tuple[str, str]:
    return (row[-2] or "", row[-1] or "9999")


def _life(rows: Sequence[Cells]) -> Life:
    life: Life = []
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        end = row[-1]
        follows = following is not None and following[-2] == end
        life.append((tuple(row[:-2]), OPEN if end is None else CHANGED if follows else GONE))
    return life


def outcome(case: Case, failed_at: int | None, rows: Sequence[Cells]) -> str:
    """What became of a case: an error at a copy (the table as it was before), or the rows at the end."""
    found = stored_lives(case, rows)
    if failed_at is not None:
        return REFUSED if found == expected(case, case.copies[:failed_at]) else LOUD
    if case.refuse_only:
        return WRONG
    return RIGHT if any(found == each for each in _permitted(case)) else WRONG


def _permitted(case: Case) -> list[dict[Any, Life]]:
    found = []
    for copies in (case.copies, *case.also):
        try:
            found.append(expected(case, copies))
        except Contradiction:
            continue
    return found
