"""The laws of a small table's rows: every record is judged, where Spark would find those to look at."""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from backstory.model import remembered as memory
from backstory.model.layout import MEMORY, ROW_HASH, Layout
from backstory.model.remembered import RECORDED, Role
from backstory.reading.arrow.knowledge import micros, within
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.ordered import rows_in_order
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import values_of
from backstory.upkeep.laws.arrow.rows import records
from backstory.upkeep.laws.judged import (
    FIELDS,
    PREFIX,
    Judged,
    Telling,
    judged_rows,
    judged_spans,
    numbers_of,
    read_marks,
    read_row_hashes,
)
from backstory.upkeep.laws.lives import Broken, added_up, broken_by
from backstory.upkeep.laws.plan import ByKey, ByLife
from backstory.upkeep.laws.rule_columns import TIMELY
from backstory.upkeep.laws.terms import LawTerms, RememberedMark

if TYPE_CHECKING:
    from backstory.stores.sql.row_hashes import RowHash

Told = dict[str, Sequence[Any]]


def broken_spans(files: Files) -> Broken:
    """The laws that versions of records break, as `broken_spans` of Spark tells them."""
    table = files.table
    numbers = partial(numbers_of, table.fields)
    telling = Telling(
        lambda: table.newest_property(RECORDED), numbers, partial(_marks, files), partial(_hashes, files)
    )
    judged = judged_spans(table, telling)
    span = table.shape.layout.span
    assert span is not None
    rows = rows_in_order(files, _columns_to_read(files, judged), [*judged.identity, span.start])
    valued = judged.terms.tracked if judged.valued else ()
    told = _cells(rows, [*judged.naming, *valued]) | _rule_columns(rows, judged)
    lives = records(rows, judged.identity, told)
    return added_up(broken_by(ByLife(judged), judged.naming, lives))


def broken_rows(files: Files) -> Broken:
    """The laws of keys of a table that has each record once; and of its hashes, if it has them."""
    judged = judged_rows(files.table, partial(_hashes, files))
    if not judged.identity:
        return {}
    hashed = [ROW_HASH, *_hashed(files)] if judged.terms.hashed else []
    rows = rows_in_order(files, [*judged.naming, *hashed], judged.identity)
    told: Told = {PREFIX + "keyed": _whole(rows, judged.identity)}
    if judged.terms.hashed:
        told |= _of_hashes(rows, judged)
    found = records(rows, judged.identity, _cells(rows, judged.naming) | told)
    return added_up(broken_by(ByKey(judged.terms), judged.naming, found))


def _columns_to_read(files: Files, judged: Judged) -> list[str]:
    """The columns to read: those shown, those of versions, and hashes and values if the rule needs them."""
    shape, span = judged.shape, judged.shape.layout.span
    assert span is not None
    types = {each.name: each.type.kind for each in shape.columns}
    names = [span.start, span.end, span.flag, span.state]
    names += [span.written] if types.get(span.written) in TIMELY else []
    names += [MEMORY] if shape.layout is Layout.VERSIONS else []
    names += [ROW_HASH, *_hashed(files)] if judged.terms.hashed else []
    names += judged.terms.tracked if judged.valued else ()
    return [name for name in (*judged.naming, *names) if name]


def _cells(rows: pa.Table, names: Sequence[str]) -> dict[str, Sequence[Any]]:
    return {name: values_of(rows[name]) for name in names}


def _rule_columns(rows: pa.Table, judged: Judged) -> Told:
    """The columns that the rule judges by, a value a row, from the columns of the layout."""
    span = judged.shape.layout.span
    assert span is not None
    said: dict[str, Sequence[Any]] = dict.fromkeys(FIELDS, [None] * len(rows))
    said |= {"start": micros(rows, span.start), "end": micros(rows, span.end)}
    said["keyed"] = _whole(rows, judged.identity)
    if span.written in rows.column_names:
        said["written"] = micros(rows, span.written)
    for name, column in (("flag", span.flag), ("state", span.state)):
        if column:
            said[name] = rows[column].to_pylist()
    if judged.shape.layout is Layout.VERSIONS:
        said |= _remembered(rows[MEMORY])
    columns = {PREFIX + name: values for name, values in said.items()}
    return columns | (_of_hashes(rows, judged) if judged.terms.hashed else {})


def _remembered(column: pa.ChunkedArray) -> Told:
    """What a row remembers; Unreadable for a memory of other fields, which Spark refuses."""
    names = {field.name for field in column.type}
    plain, timed = (
        (memory.ROLE, memory.KIND, memory.SCOPE, memory.COLUMNS),
        (memory.ENDED_AT, memory.END_BEFORE, memory.OWN_TIME),
    )
    if not names.issuperset({*plain, *timed}):
        raise Unreadable("a memory of other fields")
    found: dict[str, Sequence[Any]] = {name: values_of(within(column, name)) for name in plain}
    found |= {name: micros(within(column, name)) for name in timed}
    return found | ({"sequence": values_of(within(column, "sequence"))} if "sequence" in names else {})


def _whole(rows: pa.Table, names: Sequence[str]) -> list[bool]:
    """Whether no part of a key is NULL."""
    parts = [rows[name].is_valid().to_pylist() for name in names]
    return [all(row) for row in zip(*parts, strict=True)]


def _marks(files: Files) -> tuple[RememberedMark, ...]:
    """What a table remembers of every key, in rows without one."""
    judged = Judged(files.table.shape, LawTerms())
    names = list(dict.fromkeys([*judged.identity, *_columns_to_read(files, judged)]))
    rows = files.rows(files.table.snapshot, files.table.fields, names)
    is_fact = pc.equal(within(rows[MEMORY], memory.ROLE), Role.FACT.value)
    columns = _rule_columns(rows.filter(pc.and_(pc.is_null(rows[judged.shape.key[0]]), is_fact)), judged)
    records = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return read_marks(judged.shape, records)


def _ways(files: Files) -> "tuple[RowHash, ...]":
    return read_row_hashes(files.table, partial(numbers_of, files.table.fields))


def _hashed(files: Files) -> list[str]:
    """The columns that go into hashes."""
    return [column.name for each in _ways(files) for column in each.columns]


def _hashes(files: Files) -> tuple[str, ...]:
    """The hashes that a row may have, in DuckDB's words; Unreadable where these are not Spark's."""
    if not (found := _ways(files)):
        return ()
    if find_spec("duckdb") is None:
        raise Unreadable("hashes without DuckDB")
    from backstory.stores.sql.alike import ALIKE
    from backstory.stores.sql.dialects.duckdb import DuckDB

    dialect = DuckDB()
    if any(column.datatype not in ALIKE for each in found for column in each.columns):
        raise Unreadable("values whose texts differ")
    return tuple(each.sql(dialect, dialect.quote_ident) for each in found)


def _of_hashes(rows: pa.Table, judged: Judged) -> Told:
    """A row's hash, and whether it is one that the row may have; NULL where nobody knows."""
    told = rows[ROW_HASH].to_pylist()
    rightly = _rightly(rows, judged.hashes) if judged.hashes else [None] * len(rows)
    return {PREFIX + "hash": told, PREFIX + "rightly": rightly}


def _rightly(rows: pa.Table, hashes: Sequence[str]) -> list[bool | None]:
    from backstory.stores.sql.alike import in_years
    from backstory.stores.sql.dialects.duckdb import DuckDB
    from backstory.stores.sql.engines.duckdb import open_duckdb

    if not all(map(in_years, rows.columns)):
        raise Unreadable("years whose texts differ")
    allowed = ", ".join(["'erased'", *hashes])
    with open_duckdb("duckdb://") as engine:
        given = engine.bring("given", rows, [])
        asked = f"SELECT {DuckDB().quote_ident(ROW_HASH)} IN ({allowed}) AS rightly FROM {given}"
        found: list[bool | None] = engine.rows(asked)["rightly"].to_pylist()
        return found
