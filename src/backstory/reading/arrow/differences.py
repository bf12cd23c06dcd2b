"""What changed in a table between two times: counted and grouped as a whole, shown a page at a time."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.reading.arrow.knowledge import KnownTable, table_at
from backstory.reading.arrow.narrowing import moving_between
from backstory.reading.arrow.order import places_in_order
from backstory.reading.arrow.point_in_time import as_of, current
from backstory.reading.arrow.versions import SORTED, answer, held, revisions, versions
from backstory.reading.comparisons import ENDS, Comparison
from backstory.reading.differences import ANSWER, CHANGED, differences_query, moves_query
from backstory.reading.frames.event_logs import system_columns
from backstory.reading.frames.knowledge import require_knowledge
from backstory.reading.frames.versions import HISTORIES, shown_key
from backstory.reading.lifetimes import DUCKDB, ENDED, STARTED, named
from backstory.reading.lives import value_text
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import booleans, integers, numbers, rows_of, truths_of
from backstory.strategies.codes import identities, ranks

Row = Mapping[str, Any]
Difference = dict[str, Any]
# No row of a side.
NONE: Final = -1
_SPANS: Final = {STARTED: VALID_FROM, ENDED: VALID_TO}


@dataclass(frozen=True, slots=True)
class AlikeChange:
    """So many records that had one value in a column and have another, as people read them."""

    count: int
    column: str
    before: str
    after: str


@dataclass(frozen=True)
class Differences:
    """The records that differ, as places of rows.

    `rows` gives the rows at some places, and `codes` has for each compared column a number for its value in
    each row. A record has its kind of `change`, the places of a row of it, and of those before and after, and
    whether it was away in between, if that was asked for.
    """

    rows: Callable[[np.ndarray], Sequence[Row]]
    key: Sequence[str]
    codes: Mapping[str, np.ndarray]
    change: np.ndarray
    row: np.ndarray
    before: np.ndarray
    after: np.ndarray
    away: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.change)

    def of_kind(self, kind: str | None) -> "Differences":
        """The records with one kind of change; all for None."""
        return self if kind is None else self.at(np.flatnonzero(self.change == kind))

    def kinds(self) -> Counter[str]:
        """How many records are of each kind."""
        return Counter(self.change.tolist())

    @cached_property
    def _changed(self) -> dict[str, np.ndarray]:
        """For each column that is not of the key, the records in which it differs."""
        records = np.flatnonzero(self.change == CHANGED)
        before, after = self.before[records], self.after[records]
        others = {name: codes for name, codes in self.codes.items() if name not in self.key}
        return {name: records[codes[before] != codes[after]] for name, codes in others.items()}

    def columns(self) -> Counter[str]:
        """In how many changed records each column differs."""
        return Counter({name: len(records) for name, records in self._changed.items() if len(records)})

    def alike_changes(self, most: int) -> list[AlikeChange]:
        """The changes of values that several records have in common, the most frequent first."""
        groups = [group for name in self._changed for group in self._alike(name, most)]
        return sorted(groups, key=lambda each: -each.count)[:most]

    def _alike(self, name: str, most: int) -> list[AlikeChange]:
        records, codes = self._changed[name], self.codes[name]
        before, after = self.before[records], self.after[records]
        pairs = codes[before] * (int(codes.max(initial=0)) + 1) + codes[after]
        _, firsts, counts = np.unique(pairs, return_index=True, return_counts=True)
        frequent = [place for place in np.argsort(-counts, kind="stable")[:most] if counts[place] > 1]
        sides = (self.rows(side[firsts[frequent]]) for side in (before, after))
        return [
            AlikeChange(int(counts[place]), name, value_text(one[name]), value_text(other[name]))
            for place, one, other in zip(frequent, *sides, strict=True)
        ]

    def page(self, begin: int = 0, end: int | None = None) -> list[Difference]:
        """Some of the records: `key`, `change`, `before`, `after`, `changed`, and `away` if it is known."""
        part = self.at(np.arange(len(self))[begin:end])
        changed: list[list[str]] = [[] for _ in part.change]
        for name, records in part._changed.items():  # noqa: SLF001 - of this class
            for record in records:
                changed[record].append(name)
        sides = (part.rows_at(places) for places in (part.row, part.before, part.after))
        shown = [self._shown(*each) for each in zip(part.change.tolist(), *sides, changed, strict=True)]
        if part.away is None:
            return shown
        return [{**each, "away": away} for each, away in zip(shown, part.away.tolist(), strict=True)]

    def _shown(
        self, change: str, row: Row, before: Row | None, after: Row | None, changed: list[str]
    ) -> Difference:
        if not self.key:  # one row stands for its copies, whichever zeros these have
            before, after = (None if each is None else _unsigned(each) for each in (before, after))
        known = before or after or row
        key = _unsigned({name: known[name] for name in self.key or known})
        return {"key": key, "change": change, "before": before, "after": after, "changed": changed}

    def rows_at(self, places: np.ndarray) -> list[Row | None]:
        """The rows at these places, None for no place."""
        rows = iter(self.rows(places[places != NONE]))
        return [None if place == NONE else next(rows) for place in places]

    def at(self, records: np.ndarray) -> "Differences":
        """Some of the records, in this order."""
        away = None if self.away is None else self.away[records]
        sides = (side[records] for side in (self.change, self.row, self.before, self.after))
        change, row, before, after = sides
        return replace(self, change=change, row=row, before=before, after=after, away=away)


def _unsigned(row: Row) -> dict[str, Any]:
    """The row with 0.0 for either zero."""
    return {name: value + 0.0 if isinstance(value, float) else value for name, value in row.items()}


def diff(
    files: Files,
    first: datetime,
    second: datetime,
    known_at: datetime | None = None,
    comparison: Comparison = ENDS,
) -> Differences:
    """How the records at one instant differ from those at another, in the order of their keys.

    Raises what `versions` raises; the meaning is that of `diff` of frames.
    """
    between = micros_of(first), micros_of(second)
    known = moving_between(table_at(files, known_at), between)
    sided = versions(known, partial(moves_query, DUCKDB, between=between, through=comparison.through))
    return _differences(known, sided.users.take(sided.places), sided.spans, comparison)


def diff_knowledge(
    files: Files, first: datetime, second: datetime, time: datetime, comparison: Comparison = ENDS
) -> Differences:
    """How the answers for one instant differ between two known times (V96)."""
    table = files.table
    if table.shape.layout is Layout.VERSIONS:
        for each in (first, second):
            require_knowledge(table, each)
        known = table_at(files, second)
        sided = revisions(known, micros_of(time), (micros_of(first), micros_of(second)))
        return _differences(known, sided.users.take(sided.places), sided.spans, comparison)
    sides = []
    for known_at in (first, second):
        lasting = table_at(files, known_at).shape.layout in HISTORIES
        sides.append(as_of(files, time, known_at) if lasting else current(files, known_at))
    before, _ = sides
    try:
        rows = pa.concat_tables(sides, promote_options="default")
    except pa.ArrowException:
        raise Unreadable("columns of other types then") from None
    is_after = np.arange(rows.num_rows) >= before.num_rows
    spans = {"before": booleans(~is_after), "after": booleans(is_after)}
    spans |= {VALID_FROM: rows[VALID_FROM]} if VALID_FROM in rows.column_names else {}
    return _differences(table_at(files, None), rows, pa.table(spans), comparison)


def _differences(known: KnownTable, rows: pa.Table, sides: pa.Table, comparison: Comparison) -> Differences:
    """The differences of rows, each with whether it was true before and after, and its time."""
    shape = known.shape
    key = shown_key(shape)
    names = comparison.names(
        shape.table, key, [each for each in rows.column_names if each not in {VALID_FROM, VALID_TO}]
    )
    if any(pa.types.is_map(each.type) for each in rows.schema if each.name in (key or names)):
        raise Unreadable("maps in a key")
    if not set(key) <= set(names):
        raise Unreadable("a key of other columns then")
    timed = shape.layout is Layout.ODF and bool(system_columns(known.table)["events"])
    rows = rows.select(names)
    with held(known, "differences", SORTED * len(names) * rows.num_rows * 8):
        return differences(rows, key, sides, comparison, timed=timed)


def differences(
    values: pa.Table,
    key: Sequence[str],
    sides: pa.Table,
    comparison: Comparison,
    rows: Callable[[np.ndarray], Sequence[Row]] | None = None,
    *,
    timed: bool = False,
) -> Differences:
    """The records whose rows differ in these values, in the order of their keys.

    `sides` has for each row whether it was true `before` and `after`, and `valid_from` and `valid_to` where
    the question is about passages, or with `timed` about events. `rows` are shown instead of the values.
    """
    codes = {name: identities(values, [name]) for name in values.column_names}
    relation = {
        named("row"): integers(np.arange(values.num_rows)),
        named("values"): pa.StructArray.from_arrays([integers(each) for each in codes.values()], list(codes)),
        **{name: integers(codes[name]) for name in key},
        **{named(each): sides[each] for each in ("before", "after")},
        **{
            name: sides[time].cast(pa.timestamp("us"))
            for name, time in _SPANS.items()
            if time in sides.column_names
        },
    }
    query = differences_query(DUCKDB, key, through=comparison.through, timed=timed)
    asked = ", ".join(DUCKDB.name(named(each)) for each in ANSWER)
    found = answer(pa.table(relation), f"SELECT {asked} FROM ({query}) AS answer")  # noqa: S608
    change, row, before, after, away = (found[named(each)] for each in ANSWER)
    every = Differences(
        rows or (lambda some: rows_of(values.take(integers(some)))),
        key,
        codes,
        np.array(change.to_pylist(), object),
        row=_places(row),
        before=_places(before),
        after=_places(after),
        away=truths_of(away) if comparison.through else None,
    )
    return every.at(_order(every, values)).of_kind(comparison.change)


def _places(column: pa.ChunkedArray) -> np.ndarray:
    """The places of rows, and `NONE` for NULL."""
    return numbers(pc.coalesce(column, integers([NONE])[0]))


def _order(every: Differences, values: pa.Table) -> np.ndarray:
    """The places of the records in the order of their keys, then of their kinds and rows."""
    some = np.where(every.before != NONE, every.before, np.where(every.after != NONE, every.after, every.row))
    keys = values.select(every.key or values.column_names).take(integers(some))
    kinds = np.unique(every.change, return_inverse=True)[1] if len(every) else np.zeros(0, np.int64)

    def others() -> Iterator[np.ndarray]:
        yield kinds
        for side in (every.before, every.after):
            exists = side != NONE
            yield exists.astype(np.int64)
            for column in values.take(integers(np.maximum(side, 0))).columns:
                yield np.where(exists, ranks(column), 0)

    return places_in_order([ranks(column) for column in keys.columns], len(every), others)
