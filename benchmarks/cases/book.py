"""The cases: full copies of a source, or feeds of changes, in their order; each cell is a text with a type.

Only the plain rule (`rule.py`) determines the right outcome, and any tool could follow it. If a copy
contradicts itself or is out of order, a refusal is right too, or is the only right outcome.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

Cells = Sequence[str | None]
PEOPLE: Final = {"id": "BIGINT", "name": "STRING", "city": "STRING"}
ONE: Final = ("1", "anna", "oslo")
TWO: Final = ("2", "bob", "rome")
THREE: Final = ("3", "cleo", "nice")
# The columns of a change, its two kinds, and the mark of a cell that a change does not set.
EVENTS: Final = {**PEOPLE, "updated": "TIMESTAMP", "op": "STRING"}
SET, DELETE, SAME = "set", "delete", "__same__"
# The features that a feed needs of a tool: changes, cells that are not set, full copies between changes.
CHANGES, CELLS, COPIES = "changes", "cells", "copies"


@dataclass(frozen=True)
class Copy:
    """All records at one time; `at` is in milliseconds, or None for a time after all earlier copies.

    `zone` is the session's time zone during the load; `csv` is the content of a file. In a feed, a full copy
    has its time in `full_at`; otherwise its rows are changes, each at its own `updated`.
    """

    columns: dict[str, str]
    rows: list[Cells]
    at: int | None = None
    zone: str = "UTC"
    csv: str | None = None
    full_at: str | None = None


@dataclass(frozen=True)
class Case:
    """Copies and the right outcome: the rule over `copies` or over one of `also`, or only a refusal.

    `instants` marks a case that needs a tool to accept the times of copies. `feed` marks a case whose copies
    are changes, and names the feature that it needs.
    """

    name: str
    key: list[str]
    copies: list[Copy]
    also: list[list[Copy]] = field(default_factory=list)
    refuse_only: bool = False
    instants: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    feed: str | None = None


def _copy(*rows: Cells, columns: dict[str, str] | None = None, **more: Any) -> Copy:
    return Copy(columns or PEOPLE, list(rows), **more)


def _case(name: str, *copies: Copy, key: Sequence[str] = ("id",), **more: Any) -> Case:
    return Case(name, list(key), list(copies), **more)


def _feed(name: str, *deliveries: Copy, needs: str = CHANGES, **more: Any) -> Case:
    return Case(name, ["id"], list(deliveries), feed=needs, **more)


def _events(*rows: Cells, **more: Any) -> Copy:
    """A delivery of changes; each row ends with its day of the year and its kind."""
    return Copy(EVENTS, [(*cells, _day(int(day or 0)), op) for *cells, day, op in rows], **more)


def _day(number: int) -> str:
    return f"2026-01-{number:02} 00:00:00"


_MORE = {**PEOPLE, "phone": "STRING"}
_FEWER = {"id": "BIGINT", "name": "STRING"}
_NUMBERS = {"id": "BIGINT", "price": "DECIMAL(12,2)", "weight": "DOUBLE"}
_NARROW, _WIDE = {"id": "BIGINT", "count": "INT"}, {"id": "BIGINT", "count": "BIGINT"}
_TIMES = {"id": "BIGINT", "seen": "TIMESTAMP"}
_ODD = {"id": "BIGINT", "Näme of it": "STRING", "select": "STRING"}
_DOT = {"id": "BIGINT", "a.b": "STRING"}
_PAIR = {"a": "STRING", "b": "STRING", "city": "STRING"}
_FEED = {**PEOPLE, "updated": "TIMESTAMP"}
_MOVED = ("1", "anna", "bern")
_AGAIN = ("1", "anna", "nice")

BOOK: Final = [
    _case("a value changes", _copy(ONE, TWO), _copy(_MOVED, TWO)),
    _case("a value changes and changes back", _copy(ONE, TWO), _copy(_MOVED, TWO), _copy(ONE, TWO)),
    _case("NULL becomes a value", _copy(("1", "anna", None), TWO), _copy(ONE, TWO)),
    _case("a value becomes NULL", _copy(ONE, TWO), _copy(("1", "anna", None), TWO)),
    _case("an empty text becomes NULL", _copy(("1", "anna", ""), TWO), _copy(("1", "anna", None), TWO)),
    _case("values move over a border", _copy(("1", "a|b", "c"), TWO), _copy(("1", "a", "b|c"), TWO)),
    _case("a record is gone", _copy(ONE, TWO, THREE), _copy(ONE, TWO)),
    _case("a key returns as it was", _copy(ONE, TWO, THREE), _copy(ONE, TWO), _copy(ONE, TWO, THREE)),
    _case(
        "a key returns changed",
        _copy(ONE, TWO, THREE), _copy(ONE, TWO), _copy(ONE, TWO, ("3", "cleo", "bern")),
    ),
    _case("the same load again", _copy(ONE, TWO), _copy(_MOVED, TWO), _copy(_MOVED, TWO)),
    _case("a record twice, the same", _copy(ONE, TWO), _copy(_MOVED, _MOVED, TWO), _copy(_MOVED, TWO)),
    _case("a record twice, differing", _copy(ONE, TWO), _copy(_MOVED, _AGAIN, TWO), refuse_only=True),
    _case(
        "a new record twice, differing",
        _copy(ONE, TWO), _copy(ONE, TWO, THREE, ("3", "cleo", "bern")), refuse_only=True,
    ),
    _case("the source is empty", _copy(ONE, TWO), _copy(), _copy(ONE, TWO)),
    _case("a NULL key", _copy(ONE, (None, "bob", "rome")), _copy(ONE, (None, "bob", "rome"))),
    _case(
        "a column is added",
        _copy(ONE, TWO), _copy((*ONE, "11"), (*TWO, "22"), columns=_MORE),
        _copy((*ONE, "12"), (*TWO, "22"), columns=_MORE),
    ),
    _case(
        "a column is dropped",
        _copy(ONE, TWO), _copy(("1", "anna"), ("2", "bert"), columns=_FEWER),
        also=[
            [_copy(ONE, TWO), _copy(ONE, ("2", "bert", None))],
            [_copy(ONE, TWO), _copy(ONE, ("2", "bert", "rome"))],
        ],
    ),
    _case(
        "a column is widened",
        _copy(("1", "7"), ("2", "8"), columns=_NARROW), _copy(("1", "7"), ("2", "3000000000"), columns=_WIDE),
    ),
    _case(
        "columns come in another order",
        _copy(ONE, TWO),
        _copy(("bern", "1", "anna"), ("rome", "2", "bob"), columns={"city": "STRING", "id": "BIGINT", "name": "STRING"}),
    ),
    _case(
        "the session's time zone changes",
        _copy(("1", "2026-01-01 12:00:00"), ("2", "2026-07-01 12:00:00"), columns=_TIMES),
        _copy(("1", "2026-01-01 12:00:00"), ("2", "2026-07-02 12:00:00"), columns=_TIMES, zone="America/New_York"),
        _copy(("1", "2026-01-01 12:00:00"), ("2", "2026-07-02 12:00:00"), columns=_TIMES),
    ),
    _case(
        "two changes within a second",
        _copy(ONE, TWO, at=0), _copy(_MOVED, TWO, at=300), _copy(_AGAIN, TWO, at=600),
    ),
    _case(
        "an older copy comes by mistake",
        _copy(ONE, TWO, at=0), _copy(_MOVED, TWO, at=2000), _copy(_AGAIN, TWO, at=1000), instants=True,
    ),
    _case(
        "an older copy comes late and is wanted",
        _copy(ONE, TWO, at=1000), _copy(_MOVED, TWO, at=3000), _copy(_AGAIN, TWO, at=2000),
        instants=True, options={"backfill": True},
    ),
    _case("odd names", _copy(("1", "a", "b"), columns=_ODD), _copy(("1", "a", "c"), columns=_ODD)),
    _case("a name with a dot", _copy(("1", "a"), columns=_DOT), _copy(("1", "b"), columns=_DOT)),
    _case(
        "decimals and floats stay",
        _copy(("1", "1.10", "0.1"), ("2", "99.99", "0.25"), columns=_NUMBERS),
        _copy(("1", "1.10", "0.1"), ("2", "99.99", "0.25"), columns=_NUMBERS),
    ),
    _case(
        "a NaN stays",
        _copy(("1", "1.10", "NaN"), ("2", "99.99", "0.5"), columns=_NUMBERS),
        _copy(("1", "1.10", "NaN"), ("2", "99.99", "0.5"), columns=_NUMBERS),
    ),
    _case(
        "a decimal changes in its last digit",
        _copy(("1", "1234567890.11", "0.1"), columns=_NUMBERS), _copy(("1", "1234567890.12", "0.1"), columns=_NUMBERS),
    ),
    _case(
        "keys that differ in case alone",
        _copy(("a", "x", "oslo"), ("A", "x", "rome"), columns=_PAIR),
        _copy(("a", "x", "bern"), ("A", "x", "rome"), columns=_PAIR), key=("a", "b"),
    ),
    _case(
        "keys of two columns with one concatenation",
        _copy(("a", "bc", "oslo"), ("ab", "c", "rome"), ("a|", "b", "nice"), ("a", "|b", "bonn"), columns=_PAIR),
        _copy(("a", "bc", "bern"), ("ab", "c", "rome"), ("a|", "b", "ulm"), ("a", "|b", "bonn"), columns=_PAIR),
        key=("a", "b"),
    ),
    _case(
        "a quote is not closed in the source's file",
        _copy(ONE, TWO, THREE),
        Copy(PEOPLE, [], csv='id,name,city\n1,anna,oslo\n2,"bob,rome\n3,cleo,nice\n'), refuse_only=True,
    ),
    _case(
        "several changes of a key in one delivery",
        _copy((*ONE, "2026-01-01 00:00:00"), columns=_FEED),
        _copy((*_MOVED, "2026-01-02 00:00:00"), (*_AGAIN, "2026-01-03 00:00:00"), columns=_FEED),
        also=[[
            _copy((*ONE, "2026-01-01 00:00:00"), columns=_FEED),
            _copy((*_MOVED, "2026-01-02 00:00:00"), columns=_FEED),
            _copy((*_AGAIN, "2026-01-03 00:00:00"), columns=_FEED),
        ]],
    ),
    _feed("changes come in order", _events((*ONE, "1", SET), (*TWO, "1", SET)), _events((*_MOVED, "2", SET))),
    _feed(
        "a change comes late",
        _events((*ONE, "1", SET)), _events((*_AGAIN, "3", SET)), _events((*_MOVED, "2", SET)),
    ),
    _feed(
        "several changes of a record in one delivery of a feed",
        _events((*ONE, "1", SET)), _events((*_AGAIN, "3", SET), (*_MOVED, "2", SET)),
    ),
    _feed(
        "two changes of one instant, differing",
        _events((*ONE, "1", SET)), _events((*_MOVED, "2", SET), (*_AGAIN, "2", SET)), refuse_only=True,
    ),
    _feed(
        "a delete comes before its record",
        _events((*TWO, "1", SET), (*ONE, "3", DELETE)), _events((*ONE, "1", SET)),
    ),
    _feed(
        "a record is deleted and comes again",
        _events((*ONE, "1", SET)), _events((*ONE, "2", DELETE)), _events((*_MOVED, "3", SET)),
    ),
    _feed(
        "a feed is played once more",
        _events((*ONE, "1", SET), (*_MOVED, "2", SET)), _events((*_AGAIN, "3", SET)),
        _events((*ONE, "1", SET), (*_MOVED, "2", SET)),
    ),
    _feed(
        "a change of one cell comes before its record",
        _events(("1", SAME, "bern", "2", SET)), _events((*ONE, "1", SET)), needs=CELLS,
    ),
    _feed(
        "a full copy comes among changes",
        _events((*ONE, "1", SET), (*TWO, "1", SET)), _events((*_MOVED, "4", SET)),
        _copy(_AGAIN, THREE, full_at=_day(3)), needs=COPIES,
    ),
]  # fmt: skip


def told() -> list[dict[str, Any]]:
    """The cases as data for JSON."""
    return [asdict(case) for case in BOOK]
