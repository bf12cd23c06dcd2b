"""The differences between two states of a table, as positions of rows: counted, grouped, shown in pages."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.reading.arrow_rows import query_rows, sort_places, without_zone
from backstory.reading.differences import ANSWER, CHANGED, SIDES, differences_query
from backstory.reading.lifetimes import DUCKDB, ENDED, STARTED, internal_name
from backstory.reading.options import Comparison
from backstory.reading.timelines import value_text
from backstory.stores.metadata.values import integers, rows_of, truths_of, whole_numbers
from backstory.strategies.values import identities, ranks

Row = Mapping[str, Any]
Difference = dict[str, Any]
# The place of a missing row.
NO_ROW: Final = -1
# The places of rows in the records.
_PLACES: Final = ("row", *SIDES)
# The number of a row's record.
_RECORD: Final = "record"


@dataclass(frozen=True, slots=True)
class CommonChange:
    """A change of a column from one value to another, as text, and the number of records with this change."""

    count: int
    column: str
    before: str
    after: str


@dataclass(frozen=True)
class Differences:
    """The records that differ, as positions of rows. Each array has an element for each record.

    `rows` returns the rows at some places, and `values` has the compared values of all rows. `records` has
    the kind of `change`, the places of `row`, `before` and `after`, and, if it is known, whether the record
    was `away` in between. `changed` has a mask for each column outside the key.
    """

    rows: Callable[[np.ndarray], Sequence[Row]]
    values: pa.Table
    key: Sequence[str]
    records: Mapping[str, np.ndarray]
    changed: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.records["change"])

    def kinds(self) -> Counter[str]:
        """The number of records by kind of change."""
        return Counter(self.records["change"].tolist())

    def common_changes(self, most: int) -> list[CommonChange]:
        """The changes of values that several records have in common, the most frequent first."""
        groups = [group for name in self.changed for group in self._common_changes_of(name, most)]
        return sorted(groups, key=lambda each: -each.count)[:most]

    def _common_changes_of(self, name: str, most: int) -> list[CommonChange]:
        records = np.flatnonzero(self.changed[name])
        sides = [self.records[side][records] for side in SIDES]
        one, other = _codes(self.values, name, *sides)
        pairs = one * (int(other.max(initial=0)) + 1) + other
        _, firsts, counts = np.unique(pairs, return_index=True, return_counts=True)
        frequent = [place for place in np.argsort(-counts, kind="stable")[:most] if counts[place] > 1]
        rows = (self.rows(side[firsts[frequent]]) for side in sides)
        return [
            CommonChange(int(counts[place]), name, value_text(before[name]), value_text(after[name]))
            for place, before, after in zip(frequent, *rows, strict=True)
        ]

    def page(self, begin: int = 0, end: int | None = None) -> list[Difference]:
        """A range of records: `key`, `change`, `before`, `after`, `changed`, and `away` if it is known."""
        part = self.at(np.arange(len(self))[begin:end])
        changed: list[list[str]] = [[] for _ in range(len(part))]
        for name, mask in part.changed.items():
            for record in np.flatnonzero(mask):
                changed[record].append(name)
        kinds, sides = part.records["change"].tolist(), (part.rows_at(part.records[each]) for each in _PLACES)
        records = [self._record(*each) for each in zip(kinds, *sides, changed, strict=True)]
        if "away" not in part.records:
            return records
        away = part.records["away"].tolist()
        return [{**each, "away": was_away} for each, was_away in zip(records, away, strict=True)]

    def _record(
        self, change: str, row: Row, before: Row | None, after: Row | None, changed: list[str]
    ) -> Difference:
        if not self.key:  # one row represents its copies, whose zeros may have other signs
            before, after = (None if each is None else _with_positive_zeros(each) for each in (before, after))
        one = before or after or row
        key = _with_positive_zeros({name: one[name] for name in self.key or one})
        return {"key": key, "change": change, "before": before, "after": after, "changed": changed}

    def rows_at(self, places: np.ndarray) -> list[Row | None]:
        """The rows at these places, None for `NO_ROW`."""
        rows = iter(self.rows(places[places != NO_ROW]))
        return [None if place == NO_ROW else next(rows) for place in places]

    def at(self, places: np.ndarray) -> "Differences":
        """The records at these places, in this order."""
        records = {name: each[places] for name, each in self.records.items()}
        changed = {name: each[places] for name, each in self.changed.items()}
        return replace(self, records=records, changed=changed)


def _with_positive_zeros(row: Row) -> dict[str, Any]:
    """The row with 0.0 in place of -0.0."""
    return {name: value + 0.0 if isinstance(value, float) else value for name, value in row.items()}


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

    `sides` has for each row whether it was true before and after, as `SIDES`. For passages it also has
    `valid_from` and `valid_to`, and for `timed` events `valid_from`. `rows` returns the rows to show instead
    of `values`.
    """
    relation = {
        internal_name("row"): integers(np.arange(values.num_rows)),
        **{internal_name(each): sides[internal_name(each)] for each in SIDES},
        **{
            name: without_zone(sides[time])
            for name, time in ((STARTED, VALID_FROM), (ENDED, VALID_TO))
            if time in sides.column_names
        },
    }
    if key:
        relation[_RECORD] = integers(identities(values, key))
    if comparison.through or not key:
        relation[internal_name("values")] = integers(identities(values, values.column_names))
    query = differences_query(DUCKDB, [_RECORD] if key else [], through=comparison.through, timed=timed)
    columns = ", ".join(DUCKDB.name(internal_name(each)) for each in ANSWER)
    answer = query_rows(pa.table(relation), f"SELECT {columns} FROM ({query}) AS answer")  # noqa: S608
    change, otherwise = (_words(answer[internal_name(each)]) for each in ANSWER[:2])
    row, before, after = (
        whole_numbers(pc.coalesce(answer[internal_name(each)], integers([NO_ROW])[0])) for each in ANSWER[2:5]
    )
    both = np.flatnonzero(change == CHANGED)
    changed = {name: np.zeros(len(change), bool) for name in values.column_names if name not in key}
    for name, mask in changed.items():
        one, other = _codes(values, name, before[both], after[both])
        mask[both] = one != other
    differ = np.any([np.zeros(len(change), bool), *changed.values()], axis=0)
    change = np.where((change == CHANGED) & ~differ | (change == None), otherwise, change)  # noqa: E711 - of an array
    records = {"change": change, "row": row, "before": before, "after": after}
    if comparison.through:
        records["away"] = truths_of(answer[internal_name(ANSWER[5])])
    shown = rows or (lambda some: rows_of(values.take(integers(some))))
    every = Differences(shown, values, key, records, changed)
    every = every.at(np.flatnonzero(change != None))  # noqa: E711 - of an array
    every = every.at(_order(every))
    kind = comparison.change
    return every if kind is None else every.at(np.flatnonzero(every.records["change"] == kind))


def _codes(values: pa.Table, name: str, *sides: np.ndarray) -> list[np.ndarray]:
    """Numbers for the values at the places of each side; equal values have equal numbers."""
    column = values.select([name]).take(integers(np.concatenate(sides)))
    return np.split(identities(column, [name]), [len(sides[0])])


def _words(column: pa.ChunkedArray) -> np.ndarray:
    """The words of a column with few distinct words, None for NULL."""
    encoded = column.combine_chunks().dictionary_encode("encode")
    return np.array([*encoded.dictionary.to_pylist(), None], object)[np.asarray(encoded.indices)]


def _order(every: Differences) -> np.ndarray:
    """The order of the records by their keys, then by their kinds and rows."""
    values = every.values
    change, row, before, after = (every.records[each] for each in ("change", *_PLACES))
    some = np.where(before != NO_ROW, before, np.where(after != NO_ROW, after, row))
    keys = values.select(every.key or values.column_names).take(integers(some))

    def others() -> Iterator[np.ndarray]:
        yield np.unique(change, return_inverse=True)[1]
        for side in (before, after):
            exists = side != NO_ROW
            yield exists.astype(np.int64)
            for column in values.take(integers(np.maximum(side, 0))).columns:
                yield np.where(exists, ranks(column), 0)

    return sort_places([ranks(column) for column in keys.columns], len(every), others)
