"""The laws of a table's rows in one scan: Spark finds the records to look at, the rule says what is wrong."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from backstory.model.instant import parse_instant
from backstory.model.layout import MEMORY, Layout
from backstory.model.remembered import IGNORE, OVERWRITE, RECORDED, ROLE, SETTLED, TRACK, Role
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, micros_of, quoted
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.snapshots import ancestry
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.iceberg.workers import map_batches
from backstory.upkeep.laws.lives import FOUND, Broken, added_up, examine, suspects
from backstory.upkeep.laws.rule import broken_keys, violations
from backstory.upkeep.laws.terms import LAWS, Law, LawTerms, RecordRow, RememberedMark
from backstory.upkeep.laws.told import (
    FLOOR,
    NEXT,
    PREFIX,
    Judged,
    healthy,
    key_columns,
    surely_hashed,
    told_columns,
)

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
    shape, span = table.shape, table.shape.layout.span
    assert span is not None
    terms = LawTerms(
        flagged=bool(span.flag),
        stated=bool(span.state),
        hashed=Law.ROW_HASH in LAWS[shape.layout],
        grain=span.grain,
        far=span.far,
    )
    if shape.layout is not Layout.VERSIONS:
        return Judged(shape, terms, hashes=_hashes(store, table) if terms.hashed else ())
    told = next((told for each in ancestry(table) if (told := each.told(RECORDED))), None)
    newest = None if told is None else micros_of(parse_instant(told))
    terms = replace(terms, remembers=True, newest=newest, settled=settled(table))
    if table.properties.get(SETTLED) is None:
        return Judged(shape, terms)
    numbers = {each["name"]: int(each["id"]) for each in fields_of(store.jvm, table.iceberg.schema())}
    terms = replace(terms, tracked=tracked(table), numbers=numbers, marks=_marks(store, table))
    return Judged(shape, terms, valued=True)


def _hashes(store: Store, table: StoredTable) -> tuple[str, ...]:
    """The hashes that a row may have, as SQL on its columns; none where the table does not tell of all.

    Nor where the SQL of models is not installed.
    """
    if find_spec("sqlglot") is None:
        return ()
    from backstory.stores.sql.dialects.spark import Spark
    from backstory.stores.sql.row_hashes import ROW_HASHES, kept_hashes

    text = table.properties.get(ROW_HASHES)
    if text is None:
        return ()
    names = {int(each["id"]): each["name"] for each in fields_of(store.jvm, table.iceberg.schema())}
    return tuple(each.sql(Spark(), quoted) for each in kept_hashes(text, names) or ())


def settled(table: StoredTable) -> tuple[int | None, int] | None:
    """The settled interval; None where nothing is settled, or where the property cannot be read."""
    try:
        first, last = json.loads(table.properties.get(SETTLED) or "[]")
        return (None if first is None else micros_of(parse_instant(first))), micros_of(parse_instant(last))
    except (TypeError, ValueError, AttributeError):
        return None


def tracked(table: StoredTable) -> tuple[str, ...]:
    """The columns whose change makes a version: all but the key's and those that settings name."""
    told = {name: json.loads(table.properties.get(name) or "[]") for name in (TRACK, IGNORE, OVERWRITE)}
    left = {*told[IGNORE], *told[OVERWRITE], *table.shape.key}
    names = [each.name for each in table.shape.user_columns if each.name not in left]
    return tuple(name for name in names if not told[TRACK] or name in told[TRACK])


def _marks(store: Store, table: StoredTable) -> tuple[RememberedMark, ...]:
    """What a table remembers of every key; Iceberg prunes by the key, which is NULL in marks only."""
    rows = store.spark.table(store.sql_name(table.shape.table))
    rows = rows.where(column(table.shape.key[0]).isNull() & (column(MEMORY)[ROLE] == Role.FACT))
    with translate_faults(table.shape.table):
        told = rows.select(*(value.alias(name) for name, value in _said(rows, table).items())).toArrow()
    found = []
    for each in told.to_pylist():
        row = Judged(table.shape, LawTerms()).row(0, each)
        if row.kind is not None and row.start is not None and row.ended_at is None:
            found.append(RememberedMark(row.start, row.kind, row.sequence, row.scope))
    return tuple(found)


def _said(rows: "DataFrame", table: StoredTable) -> Mapping[str, Any]:
    return told_columns(rows, Judged(table.shape, LawTerms()))


def suspected(rows: "DataFrame", judged: Judged) -> "DataFrame":
    """The rows of the records that the rule has to look at, with what their columns say."""
    from pyspark.sql import Window
    from pyspark.sql.functions import lead
    from pyspark.sql.functions import min as least

    key = [quoted(name) for name in judged.identity]
    told = rows.withColumns(dict(told_columns(rows, judged)))
    window = Window.partitionBy(*key).orderBy(quoted(START))
    seen = {NEXT: lead(quoted(START)).over(window)}
    if judged.terms.remembers:
        later = window.rowsBetween(1, Window.unboundedFollowing)
        seen[FLOOR] = least(quoted(f"{PREFIX}written")).over(later)
    found = told.withColumns(seen)
    return suspects(found, judged.identity, START, healthy(judged.terms)).drop(*seen)


def broken_spans(store: Store, table: StoredTable) -> Broken:
    """The laws that versions of records break, how often, and up to ten keys of each; one scan."""
    judged = judged_by(store, table)
    rows = store.spark.table(store.sql_name(table.shape.table))
    found = suspected(rows, judged)
    wanted = [*judged.identity, *judged.shown, *(judged.terms.tracked if judged.valued else ())]
    laws = [name for name in found.columns if name.startswith(PREFIX)]
    found = found.select(*map(quoted, dict.fromkeys([*wanted, *laws])))
    return run(table, found, ByLife(judged), judged.identity, judged.shown)


def broken_rows(store: Store, table: StoredTable) -> Broken:
    """The laws of keys of a table that has each record once; and of its hashes, if it has them."""
    from pyspark.sql import Window
    from pyspark.sql.functions import count, lit

    shape = table.shape
    hashed = Law.ROW_HASH in LAWS[shape.layout]
    judged = Judged(shape, LawTerms(hashed=hashed), hashes=_hashes(store, table) if hashed else ())
    if not judged.identity:
        return {}
    key = [quoted(name) for name in judged.identity]
    rows = store.spark.table(store.sql_name(shape.table))
    told = key_columns(judged)
    rows = rows.withColumns(told).select(
        *map(quoted, dict.fromkeys([*judged.identity, *judged.shown, *told]))
    )
    rows = rows.withColumn(NEXT, count(lit(1)).over(Window.partitionBy(*key)))
    sure = (column(NEXT) == 1) & column(f"{PREFIX}keyed")
    if hashed:
        sure &= surely_hashed()
    found = suspects(rows, judged.identity, f"{PREFIX}keyed", sure).drop(NEXT)
    return run(table, found, ByKey(judged.terms), judged.identity, judged.shown)


def run(
    table: StoredTable, found: "DataFrame", judge: Any, identity: Sequence[str], shown: Sequence[str]
) -> Broken:
    """What a judge finds in the lives of a frame."""
    look = partial(examine, judge, identity, shown)
    with translate_faults(table.shape.table):
        return added_up(map_batches(found, look, FOUND).toArrow().to_pylist())
