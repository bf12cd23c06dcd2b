"""A full copy in order against the open versions, both Arrow tables: what `plan` and `rows` say of frames.

In order means that nothing is known from the copy's instant on: versions end at it, begin there, or are
renewed in place (V7, V9, V18).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.delivered import shaped
from backstory.formats.rows import arrow_type
from backstory.model.layout import IS_CURRENT, MEMORY, RECORDED_AT, VALID_FROM, VALID_TO
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.model.remembered import COLUMNS, END_BEFORE, ENDED_AT, KIND, ROLE, Role, Told
from backstory.stores.iceberg.slice import PLACE
from backstory.strategies.copies.plan import CopyTerms
from backstory.strategies.keys import flagged, key_codes
from backstory.strategies.scd2.arrow.matching import Matched, differ, matched, taken

INSTANT = pa.timestamp("us", "UTC")
Values: TypeAlias = pa.Array | pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy and what it is compared with of the open versions, matched by key.

    `back` tells of each delivered row that appeared whether its record had versions before, `anew` of each
    that changed whether it makes a version; the others are renewed in place. `ended` and `renewed` are the
    open versions that end, or are renewed, whole.
    """

    terms: CopyTerms
    delivered: pa.Table
    open: pa.Table
    found: Matched
    back: pa.Array
    anew: pa.Array
    ended: pa.Table
    renewed: pa.Table

    @property
    def began(self) -> pa.Table:
        """The delivered rows that begin versions."""
        changed = self.found.changed[0].filter(self.anew)
        return taken(self.delivered, pa.concat_arrays([self.found.appeared, changed]))

    @property
    def driving(self) -> dict[str, int]:
        """For each column the records that change in it."""
        pairs = self._changed()
        told = {name: differ([pair]) for name, pair in pairs.items()}
        counts = {name: pc.sum(each).as_py() or 0 for name, each in told.items() if each is not None}
        return {name: count for name, count in counts.items() if count}

    @property
    def losses(self) -> dict[str, tuple[int, int]]:
        """For each compared column that loses values: how many records do, and how many had one."""
        found = {}
        mine, theirs = self.found.changed
        for name in self.terms.compared:
            had = pc.is_valid(self.open[name].take(theirs))
            lost = pc.sum(pc.and_(had, pc.is_null(self.delivered[name].take(mine)))).as_py()
            if lost:
                rest = self.open[name].take(self.found.same[1])
                found[name] = lost, pc.sum(had).as_py() + len(rest) - rest.null_count
        return found

    def losing(self, name: str) -> pa.Table:
        """The delivered rows that lose their value in a column."""
        mine, theirs = self.found.changed
        had = pc.is_valid(self.open[name].take(theirs))
        lost = pc.and_(had, pc.is_null(self.delivered[name].take(mine)))
        return taken(self.delivered, mine.filter(lost.combine_chunks()))

    @property
    def likeness(self) -> dict[tuple[str, str], tuple[int, int]]:
        """For each succession of columns: the records whose values are one, and those that have any."""
        found = {}
        pairs = zip(self.found.changed, self.found.same, strict=True)
        mine, theirs = (pa.concat_arrays(each) for each in pairs)
        for old, new in self.terms.successions:
            here, there = self.delivered[new].take(mine), self.open[old].take(theirs)
            any_ = pc.or_(pc.is_valid(here), pc.is_valid(there))
            same = pc.and_(any_, pc.invert(differ([(here, there)])))
            found[old, new] = pc.sum(same).as_py() or 0, pc.sum(any_).as_py() or 0
        return found

    def _changed(self) -> dict[str, tuple[pa.ChunkedArray, pa.ChunkedArray]]:
        mine, theirs = self.found.changed
        names = (*self.terms.compared, *self.terms.renewed)
        return {name: (self.delivered[name].take(mine), self.open[name].take(theirs)) for name in names}


def comparable(terms: CopyTerms) -> bool:
    """Whether Arrow tells keys and values apart as the rule does: not what is nested, nor floating keys."""
    types = {each.name: each.type for each in terms.columns}
    flat = all(types[name].flat for name in (*terms.compared, *terms.renewed))
    return flat and not any(pa.types.is_floating(arrow_type(types[name])) for name in terms.key)


def copied(
    terms: CopyTerms,
    delivered: pa.Table,
    open_: pa.Table,
    whole: Callable[[pa.Table], pa.Table],
    closed: Callable[[], pa.Table],
    *,
    closes: bool,
) -> Copied | None:
    """Match a copy with the open versions; `closed` reads the keys of those that ended, if they matter.

    `whole` gives all columns of some open versions, in their order. None where a row has no key, or rows of
    one side share one. Without `closes` nothing vanishes.
    """
    scope = pa.chunked_array([pa.repeat(closes, len(open_))])
    found = matched(delivered, open_, terms.key, (*terms.compared, *terms.renewed), scope)
    if found is None:
        return None
    keys = delivered.select(terms.key)
    ended = closed() if len(found.appeared) else keys.schema.empty_table()
    (came, gone), count = key_codes([taken(keys, found.appeared), ended], terms.key)
    back = pa.array(flagged(gone, count)[came])
    mine, theirs = found.changed
    anew = differ((delivered[name].take(mine), open_[name].take(theirs)) for name in terms.compared)
    if anew is None:
        anew = pa.repeat(False, len(found.changed[0]))
    ended = pa.concat_arrays([theirs.filter(anew), found.vanished])
    renewed = theirs.filter(pc.invert(anew))
    both = whole(taken(open_, pa.concat_arrays([ended, renewed])))
    sides = both.slice(0, len(ended)), both.slice(len(ended))
    return Copied(terms, delivered, open_, found, back, anew, *sides)


def rows_that_come(copy: Copied, columns: Sequence[int] | None = None, *, marks: bool) -> pa.Table:
    """All rows to write, with the ids that they keep; with a mark of the copy, of these columns (V31)."""
    terms, ended, began = copy.terms, copy.ended, copy.began
    again = ended.filter(pc.is_valid(_told(ended, ENDED_AT)))
    mine = copy.found.changed[0].filter(pc.invert(copy.anew))
    renewed = {name: copy.delivered[name].take(mine) for name in terms.renewed}
    parts = [
        _with(ended, _moved(terms, ended)),
        _with(again, _left_behind(terms, again)),
        _with(began, _begun(terms, len(began))),
        _with(copy.renewed, renewed),
        *([_mark(terms, columns)] if marks else []),
    ]
    ids = ROW_ID in copy.open.column_names
    return pa.concat_tables(shaped(each, terms.columns, ids=ids) for each in parts)


def rows_that_go(copy: Copied) -> pa.Table:
    """The places of the stored rows that are written anew."""
    places = pa.concat_tables(each.select([FILE, POSITION]) for each in (copy.ended, copy.renewed))
    return places.cast(PLACE)


def _moved(terms: CopyTerms, rows: pa.Table) -> dict[str, Values]:
    told = {ENDED_AT: _instants(terms.recorded, len(rows)), END_BEFORE: rows[VALID_TO].combine_chunks()}
    return {
        VALID_TO: _instants(terms.at, len(rows)),
        IS_CURRENT: pa.repeat(False, len(rows)),
        RECORDED_AT: pc.coalesce(_told(rows, ENDED_AT), rows[RECORDED_AT]),
        MEMORY: _memory(terms, rows, told),
    }


def _left_behind(terms: CopyTerms, rows: pa.Table) -> dict[str, Values]:
    """The statement that a second move of an end would forget is another row, with an id of its own."""
    past = {ROLE: pa.repeat(Role.PAST.value, len(rows))}
    beside = {ROW_ID: pa.nulls(len(rows), pa.int64())} if ROW_ID in rows.column_names else {}
    return {
        VALID_TO: rows[VALID_FROM],
        IS_CURRENT: pa.repeat(False, len(rows)),
        MEMORY: _memory(terms, rows, past),
        **beside,
    }


def _begun(terms: CopyTerms, count: int) -> dict[str, Values]:
    return {
        VALID_FROM: _instants(terms.at, count),
        IS_CURRENT: pa.repeat(True, count),
        RECORDED_AT: _instants(terms.recorded, count),
    }


def _mark(terms: CopyTerms, columns: Sequence[int] | None) -> pa.Table:
    told = {ROLE: Role.FACT.value, KIND: Told.COPY.value, COLUMNS: None if columns is None else list(columns)}
    memory = {name: told.get(name) for name, _ in terms.memory.parts}
    return pa.table(
        {
            VALID_FROM: _instants(terms.at, 1),
            VALID_TO: _instants(terms.at, 1),
            IS_CURRENT: pa.array([False]),
            RECORDED_AT: _instants(terms.recorded, 1),
            MEMORY: pa.array([memory], arrow_type(terms.memory)),
        }
    )


def _told(rows: pa.Table, name: str) -> pa.Array:
    return pc.struct_field(rows[MEMORY].combine_chunks(), name)


def _memory(terms: CopyTerms, rows: pa.Table, told: Mapping[str, pa.Array]) -> pa.Array:
    """What the rows remember, with some of it told anew; fields that feeds add are kept."""
    types = {name: arrow_type(type_) for name, type_ in terms.memory.parts}
    values = [told[name] if name in told else _told(rows, name) for name in types]
    fields = [pa.field(name, type_) for name, type_ in types.items()]
    return pa.StructArray.from_arrays(
        [value.cast(field.type) for value, field in zip(values, fields, strict=True)], fields=fields
    )


def _with(rows: pa.Table, values: Mapping[str, Values]) -> pa.Table:
    there = {name: rows[name] for name in rows.column_names}
    return pa.table({**there, **values})


def _instants(micros: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(micros, INSTANT), count)
