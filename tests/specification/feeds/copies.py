"""The effect of a full or scoped copy on a table with a memory (native.md V35 to V44, V69 to V71).

A copy is one fact for each record. Later its listed rows are read from the table, so that only its mark is
stored (V31).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from backstory.errors import Refused
from backstory.model.versions_layout import FactKind, Role
from specification.copies import OUTCOMES, Copy, Taken
from specification.feeds.fold import Fact, Life, folded, lies_in, same
from specification.feeds.order import is_settled, placed
from specification.feeds.remembering import (
    facts_of,
    mark_of,
    recorded_life,
    voids_of,
)
from specification.feeds.rule import remembering
from specification.stored import Instant, Key, Scope, StoredRow, StoredVersions
from specification.values import equal_in


def take_among(table: StoredVersions, copy: Copy, recorded: Instant, scope: Scope | None = None) -> Taken:
    """The table after a copy of all records or of a scope. Raises Refused if the result would be wrong."""
    before, table = table, remembering(table)
    _refuse(table, copy, scope)
    columns = None if set(copy.columns) >= set(table.columns) else copy.columns
    mark = StoredRow(
        None, {}, copy.at, copy.at, recorded, Role.FACT, kind=FactKind.COPY, columns=columns, scope=scope
    )
    stored = [row for row in table.rows if row.key is None and row.is_live and mark_of(row) == mark_of(mark)]
    rows: list[StoredRow] = []
    counts = Counter(dict.fromkeys(OUTCOMES, 0))
    keys = dict.fromkeys([*(row.key for row in table.rows if row.key is not None), *copy.rows])
    for key in keys:
        listed = copy.rows.get(key)
        if listed is None and table.as_of(key, copy.at) is None:  # absent as before, so its rows stay (V80)
            rows += [row for row in table.rows if row.key == key and row.kind is not FactKind.VOID]
        else:
            others = [fact for fact in facts_of(table, key) if not _is(fact, copy.at, scope)]
            own = Fact(FactKind.COPY, copy.at, listed, columns, scope=scope)
            life = folded(table, key, placed(table, [*others, own])[0], copy.at)
            life = _replacing(table, key, life, own)
            counts.update(_outcome(table, key, life, copy))
            rows += recorded_life(table, key, life, recorded)
        rows += voids_of(table, key, [], {mark_of(mark)} if copy.restate or not stored else set(), recorded)
    differs = any(number for outcome, number in counts.items() if outcome != "unchanged")
    if stored and not copy.restate:
        if differs:
            raise Refused("same-instant", "Another copy for this time is stored.")
        return Taken(before, counts)
    keeps = bool(stored) and stored[0].columns == columns
    for row in (row for row in table.rows if row.key is None):
        rows.append(replace(row, ended_at=recorded) if row in stored and not keeps else row)
    after = replace(table, rows=(*rows, *([] if keeps else [mark])))
    changed = Counter(map(repr, after.rows)) != Counter(map(repr, table.rows))
    return Taken(after if changed else before, counts)


def _refuse(table: StoredVersions, copy: Copy, scope: Scope | None) -> None:
    if is_settled(table, copy.at):
        raise Refused("settled", "The time is settled.")
    if not copy.closes:
        raise Refused("partial-copy", "A copy that may lack records is a feed.")
    if not all(lies_in(table, scope, key, values) for key, values in copy.rows.items()):
        raise Refused("out-of-scope", "A row is not in the scope.")
    beside = [
        row
        for row in table.rows
        if row.key is None
        and row.is_live
        and row.kind is FactKind.COPY
        and row.start == copy.at
        and row.scope != scope
    ]
    if not all(_disjoint(scope, row.scope) for row in beside):
        raise Refused("same-instant", "A copy for this time is stored whose scope meets this one.")
    listed = (fact for key in copy.rows for fact in facts_of(table, key) if fact.values is not None)
    if any(fact.kind is FactKind.COPY and fact.at == copy.at and fact.scope != scope for fact in listed):
        raise Refused("same-instant", "A copy of another scope has the record at this time.")


def _disjoint(one: Scope | None, other: Scope | None) -> bool:
    """Whether no record is in both scopes, because they require different values of one column (V43)."""
    wanted = dict(one or ())
    return any(name in wanted and wanted[name] != value for name, value in other or ())


def _is(fact: Fact, at: Instant, scope: Scope | None) -> bool:
    return fact.kind is FactKind.COPY and (fact.at, fact.scope) == (at, scope)


def _replacing(table: StoredVersions, key: Key, life: Life, own: Fact) -> Life:
    """The life, in which a version of the replaced copy that stays keeps its ignored values.

    It also keeps its values in columns under `overwrite` that neither the copy nor a later fact sets (V18).
    """
    facts = [step.fact for step in life.steps]
    begins = next((n for n, fact in enumerate(facts) if _is(fact, own.at, own.scope)), len(facts))
    later = [fact for fact in facts[begins:] if fact.values is not None]
    unset = [n for n in table.overwritten if not any(n in (fact.columns or table.columns) for fact in later)]
    ignored = [n for n in table.columns if n not in table.tracked and n not in table.overwritten]
    stored = {row.start: row.values for row in table.life(key) if row.kind is None}
    versions = []
    for version in life.versions:
        former = stored.get(version.start) if _is(version.fact, own.at, own.scope) else None
        stays = former is not None and same(table, former, version.values, table.columns)
        values = {name: former.get(name) for name in (*ignored, *unset)} if former and stays else {}
        versions.append(replace(version, values={**version.values, **values}))
    return replace(life, versions=tuple(versions))


def _outcome(table: StoredVersions, key: Key, life: Life, copy: Copy) -> Sequence[str]:
    """The outcome of a record, by its states at the copy's instant before and after the copy (V36)."""
    before, after = table.as_of(key, copy.at), life.as_of(copy.at)
    if key not in copy.rows:
        changed = [] if same(table, before, after, table.columns) else ["changed"]
        return ["closed"] if before is not None and after is None else changed
    if before is None:
        return ["reopened" if table.life(key) else "new"]
    renewed = not equal_in(table.overwritten, before, after or {})
    return ["changed" if renewed or not same(table, before, after, table.columns) else "unchanged"]
