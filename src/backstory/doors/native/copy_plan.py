"""The plan of a copy: its sides, the runner's plan of them, and the outcomes of records (V36)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from backstory.doors.native.feeds.stored import live_rows_of
from backstory.doors.native.first_copy import first_frames, first_rows
from backstory.doors.native.receipts import COUNTS
from backstory.doors.native.refusals import keys_of_rows
from backstory.doors.native.sides import CopySides
from backstory.doors.native.stored_side import (
    DELIVERED,
    SLICE,
    delivered_here,
    elsewhere_here,
    side_schemas,
    stored_here,
)
from backstory.engine.parts import Rows
from backstory.engine.planned import Planned, PlanTerms
from backstory.engine.runner import run_plan
from backstory.engine.sides import LocalSide, Side
from backstory.engine.sift import ComparedSide, RowCounts, SiftTerms
from backstory.errors import MAX_KEYS
from backstory.formats.memory import MemoryLease, unpacked_size
from backstory.model.change import Pieces
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.places import FILE, POSITION
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.slice import PLACE, of_keys
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.copies.frames import version, versions_touched
from backstory.strategies.copies.sifted import CARRIED, CONTENT, VALUED, plan_rows
from backstory.strategies.copies.sifted import DELIVERED as ROWS_DELIVERED
from backstory.strategies.copies.terms import CopyTerms
from backstory.strategies.copies.touched import (
    APPEARED,
    CHANGED,
    CLOSED,
    DRIVES,
    HAD,
    LOSES,
    TAKEN_BACK,
    UNCHANGED,
)
from backstory.strategies.keys import flagged, key_codes, keys_by_value
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan, Whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NEW, REOPENED = "new", "reopened"
FIRST: Final = "rows of a first copy"


@dataclass(frozen=True)
class PlannedCopy:
    """What a copy makes of its table, while the plan lasts."""

    sides: CopySides
    planned: Planned
    salt: int

    @property
    def delivered(self) -> int:
        """How many rows the copy has; identical ones of a key are one."""
        return self._count(ROWS_DELIVERED)

    @property
    def content(self) -> int:
        """A number made of the copy's rows; of a first copy once they are written."""
        return self._count(CONTENT)

    @property
    def outcomes(self) -> dict[str, int]:
        """The records by outcome (V36)."""
        appeared, changed, closed, same = (
            self._count(name) for name in (APPEARED, CHANGED, CLOSED, UNCHANGED)
        )
        numbers = (appeared - self.reopened, changed, closed, self.reopened, same)
        return dict(zip(COUNTS, numbers, strict=True))

    @property
    def differing(self) -> int:
        """The records that are others than before."""
        return sum(number for name, number in self.outcomes.items() if name != "unchanged")

    @property
    def there(self) -> int:
        """The records that were there at the copy's instant."""
        return sum(self._count(name) for name in (CHANGED, CLOSED, UNCHANGED))

    @property
    def taken_back(self) -> int:
        """The statements that the table will not make any more."""
        return self._count(TAKEN_BACK)

    @property
    def losses(self) -> dict[str, tuple[int, int]]:
        """The columns that lose values: the records that do, of those that had one."""
        names = self.sides.terms.compared
        pairs = {name: (self._count(f"{LOSES}{name}"), self._count(f"{HAD}{name}")) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0]}

    @property
    def likely_renames(self) -> dict[str, str]:
        """Of columns that are missing, the new ones that have at least nine in ten of their values."""
        likely = sorted(
            (alike, each)
            for number, each in enumerate(self.sides.terms.successions)
            if (alike := self._count(f"{CARRIED}{number}"))
            and 10 * alike >= 9 * self._count(f"{VALUED}{number}")
        )
        found = dict[str, str]()
        for _, (old, new) in reversed(likely):
            if old not in found and new not in found.values():
                found[old] = new
        return found

    @property
    def driving(self) -> dict[str, int]:
        """The records that change by the columns in which they do."""
        names = (*self.sides.terms.compared, *self.sides.terms.renewed)
        return {name: count for name in names if (count := self._count(f"{DRIVES}{name}"))}

    @property
    def added(self) -> int:
        """How many rows are written."""
        return self.planned.sums.added[ADDED]

    @property
    def removed(self) -> int:
        """How many stored rows go."""
        return self.planned.sums.added[REMOVED]

    def keys(self, *kinds: str) -> list[str]:
        """Up to ten keys of records of these kinds: counts of the plan, or `NEW` and `REOPENED` ones."""
        samples: Mapping[str, pa.Table] = self.planned.sums.samples
        if {NEW, REOPENED} & {*kinds}:
            samples = {**samples, **self._appeared_by_past()}
        tables = [samples[kind] for kind in kinds if kind in samples]
        store, key = self.sides.store, self.sides.terms.key
        return [each for rows in tables for each in keys_of_rows(store, rows, key)][:MAX_KEYS]

    def keys_of_outcomes(self) -> dict[str, list[str]]:
        """Up to ten keys of each outcome but the unchanged."""
        kinds = {NEW: NEW, "changed": CHANGED, "closed": CLOSED, REOPENED: REOPENED}
        return {outcome: self.keys(kind) for outcome, kind in kinds.items()}

    @cached_property
    def reopened(self) -> int:
        """The records that appear and were there at another time."""
        reappearing = self._reappearing
        if isinstance(reappearing, np.ndarray):
            return int(reappearing.sum())
        return 0 if reappearing is None else int(reappearing.count())

    @cached_property
    def _appearing(self) -> "pa.Table | DataFrame | None":
        """The keys of records that appear; None for a table without rows, where all are new."""
        table = self.sides.table
        rows = self.planned.rows(APPEARED) if table is not None and table.rows else None
        return pa.concat_tables(rows.tables()) if isinstance(rows, Pieces) else rows

    @cached_property
    def _reappearing(self) -> "np.ndarray | DataFrame | None":
        """Which of them have versions at other times, or the keys of those."""
        appearing, key = self._appearing, list(self.sides.terms.key)
        if appearing is None:
            return None
        if not isinstance(appearing, pa.Table):
            named = _versions_elsewhere(self.sides).select(*map(quoted, key))
            return named.join(appearing, key, "left_semi").distinct()
        seen, keys = np.zeros(len(appearing), bool), keys_by_value(appearing, key)
        for rows in _elsewhere(self.sides, appearing):
            (mine, theirs), count = key_codes([keys, keys_by_value(rows, key)], key)
            seen |= flagged(theirs, count)[mine]
        return seen

    def _appeared_by_past(self) -> dict[str, pa.Table]:
        appearing, seen, key = self._appearing, self._reappearing, list(self.sides.terms.key)
        if appearing is None:
            few = self.planned.sums.samples.get(APPEARED)
            return {} if few is None else {NEW: few}
        if isinstance(appearing, pa.Table):
            mask = pa.array(seen)
            return {REOPENED: appearing.filter(mask), NEW: appearing.filter(pa.array(~np.asarray(mask)))}
        assert not isinstance(seen, np.ndarray)
        assert seen is not None
        new = appearing.join(seen, key, "left_anti")
        few_of: Any = {REOPENED: seen, NEW: new}
        schema = side_schemas(self.sides)[DELIVERED]
        keyed = pa.schema([schema.field(name) for name in key])
        return {
            kind: arrow_of(rows.limit(MAX_KEYS)).rename_columns(key).cast(keyed)
            for kind, rows in few_of.items()
        }

    def _count(self, name: str) -> int:
        return self.planned.sums.counts[name]


@contextmanager
def planned_copy(sides: CopySides) -> Iterator[PlannedCopy]:
    """The plan of a copy, while it lasts."""
    terms, schemas = sides.terms, side_schemas(sides)
    key = pa.schema([schemas[DELIVERED].field(name) for name in terms.key])
    added = pa.schema([each for each in schemas[SLICE] if each.name not in {FILE, POSITION}])
    first = sides.table is None or not sides.table.rows
    plan_terms = PlanTerms(
        sides.store,
        sides.evolved.shape.table,
        {DELIVERED: _delivered_side(sides), SLICE: _stored_side(sides)},
        terms.key,
        {REMOVED: PLACE, ADDED: added, APPEARED: key},
        partial(_plan_part, terms),
        first=partial(first_rows, sides) if first else None,
        first_in_tasks=partial(first_frames, sides) if first and terms.among is None else None,
        sift=_sift_terms(terms),
        only_tasks=bool(sides.evolved.retyped),  # a new type is written into all rows
    )
    with run_plan(plan_terms) as planned:
        yield PlannedCopy(sides, planned, plan_terms.salt)


def _sift_terms(terms: CopyTerms) -> SiftTerms | None:
    """The columns by which a record is as delivered; None where the copy may touch such a record."""
    others = terms.among is not None or terms.scope is not None or terms.beside
    if others or terms.restated or not terms.in_order:
        return None
    columns = [*dict.fromkeys([*terms.decisive, *(new for _, new in terms.successions)])]
    pair = ComparedSide(DELIVERED, columns, terms.key), ComparedSide(SLICE, columns, [*terms.key, VALID_FROM])
    counted = [*dict.fromkeys([*terms.compared, *(old for old, _ in terms.successions)])]
    return SiftTerms([pair], partial(_settled, terms), {SLICE: counted}, partial(_counts_needed, terms))


def _counts_needed(terms: CopyTerms, counts: Mapping[str, int]) -> dict[str, Sequence[str]]:
    """The columns whose values are counted: those that lose some, and those that may have another name."""
    losing = [name for name in terms.compared if counts.get(f"{LOSES}{name}")]
    return {SLICE: [*dict.fromkeys([*losing, *(old for old, _ in terms.successions)])]}


def _settled(terms: CopyTerms, rows: Mapping[str, RowCounts]) -> dict[str, int]:
    """The counts of a plan of records that are as delivered: all values in their new columns are NULL."""
    delivered, values = rows[DELIVERED], rows[SLICE].values
    counts = {UNCHANGED: delivered.rows, ROWS_DELIVERED: delivered.rows, CONTENT: delivered.content}
    counts |= {f"{HAD}{name}": values[name] for name in terms.compared}
    return counts | {f"{VALUED}{number}": values[old] for number, (old, _) in enumerate(terms.successions)}


def _plan_part(terms: CopyTerms, sides: Mapping[str, pa.Table], whole: Whole) -> PartPlan:
    return plan_rows(terms, sides[DELIVERED], sides[SLICE], whole)


def _delivered_side(sides: CopySides) -> Side:
    def local(_lease: MemoryLease, _met: LocalSide | None) -> LocalSide | None:
        rows = delivered_here(sides, sides.terms.delivered)
        return None if rows is None else LocalSide(rows, columns=partial(_columns_here, sides))

    again = sides.source.batches is not None  # rows of files are the same each time
    return Side(
        side_schemas(sides)[DELIVERED], lambda: sides.delivered, local, sides.source.size, cached=again
    )


def _columns_here(sides: CopySides, names: Sequence[str]) -> Rows:
    rows = delivered_here(sides, names)
    assert rows is not None
    return rows


def _stored_side(sides: CopySides) -> Side:
    terms, table, schema = sides.terms, sides.table, side_schemas(sides)[SLICE]

    def frame() -> "DataFrame":
        if terms.among is None:
            rows = versions_touched(sides.stored, terms)
        else:
            rows = live_rows_of(sides.stored, terms.at).where(column(terms.key[0]).isNotNull())
        return rows.select(*map(quoted, schema.names))

    size = 1 if table is None else unpacked_size(table.rows, len(table.shape.columns), table.bytes)
    count = 0 if table is None else table.rows
    return Side(schema, frame, lambda lease, _met: stored_here(sides, lease), size, count)


def _versions_elsewhere(sides: CopySides) -> "DataFrame":
    """The versions by which a record that appears was there before: closed ones, or all of a late copy."""
    versions = sides.stored.where(version())
    return versions.where(column(VALID_TO).isNotNull()) if sides.terms.in_order else versions


def _elsewhere(sides: CopySides, keys: pa.Table) -> Iterable[pa.Table]:
    """The keys of such versions, those of these records among them, some at a time."""
    if not len(keys):
        return
    names = list(sides.terms.key)
    with sides.store.memory.lease() as lease:
        try:
            here = elsewhere_here(sides, lease, keys)
            if here is not None:
                yield from here
                return
        except Unreadable:
            pass
    named = _versions_elsewhere(sides).select(*map(quoted, names))
    yield arrow_of(of_keys(sides.store, named, keys)).rename_columns(names).cast(keys.schema)
