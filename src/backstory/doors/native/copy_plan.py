"""The plan of a copy: its sides for the runner, and the outcomes of records (V36).

In a first copy into a table without rows, each row becomes a version, so the rows are written in one pass.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from operator import or_
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from backstory.doors.native.copy_inputs import (
    DELIVERED,
    ELSEWHERE,
    SLICE,
    CopyInputs,
    read_delivered,
    read_elsewhere,
    read_stored,
)
from backstory.doors.native.receipts import COPY_COUNTS
from backstory.doors.native.refusals import keys_of_rows
from backstory.doors.native.stored_rows import touched_rows, version_condition
from backstory.engine.plans import LocalSide, PlanResult, PlanTerms, Side, parts_by_key, tables_of
from backstory.engine.row_buffers import ROWS_IN_PIECE, combine_tables
from backstory.engine.runner import run_plan
from backstory.engine.sift import BYTES_OF_HASHED_ROW, ComparedSide, RowCounts, SiftTerms
from backstory.errors import MAX_KEYS
from backstory.formats.delivered import shape_rows
from backstory.formats.memory import MemoryLease, TooLarge, unpacked_size
from backstory.formats.rows import digest
from backstory.model.change import RowBatches
from backstory.model.layout import FILE, IS_CURRENT, POSITION, RECORDED_AT, ROW_ID, VALID_FROM, VALID_TO
from backstory.spark.versions import arrow_of, persist_on_disk
from backstory.stores.iceberg.frames import hold_memory_of_rows
from backstory.stores.iceberg.literals import column, instant, quote
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.slice import PLACE, rows_of_keys
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.strategies.copies.comparison import (
    CARRIED,
    CONTENT,
    ROWS_BEFORE,
    ROWS_NOW,
    VALUED,
    is_faultless,
    plan_rows,
)
from backstory.strategies.copies.comparison import DELIVERED as ROWS_DELIVERED
from backstory.strategies.copies.plan import (
    APPEARED,
    CHANGED,
    CLOSED,
    DRIVES,
    HAD,
    LOSES,
    UNCHANGED,
    CopyTerms,
)
from backstory.strategies.copies.version_rows import OPEN, begin_versions
from backstory.strategies.keys import flags_of, key_codes, keys_by_value
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan, PlanSums, Whole

ROWS, KEYS, FAULTY = "rows", "keys", "faulty"

NEW, REOPENED = "new", "reopened"


def plan_first_here(
    inputs: CopyInputs, local: Mapping[str, LocalSide], lease: MemoryLease
) -> PlanResult | None:
    """Plan a first copy on the driver, which copies the rows from file to file.

    At first, only the columns of the key and the scope are read. Returns None if a row is faulty or a key
    repeats. The full plan then reads all values.
    """
    terms, columns = inputs.terms, local[DELIVERED].columns
    if columns is None:
        return None
    keys = columns([*terms.key, *(name for name, _ in terms.scope or ())])
    sums = PlanSums()
    for part in parts_by_key({DELIVERED: keys}, terms.key, lease):
        alone = part[DELIVERED]
        if not is_faultless(terms, alone):
            return None
        few = {APPEARED: alone.select(list(terms.key)).slice(0, MAX_KEYS)} if len(alone) else {}
        sums.add(PartPlan({}, {APPEARED: len(alone), ROWS_DELIVERED: len(alone)}, few))
    count = sums.added[ADDED] = sums.counts[ROWS_DELIVERED]
    end = OPEN if terms.following is None else terms.following

    def opening() -> Iterator[pa.Table]:
        sums.counts[CONTENT] = 0
        for piece in combine_tables(local[DELIVERED].rows.tables(), ROWS_IN_PIECE):
            sums.counts[CONTENT] += digest(piece)
            whole = begin_versions(piece, terms.at, np.full(len(piece), end), terms.recorded)
            yield shape_rows(whole, terms.columns, ids=terms.ids)

    rows = {ADDED: RowBatches(opening) if count else None, APPEARED: None, REMOVED: None}
    return PlanResult(sums, rows)


def plan_first_by_spark(inputs: CopyInputs, resources: ExitStack) -> PlanResult | None:
    """Plan a first copy in Spark. Persisted rows are released with `resources`.

    Returns None if a row is faulty or a key repeats. The full plan then reads all values.
    """
    terms, delivered = inputs.terms, inputs.delivered_frame
    if not inputs.is_repeatable:
        delivered = persist_on_disk(delivered)
        resources.callback(delivered.unpersist)
    key = [column(name) for name in terms.key]
    faulty = reduce(or_, (part.isNull() for part in key))
    for name, value in terms.scope or ():
        faulty |= ~column(name).eqNullSafe(sf.lit(value))
    number, digest_of_keys, is_faultless_copy = _judge_first_rows(inputs.store, delivered, key, faulty)
    if not is_faultless_copy:
        return None
    # Values are only read to be written, so the digest of this copy has only its keys.
    counts = Counter({APPEARED: number, ROWS_DELIVERED: number, CONTENT: digest_of_keys})
    appearing = delivered.select(*key)
    few = {APPEARED: _few_keys(inputs, appearing)} if number else {}
    sums = PlanSums(counts, few, {}, Counter({ADDED: number, APPEARED: number}))
    added = _first_versions(inputs, delivered) if number else None
    return PlanResult(sums, {ADDED: added, APPEARED: appearing if number else None, REMOVED: None})


def _judge_first_rows(
    store: IcebergStore, rows: DataFrame, key: Sequence[Any], faulty: Any
) -> tuple[int, int, bool]:
    """The number of rows, a digest of their keys, and whether all are free of faults and have unique keys.

    The driver collects a hash of each key if its memory suffices. Otherwise Spark must sort and shuffle all
    keys to count the distinct keys.
    """
    number_of_key = sf.when(~faulty, sf.xxhash64(*key))
    with store.memory.lease() as lease, suppress(TooLarge):
        hold_memory_of_rows(store, lease, KEYS, BYTES_OF_HASHED_ROW)
        number = rows.count()
        hold_memory_of_rows(store, lease, KEYS, number * BYTES_OF_HASHED_ROW)
        hashed = arrow_of(rows.select(number_of_key.alias(KEYS)))
        hashes = np.sort(np.asarray(hashed[KEYS].drop_null()))
        unique = len(hashes) == number and not (hashes[1:] == hashes[:-1]).any()
        return number, int(np.bitwise_xor.reduce(hashes)), unique
    judged = rows.agg(
        sf.count(sf.lit(1)).alias(ROWS),
        sf.count_distinct(*key).alias(KEYS),
        sf.count_if(faulty).alias(FAULTY),
        sf.coalesce(sf.bit_xor(number_of_key), sf.lit(0)).alias(CONTENT),
    ).collect()[0]
    return judged[ROWS], judged[CONTENT], not judged[FAULTY] and judged[KEYS] == judged[ROWS]


def _first_versions(inputs: CopyInputs, delivered: DataFrame) -> DataFrame:
    """The delivered rows as versions that all have the same times."""
    terms = inputs.terms
    own: dict[str, Any] = {
        VALID_FROM: instant(terms.at),
        VALID_TO: sf.lit(None) if terms.following is None else instant(terms.following),
        IS_CURRENT: sf.lit(terms.following is None),
        RECORDED_AT: instant(terms.recorded),
    }
    values = {**{name: column(name) for name in terms.delivered}, **own}
    row = [
        values.get(col.name, sf.lit(None)).cast(spark_type(col.type)).alias(col.name) for col in terms.columns
    ]
    ids = [sf.lit(None).cast("bigint").alias(ROW_ID)] if terms.ids else []
    return delivered.select(*row, *ids)


@dataclass(frozen=True)
class PlannedCopy:
    """The plan of a copy, with its counts and samples.

    It is valid until the context of `open_copy_plan` ends.
    """

    inputs: CopyInputs
    planned: PlanResult
    salt: int

    def count(self, name: str) -> int:
        """A sum of the plan by its name.

        For a first copy on the driver, the digest of the rows (`CONTENT`) exists only after they are written.
        """
        return self.planned.sums.counts[name]

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of records by outcome (V36)."""
        appeared, changed, closed, same = map(self.count, (APPEARED, CHANGED, CLOSED, UNCHANGED))
        numbers = (appeared - self.reopened_records, changed, closed, self.reopened_records, same)
        return dict(zip(COPY_COUNTS, numbers, strict=True))

    @property
    def differing_records(self) -> int:
        """The number of records whose outcome is not `unchanged`."""
        return sum(number for name, number in self.outcomes.items() if name != "unchanged")

    @property
    def records_before(self) -> int:
        """The number of records that existed at the copy's instant before the copy was delivered."""
        return sum(map(self.count, (CHANGED, CLOSED, UNCHANGED)))

    @property
    def losses(self) -> dict[str, tuple[int, int]]:
        """The number of lost values, and the number of values before, for each column that loses values."""
        names = self.inputs.terms.compared
        pairs = {name: (self.count(f"{LOSES}{name}"), self.count(f"{HAD}{name}")) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0]}

    @property
    def likely_renames(self) -> dict[str, str]:
        """The missing columns, each mapped to a new column with at least nine tenths of its values."""
        likely = sorted(
            (alike, pair)
            for number, pair in enumerate(self.inputs.terms.successions)
            if (alike := self.count(f"{CARRIED}{number}"))
            and 10 * alike >= 9 * self.count(f"{VALUED}{number}")
        )
        renames = dict[str, str]()
        for _, (old, new) in reversed(likely):
            if old not in renames and new not in renames.values():
                renames[old] = new
        return renames

    @property
    def changes_by_column(self) -> dict[str, int]:
        """The number of changed records for each column that changes."""
        names = (*self.inputs.terms.compared, *self.inputs.terms.renewed)
        return {name: count for name in names if (count := self.count(f"{DRIVES}{name}"))}

    @property
    def rows_to_add(self) -> int:
        """The number of rows to write."""
        return self.planned.sums.added[ADDED]

    @property
    def rows_to_remove(self) -> int:
        """The number of stored rows to remove."""
        return self.planned.sums.added[REMOVED]

    def keys(self, *kinds: str) -> list[str]:
        """Up to ten keys of records with these outcomes, which may include `NEW` and `REOPENED`."""
        samples: Mapping[str, pa.Table] = self.planned.sums.samples
        if {NEW, REOPENED} & {*kinds}:
            appeared = self._appearing_keys.items()
            few = {kind: _few_keys(self.inputs, rows) for kind, rows in appeared}
            samples = {**samples, **few}
        tables = [samples[kind] for kind in kinds if kind in samples]
        store, key = self.inputs.store, self.inputs.terms.key
        return [text for rows in tables for text in keys_of_rows(store, rows, key)][:MAX_KEYS]

    def keys_of_outcomes(self) -> dict[str, list[str]]:
        """Up to ten keys for each outcome except `unchanged`."""
        kinds = {NEW: NEW, "changed": CHANGED, "closed": CLOSED, REOPENED: REOPENED}
        return {outcome: self.keys(kind) for outcome, kind in kinds.items()}

    @cached_property
    def reopened_records(self) -> int:
        """The number of appearing records that existed at another time."""
        rows = self._appearing_keys.get(REOPENED)
        if rows is None:
            return 0
        return len(rows) if isinstance(rows, pa.Table) else rows.count()

    @cached_property
    def _appearing_keys(self) -> Mapping[str, Any]:
        """The keys of new and reopened records, as tables or frames.

        If the table has no rows, all appearing records are new, and only a few of their keys are returned.
        """
        inputs, key = self.inputs, list(self.inputs.terms.key)
        rows: Any = self.planned.rows(APPEARED) if inputs.table is not None and inputs.table.rows else None
        if rows is None:
            few = self.planned.sums.samples.get(APPEARED)
            return {} if few is None else {NEW: few}
        if not isinstance(rows, pa.Table | RowBatches):
            elsewhere = _versions_elsewhere(inputs).select(*map(quote, key))
            reopened = elsewhere.join(rows, key, "left_semi").distinct()
            return {REOPENED: reopened, NEW: rows.join(reopened, key, "left_anti")}
        rows = pa.concat_tables(tables_of(rows))
        seen, keys = np.zeros(len(rows), bool), keys_by_value(rows, key)
        for elsewhere in _keys_elsewhere(inputs, rows):
            (appearing, stored), count = key_codes([keys, keys_by_value(elsewhere, key)], key)
            seen |= flags_of(stored, count)[appearing]
        return {REOPENED: rows.filter(pa.array(seen)), NEW: rows.filter(pa.array(~seen))}


@contextmanager
def open_copy_plan(inputs: CopyInputs) -> Iterator[PlannedCopy]:
    """Plan a copy. The plan is valid until the context ends."""
    terms, schemas = inputs.terms, inputs.schemas
    added = pa.schema([field for field in schemas[SLICE] if field.name not in {FILE, POSITION}])
    first = inputs.table is None or not inputs.table.rows
    plan_terms = PlanTerms(
        inputs.store,
        inputs.evolved.shape.table,
        {DELIVERED: _delivered_side(inputs), SLICE: _stored_side(inputs)},
        terms.key,
        {REMOVED: PLACE, ADDED: added, APPEARED: schemas[ELSEWHERE]},
        partial(_plan_part, terms),
        first=partial(plan_first_here, inputs) if first else None,
        first_in_tasks=partial(plan_first_by_spark, inputs) if first and terms.feed is None else None,
        sift=_sift_terms(terms),
        only_tasks=bool(inputs.evolved.retyped),  # a new type rewrites all rows
    )
    with run_plan(plan_terms) as planned:
        yield PlannedCopy(inputs, planned, plan_terms.salt)


def _sift_terms(terms: CopyTerms) -> SiftTerms | None:
    """The columns that decide whether a record is unchanged.

    Returns None if the copy may touch unchanged records.
    """
    if not terms.in_order or terms.scope is not None:
        return None
    columns = [*dict.fromkeys([*terms.decisive, *(new for _, new in terms.successions)])]
    pair = ComparedSide(DELIVERED, columns, terms.key), ComparedSide(SLICE, columns, [*terms.key, VALID_FROM])
    counted = [*dict.fromkeys([*terms.compared, *(old for old, _ in terms.successions)])]
    return SiftTerms(
        [pair], partial(_unchanged_counts, terms), {SLICE: counted}, partial(_counts_needed, terms)
    )


def _counts_needed(terms: CopyTerms, counts: Mapping[str, int]) -> dict[str, Sequence[str]]:
    """The columns whose values are counted: columns with losses, and columns that may be renamed."""
    losing = [name for name in terms.compared if counts.get(f"{LOSES}{name}")]
    return {SLICE: [*dict.fromkeys([*losing, *(old for old, _ in terms.successions)])]}


def _unchanged_counts(terms: CopyTerms, rows: Mapping[str, RowCounts]) -> dict[str, int]:
    """The counts that a plan of unchanged records would return. Values of new columns are not counted."""
    delivered, values = rows[DELIVERED], rows[SLICE].values
    counts = {UNCHANGED: delivered.rows, ROWS_DELIVERED: delivered.rows, CONTENT: delivered.content}
    counts |= {f"{HAD}{name}": values[name] for name in terms.compared}
    if terms.copies is not None:  # rows that occur several times are always planned
        counts |= {ROWS_NOW: delivered.rows, ROWS_BEFORE: delivered.rows}
    return counts | {f"{VALUED}{number}": values[old] for number, (old, _) in enumerate(terms.successions)}


def _plan_part(terms: CopyTerms, sides: Mapping[str, pa.Table], whole: Whole) -> PartPlan:
    return plan_rows(terms, sides[DELIVERED], sides[SLICE], whole)


def _delivered_side(inputs: CopyInputs) -> Side:
    return Side(
        inputs.schemas[DELIVERED],
        lambda: inputs.delivered_frame,
        lambda _lease, _met: read_delivered(inputs),
        inputs.source.size,
        repeatable=inputs.is_repeatable,
    )


def _stored_side(inputs: CopyInputs) -> Side:
    terms, table, schema = inputs.terms, inputs.table, inputs.schemas[SLICE]

    def frame() -> DataFrame:
        return touched_rows(inputs.stored_frame, terms).select(*map(quote, schema.names))

    size = 1 if table is None else unpacked_size(table.rows, len(table.shape.columns), table.bytes)
    count = 0 if table is None else table.rows
    return Side(schema, frame, lambda lease, _met: read_stored(inputs, lease), size, count)


def _versions_elsewhere(inputs: CopyInputs) -> DataFrame:
    """The versions at times other than the copy's: closed versions, or all versions if the copy is late."""
    versions = inputs.stored_frame.where(version_condition())
    return versions.where(column(VALID_TO).isNotNull()) if inputs.terms.in_order else versions


def _keys_elsewhere(inputs: CopyInputs, keys: pa.Table) -> Iterable[pa.Table]:
    """The keys of versions at other times, in batches.

    The result includes every given key that has versions at other times, and perhaps other keys.
    """
    if not len(keys):
        return
    names = list(inputs.terms.key)
    with inputs.store.memory.lease() as lease:
        try:
            here = read_elsewhere(inputs, lease, keys)
            if here is not None:
                yield from here
                return
        except (TooLarge, Unreadable):
            pass
    named = _versions_elsewhere(inputs).select(*map(quote, names))
    yield arrow_of(rows_of_keys(inputs.store, named, keys)).rename_columns(names).cast(keys.schema)


def _few_keys(inputs: CopyInputs, keys: "DataFrame | pa.Table") -> pa.Table:
    if isinstance(keys, pa.Table):
        return keys
    schema = inputs.schemas[ELSEWHERE]
    return arrow_of(keys.limit(MAX_KEYS)).rename_columns(schema.names).cast(schema)
