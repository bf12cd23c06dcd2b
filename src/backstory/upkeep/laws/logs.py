"""The facts of an event log, and which of its events may follow on which (odf-ingest.md, section 2.10)."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from backstory.journal.verify import history
from backstory.model.instant import parse_instant
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.port import ToldTable
from backstory.strategies.events.terms import Op

_MANIFEST: Final = "backstory.odf.manifest"
_FOLLOWING: Final[Mapping[Op | None, frozenset[Op]]] = {
    None: frozenset({Op.APPEND}),
    Op.APPEND: frozenset({Op.CORRECT_FROM, Op.RETRACT}),
    Op.CORRECT_FROM: frozenset({Op.CORRECT_TO}),
    Op.CORRECT_TO: frozenset({Op.CORRECT_FROM, Op.RETRACT}),
    Op.RETRACT: frozenset({Op.APPEND}),
}
# A log that has no row for what was before a correction.
_UNPAIRED: Final = {
    **_FOLLOWING,
    Op.APPEND: frozenset({Op.CORRECT_TO, Op.RETRACT}),
    Op.CORRECT_TO: frozenset({Op.CORRECT_TO, Op.RETRACT}),
    Op.CORRECT_FROM: frozenset[Op](),
}
# A ledger has many events of a key; one that is corrected goes before it stands there anew.
_LEDGER: Final = {
    None: frozenset({Op.APPEND}),
    Op.APPEND: frozenset({Op.APPEND, Op.CORRECT_FROM}),
    Op.CORRECT_FROM: frozenset({Op.CORRECT_TO}),
    Op.CORRECT_TO: frozenset({Op.APPEND, Op.CORRECT_FROM}),
    Op.RETRACT: frozenset[Op](),
}


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a log says of itself: whether its rows have keys, how it writes corrections, its watermark.

    One that is not `strict` has a changelog as it came, whose operations follow no law (section 2.6).
    With `corrects` it is a ledger that tells corrections: a key has an event for each time, and a correction
    may move it to another time.
    """

    keyed: bool
    paired: bool
    strict: bool = True
    watermark: int | None = None
    corrects: bool = False

    def follows(self, before: Op | None, op: Op) -> bool:
        """Whether an event may come after another of its record, or as the first."""
        if self.corrects:
            return op in _LEDGER[before]
        if not self.keyed:
            return op is Op.APPEND
        if not self.strict:
            return True
        return op in (_FOLLOWING if self.paired else _UNPAIRED)[before]


def facts_of(table: ToldTable, names: Mapping[str, Any], told: str | None) -> LogFacts:
    """What a log says of itself, of which its newest watermark is told."""
    watermark = None if told is None else micros_of(parse_instant(told))
    keyed, paired = bool(table.shape.key), names["op"] is not None
    corrects = keyed and paired and bool(names["events"])
    return LogFacts(keyed, paired, _is_strict(table), watermark, corrects)


def _is_strict(table: ToldTable) -> bool:
    """Whether no source takes a changelog as it comes, by the manifest that the table keeps."""
    return not any(
        str(each.get("validation", "")).lower() == "schema"
        for each in _objects(json.loads(table.properties.get(_MANIFEST) or "{}"))
    )


def _objects(document: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(document, dict):
        yield document
        document = list(document.values())
    if isinstance(document, list):
        for each in document:
            yield from _objects(each)


def wrong_offsets(
    logged: Sequence[Mapping[str, Any]], properties: Iterable[Mapping[str, str]], rows: int
) -> tuple[list[str], int]:
    """The first offsets of blocks whose offsets are wrong, and how many offsets there should be.

    By the blocks, or as many as there are `rows` where no block has offsets.
    """
    blocks, problems = history(logged, properties)
    wrong = [str(each.offsets[0]) for each in problems if each.what == "offsets" and each.offsets]
    ends = [block.offsets[1] for block in blocks if block.offsets]
    return wrong, ends[-1] + 1 if ends else rows


def misplaced(offsets: str, wanted: int) -> str:
    """The query for the offsets in a relation that are not there exactly once, and by how many rows each.

    NULL is none of the numbers from 0 to before `wanted`.
    """
    due = "CASE WHEN number IS NULL THEN 0 ELSE 1 END"
    return f"""SELECT * FROM (
      SELECT COALESCE(place, number) AS place, ABS(COALESCE(times, 0) - {due}) AS times
      FROM (SELECT place, COUNT(*) AS times FROM {offsets} GROUP BY place) AS there
      FULL JOIN RANGE({wanted}) AS numbers (number) ON place = number
    ) AS found WHERE times > 0"""
