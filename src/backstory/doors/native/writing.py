"""What a snapshot commits: rows that end, rows that begin, the mark of the copy, columns and properties."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from backstory.doors.native.absences import taken_back
from backstory.doors.native.copy_plan import PlannedCopy
from backstory.doors.native.field_ids import ids_of_columns
from backstory.doors.native.settings import policy_property
from backstory.doors.native.sides import CopySides
from backstory.engine.planned import join_rows
from backstory.formats.delivered import shaped
from backstory.model.change import Change, Pieces
from backstory.model.instant import iso
from backstory.model.layout import MEMORY, VALID_FROM
from backstory.model.places import FILE, POSITION
from backstory.model.remembered import MEMORY_SINCE, SCOPE, SETTLED
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.literals import column, instant, quoted
from backstory.stores.iceberg.positions import FEW, add_places, coded_file
from backstory.strategies.copies.frames import marked
from backstory.strategies.copies.rows import mark, withdraw_facts
from backstory.strategies.part_plan import ADDED, REMOVED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def change_of(sides: CopySides, copy: PlannedCopy, *, is_told: bool = False) -> Change | None:
    """What is to commit of a copy; None where nothing changes, and the table is told of nothing."""
    evolved, rows = sides.evolved, copy.planned.rows(ADDED)
    marks, replaced = _marks(sides, copy)
    come = join_rows(sides.store, rows, marks)
    if sides.table is None:
        told = {**sides.settings.properties(), **policy_property({}, sides.asked), **_memory(sides)}
        return Change(copy.outcomes, come=come, into=evolved.shape, properties=told)
    if evolved.retyped:
        return _replace_all_rows(sides, copy, marks, replaced)
    if come is None and not evolved.changed and not is_told:
        return None
    return Change(
        copy.outcomes,
        with_places(copy.planned.places(REMOVED, sides.table), replaced),
        _in_few_files(sides, come, copy.added + len(marks)),
        evolved.shape if evolved.changed else None,
        evolved.renamed,
        _properties(sides),
        snapshot=is_told,
        expected=None if come is None else copy.added + len(marks),
    )


def _marks(sides: CopySides, copy: PlannedCopy) -> tuple[pa.Table, pa.Table]:
    """The rows that remember the copy (V31), and the stored mark that such a row replaces, with its place."""
    from pyspark.sql.functions import lit

    place, terms = sides.place, sides.terms
    none = shaped(mark(0, 0, terms.memory, None), terms.columns, ids=terms.ids).slice(0, 0)
    nowhere = pa.table({FILE: pa.array([], pa.string()), POSITION: pa.array([], pa.int64())})
    if not place.remembers:
        return none, nowhere
    ids = field_ids(sides)
    restated = place.mark is not None and copy.differing > 0 and place.mark.columns != ids
    if place.mark is not None and not restated:
        return none, nowhere
    own = mark(terms.at, terms.recorded, terms.memory, ids, place.scope)
    own = shaped(own, terms.columns, ids=terms.ids)
    if not restated:
        return own, nowhere
    scope = column(MEMORY).getField(SCOPE).eqNullSafe(lit(place.scope))
    here = arrow_of(sides.stored.where(marked() & scope & (column(VALID_FROM) == instant(terms.at))))
    former = shaped(withdraw_facts(here, terms.recorded, terms.memory), terms.columns, ids=terms.ids)
    return pa.concat_tables([own, former]), here.select([FILE, POSITION])


def with_places(gone: Any, more: pa.Table) -> Any:
    """Places of rows that go, None for none, with a few more."""
    if gone is None:
        return more if len(more) else None
    if isinstance(gone, pa.Table):
        return pa.concat_tables([gone, more.cast(gone.schema)])
    return add_places(gone, more)


def _replace_all_rows(sides: CopySides, copy: PlannedCopy, marks: pa.Table, replaced: pa.Table) -> Change:
    """The change that writes all rows in the table's new types: those that stay, and those that come."""
    assert sides.table is not None
    stored = sides.stored.withColumn(FILE, coded_file(copy.salt))
    there = sides.store.spark.table(sides.store.sql_name(sides.table.shape.table)).count()
    gone: Any = copy.planned.rows(REMOVED)
    added: Any = copy.planned.rows(ADDED)
    stay = stored if gone is None else stored.join(gone, [FILE, POSITION], "left_anti")
    if len(replaced):
        former = frame_of(sides.store, replaced).withColumn(FILE, coded_file(copy.salt))
        stay = stay.join(former, [FILE, POSITION], "left_anti")
    count = there - copy.removed - len(replaced) + copy.added + len(marks)
    come: DataFrame = stay.drop(FILE, POSITION)
    if added is not None:
        come = come.unionByName(added)
    change = Change(
        copy.outcomes,
        come=_in_few_files(sides, join_rows(sides.store, come, marks), count),
        into=sides.evolved.shape,
        renamed=sides.evolved.renamed,
        properties=_properties(sides),
        expected=count,
    )
    return replace(change, whole=True)


def _in_few_files(sides: CopySides, come: Any, count: int) -> Any:
    """A frame of rows that come, sorted by key; few of them in one task, and so in few files (V12)."""
    if come is None or isinstance(come, pa.Table | Pieces):
        return come
    rows: DataFrame = come.coalesce(1) if count <= FEW else come
    return rows.sortWithinPartitions(*map(quoted, sides.terms.key))


def _properties(sides: CopySides) -> Mapping[str, str]:
    """What becomes of the properties of a table that is there."""
    evolved, table = sides.evolved, sides.table
    assert table is not None
    kept = sides.settings.properties() if evolved.renamed else {}
    policy = policy_property(table.properties, sides.asked)
    return {**kept, **policy, **taken_back(table, evolved), **_memory(sides)}


def _memory(sides: CopySides) -> Mapping[str, str]:
    """The properties with which a memory begins (V28)."""
    place = sides.place
    if not place.begins:
        return {}
    return {SETTLED: place.settled_text(), MEMORY_SINCE: iso(place.recorded)}


def field_ids(sides: CopySides) -> tuple[int, ...] | None:
    """The field ids of the delivered columns; None where they are all (V2)."""
    evolved, table = sides.evolved, sides.table
    delivered = {each.name for each in evolved.delivered}
    if table is None or all(each.name in delivered for each in evolved.shape.user_columns):
        return None
    ids = ids_of_columns(sides.store, table, evolved)
    return tuple(sorted(ids[name] for name in delivered))
