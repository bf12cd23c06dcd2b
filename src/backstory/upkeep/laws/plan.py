"""The laws of a table's rows in one scan: Spark finds the records to look at, the rule says what is wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from backstory.model.layout import MEMORY
from backstory.model.remembered import RECORDED, ROLE, Role
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, quoted
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.snapshots import ancestry
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.iceberg.workers import map_batches
from backstory.upkeep.laws.fold_columns import columns_before, is_foldable
from backstory.upkeep.laws.judged import (
    NEXT,
    PREFIX,
    Judged,
    Telling,
    judged_rows,
    judged_spans,
    numbers_of,
    read_marks,
    read_row_hashes,
)
from backstory.upkeep.laws.lives import FOUND, Broken, added_up, examine, suspects
from backstory.upkeep.laws.rule import broken_keys, violations
from backstory.upkeep.laws.rule_columns import FLOOR, healthy, key_columns, rule_columns, surely_hashed
from backstory.upkeep.laws.terms import LawTerms, RecordRow, RememberedMark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

START = f"{PREFIX}start"


@dataclass(frozen=True, slots=True)
class ByLife:
    """What the rule finds in the rows of a record."""

    judged: Judged

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
        """How often they break each law."""
        life = [self.judged.row(place, told) for place, told in enumerate(rows)]
        return {law.value: times for law, times in violations(life, self.judged.terms).items()}


@dataclass(frozen=True, slots=True)
class ByKey:
    """What the rule finds in the rows of a key that are to be one."""

    terms: LawTerms

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
        """How often they break each law."""
        read = [
            RecordRow(
                place,
                None,
                keyed=told[f"{PREFIX}keyed"],
                hash=told.get(f"{PREFIX}hash"),
                rightly=told.get(f"{PREFIX}rightly"),
            )
            for place, told in enumerate(rows)
        ]
        return {law.value: times for law, times in broken_keys(read, self.terms).items()}


def judged_by(store: Store, table: StoredTable) -> Judged:
    """The terms of a table whose rows are versions: by its layout, its properties and its commits."""
    telling = Telling(
        lambda: next((told for each in ancestry(table) if (told := each.get_property(RECORDED))), None),
        partial(_numbers, store, table),
        partial(_marks, store, table),
        partial(_hashes, store, table),
    )
    return judged_spans(table, telling)


def _numbers(store: Store, table: StoredTable) -> Mapping[str, int]:
    return numbers_of(fields_of(store.jvm, table.iceberg.schema()))


def _hashes(store: Store, table: StoredTable) -> tuple[str, ...]:
    """The hashes that a row may have, in Spark's words."""
    if not (found := read_row_hashes(table, partial(_numbers, store, table))):
        return ()
    from backstory.stores.sql.dialects.spark import Spark

    return tuple(each.sql(Spark(), quoted) for each in found)


def _marks(store: Store, table: StoredTable) -> tuple[RememberedMark, ...]:
    """What a table remembers of every key; Iceberg prunes by the key, which is NULL in marks only."""
    rows = store.spark.table(store.sql_name(table.shape.table))
    rows = rows.where(column(table.shape.key[0]).isNull() & (column(MEMORY)[ROLE] == Role.FACT))
    with translate_faults(table.shape.table):
        told = rows.select(
            *(value.alias(name) for name, value in _rule_values(rows, table).items())
        ).toArrow()
    return read_marks(table.shape, told.to_pylist())


def _rule_values(rows: "DataFrame", table: StoredTable) -> Mapping[str, Any]:
    return rule_columns(rows, Judged(table.shape, LawTerms()))


def suspected(rows: "DataFrame", judged: Judged) -> "DataFrame":
    """The rows of the records that the rule has to look at, with what their columns say."""
    from pyspark.sql import Window
    from pyspark.sql.functions import lead
    from pyspark.sql.functions import min as least

    key = [quoted(name) for name in judged.identity]
    told = rows.withColumns(dict(rule_columns(rows, judged)))
    window = Window.partitionBy(*key).orderBy(quoted(START))
    seen = {NEXT: lead(quoted(START)).over(window)}
    if judged.terms.remembers:
        later = window.rowsBetween(1, Window.unboundedFollowing)
        seen[FLOOR] = least(quoted(f"{PREFIX}written")).over(later)
    if foldable := is_foldable(rows, judged):
        seen |= columns_before(judged, window)
    healthy_ = healthy(judged.terms, foldable=foldable)
    return suspects(told.withColumns(seen), judged.identity, START, healthy_).drop(*seen)


def broken_spans(store: Store, table: StoredTable) -> Broken:
    """The laws that versions of records break, how often, and up to ten keys of each; one scan."""
    judged = judged_by(store, table)
    rows = store.spark.table(store.sql_name(table.shape.table))
    found = suspected(rows, judged)
    wanted = [*judged.identity, *judged.naming, *(judged.terms.tracked if judged.valued else ())]
    laws = [name for name in found.columns if name.startswith(PREFIX)]
    found = found.select(*map(quoted, dict.fromkeys([*wanted, *laws])))
    return run(table, found, ByLife(judged), judged.identity, judged.naming)


def broken_rows(store: Store, table: StoredTable) -> Broken:
    """The laws of keys of a table that has each record once; and of its hashes, if it has them."""
    from pyspark.sql import Window
    from pyspark.sql.functions import count, lit

    shape = table.shape
    judged = judged_rows(table, partial(_hashes, store, table))
    if not judged.identity:
        return {}
    key = [quoted(name) for name in judged.identity]
    rows = store.spark.table(store.sql_name(shape.table))
    told = key_columns(judged)
    rows = rows.withColumns(told).select(
        *map(quoted, dict.fromkeys([*judged.identity, *judged.naming, *told]))
    )
    rows = rows.withColumn(NEXT, count(lit(1)).over(Window.partitionBy(*key)))
    sure = (column(NEXT) == 1) & column(f"{PREFIX}keyed")
    if judged.terms.hashed:
        sure &= surely_hashed()
    found = suspects(rows, judged.identity, f"{PREFIX}keyed", sure).drop(NEXT)
    return run(table, found, ByKey(judged.terms), judged.identity, judged.naming)


def run(
    table: StoredTable, found: "DataFrame", judge: Any, identity: Sequence[str], shown: Sequence[str]
) -> Broken:
    """What a judge finds in the lives of a frame."""
    look = partial(examine, judge, identity, shown)
    with translate_faults(table.shape.table):
        return added_up(map_batches(found, look, FOUND).toArrow().to_pylist())
