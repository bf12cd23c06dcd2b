"""The laws of a record that has versions, in plain Python: slow, obvious, right.

Sources: native.md V114 and V116; fivetran-destination.md section 5.1 (a version ends a millisecond before
its successor begins, so one that lived less ends before its own start); historization.md sections 2.2, 2.4.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from backstory.upkeep.laws.remembered import broken_memory
from backstory.upkeep.laws.terms import INFINITY, Law, LawTerms, RecordRow

HASH: Final = re.compile("[0-9a-f]{64}|erased")
NEW, CHANGED, DELETED = "new", "changed", "deleted"
WORDS: Final = frozenset({NEW, CHANGED, DELETED})


def violations(rows: Sequence[RecordRow], terms: LawTerms) -> Counter[Law]:
    """How often the rows of one record break each law; rows without a key are of no record."""
    found: Counter[Law] = Counter()
    if terms.remembers:
        found.update(broken_memory(rows, terms))
    lives = [row for row in rows if row.keyed]
    found[Law.NULL_KEY] += sum(not row.keyed and not is_mark(row) for row in rows)
    versions = [row for row in lives if is_version(row)]
    found.update(_spans(versions, terms))
    found[Law.OPEN_MARKER] += sum(not marked(row, versions, terms) for row in versions)
    if terms.hashed:
        found[Law.ROW_HASH] += sum(not is_hashed(row) for row in lives)
    return +found


def broken_keys(rows: Sequence[RecordRow], terms: LawTerms) -> Counter[Law]:
    """The same of a table that has each record once."""
    found: Counter[Law] = Counter()
    keyed = [row for row in rows if row.keyed]
    found[Law.NULL_KEY] += len(rows) - len(keyed)
    found[Law.UNIQUE_KEY] += max(len(keyed) - 1, 0)
    if terms.hashed:
        found[Law.ROW_HASH] += sum(not is_hashed(row) for row in rows)
    return +found


def is_hashed(row: RecordRow) -> bool:
    """Whether a row has the hash of its values, or says that they were erased."""
    return HASH.fullmatch(row.hash or "") is not None and row.rightly is not False


def is_mark(row: RecordRow) -> bool:
    """Whether a row of no key speaks of all of them (V3)."""
    return row.role == "fact" and row.kind in {"copy", "truncate"}


def is_version(row: RecordRow) -> bool:
    """Whether a row is a version: it has no role, or a length in spite of one (V116)."""
    return row.role is None or (row.start is not None and (row.end is None or row.end > row.start))


def is_open(row: RecordRow, terms: LawTerms) -> bool:
    """Whether its end says that it is still true."""
    if terms.far is not None and row.end is not None:
        return row.end >= terms.far
    return row.end is None and not terms.grain


def until(row: RecordRow, terms: LawTerms) -> int:
    """The instant that a version does not reach; of one that tells no end, its own start."""
    if is_open(row, terms):
        return INFINITY
    return (row.start or 0) if row.end is None else row.end


def has_length(row: RecordRow, terms: LawTerms) -> bool:
    """Whether it was true at some instant; a closed one ends a grain before its successor begins."""
    if row.start is None or (row.end is None and not is_open(row, terms)):
        return False
    return row.start < until(row, terms) + terms.grain


def in_order(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow]:
    """Versions that have a length, by their starts."""
    return sorted(
        (row for row in rows if has_length(row, terms)), key=lambda row: (row.start or 0, until(row, terms))
    )


def _spans(versions: Sequence[RecordRow], terms: LawTerms) -> Iterator[Law]:
    """A law for each version that breaks it by its start or its end."""
    starts = Counter(row.start for row in versions if row.start is not None)
    for times in starts.values():
        yield from [Law.UNIQUE_START] * (times - 1)
    # A version of Fivetran's that tells no end breaks the law of the marker.
    endless = {row.place for row in versions if row.end is None and terms.grain and row.start is not None}
    for row in versions:
        if not has_length(row, terms) and row.place not in endless:
            yield Law.START_BEFORE_END
    reached = 0
    for before, row in pairwise(in_order(versions, terms)):
        reached = max(reached, until(before, terms))
        if (row.start or 0) < reached:
            yield Law.NO_OVERLAP
    open_ = sum(is_open(row, terms) or (bool(terms.grain) and row.flag is True) for row in versions)
    yield from [Law.ONE_OPEN] * (open_ - 1)


def marked(row: RecordRow, versions: Sequence[RecordRow], terms: LawTerms) -> bool:
    """Whether flag, state and end agree. A state is judged where the record has no words of a model's own."""
    if terms.flagged:
        return row.flag is is_open(row, terms)
    if not terms.stated:
        return True
    if row.state is None or not {each.state for each in versions} <= WORDS | {None}:
        return row.state is not None
    return row.state != (DELETED if is_open(row, terms) else NEW)
