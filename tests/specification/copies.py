"""The effect of a full copy on a table of layout `versions`, in plain Python (native.md, sections 1 to 2.3).

The table is its stored rows, exactly as in V1 to V9. The life of each record is folded again, and the rows of
the new life are matched with the stored rows (V9). Instants and recorded times may be any values that have an
order.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from backstory.errors import Refused
from backstory.model.versions_layout import FactKind, Role
from specification.stored import (
    Instant,
    Key,
    StoredRow,
    StoredVersions,
    Values,
    move_end,
    take_back,
)
from specification.values import equal_in

OUTCOMES = ("new", "changed", "closed", "reopened", "unchanged")


@dataclass(frozen=True, slots=True)
class Copy:
    """Every record as the source had it at an instant, with the columns of the copy."""

    at: Instant
    rows: Mapping[Key, Values]
    columns: tuple[str, ...]
    closes: bool = True
    restate: bool = False
    backfill: bool = False
    remember: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """The table after a copy, unchanged if nothing was committed, and the number of records by outcome (V36)."""

    table: StoredVersions
    counts: Mapping[str, int] = field(default_factory=dict)


def take(table: StoredVersions, copy: Copy, recorded: Instant) -> Taken:
    """The table after the copy. Raises Refused if the result would be wrong."""
    table = _remembering(table, copy)
    _refuse_instant(table, copy)
    following = _following(table, copy.at)
    rows, counts = [row for row in table.rows if not row.is_version], Counter(dict.fromkeys(OUTCOMES, 0))
    for key in dict.fromkeys([*(row.key for row in table.versions), *copy.rows]):
        now = table.as_of(key, copy.at)
        values = _values_after(table, copy, key)
        same = _same(table, now, values, table.columns if copy.restate else copy.columns)
        counts.update(_outcome(table, copy, key, now, same=None if values is None else same))
        life = table.life(key) if same else None
        rows += _matched(table, key, _folded(table, key, copy.at, values, following), recorded, life)
    _refuse_other_content(table, copy, counts)
    if following is None:
        rows = [_overwritten(table, copy, row) for row in rows]
    if table.settled is not None:
        rows = _remembered(table, copy, rows, recorded)
    changed = sorted(map(repr, rows)) != sorted(map(repr, table.rows))
    newest = copy.at if table.newest is None or (changed and copy.at > table.newest) else table.newest
    after = replace(table, rows=tuple(rows), newest=newest)
    return Taken(after if changed else table, counts)


def _remembering(table: StoredVersions, copy: Copy) -> StoredVersions:
    """The table with a memory from now on, if the copy is the first delivery that requires it (V28, N3, V40)."""
    if table.settled is None and not copy.backfill and table.newest is not None and copy.at < table.newest:
        raise Refused("time-backwards", "A newer copy is stored.")
    if table.settled is not None or not (copy.backfill or copy.remember):
        return table
    ends = [each for row in table.versions for each in (row.start, row.end) if each is not None]
    return replace(table, settled=(min(ends), max(ends)) if ends else ())


def _refuse_instant(table: StoredVersions, copy: Copy) -> None:
    if table.settled and table.settled[0] <= copy.at <= table.settled[1]:
        raise Refused("settled", "The time is settled.")
    if table.settled is not None and not copy.closes:
        raise Refused("partial-copy", "A copy that may lack records is a feed.")
    following = _following(table, copy.at)
    if any(row.is_mark and row.start == following and row.columns is not None for row in table.rows):
        raise Refused("settled", "The next copy lacked columns, whose values at that time would change.")


def _refuse_other_content(table: StoredVersions, copy: Copy, counts: Mapping[str, int]) -> None:
    """V37: raise Refused if another copy is stored for the instant, and this copy would change the content."""
    marks = [row.start for row in table.rows if row.is_mark]
    stored = copy.at in marks if table.settled is not None else copy.at == table.newest
    differs = any(number for outcome, number in counts.items() if outcome != "unchanged")
    if stored and differs and not copy.restate:
        raise Refused("same-instant", "Another copy for this time is stored.")


def _following(table: StoredVersions, instant: Instant) -> Instant | None:
    """The next instant after this one for which facts of every record are known (V30, V31), or None."""
    known = [*(row.start for row in table.rows if row.is_mark), *(table.settled or ())[:1]]
    return min((each for each in known if each > instant), default=None)


def _values_after(table: StoredVersions, copy: Copy, key: Key) -> Values | None:
    """The known values of a record at the copy's instant after the copy: the step of V22."""
    before = next((row.values for row in table.life(key) if _until(row, copy.at)), None)
    row = copy.rows.get(key)
    if row is None:
        return None if copy.closes else table.as_of(key, copy.at)
    if before is not None and _same(table, before, row, copy.columns):
        return before
    return {name: row.get(name) if name in copy.columns else None for name in table.columns}


def _until(row: StoredRow, instant: Instant) -> bool:
    """Whether a version was the known state just before an instant (V78)."""
    return bool(row.start < instant and (row.end is None or row.end >= instant))


def _same(table: StoredVersions, one: Values | None, other: Values | None, columns: Sequence[str]) -> bool:
    """Whether two states are equal in the tracked ones of these columns."""
    if one is None or other is None:
        return one is other
    return equal_in((name for name in columns if name in table.tracked), one, other)


def _outcome(
    table: StoredVersions, copy: Copy, key: Key, now: Values | None, *, same: bool | None
) -> dict[str, int]:
    """The outcome of a record by its states at the copy's instant before and after the copy (V36).

    `same` is None if the record does not exist after the copy.
    """
    if now is None:
        return {"reopened" if table.life(key) else "new": 1} if same is not None else {}
    if same is None:
        return {"closed": 1}
    if key not in copy.rows:
        return {}
    renewed = not equal_in(table.overwritten & set(copy.columns), now, copy.rows[key])
    return {"unchanged" if same and not (renewed and _following(table, copy.at) is None) else "changed": 1}


def _folded(
    table: StoredVersions, key: Key, at: Instant, values: Values | None, following: Instant | None
) -> list[tuple[Instant, Instant | None, Values]]:
    """The record's new life. The copy's values are true from its instant until the following one (V23)."""
    stored = {each for row in table.life(key) for each in (row.start, row.end) if each is not None}
    instants = sorted({*stored, at, *([] if following is None else [following])})
    life: list[tuple[Instant, Instant | None, Values]] = []
    state: Values | None = None
    for instant in instants:
        says = at <= instant and (following is None or instant < following)
        new_state = values if says else table.as_of(key, instant)
        if not _same(table, state, new_state, table.columns):
            if state is not None:
                life[-1] = (life[-1][0], instant, state)
            if new_state is not None:
                life.append((instant, None, new_state))
            state = new_state
        elif state is not None and new_state is not None and instant != at:
            # Columns without history have the values of the newest version (V18).
            state = {**state, **{name: new_state[name] for name in table.overwritten}}
            life[-1] = (life[-1][0], None, state)
    return life


def _matched(
    table: StoredVersions,
    key: Key,
    life: Sequence[tuple[Instant, Instant | None, Values]],
    recorded: Instant,
    unmoved: list[StoredRow] | None,
) -> list[StoredRow]:
    """The rows of a record after its new life is matched with its stored rows (V9)."""
    if unmoved is not None:
        return unmoved
    left = {start: (end, values) for start, end, values in life}
    rows: list[StoredRow] = []
    for row in table.life(key):
        end, values = left.get(row.start, (None, None))
        if values is not None and _alike(table, values, row.values):
            left.pop(row.start)
            rows += move_end(replace(row, values=values), end, recorded)
        else:
            rows += take_back(row, recorded)
    return [*rows, *(StoredRow(key, values, start, end, recorded) for start, (end, values) in left.items())]


def _alike(table: StoredVersions, one: Values, other: Values) -> bool:
    """Whether values are the same, apart from columns without history (V9, V18)."""
    return equal_in((name for name in table.columns if name not in table.overwritten), one, other)


def _overwritten(table: StoredVersions, copy: Copy, row: StoredRow) -> StoredRow:
    """An open version, with the copy's values in columns without history (V18)."""
    delivered = copy.rows.get(row.key) if row.is_version and row.end is None else None
    names = [name for name in copy.columns if name in table.overwritten]
    if delivered is None or not names:
        return row
    return replace(row, values={**row.values, **{name: delivered.get(name) for name in names}})


def _remembered(
    table: StoredVersions, copy: Copy, rows: Sequence[StoredRow], recorded: Instant
) -> list[StoredRow]:
    """The rows with the mark of the copy (V31). A restatement replaces a mark with other columns (V37)."""
    columns = None if set(copy.columns) >= set(table.columns) else copy.columns
    mark = StoredRow(None, {}, copy.at, copy.at, recorded, Role.FACT, kind=FactKind.COPY, columns=columns)
    here = [row for row in rows if row.is_mark and row.start == copy.at]
    if here and (here[0].columns == columns or not copy.restate):
        return list(rows)
    ended = {id(row): replace(row, ended_at=recorded) for row in here}
    return [*(ended.get(id(row), row) for row in rows), mark]
