"""The marks of recorded copies and truncates, and the records to which they do not apply (V31, V72)."""

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import VALID_FROM
from backstory.model.versions_layout import COLUMNS, SCOPE, FactKind
from backstory.strategies.copies.version_rows import memory_field, micros
from backstory.strategies.feeds.facts import place_in_order
from backstory.strategies.feeds.records import StoredRecords, is_of, own_times
from backstory.strategies.feeds.terms import Scope
from backstory.strategies.keys import pair_codes, rank_values


@dataclass(frozen=True)
class Marks:
    """Marks as parallel arrays: instant, kind, and order within their instant.

    `own` are the own times of truncates of a log, or `FIRST` for other marks. `scopes` are the scopes of
    copies. `silent` are pairs of a record and a mark that does not apply to it, as numbers.
    """

    at: np.ndarray
    own: np.ndarray
    truncate: np.ndarray
    order: np.ndarray
    scopes: list[Scope | None]
    silent: np.ndarray

    def __len__(self) -> int:
        return len(self.at)

    def applies(self, record: np.ndarray, mark: np.ndarray) -> np.ndarray:
        """For each pair of a record and a mark, whether the mark applies to the record."""
        return ~np.isin(record * len(self) + mark, self.silent)


def marks_of(rows: pa.Table, codes: np.ndarray, stored: StoredRecords, stored_codes: np.ndarray) -> Marks:
    """The marks in the rows, and the voids in stored rows. `codes` number the marks' further sequences."""
    voids = np.flatnonzero(stored.void)
    scopes = pa.concat_arrays([memory_field(rows, SCOPE), stored.scope.take(pa.array(voids))])
    order = rank_values(scopes)
    truncate = np.concatenate([is_of(rows, FactKind.TRUNCATE), are_truncate_voids(stored.rows)[voids]])
    own = np.concatenate([own_times(rows), stored.own_times[voids]])
    at = np.concatenate([micros(rows[VALID_FROM]), stored.start[voids]])
    at, instants = place_in_order(at, own), at
    identity, _ = pair_codes(at, np.concatenate([codes, stored_codes[voids]]))
    identity, _ = pair_codes(identity, order)
    identity, size = pair_codes(identity, truncate.astype(np.int64))
    count = len(rows)
    mark = np.full(size, -1)
    mark[identity[:count]] = np.arange(count)
    of_void = mark[identity[count:]]
    silent = (stored.record[voids] * count + of_void)[of_void >= 0]
    of_copies = order[:count] + 1
    scopes_of_marks = [scope_of(text) for text in scopes.slice(0, count).to_pylist()]
    orders = np.where(truncate[:count], codes, of_copies)
    return Marks(instants[:count], own[:count], truncate[:count], orders, scopes_of_marks, silent)


def scope_of(text: str | None) -> Scope | None:
    """Parse a scope from its JSON in a mark. A mark without a scope has None."""
    return None if text is None else tuple(sorted(json.loads(text).items()))


def are_truncate_voids(rows: pa.Table) -> np.ndarray:
    """A mask of the voids that cancel truncates. Their list of columns is empty; for copies it is NULL."""
    lengths = pc.list_value_length(memory_field(rows, COLUMNS))
    return np.asarray(pc.fill_null(pc.equal(lengths, 0), False))
