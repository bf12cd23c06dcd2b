"""Random deliveries for tests: those of a Fivetran sender, and others that nobody should send.

`batches()` simulates a source: ordered operations on a few records, split into batches as sections 3.5
and 7.11 describe, some of them sent again from an earlier point. `wild_batches()` fills the four
lists of a history batch with any values of valid types. `live_batches()` does so for live tables.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hypothesis import strategies as st
from specification.versions import TMAX, Row
from tables_as_text import instant

from backstory.model.layout import ACTIVE, END, START, SYNCED
from backstory.model.values import UNMODIFIED

Batch = dict[str, list[Row]]

KEY = ("id", "part")
KEYS = ((1, "x"), (1, "x "), (1, None), (2, "x"))
VALUES = ("a", "b")
LEFT_OVER = "left_over"  # a column of the table that requests omit
COLUMNS = (*KEY, *VALUES, SYNCED, START, END, ACTIVE)
LIVE_COLUMNS = (*KEY, *VALUES, SYNCED)
INSTANTS = tuple(map(instant, ["T1", "T1+1", "T2", "T3-1", "T3", "T3+0.25", "T4", "T5"]))
MILLISECOND = timedelta(milliseconds=1)
ABSENT = object()

LETTERS = st.sampled_from(["p", "q", ""]) | st.none()
NUMBERS = st.integers(1, 3) | st.none()
MOMENTS = st.sampled_from(INSTANTS)
ENDS = st.sampled_from([*INSTANTS, TMAX])


@dataclass(frozen=True)
class History:
    """A table, the batches sent to it, and for `batches()` the table after each batch."""

    stored: list[Row]
    batches: list[Batch]
    tables: tuple[list[Row], ...] = ()


@dataclass(frozen=True)
class Operation:
    """An operation of the source on one record: upsert, update or delete.

    `values` are the values that it set.
    """

    kind: str
    key: tuple[object, ...]
    at: datetime
    values: Row

    def named(self) -> Row:
        return dict(zip(KEY, self.key, strict=True))

    def synced(self) -> datetime:
        return self.at + timedelta(hours=1)


@st.composite
def operations(draw: st.DrawFn) -> list[Operation]:
    """Operations in ascending time. Only records that exist are updated or deleted."""
    made, alive, at = [], set(), instant("T1")
    for _ in range(draw(st.integers(1, 12))):
        key = draw(st.sampled_from(KEYS[:3]))
        kind = draw(st.sampled_from(["update", "upsert", "delete"])) if key in alive else "upsert"
        columns = {"a": LETTERS, "b": NUMBERS}
        optional = {"update": columns, "upsert": {}, "delete": columns}[kind]
        required = {} if optional else columns
        values = draw(st.fixed_dictionaries(required, optional=optional))
        made.append(Operation(kind, key, at, {} if kind == "delete" else values))
        (alive.discard if kind == "delete" else alive.add)(key)
        at += draw(st.sampled_from([1, 2, 1000])) * MILLISECOND
    return made


def table_after(done: list[Operation]) -> list[Row]:
    """The source's own history, which a table must contain after these operations."""
    rows, current = [], {}
    for operation in done:
        before = current.pop(operation.key, None)
        deleted = operation.kind == "delete"
        if before is not None:
            end = operation.at - (0 if deleted else 1) * MILLISECOND
            before |= {END: end, ACTIVE: False}
        if not deleted:
            times = {SYNCED: operation.synced(), START: operation.at, END: TMAX, ACTIVE: True}
            former = before if operation.kind == "update" else {}
            current[operation.key] = {**operation.named(), **former, **operation.values, **times}
            rows.append(current[operation.key])
    return rows


@dataclass(frozen=True)
class Habits:
    """The way in which one sender writes deletes: their shape, and whether the earliest rows include them."""

    delete: str = "tester"
    earliest_covers_deletes: bool = False


HABITS = st.builds(
    Habits,
    delete=st.sampled_from(["tester", "bare", "active", "update"]),
    earliest_covers_deletes=st.booleans(),
)


def batch_of(done: list[Operation], habits: Habits = Habits()) -> Batch:
    """The four lists of a batch with these operations (sections 3.5 and 7.11)."""
    batch: Batch = {"earliest": [], "replace": [], "update": [], "delete": []}
    begun = set()
    for place, operation in enumerate(done):
        later = (other.at for other in done[place + 1 :] if other.key == operation.key)
        kind, row = _file_row(operation, next(later, None), habits)
        batch[kind].append(row)
        covered = operation.kind != "delete" or habits.earliest_covers_deletes
        if covered and operation.key not in begun:
            begun.add(operation.key)
            batch["earliest"].append({**operation.named(), START: operation.at})
    return batch


def _file_row(operation: Operation, following: datetime | None, habits: Habits) -> tuple[str, Row]:
    if operation.kind == "delete":
        return _delete_row(operation, habits.delete)
    times = {
        SYNCED: operation.synced(),
        START: operation.at,
        END: TMAX if following is None else following - MILLISECOND,
        ACTIVE: following is None,
    }
    unmodified = dict.fromkeys(VALUES, UNMODIFIED) if operation.kind == "update" else {}
    row = {**operation.named(), **unmodified, **operation.values, **times}
    return ("update" if unmodified else "replace"), row


def _delete_row(operation: Operation, shape: str) -> tuple[str, Row]:
    row = {**operation.named(), END: operation.at, SYNCED: operation.synced()}
    match shape:
        case "tester":
            return "delete", {**dict.fromkeys(COLUMNS), ACTIVE: False, **row}
        case "active":
            return "delete", {**dict.fromkeys(COLUMNS), ACTIVE: True, **row}
        case "update":
            unmodified = dict.fromkeys(VALUES, UNMODIFIED)
            return "update", {**unmodified, START: None, ACTIVE: False, **row}
        case _:
            return "delete", row


@st.composite
def batches(draw: st.DrawFn) -> History:
    """A table with a history and the well-formed batches that follow, in order.

    A batch may begin with operations that were sent before, as after a failed sync. It never moves the table
    back: `tables[i]` is the source's own history up to batch i.
    """
    done = draw(operations())
    reached = draw(st.integers(0, len(done)))
    history = History(table_after(done[:reached]), [])
    for _ in range(draw(st.integers(1, 4))):
        begin, reached = draw(st.integers(0, reached)), draw(st.integers(reached, len(done)))
        history.batches.append(batch_of(done[begin:reached], draw(HABITS)))
        history = replace(history, tables=(*history.tables, table_after(done[:reached])))
    return history


@st.composite
def stored_versions(draw: st.DrawFn) -> list[Row]:
    """A history without overlap. Each version ends before the next one starts, with gaps."""
    rows = []
    for key in draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=3)):
        starts = sorted(draw(st.sets(MOMENTS, min_size=1, max_size=3)))
        for start, following in zip(starts, [*starts[1:], None], strict=True):
            ends = [end for end in INSTANTS if start <= end and (not following or end < following)]
            ends.append(TMAX if following is None else max(start, following - MILLISECOND))
            end = draw(st.sampled_from(ends) | st.just(ends[-1]))
            times = {SYNCED: draw(MOMENTS), START: start, END: end, ACTIVE: end == TMAX}
            values = {"a": draw(LETTERS), "b": draw(NUMBERS), LEFT_OVER: draw(LETTERS)}
            rows.append({**dict(zip(KEY, key, strict=True)), **values, **times})
    return rows


def _rows(**cells: st.SearchStrategy[object]) -> st.SearchStrategy[list[Row]]:
    """Up to four rows with few keys. A cell drawn as ABSENT is not in the row."""
    row = st.fixed_dictionaries({"key": st.sampled_from(KEYS), **cells}).map(_without_absent)
    return st.lists(row, max_size=4)


def _without_absent(cells: Row) -> Row:
    named = dict(zip(KEY, cells["key"], strict=True))
    return named | {c: v for c, v in cells.items() if c != "key" and v is not ABSENT}


def _maybe(cells: st.SearchStrategy[object], *marks: object) -> st.SearchStrategy[object]:
    """A cell that may have one of the marks. It is absent from about one row in four."""
    return st.one_of(cells, cells, st.sampled_from([None, *marks]), st.just(ABSENT))


_replaced = _rows(
    **{
        "a": _maybe(LETTERS),
        "b": _maybe(NUMBERS),
        LEFT_OVER: st.just(ABSENT) | LETTERS,
        SYNCED: _maybe(MOMENTS),
        START: MOMENTS,
        END: ENDS,
        ACTIVE: _maybe(st.booleans()),
    }
)
_updated = _rows(
    **{
        "a": _maybe(LETTERS, UNMODIFIED),
        "b": _maybe(NUMBERS, UNMODIFIED),
        LEFT_OVER: st.sampled_from([ABSENT, UNMODIFIED]) | LETTERS,
        SYNCED: _maybe(MOMENTS, UNMODIFIED),
        START: MOMENTS,
        END: ENDS,
        ACTIVE: _maybe(st.booleans(), UNMODIFIED),
    }
)
_no_value = st.sampled_from([ABSENT, UNMODIFIED])
_without_start = _rows(
    **{
        "a": _no_value,
        "b": _no_value,
        LEFT_OVER: _no_value,
        SYNCED: _maybe(MOMENTS, UNMODIFIED),
        START: st.sampled_from([ABSENT, UNMODIFIED, None]),
        END: _maybe(ENDS, UNMODIFIED),
        ACTIVE: _maybe(st.booleans(), UNMODIFIED),
    }
)
_deleted = _rows(
    **{
        "a": _maybe(LETTERS),
        SYNCED: _maybe(MOMENTS),
        START: _maybe(MOMENTS),
        END: ENDS,
        ACTIVE: _maybe(st.booleans()),
    }
)


@st.composite
def wild_batches(draw: st.DrawFn) -> History:
    """A well-formed table that has one column more than COLUMNS, and one arbitrary batch.

    Nothing in it raises an error: the types are valid, and starts and ends exist where rows need them.
    """
    batch = {
        "earliest": draw(_rows(**{START: MOMENTS})),
        "replace": draw(_replaced),
        "update": draw(st.permutations(draw(_updated) + draw(_without_start))),
        "delete": draw(_deleted),
    }
    return History(draw(stored_versions()), [batch])


@st.composite
def live_batches(draw: st.DrawFn) -> History:
    """A live table that has one column more than LIVE_COLUMNS, and one arbitrary batch."""
    cells = {"a": LETTERS, "b": NUMBERS, LEFT_OVER: LETTERS, SYNCED: MOMENTS}
    stored = {tuple(row[c] for c in KEY): row for row in draw(_rows(**cells))}
    replaced = {"a": _maybe(LETTERS), "b": _maybe(NUMBERS), SYNCED: _maybe(MOMENTS)}
    updated = {
        "a": _maybe(LETTERS, UNMODIFIED),
        "b": _maybe(NUMBERS, UNMODIFIED),
        SYNCED: _maybe(MOMENTS, UNMODIFIED),
    }
    batch = {
        "replace": draw(_rows(**replaced, **{LEFT_OVER: st.just(ABSENT) | LETTERS})),
        "update": draw(_rows(**updated, **{LEFT_OVER: _no_value | LETTERS})),
        "delete": draw(_rows(a=_maybe(LETTERS))),
    }
    return History(list(stored.values()), [batch])
