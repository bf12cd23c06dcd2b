"""The smallest mending of a record's rows, in plain Python (native.md V117, V118).

Where a life contradicts its facts alone, it is what they tell. Else, in this order: of rows identical in all
columns the oldest stays; of versions with one start the one written last stays; versions without length go; a
version ends where the next begins; flags and states follow the ends; recorded times that cannot be are taken
back, and so are past statements that overlap. Healthy rows stay as they are.

The life that remembered facts tell, in the rows that are there (native.md V117): plain Python.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from backstory.model.versions_layout import FactKind, Role
from backstory.upkeep.laws import memory
from backstory.upkeep.laws.memory import LifeFacts, facts_of_record, same_state
from backstory.upkeep.laws.terms import CHANGED, DELETED, INFINITY, NEW, WORDS, Law, LawTerms, RecordRow

Version = tuple[int, int | None, Mapping[str, Any]]


def fold_facts(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow] | None:
    """The rows as the fold of their facts has them; None where a version needs a row that is gone.

    A version that the fold has not is the fact that it stands for, if it is one, else it goes.
    """
    said = facts_of_record(rows, terms)
    standing = {row.start: row for row in said.versions}
    found: dict[int, RecordRow] = {}
    for start, end, values in _folded_versions(said, terms):
        row = standing.get(start) or _last_upsert(said, start)
        if row is None:
            return None
        found[row.place] = _as_version(row, end, values)
    kept = [found.get(row.place) or _as_fact(row) for row in rows]
    return [row for row in kept if row is not None]


def _folded_versions(said: LifeFacts, terms: LawTerms) -> Iterator[Version]:
    """The longest runs of instants over which the values stay equal (V23), from what is settled on."""
    instants = said.instants | {*said.copied, *(each for each in terms.settled or () if each is not None)}
    state: Mapping[str, Any] | None = None
    changes: list[tuple[int, Mapping[str, Any] | None]] = []
    for at in sorted(instants):
        after = said.after(state, at, terms)
        if not same_state(state, after):
            changes.append((at, after))
        state = after
    following: list[int | None] = [at for at, _ in changes[1:]]
    for (at, values), end in zip(changes, [*following, None], strict=False):
        if values is not None:
            yield at, end, values


def _last_upsert(said: LifeFacts, start: int) -> RecordRow | None:
    """The last upsert of an instant."""
    upserts = [row for row in said.events.get(start, ()) if row.kind == FactKind.UPSERT]
    return max(upserts, key=lambda row: row.sequence, default=None)


def _as_version(row: RecordRow, end: int | None, values: Mapping[str, Any]) -> RecordRow:
    told = {name: row.values.get(name) for name in values}
    merged = row.values if same_state(told, values) else {**row.values, **values}
    return replace(row, role=None, end=end, flag=end is None, values=merged)


def _as_fact(row: RecordRow) -> RecordRow | None:
    """A row that is no version of the fold: an event is silent (V24), what a copy began is nothing."""
    if row.role is not None:
        return row
    if row.kind != FactKind.UPSERT:
        return None
    return replace(row, role=Role.FACT, end=row.start, flag=False, ended_at=None, end_before=None)


def mend_rows(rows: Sequence[RecordRow], terms: LawTerms, broken: Collection[Law]) -> list[RecordRow]:
    """The rows as they should have been written, by the laws that they break; what is not among them goes.

    Rows without a key go, for no question ever finds them. What cannot be mended stays as it is: a hash, an
    end that nothing tells, and a version whose row is gone.
    """
    if not broken:
        return list(rows)
    if set(broken) == {Law.FOLD}:
        return _refold(rows, terms)
    kept = [row for row in _without_twins(rows) if row.keyed or is_mark(row)]
    if not terms.remembers:
        return _one_after_another(kept, terms)
    kept = [_of_its_kind(row) for row in kept]
    versions = _one_after_another([row for row in kept if row.role is None], terms)
    others = [row for row in kept if row.role is not None and _may_stay(row, terms)]
    after = _without_overlaps(_with_recorded_times(versions, terms), _without_repeated(versions, others))
    return _refold(after, terms) if set(memory.broken_together(after, terms)) == {Law.FOLD} else after


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


def agrees_with_end(row: RecordRow, versions: Sequence[RecordRow], terms: LawTerms) -> bool:
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
    folded = fold_facts(rows, terms)
    if folded is None:
        return list(rows)
    versions = [row for row in folded if row.role is None]
    after = _without_overlaps(versions, [row for row in folded if row.role is not None])
    return list(rows) if any(memory.broken_together(after, terms)) else after


def _without_twins(rows: Iterable[RecordRow]) -> list[RecordRow]:
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
    ended = [_with_end(row, following.get(row.place), terms) for row in ordered]
    lasting = [row for row in ended if has_length(row, terms) or (row.end is None and terms.grain)]
    cut = [_cut_overlap(row, after, terms) for row, after in zip(lasting, [*lasting[1:], None], strict=False)]
    return _with_markers(cut, {row.place: row for row in rows}, terms)


def _with_end(row: RecordRow, after: RecordRow | None, terms: LawTerms) -> RecordRow:
    """A version of Fivetran's that tells no end ends by its flag, or by its successor."""
    if not terms.grain or row.end is not None:
        return row
    if row.flag and after is None:
        return replace(row, end=terms.far)
    return row if after is None else replace(row, end=(after.start or 0) - terms.grain)


def _cut_overlap(row: RecordRow, after: RecordRow | None, terms: LawTerms) -> RecordRow:
    if after is None or after.start is None or until(row, terms) <= after.start:
        return row
    return replace(row, end=after.start - terms.grain)


def _with_markers(
    rows: Sequence[RecordRow], before: dict[int, RecordRow], terms: LawTerms
) -> list[RecordRow]:
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
        if agrees_with_end(row, rows, terms) and not moved:
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
    if memory.is_of_its_kind(row):
        return row
    return replace(row, role=None, scope=None, kind=None)


def _may_stay(row: RecordRow, terms: LawTerms) -> bool:
    """Whether a memory row is one of those that are written, told at a time that can be, and not settled."""
    settled = row.role == Role.FACT and memory.is_settled(row.start, terms)
    return not settled and memory.is_of_its_kind(row) and memory.is_recorded(row, terms.newest)


def _with_recorded_times(rows: Sequence[RecordRow], terms: LawTerms) -> list[RecordRow]:
    """Versions told at times that can be; a step that cannot be is forgotten."""
    known = [each.written for each in rows if each.written is not None]
    newest = max(known, default=0) if terms.newest is None else terms.newest
    found = []
    for row in rows:
        if memory.is_recorded(row, terms.newest):
            found.append(row)
            continue
        written = newest if row.written is None else min(row.written, newest)
        told = replace(row, written=written)
        if not memory.is_recorded(told, terms.newest):
            told = replace(told, ended_at=None, end_before=None)
        found.append(told)
    return found


def _without_repeated(versions: Sequence[RecordRow], others: Sequence[RecordRow]) -> list[RecordRow]:
    """Of facts of one instant and sequence the version, else the one recorded last."""
    facts = [row for row in others if memory.is_fact(row)]
    chosen = {
        _fact_identity(row): row.place for row in sorted(facts, key=lambda row: (row.written or 0, row.place))
    }
    chosen |= {_fact_identity(row): row.place for row in versions if memory.is_fact(row)}
    return [row for row in others if not memory.is_fact(row) or chosen[_fact_identity(row)] == row.place]


def _fact_identity(row: RecordRow) -> tuple[object, ...]:
    """What identifies a fact: instant and sequence of an event, and kind and scope of a mark."""
    event = row.keyed and row.kind in memory.EVENTS
    return (row.start, row.sequence, *(() if event else (row.kind, row.scope)))


def _without_overlaps(versions: Sequence[RecordRow], others: Sequence[RecordRow]) -> list[RecordRow]:
    """No two rows tell of one instant at one time: past ones go, and versions forget their earlier end."""
    told = list(versions)
    for place, row in enumerate(told):
        if row.ended_at is not None and memory.count_overlaps(told[place:]) > memory.count_overlaps(
            told[place + 1 :]
        ):
            told[place] = replace(row, ended_at=None, end_before=None)
    for row in sorted(others, key=lambda row: (row.written or 0, row.place)):
        if row.role != Role.PAST or not memory.count_overlaps([*told, row]):
            told.append(row)
    return told
