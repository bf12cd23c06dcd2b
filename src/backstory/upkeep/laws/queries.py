"""The laws of rows as SQL for DuckDB and Spark, and the facts about a table that these laws need.

A law is an expression that is true in rows that break it. Words in braces are columns of the layout, other
expressions, or constants of the table. Instants are microseconds since 1970. The expression `suspect` is true
in rows whose records must also be checked in Python (`mending.py`).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.model.instant import parse_instant
from backstory.model.layout import MEMORY, ROW_HASH, Layout
from backstory.model.table import Shape
from backstory.model.types import Kind
from backstory.model.versions_layout import (
    IGNORE,
    MEMORY_TYPE,
    OVERWRITE,
    RECORDED,
    SEQUENCE,
    SETTLED,
    TRACK,
    FactKind,
    Role,
)
from backstory.reading.lifetimes import SPARK, QueryWords, SqlSyntax, operation_sql
from backstory.reading.questions import identity_names
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.metadata.values import rows_of
from backstory.stores.port import TableLike
from backstory.strategies.events.terms import Op
from backstory.upkeep.laws.mending import broken_together
from backstory.upkeep.laws.terms import DELETED, INFINITY, LAWS, NEW, PREFIX, WORDS, Law, LawTerms

if TYPE_CHECKING:
    from backstory.stores.sql.row_hashes import RowHash

_MANIFEST: Final = "backstory.odf.manifest"


def terms_of(table: TableMetadata) -> LawTerms:
    """The facts needed to check a table's rows, without its marks and hashes."""
    shape = table.shape
    if shape.layout is not Layout.VERSIONS:
        return LawTerms(shape)
    terms = LawTerms(shape, newest_instant(table, RECORDED), _settled_interval(table))
    if not keeps_memory(table):
        return terms
    track, ignore, overwrite = (
        json.loads(table.properties.get(name) or "[]") for name in (TRACK, IGNORE, OVERWRITE)
    )
    users = [column.name for column in shape.user_columns if not track or column.name in track]
    tracked = tuple(name for name in users if name not in {*ignore, *overwrite, *shape.key})
    return replace(terms, tracked=tracked, numbers={each["name"]: int(each["id"]) for each in table.fields})


def keeps_memory(table: TableLike) -> bool:
    """Whether a native table keeps memory, so that the values in its rows are checked too."""
    return table.shape.layout is Layout.VERSIONS and SETTLED in table.properties


def read_row_hashes(table: TableMetadata) -> "tuple[RowHash, ...]":
    """The ways in which rows may be hashed.

    The result is empty if rows have no hashes, if the table does not record all ways, or if sqlglot is not
    installed.
    """
    if Law.ROW_HASH not in LAWS[table.shape.layout] or find_spec("sqlglot") is None:
        return ()
    from backstory.stores.sql.row_hashes import ROW_HASHES, hashes_of_property

    names = {int(each["id"]): each["name"] for each in table.fields}
    return tuple(hashes_of_property(table.properties.get(ROW_HASHES), names) or ())


def newest_instant(table: TableMetadata, name: str) -> int | None:
    """The newest instant in a property of commits, or None."""
    newest = table.newest_property(name)
    return None if newest is None else micros_of(parse_instant(newest))


def _settled_interval(table: TableLike) -> tuple[int | None, int] | None:
    """The settled interval, or None if nothing is settled or the property cannot be parsed."""
    try:
        first, last = json.loads(table.properties.get(SETTLED) or "[]")
        return (None if first is None else micros_of(parse_instant(first))), micros_of(parse_instant(last))
    except (TypeError, ValueError, AttributeError):
        return None


def is_strict(table: TableMetadata) -> bool:
    """Whether no source of a log keeps a changelog as delivered, whose operations follow no law."""
    manifest = table.properties.get(_MANIFEST, "")
    return not re.search(r'"validation"\s*:\s*"schema"', manifest, re.IGNORECASE)


SUSPECT: Final = "suspect"
HALF: Final = "half"  # a pair of operations without its second row
# The law of each column that is true in rows that break it.
LAW_OF: Final = {PREFIX + law: law for law in Law} | {PREFIX + HALF: Law.OPERATIONS}
Texts = dict[str, str]
# Counts how often the rows of one record break the laws that no query checks.
Judge = Callable[[pa.Table], Mapping[str, int]]

# The constants of all tables.
_WORDS: Final[Texts] = {
    **{each.value: f"'{each.value}'" for each in (*Role, *FactKind)},
    **{op.name: str(int(op)) for op in Op},
    "operations": ", ".join(str(int(op)) for op in Op),
    "infinity": str(INFINITY),
    "states": ", ".join(f"'{each}'" for each in sorted(WORDS)),
    "new": f"'{NEW}'",
    "deleted": f"'{DELETED}'",
}
_RECORD: Final = "OVER (PARTITION BY {key} ORDER BY {start} NULLS FIRST, {until}"
_BEFORE: Final = _RECORD + " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
_AFTER: Final = _RECORD + " ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
_WHOLE: Final = _RECORD + " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"
# Whether a row has the hash of its values, or any hash if the way of hashing is unknown, or was erased.
_HASHED: Final = """COALESCE({hash} IN ('erased', {hashes}),
  length({hash}) = 64 AND regexp_replace({hash}, '^[0-9a-f]+', '') = '', FALSE)"""

# The laws of tables with one row for each record.
_KEYS: Final[Texts] = {
    "nth": "ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY {keyed})",
    Law.NULL_KEY: "NOT {keyed}",
    Law.UNIQUE_KEY: "{keyed} AND {nth} > 1",
}
# The laws of versions, which are ordered by start in each record.
_VERSIONS: Final[Texts] = {
    "version": "{keyed}",
    "open": "{end} IS NULL",
    "opened": "{version} AND {open}",
    "ending": "{end}",
    "lasting": "COALESCE({version} AND {start} IS NOT NULL AND ({open} OR {start} < {ending}), FALSE)",
    "until": "CASE WHEN {open} THEN {infinity} ELSE COALESCE({end}, {start}, 0) END",
    "last start": "MAX(CASE WHEN {version} THEN {start} END) " + _BEFORE,
    "reached": "MAX(CASE WHEN {lasting} THEN {until} END) " + _BEFORE,
    "was open": "MAX(CASE WHEN {opened} THEN 1 END) " + _BEFORE,
    Law.NULL_KEY: "NOT {keyed}",
    Law.UNIQUE_START: "{version} AND COALESCE({start} = {last start}, FALSE)",
    Law.START_BEFORE_END: "{version} AND NOT {lasting}",
    Law.NO_OVERLAP: "{lasting} AND COALESCE({start} < {reached}, FALSE)",
    Law.ONE_OPEN: "{opened} AND {was open} IS NOT NULL",
}
_FAR: Final[Texts] = {"open": "COALESCE({end} >= {far}, TRUE)"}
# A version without an end counts as open if its flag is set, but then breaks the law of the marker.
_FIVETRAN: Final[Texts] = {
    "open": "COALESCE({end} >= {far}, FALSE)",
    "opened": "{version} AND ({open} OR COALESCE({flag}, FALSE))",
    "ending": "CASE WHEN {end} < {far} THEN {end} + {grain} END",
    Law.START_BEFORE_END: "{version} AND NOT {lasting} AND NOT ({end} IS NULL AND {start} IS NOT NULL)",
}
_FLAGGED: Final[Texts] = {Law.OPEN_MARKER: "{version} AND {flag} IS DISTINCT FROM {open}"}
# A state is checked unless the model has its own words for states.
_STATED: Final[Texts] = {
    "own": "MAX(CASE WHEN {version} AND {state} NOT IN ({states}) THEN 1 END) " + _WHOLE,
    Law.OPEN_MARKER: """{version} AND ({state} IS NULL
      OR ({own} IS NULL AND {state} = CASE WHEN {open} THEN {deleted} ELSE {new} END))""",
}
# The laws of layout `versions` (native.md V3, V6, V33). The expressions from `next` on show whether a record
# surely keeps the laws one-belief, one-fact and fold: each change began a version, or copies did.
_REMEMBERED: Final[Texts] = {
    "version": """{keyed} AND ({role} IS NULL
      OR COALESCE({start} IS NOT NULL AND ({end} IS NULL OR {end} > {start}), FALSE))""",
    "mark": "COALESCE({role} = {fact} AND {kind} IN ({copy}, {truncate}), FALSE)",
    "starts settled": "COALESCE({start} BETWEEN {settled from} AND {settled to}, FALSE)",
    "ends settled": "COALESCE({end} BETWEEN {settled from} AND {settled to}, FALSE)",
    Law.NULL_KEY: "NOT ({keyed} OR {mark})",
    Law.MEMORY: """NOT COALESCE(CASE
      WHEN {role} IS NULL THEN COALESCE({kind} = {upsert}, TRUE) AND {scope} IS NULL
      WHEN {start} IS DISTINCT FROM {end} OR {start} IS NULL THEN FALSE
      WHEN {role} = {past} THEN {keyed} AND COALESCE({kind} = {upsert}, TRUE)
      WHEN {role} = {fact} AND {keyed} THEN {kind} IN ({upsert}, {delete}, {void})
      ELSE {mark} END, FALSE)""",
    Law.RECORDED: """NOT ({written} IS NOT NULL AND ({ended_at} IS NULL OR {written} < {ended_at})
      AND COALESCE({ended_at}, {written}) <= {newest})""",
    Law.SETTLED: "COALESCE({role} = {fact}, FALSE) AND {time} IS NULL AND {starts settled}",
    "next": "LEAD({start}) " + _RECORD + ")",
    "last end": "LAG({end}) " + _RECORD + ")",
    "floor": "MIN({written}) " + _AFTER,
    "facts": "MAX(CASE WHEN {kind} IS NOT NULL THEN 1 END) " + _WHOLE,
    "position": "MAX(CASE WHEN {time} IS NOT NULL THEN {sequence} END) " + _BEFORE,
    SUSPECT: """NOT COALESCE({keyed} AND {role} IS NULL AND {lasting} AND NOT {memory} AND NOT {recorded}
      AND ({next} IS NULL OR (NOT {open} AND {next} > {start} AND {next} >= {end}))
      AND ({ended_at} IS NULL OR {floor} IS NULL OR {ended_at} <= {floor})
      AND ({time} IS NULL OR ({sequence} IS NOT NULL AND ({position} IS NULL OR {sequence} > {position})))
      AND ({folded} OR (NOT {marked} AND {facts} IS NULL)), FALSE)""",
}
# A version surely begins and ends as its facts require (V22 to V24).
_FOLDED: Final[Texts] = {
    "changed": "{last end} IS DISTINCT FROM {start} OR NOT ({same})",
    "upserted": "COALESCE({kind} = {upsert}, FALSE) AND ({columns} IS NULL OR ({assigned}))",
    "begins": "(COALESCE({start} IN ({copies}), FALSE) OR {upserted}) AND {changed}",
    "ends": "{end} IS NULL OR COALESCE({next} = {end}, FALSE) OR COALESCE({end} IN ({copies}), FALSE)",
    "folded": "({begins} OR {starts settled}) AND ({ends} OR {ends settled})",
}
# The laws of events in a record's order, and the operations that may follow each other (odf-ingest.md 2.10).
_RECORD_OF_EVENTS: Final = "OVER (PARTITION BY {key} ORDER BY {offset})"
_EVENTS: Final[Texts] = {
    "known": "CASE WHEN {op} IN ({operations}) THEN {op} END",
    "before": "LAG({known}) " + _RECORD_OF_EVENTS,
    "last": "LEAD(1) " + _RECORD_OF_EVENTS + " IS NULL",
    Law.NULL_KEY: "NOT {keyed}",
    Law.OPERATIONS: "NOT {follows}",
}
_APPENDED: Final[Texts] = {"follows": "COALESCE({known} = {APPEND}, FALSE)"}
_DELIVERED: Final[Texts] = {"follows": "{known} IS NOT NULL"}
_PAIRED: Final[Texts] = {
    "follows": """COALESCE(CASE WHEN {before} = {CORRECT_FROM} THEN {known} = {CORRECT_TO}
      WHEN {before} IN ({APPEND}, {CORRECT_TO}) THEN {known} IN ({CORRECT_FROM}, {RETRACT})
      ELSE {known} = {APPEND} END, FALSE)""",
}
# A log without a row for the values before a correction.
_UNPAIRED: Final[Texts] = {
    "follows": """COALESCE(CASE WHEN {before} = {CORRECT_FROM} THEN FALSE
      WHEN {before} IN ({APPEND}, {CORRECT_TO}) THEN {known} IN ({CORRECT_TO}, {RETRACT})
      ELSE {known} = {APPEND} END, FALSE)""",
}
# A ledger has many events of a key. A correction removes the old event before it adds the new one. A ledger
# corrects an event only if it has one at this time, and adds an event only if it has none.
_LEDGER: Final[Texts] = {
    "follows": """COALESCE(CASE WHEN {before} = {CORRECT_FROM} THEN {known} = {CORRECT_TO}
      WHEN {before} = {RETRACT} THEN FALSE
      WHEN {before} IN ({APPEND}, {CORRECT_TO}) THEN {known} IN ({APPEND}, {CORRECT_FROM})
      ELSE {known} = {APPEND} END, FALSE)""",
    "then": "LAG({known}) OVER (PARTITION BY {key}, {time}, {follows} ORDER BY {offset})",
    Law.OPERATIONS: """NOT ({follows}
      AND COALESCE({then} <> {CORRECT_FROM}, FALSE) = ({known} = {CORRECT_FROM}))""",
}
_HALVES: Final[Texts] = {HALF: "{last} AND COALESCE({known} = {CORRECT_FROM}, FALSE)"}
_WATERMARK: Final[Texts] = {Law.WATERMARK: "COALESCE({time} > {watermark}, TRUE)"}


def word_name(syntax: SqlSyntax, word: str) -> str:
    """The SQL of the column with the value of a word in braces."""
    return syntax.name(PREFIX + word)


def _whole_key(syntax: SqlSyntax, names: Sequence[str]) -> str:
    """SQL that tests whether no part of a key is NULL."""
    return " AND ".join(f"{syntax.column(name)} IS NOT NULL" for name in names) or "TRUE"


def layout_columns(terms: LawTerms, syntax: SqlSyntax) -> Texts:
    """The layout's columns, by the names of `FIELDS`, and the values by which the law `fold` is checked."""
    shape, span, own = terms.shape, terms.shape.layout.span, syntax.column
    columns = {"keyed": _whole_key(syntax, terms.identity)}
    if terms.has_hashes:
        # NULL makes `IN` unknown for every other hash.
        columns["hashed"] = _HASHED.format(hash=own(ROW_HASH), hashes=", ".join(terms.hashes) or "NULL")
    if span is None:
        return columns
    columns |= {"start": syntax.micros_in(shape, span.start), "end": syntax.micros_in(shape, span.end)}
    columns |= {name: own(each) for name, each in (("flag", span.flag), ("state", span.state)) if each}
    if terms.remembers:
        column = shape.column(MEMORY)
        has_sequence = column is not None and SEQUENCE in dict(column.type.parts)
        columns |= {"written": syntax.micros_in(shape, span.written), SEQUENCE: "CAST(NULL AS INT)"}
        for name, type_ in (*MEMORY_TYPE.parts, *([(SEQUENCE, MEMORY_TYPE)] if has_sequence else [])):
            text = f"({own(MEMORY)}).{syntax.name(name)}"
            columns[name] = syntax.micros.format(text) if type_.kind is Kind.UTC_DATETIME else text
    return columns | {f"value {place}": own(name) for place, name in enumerate(terms.foldable)}


def _version_laws(terms: LawTerms) -> Texts:
    """The laws of versions in a table's layout."""
    span = terms.span
    laws = _VERSIONS | (_FIVETRAN if span.grain else {} if span.far is None else _FAR)
    laws |= (_FLAGGED if span.flag else {}) | (_STATED if span.state else {})
    laws |= {Law.ROW_HASH: "{keyed} AND NOT {hashed}"} if terms.has_hashes else {}
    return laws | (_REMEMBERED | _folding(terms) if terms.remembers else {})


def _folding(terms: LawTerms) -> Texts:
    """The expressions that compare each version's values with those of the version that ends at its start."""
    numbers = [terms.numbers[name] for name in terms.foldable]
    if not numbers:
        return {"folded": "FALSE"}
    texts = dict[str, str]()
    for place in range(len(numbers)):
        before = f"CASE WHEN {{last end}} = {{start}} THEN {{before {place}}} END"
        texts[f"before {place}"] = f"LAG({{value {place}}}) {_RECORD})"
        texts[f"same {place}"] = f"{{value {place}}} IS NOT DISTINCT FROM {before}"
    same = [f"{{same {place}}}" for place in range(len(numbers))]
    texts["same"] = " AND ".join(same)
    texts["assigned"] = " AND ".join(
        f"(array_contains({{columns}}, {number}) OR {each})"
        for number, each in zip(numbers, same, strict=True)
    )
    return texts | _FOLDED


def _constants(terms: LawTerms) -> Texts:
    first, last = terms.settled or (1, 0)
    return {
        "far": str(terms.span.far),
        "grain": str(terms.span.grain),
        "newest": str(INFINITY if terms.newest is None else terms.newest),
        "settled from": str(-INFINITY if first is None else first),
        "settled to": str(last),
        "marked": str(bool(terms.marks)).upper(),
        "copies": ", ".join(str(mark.start) for mark in terms.marks) or "NULL",
    }


@dataclass(frozen=True, slots=True)
class RowLaws:
    """The laws of a table's rows, and the columns by which records are identified, shown and sorted.

    For suspect records, `judge` counts violations of the laws that no query checks. `judge` also needs the
    columns `values`.
    """

    texts: Texts
    columns: Callable[[SqlSyntax], Texts]
    identity: Sequence[str]
    naming: Sequence[str]
    order: str
    judge: Judge | None = None
    values: Sequence[str] = ()
    constants: Texts = field(default_factory=dict[str, str])

    @property
    def names(self) -> list[str]:
        """The columns that are true in rows that break a law, or are suspect."""
        return [PREFIX + name for name in self.texts if PREFIX + name in LAW_OF or name == SUSPECT]

    @property
    def table_columns(self) -> list[str]:
        """The table's columns that the laws read."""
        names = dict.fromkeys([*self.identity, *self.naming, *self.values])
        self.columns(replace(SPARK, stored=lambda name: names.setdefault(name) or name))
        return list(names)

    def columns_and_laws(self, syntax: SqlSyntax) -> list[str]:
        """The layout's columns, and `names`."""
        return [*(PREFIX + name for name in self.columns(syntax)), *self.names]

    def relation(self, syntax: SqlSyntax, key: Sequence[str]) -> str:
        """The rows with the layout's columns and all expressions, each after those that it reads."""
        known = {**_WORDS, **self.constants, "key": ", ".join(key)}
        words, named = QueryWords(known, partial(word_name, syntax)), set(known)
        text, step, left = syntax.rows, dict(self.columns(syntax)), dict(self.texts)
        while step:
            more = ", ".join(f"{sql} AS {word_name(syntax, name)}" for name, sql in step.items())
            text, named = f"(SELECT *, {more} FROM {text})", named | step.keys()
            step = {name: sql.format_map(words) for name, sql in left.items() if words_in(sql) <= named}
            left = {name: sql for name, sql in left.items() if name not in step}
        return f"{text} AS judged"


def marks_query(terms: LawTerms, syntax: SqlSyntax) -> str:
    """The query for the marks of a table, which are facts without a key that still hold."""
    columns, first = layout_columns(terms, syntax), syntax.column(terms.shape.key[0])
    listed = ", ".join(f"{sql} AS {word_name(syntax, name)}" for name, sql in columns.items())
    holds = "{role} = {fact} AND {kind} IS NOT NULL AND {start} IS NOT NULL AND {ended_at} IS NULL"
    holds = holds.format_map(QueryWords(dict(_WORDS), partial(word_name, syntax)))
    rows = f"(SELECT {listed} FROM {syntax.rows} WHERE {first} IS NULL) AS marks"
    return f"SELECT * FROM {rows} WHERE {holds}"


def words_in(text: str) -> set[str]:
    """The words in braces."""
    return {word for _, word, _, _ in Formatter().parse(text) if word}


def query_of_rows(terms: LawTerms) -> RowLaws:
    """The laws of a table of versions, or of a table with one row for each record."""
    names, columns = (terms.identity, terms.naming), partial(layout_columns, terms)
    if terms.shape.layout.span is None:
        laws = _KEYS | ({Law.ROW_HASH: "NOT {hashed}"} if terms.has_hashes else {})
        return RowLaws(laws, columns, *names, f"{PREFIX}keyed")
    judge = partial(count_broken, terms) if terms.remembers else None
    laws, constants = _version_laws(terms), _constants(terms)
    return RowLaws(laws, columns, *names, f"{PREFIX}start", judge, terms.tracked, constants)


def count_broken(terms: LawTerms, life: pa.Table) -> Mapping[str, int]:
    """How often the rows of a record break each law about several rows."""
    rows = [terms.row(place, columns) for place, columns in enumerate(rows_of(life))]
    return Counter(law.value for law in broken_together(rows, terms))


def query_of_events(
    shape: Shape, names: Mapping[str, Any], *, strict: bool, watermark: int | None
) -> RowLaws:
    """The laws of an event log, except the law `offsets`. `names` are the system columns.

    A ledger has an event for each time of a key, and a correction may move the event to another time.
    """
    keyed, paired = bool(shape.key), names["op"] is not None
    corrects = keyed and paired and bool(names["events"])
    if corrects:
        laws = _EVENTS | _LEDGER
    elif keyed and strict:
        laws = _EVENTS | (_PAIRED if paired else _UNPAIRED)
    else:
        laws = _EVENTS | (_DELIVERED if keyed else _APPENDED)
    laws |= _HALVES if keyed and paired and strict else {}
    laws |= {} if watermark is None else _WATERMARK
    identity = (shape.key if corrects else identity_names(names, shape)) or [names["offset"]]
    columns, constants = partial(event_columns, shape, names), {"watermark": str(watermark)}
    naming = shape.key or (names["offset"],)
    return RowLaws(laws, columns, identity, naming, f"{PREFIX}offset", constants=constants)


def event_columns(shape: Shape, names: Mapping[str, Any], syntax: SqlSyntax) -> Texts:
    """The columns of an event log. `names` are the system columns."""
    return {
        "op": operation_sql(syntax.column, names),
        "time": syntax.micros_in(shape, names["event_time"]),
        "offset": offset_sql(syntax, names["offset"]),
        "keyed": _whole_key(syntax, shape.key),
    }


def offset_sql(syntax: SqlSyntax, name: str) -> str:
    """SQL for the offset of an event."""
    return f"CAST({syntax.column(name)} AS BIGINT)"
