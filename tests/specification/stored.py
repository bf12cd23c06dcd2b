"""Stored rows of layout `versions`, and how their ends move, in plain Python (native.md V1 to V8).

Instants and recorded times may be any values that have an order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from backstory.model.versions_layout import FactKind, Role
from backstory.strategies.feeds.terms import FormerLogs

Key = Any
Instant = Any
Values = Mapping[str, Any]
# The columns and values that all records in a copy's scope have, sorted. A copy without a scope is of all
# records.
Scope = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A stored row (V1, V2).

    A mark has neither a key nor values. A row with its own `time` is a message of a log; `sequence` is its
    position there (V133).
    """

    key: Key | None
    values: Values
    start: Instant
    end: Instant | None
    recorded: Instant
    role: Role | None = None
    ended_at: Instant | None = None
    end_before: Instant | None = None
    kind: FactKind | None = None
    columns: tuple[str, ...] | None = None
    sequence: tuple[Any, ...] = ()
    scope: Scope | None = None
    time: Instant | None = None

    @property
    def is_version(self) -> bool:
        """Whether the row is a version, not only a stored fact (V3)."""
        return self.role is None

    @property
    def is_live(self) -> bool:
        """Whether the row is a version, or a fact that was not withdrawn (V4)."""
        return self.role is None or (self.role is Role.FACT and self.ended_at is None)

    @property
    def is_event(self) -> bool:
        """Whether the row stores an event of its key that was not withdrawn (V4)."""
        return self.is_live and self.kind in {FactKind.UPSERT, FactKind.DELETE}

    @property
    def is_mark(self) -> bool:
        """Whether the row is the mark of a copy that was not withdrawn (V31)."""
        return self.kind is FactKind.COPY and self.role is Role.FACT and self.ended_at is None

    def covers(self, instant: Instant) -> bool:
        """Whether the row's values were true at an instant. Ends are excluded (V99)."""
        return bool(self.start <= instant and (self.end is None or instant < self.end))


@dataclass(frozen=True, slots=True)
class StoredVersions:
    """The stored rows of a table, and the description of its columns.

    `settled` is None without a memory. With a memory, it is empty or has two instants, and a first instant of
    None is unbounded (V13). `columns` are the columns of the data, and `key` is the name of the key column.
    Columns in `ignored` and `overwritten` make no versions. `former` are the logs before the current one, or
    None if there are none.
    """

    columns: tuple[str, ...]
    rows: tuple[StoredRow, ...] = ()
    newest: Instant | None = None
    settled: tuple[Instant, ...] | None = None
    ignored: frozenset[str] = frozenset()
    overwritten: frozenset[str] = frozenset()
    key: str = "k"
    former: FormerLogs | None = None
    # The versions by record, because a copy needs the versions of thousands of records.
    _lives: Mapping[Key, list[StoredRow]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        lives: dict[Key, list[StoredRow]] = {}
        for row in self.versions:
            lives.setdefault(row.key, []).append(row)
        object.__setattr__(self, "_lives", lives)

    @property
    def versions(self) -> list[StoredRow]:
        """The rows that are versions at present."""
        return [row for row in self.rows if row.is_version]

    @property
    def tracked(self) -> list[str]:
        """The columns whose values make versions."""
        return [name for name in self.columns if name not in self.ignored | self.overwritten]

    def life(self, key: Key) -> list[StoredRow]:
        """The versions of a record."""
        return [*self._lives.get(key, ())]

    def as_of(self, key: Key, instant: Instant) -> Values | None:
        """The values of a record at an instant, or None if it did not exist then."""
        return next((row.values for row in self.life(key) if row.covers(instant)), None)

    def statements_at(self, recorded: Instant) -> list[tuple[Key, Instant, Instant | None, Values]]:
        """The versions in the table at a recorded time: key, start, end and values (V6)."""
        statements = []
        for row in self.rows:
            if row.recorded <= recorded and row.role is not Role.FACT:
                moved_later = row.ended_at is not None and row.ended_at > recorded
                end = row.end_before if moved_later else row.end
                if end is None or row.start < end:
                    statements.append((row.key, row.start, end, row.values))
        return statements


def move_end(row: StoredRow, end: Instant | None, recorded: Instant) -> list[StoredRow]:
    """The row with another end, and a row for the statement that this would overwrite (V7)."""
    if end == row.end:
        return [row]
    moved = replace(row, end=end, ended_at=recorded, end_before=row.end)
    if row.ended_at is None:
        return [moved]
    return [replace(moved, recorded=row.ended_at), replace(row, role=Role.PAST, end=row.start)]


def take_back(row: StoredRow, recorded: Instant) -> list[StoredRow]:
    """The version as a withdrawn statement (V8)."""
    moved, *left = move_end(row, row.start, recorded)
    return [replace(moved, role=Role.PAST), *left]
