"""The smallest mending of a record's rows, in plain Python (native.md V117, V118).

Where a life contradicts its facts alone, it is what they tell. Else, in this order: of rows identical in all
columns the oldest stays; of versions with one start the one written last stays; versions without length go; a
version ends where the next begins; flags and states follow the ends; recorded times that cannot be are taken
back, and so are past statements that overlap. Healthy rows stay as they are.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from backstory.model.remembered import Role
from backstory.upkeep.laws import remembered
from backstory.upkeep.laws.folding import refolded
from backstory.upkeep.laws.terms import CHANGED, DELETED, INFINITY, NEW, WORDS, Law, LawTerms, RecordRow


def mended(rows: Sequence[RecordRow], terms: LawTerms, broken: Collection[Law]) -> list[RecordRow]:
    """The rows as they should have been written, by the laws that they break; what is not among them goes.

    Rows without a key go, for no question ever finds them. What cannot be mended stays as it is: a hash, an
    end that nothing tells, and a version whose row is gone.
    """
    if not broken:
        return list(rows)
    if set(broken) == {Law.FOLD}:
        return _refold(rows, terms)
    kept = [row for row in _distinct(rows) if row.keyed or is_mark(row)]
    if not terms.remembers:
        return _one_after_another(kept, terms)
    kept = [_of_its_kind(row) for row in kept]
    versions = _one_after_another([row for row in kept if row.role is None], terms)
    others = [row for row in kept if row.role is not None and _may_stay(row, terms)]
    after = _without_overlaps(_recorded(versions, terms), _without_repeated(versions, others))
    return _refold(after, terms) if set(remembered.broken_together(after, terms)) == {Law.FOLD} else after


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


def marked(row: RecordRow, versions: Sequence[RecordRow], terms: LawTerms) -> bool:
    """Whether flag, state and end agree. A state is judged where the record has no words of a model's own."""
    if terms.flagged:
        return row.flag is is_open(row, terms)
    if not terms.stated:
        return True
    if row.state is None or not {each.state for each in versions} <= WORDS | {None}:
        return row.state is not None
    return row.state != (DELETED if is_open(row, terms) else NEW)


def _refold(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow]:
    """The rows with versions made of the remembered facts; as they are where the facts do not suffice."""
    folded = refolded(rows, terms)
    if folded is None:
        return list(rows)
    versions = [row for row in folded if row.role is None]
    after = _without_overlaps(versions, [row for row in folded if row.role is not None])
    return list(rows) if any(remembered.broken_together(after, terms)) else after


def _distinct(rows: Iterable[RecordRow]) -> list[RecordRow]:
    """The rows, of identical ones the oldest: the other is its copy."""
    found: dict[object, RecordRow] = {}
    for row in rows:
        twin = found.setdefault(row.place if row.twin is None else row.twin, row)
        if row.row_id is not None and twin.row_id is not None and row.row_id < twin.row_id:
            found[row.twin] = row
    return list(found.values())


def _one_after_another(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow]:
    """Versions with starts of their own, each with a length, ending where the next begins at the latest."""
    starts: dict[int, RecordRow] = {}
    for row in sorted(rows, key=lambda row: (row.written or 0, until(row, terms), row.place)):
        if row.start is not None:
            starts[row.start] = row
    ordered = [starts[start] for start in sorted(starts)]
    following = {one.place: other for one, other in pairwise(ordered)}
    ended = [_ended(row, following.get(row.place), terms) for row in ordered]
    lasting = [row for row in ended if has_length(row, terms) or (row.end is None and terms.grain)]
    cut = [_cut(row, after, terms) for row, after in zip(lasting, [*lasting[1:], None], strict=False)]
    return _marked(cut, {row.place: row for row in rows}, terms)


def _ended(row: RecordRow, after: RecordRow | None, terms: LawTerms) -> RecordRow:
    """A version of Fivetran's that tells no end ends by its flag, or by its successor."""
    if not terms.grain or row.end is not None:
        return row
    if row.flag and after is None:
        return replace(row, end=terms.far)
    return row if after is None else replace(row, end=(after.start or 0) - terms.grain)


def _cut(row: RecordRow, after: RecordRow | None, terms: LawTerms) -> RecordRow:
    if after is None or after.start is None or until(row, terms) <= after.start:
        return row
    return replace(row, end=after.start - terms.grain)


def _marked(rows: Sequence[RecordRow], before: dict[int, RecordRow], terms: LawTerms) -> list[RecordRow]:
    """The rows with the flags and states that their ends ask for."""
    if terms.flagged:
        told = [row.end is None and terms.grain > 0 for row in rows]
        return [
            row if silent or row.flag is is_open(row, terms) else replace(row, flag=is_open(row, terms))
            for row, silent in zip(rows, told, strict=True)
        ]
    if not terms.stated or not {row.state for row in rows} <= WORDS | {None}:
        return list(rows)
    found = []
    for place, row in enumerate(rows):
        moved = row.end != before[row.place].end
        if marked(row, rows, terms) and not moved:
            found.append(row)
            continue
        follows = place > 0 and rows[place - 1].end == row.start
        followed = place + 1 < len(rows) and rows[place + 1].start == row.end
        state = (CHANGED if follows else NEW) if is_open(row, terms) else (CHANGED if followed else DELETED)
        found.append(replace(row, state=state))
    return found


def _of_its_kind(row: RecordRow) -> RecordRow:
    """A version that has a length has no role, and says nothing that only memory says."""
    if row.role is not None and not is_version(row):
        return row
    if remembered.is_of_its_kind(row):
        return row
    return replace(row, role=None, scope=None, kind=None)


def _may_stay(row: RecordRow, terms: LawTerms) -> bool:
    """Whether a memory row is one of those that are written, told at a time that can be, and not settled."""
    settled = row.role == Role.FACT and remembered.is_settled(row.start, terms)
    return not settled and remembered.is_of_its_kind(row) and remembered.is_recorded(row, terms.newest)


def _recorded(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow]:
    """Versions told at times that can be; a step that cannot be is forgotten."""
    known = [each.written for each in rows if each.written is not None]
    newest = max(known, default=0) if terms.newest is None else terms.newest
    found = []
    for row in rows:
        if remembered.is_recorded(row, terms.newest):
            found.append(row)
            continue
        written = newest if row.written is None else min(row.written, newest)
        told = replace(row, written=written)
        if not remembered.is_recorded(told, terms.newest):
            told = replace(told, ended_at=None, end_before=None)
        found.append(told)
    return found


def _without_repeated(versions: Sequence[RecordRow], others: Sequence[RecordRow]) -> list[RecordRow]:
    """Of facts of one instant and sequence the version, else the one recorded last."""
    facts = [row for row in others if remembered.is_fact(row)]
    chosen = {
        _fact_identity(row): row.place for row in sorted(facts, key=lambda row: (row.written or 0, row.place))
    }
    chosen |= {_fact_identity(row): row.place for row in versions if remembered.is_fact(row)}
    return [row for row in others if not remembered.is_fact(row) or chosen[_fact_identity(row)] == row.place]


def _fact_identity(row: RecordRow) -> tuple[object, ...]:
    """What identifies a fact: instant and sequence of an event, and kind and scope of a mark."""
    event = row.keyed and row.kind in remembered.EVENTS
    return (row.start, row.sequence, *(() if event else (row.kind, row.scope)))


def _without_overlaps(versions: Sequence[RecordRow], others: Sequence[RecordRow]) -> list[RecordRow]:
    """No two rows tell of one instant at one time: past ones go, and versions forget their earlier end."""
    told = list(versions)
    for place, row in enumerate(told):
        if row.ended_at is not None and remembered.overlapping(told[place:]) > remembered.overlapping(
            told[place + 1 :]
        ):
            told[place] = replace(row, ended_at=None, end_before=None)
    for row in sorted(others, key=lambda row: (row.written or 0, row.place)):
        if row.role != Role.PAST or not remembered.overlapping([*told, row]):
            told.append(row)
    return told
