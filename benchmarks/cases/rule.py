"""The plain rule: a version lasts while copies contain its values, or until a change replaces them.

The module also judges outcomes by it: right, refused or wrong.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from benchmarks.cases.book import DELETE, PEOPLE, SAME, Case, Cells, Copy

RIGHT: Final = "right"
REFUSED: Final = "refused"
WRONG: Final = "silently wrong"
LOUD: Final = "failed, and left something wrong"
NOT_ASKED: Final = "not told when"
# A record's life: the values of its versions in order, each with the reason for its end.
Life = list[tuple[tuple[str | None, ...], str]]
OPEN, CHANGED, GONE = "open", "changed", "gone"


class Contradiction(Exception):
    """A copy contains two different rows for one record."""


def names_of(case: Case) -> list[str]:
    """Every column of the case, the key first."""
    found = dict.fromkeys(name for copy in case.copies for name in copy.columns)
    return [*case.key, *(name for name in found if name not in case.key)]


def expected(case: Case, copies: Sequence[Copy]) -> dict[Any, Life]:
    """The life of each record by the rule; raises Contradiction."""
    if case.feed is not None:
        return {key: life for key, facts in _facts(case, copies).items() if (life := _folded(facts))}
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


def _facts(case: Case, deliveries: Sequence[Copy]) -> dict[Any, dict[str, tuple[str | None, ...] | None]]:
    """The facts about each record by time: the cells of its values, or None for a delete."""
    facts: dict[Any, dict[str, tuple[str | None, ...] | None]] = {}
    for delivery in deliveries:
        rows = [dict(zip(delivery.columns, row, strict=True)) for row in delivery.rows]
        for row in rows:
            key, at = (row["id"],), row.get("updated") or delivery.full_at or ""
            said = None if row.get("op") == DELETE else tuple(row[name] for name in PEOPLE if name != "id")
            if facts.setdefault(key, {}).setdefault(at, said) != said:
                raise Contradiction(case.name)
    for delivery in deliveries:
        there = {(row[0],) for row in delivery.rows}
        for key, of_record in facts.items():
            if delivery.full_at is not None and key not in there:
                of_record.setdefault(delivery.full_at, None)
    return facts


def _folded(facts: dict[str, tuple[str | None, ...] | None]) -> Life:
    """The life of one record, from its facts in the order of time."""
    life: Life = []
    for _, said in sorted(facts.items()):
        before = life[-1][0] if life and life[-1][1] == OPEN else None
        now = said and tuple(
            (before[place] if before else None) if cell == SAME else cell for place, cell in enumerate(said)
        )
        if now == before:
            continue
        if before is not None:
            life[-1] = (before, GONE if now is None else CHANGED)
        if now is not None:
            life.append((now, OPEN))
    return life


def _records(case: Case, copy: Copy, names: Sequence[str]) -> dict[Any, tuple[str | None, ...]]:
    found: dict[Any, tuple[str | None, ...]] = {}
    for row in copy.rows:
        cells = dict(zip(copy.columns, row, strict=True))
        values = tuple(cells.get(name) for name in names)
        if found.setdefault(values[: len(case.key)], values) != values:
            raise Contradiction(case.name)
    return found


def stored_lives(case: Case, rows: Sequence[Cells]) -> dict[Any, Life]:
    """The lives in a table's rows: each row has the cells of all columns, then its start and end."""
    types = {name: type_ for copy in case.copies for name, type_ in copy.columns.items()}
    names = names_of(case)
    if case.feed is not None:  # a version that marks a deleted record does not count
        rows = [row for row in rows if row[names.index("op")] != DELETE]
        rows = [(*(row[names.index(name)] for name in PEOPLE), *row[-2:]) for row in rows]
        names = [*PEOPLE]
    named = [types[name] for name in names]
    by_key: dict[Any, list[Cells]] = {}
    for row in rows:
        cells = [_plain(cell, type_) for cell, type_ in zip(row[:-2], named, strict=True)]
        by_key.setdefault(tuple(cells[: len(case.key)]), []).append((*cells, *row[-2:]))
    lives = {key: _life(sorted(found, key=_start)) for key, found in by_key.items()}
    if case.feed is None:
        return lives
    return {key: [(values[1:], end) for values, end in life] for key, life in lives.items()}


def _plain(cell: str | None, type_: str) -> str | None:
    """A cell in the book's form, because databases print the same number or time in several ways."""
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
    """The outcome of a case, from the number of the copy that failed, if one did, and the rows at the end."""
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
