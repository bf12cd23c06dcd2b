"""The laws of rows as SQL for DuckDB and Spark, and the facts about a table that these laws need.

A law is an expression that is true in rows that break it. Words in braces are columns of the layout, other
expressions, or constants of the table. Instants are microseconds since 1970. The expression `suspect` is true
in rows whose records must also be checked in Python (`mending.py`). For event logs, the facts include which
events may follow each other (odf-ingest.md, section 2.10).
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.journal.chain import WATERMARK
from backstory.model import versions_layout as memory
from backstory.model.instant import parse_instant
from backstory.model.layout import HIST_SUFFIX, KEY_SUFFIX, MEMORY, ROW_HASH, Layout
from backstory.model.table import Shape
from backstory.model.types import Kind
from backstory.model.versions_layout import RECORDED, SEQUENCE, SETTLED, FactKind, Role
from backstory.reading.lifetimes import QueryWords, SqlSyntax, operation_sql
from backstory.reading.questions import identity_names
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.metadata.values import rows_of
from backstory.stores.port import TableLike
from backstory.strategies.events.terms import Op
from backstory.upkeep.laws.mending import broken_together
from backstory.upkeep.laws.terms import (
    DELETED,
    FIELDS,
    INFINITY,
    LAWS,
    NEW,
    PREFIX,
    WORDS,
    Law,
    LawTerms,
    RecordRow,
)

if TYPE_CHECKING:
    from backstory.stores.sql.row_hashes import RowHash

# The query compares each row with at most this many instants of copies.
MOST_COPIES: Final = 1_000
# Types whose values engines do not compare, or compare differently.
_WITHOUT_ORDER: Final = ("map<", "variant")


@dataclass(frozen=True, slots=True)
class TableTerms:
    """The identifying columns of a table's records, and the facts needed to check them.

    `hashes` are the hashes that a row may have, as SQL, or empty if the way of hashing is unknown.
    """

    shape: Shape
    terms: LawTerms
    hashes: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns whose values identify a record."""
        shape = self.shape
        record = f"{shape.table.name.removesuffix(HIST_SUFFIX)}{KEY_SUFFIX}"
        known = shape.layout in {Layout.HIST, Layout.BASE} and record in shape.names
        return (record,) if known else shape.key

    @property
    def naming(self) -> tuple[str, ...]:
        """The columns by which a record is shown to people."""
        return self.shape.key or self.identity

    @property
    def foldable(self) -> tuple[str, ...]:
        """The columns by which a query checks the law `fold`, or none if no query can check the law."""
        marks, tracked = self.terms.marks, self.terms.tracked
        types = [str(column.type).lower() for column in self.shape.columns if column.name in tracked]
        ordered = not any(word in each for word in _WITHOUT_ORDER for each in types)
        copies = all(mark.kind == FactKind.COPY for mark in marks) and len(marks) <= MOST_COPIES
        return tracked if ordered and copies else ()

    def row(
        self, place: int, columns: Mapping[str, Any], twin: object = None, row_id: int | None = None
    ) -> RecordRow:
        """A row of a record from the layout's columns."""
        fields: dict[str, Any] = {name: columns.get(PREFIX + name) for name in FIELDS}
        fields["sequence"] = tuple((fields["sequence"] or {}).values())
        values = {name: columns.get(name) for name in self.terms.tracked}
        broken = frozenset(law for law in Law if columns.get(PREFIX + law))
        return RecordRow(place, **fields, values=values, twin=twin, row_id=row_id, broken=broken)

    def count_broken(self, life: pa.Table) -> Mapping[str, int]:
        """How often the rows of a record break each law about several rows."""
        rows = [self.row(place, columns) for place, columns in enumerate(rows_of(life))]
        return Counter(law.value for law in broken_together(rows, self.terms))


def terms_of(table: TableMetadata) -> TableTerms:
    """The facts needed to check a table's rows, without its marks and hashes."""
    shape, span = table.shape, table.shape.layout.span
    hashed = Law.ROW_HASH in LAWS[shape.layout]
    if span is None:
        return TableTerms(shape, LawTerms(hashed=hashed))
    terms = LawTerms(bool(span.flag), bool(span.state), hashed, span.grain, span.far)
    if shape.layout is not Layout.VERSIONS:
        return TableTerms(shape, terms)
    terms = replace(
        terms, remembers=True, newest=_newest_instant(table, RECORDED), settled=_settled_interval(table)
    )
    if not keeps_memory(table):
        return TableTerms(shape, terms)
    track, ignore, overwrite = (
        json.loads(table.properties.get(name) or "[]")
        for name in (memory.TRACK, memory.IGNORE, memory.OVERWRITE)
    )
    users = [column.name for column in shape.user_columns if not track or column.name in track]
    tracked = tuple(name for name in users if name not in {*ignore, *overwrite, *shape.key})
    numbers = {each["name"]: int(each["id"]) for each in table.fields}
    return TableTerms(shape, replace(terms, tracked=tracked, numbers=numbers))


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


def _newest_instant(table: TableMetadata, name: str) -> int | None:
    newest = table.newest_property(name)
    return None if newest is None else micros_of(parse_instant(newest))


def _settled_interval(table: TableLike) -> tuple[int | None, int] | None:
    """The settled interval, or None if nothing is settled or the property cannot be parsed."""
    try:
        first, last = json.loads(table.properties.get(SETTLED) or "[]")
        return (None if first is None else micros_of(parse_instant(first))), micros_of(parse_instant(last))
    except (TypeError, ValueError, AttributeError):
        return None


_MANIFEST: Final = "backstory.odf.manifest"
_OPERATIONS: Final = {
    "-": None, "A": Op.APPEND, "R": Op.RETRACT, "F": Op.CORRECT_FROM, "T": Op.CORRECT_TO
}  # fmt: skip


def _pairs(text: str) -> frozenset[tuple[Op | None, Op | None]]:
    return frozenset((_OPERATIONS[before], _OPERATIONS[op]) for before, op in text.split())


# The pairs of operations that may follow each other. A record's first operation follows `-`.
_PAIRED: Final = _pairs("-A AF AR FT TF TR RA")
# A log without a row for the values before a correction.
_UNPAIRED: Final = _pairs("-A AT AR TT TR RA")
# A ledger has many events of a key. A correction removes the old event before it adds the new one.
_LEDGER: Final = _pairs("-A AA AF FT TA TF")


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The settings of a log: whether its rows have keys, how it writes corrections, and its watermark.

    A log that is not `strict` contains a changelog as delivered, whose operations follow no law (section
    2.6). A log that `corrects` is a ledger with corrections. In such a log, a key has an event for each time,
    and a correction may move the event to another time.
    """

    keyed: bool
    paired: bool
    strict: bool = True
    watermark: int | None = None
    corrects: bool = False

    def follows(self, before: Op | None, op: Op) -> bool:
        """Whether an event may follow the event `before` of its record, or be the first event."""
        if self.corrects:
            return (before, op) in _LEDGER
        if not self.keyed:
            return op is Op.APPEND
        return not self.strict or (before, op) in (_PAIRED if self.paired else _UNPAIRED)


def log_facts(table: TableMetadata, names: Mapping[str, Any]) -> LogFacts:
    """The settings of a log, from its properties and system columns."""
    keyed, paired = bool(table.shape.key), names["op"] is not None
    corrects = keyed and paired and bool(names["events"])
    return LogFacts(keyed, paired, _is_strict(table), _newest_instant(table, WATERMARK), corrects)


def _is_strict(table: TableLike) -> bool:
    """Whether the manifest in the table's properties has no source that keeps a changelog as delivered."""
    validations = list[str]()

    def read(part: Mapping[str, Any]) -> None:
        validations.append(str(part.get("validation", "")).lower())

    json.loads(table.properties.get(_MANIFEST) or "{}", object_hook=read)
    return "schema" not in validations


SUSPECT: Final = "suspect"
HALF: Final = "half"  # a pair of operations without its second row
# The law of each column that is true in rows that break it.
LAW_OF: Final = {PREFIX + law: law for law in Law} | {PREFIX + HALF: Law.OPERATIONS}
Texts = Mapping[str, str]
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
_HASHED: Final = """COALESCE({rightly}, {hash} = 'erased'
  OR (length({hash}) = 64 AND regexp_replace({hash}, '^[0-9a-f]+', '') = ''), FALSE)"""

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
# The laws of events in a record's order (odf-ingest.md 2.10).
_RECORD_OF_EVENTS: Final = "OVER (PARTITION BY {key} ORDER BY {offset})"
_EVENTS: Final[Texts] = {
    "known": "CASE WHEN {op} IN ({operations}) THEN {op} END",
    "before": "LAG({known}) " + _RECORD_OF_EVENTS,
    "last": "LEAD(1) " + _RECORD_OF_EVENTS + " IS NULL",
    Law.NULL_KEY: "NOT {keyed}",
    Law.OPERATIONS: "NOT {follows}",
}
# A ledger corrects an event only if it has one at this time, and adds an event only if it has none.
_CORRECTIONS: Final[Texts] = {
    "then": "LAG({known}) OVER (PARTITION BY {key}, {time}, {follows} ORDER BY {offset})",
    Law.OPERATIONS: """NOT ({follows}
      AND COALESCE({then} <> {CORRECT_FROM}, FALSE) = ({known} = {CORRECT_FROM}))""",
}
_PAIRS: Final[Texts] = {HALF: "{last} AND COALESCE({known} = {CORRECT_FROM}, FALSE)"}
_WATERMARK: Final[Texts] = {Law.WATERMARK: "COALESCE({time} > {watermark}, TRUE)"}


@dataclass(frozen=True, slots=True)
class TableSql:
    """The SQL of a table's columns in one engine."""

    words: SqlSyntax
    column: Callable[[str], str]

    def name(self, word: str) -> str:
        """The SQL of the column with the value of a word in braces."""
        return self.words.name(PREFIX + word)

    def micros(self, shape: Shape, name: str) -> str:
        """SQL for the instants of a column in microseconds."""
        column = shape.column(name)
        kind = None if column is None else column.type.kind
        return self.words.micros.format(self.words.read_instant(self.column(name), kind))

    def whole_key(self, names: Sequence[str]) -> str:
        """SQL that tests whether no part of a key is NULL."""
        return " AND ".join(f"{self.column(name)} IS NOT NULL" for name in names) or "TRUE"


def layout_columns(table_terms: TableTerms, engine: TableSql) -> Texts:
    """The layout's columns, by the names of `FIELDS`, and the values by which the law `fold` is checked."""
    shape, span, own = table_terms.shape, table_terms.shape.layout.span, engine.column
    columns = {"keyed": engine.whole_key(table_terms.identity)}
    if table_terms.terms.hashed:
        allowed = ", ".join(["'erased'", *table_terms.hashes])
        columns["hash"] = own(ROW_HASH)
        columns["rightly"] = f"{own(ROW_HASH)} IN ({allowed})" if table_terms.hashes else "NULL"
    if span is None:
        return columns
    columns |= {"start": engine.micros(shape, span.start), "end": engine.micros(shape, span.end)}
    columns |= {name: own(each) for name, each in (("flag", span.flag), ("state", span.state)) if each}
    if table_terms.terms.remembers:
        columns["written"] = engine.micros(shape, span.written)
        column = shape.column(MEMORY)
        sequenced = column is not None and SEQUENCE in dict(column.type.parts)
        kinds = {name: type_.kind for name, type_ in memory.MEMORY_TYPE.parts}
        for name, kind in (kinds | ({SEQUENCE: Kind.STRUCT} if sequenced else {})).items():
            text = f"({own(MEMORY)}).{engine.words.name(name)}"
            columns[name] = engine.words.micros.format(text) if kind is Kind.UTC_DATETIME else text
        columns.setdefault(SEQUENCE, "NULL")
    return columns | {f"value {place}": own(name) for place, name in enumerate(table_terms.foldable)}


def _version_laws(table_terms: TableTerms) -> Texts:
    """The laws of versions in a table's layout."""
    terms = table_terms.terms
    laws = _VERSIONS | (_FIVETRAN if terms.grain else {} if terms.far is None else _FAR)
    laws |= (_FLAGGED if terms.flagged else {}) | (_STATED if terms.stated else {})
    laws |= {Law.ROW_HASH: "{keyed} AND NOT " + _HASHED} if terms.hashed else {}
    return laws | (_REMEMBERED | _folding(table_terms) if terms.remembers else {})


def _folding(table_terms: TableTerms) -> Texts:
    """The expressions that compare each version's values with those of the version that ends at its start."""
    numbers = [table_terms.terms.numbers[name] for name in table_terms.foldable]
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
        "far": str(terms.far),
        "grain": str(terms.grain),
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
    columns: Callable[[TableSql], Texts]
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

    def columns_and_laws(self, engine: TableSql) -> list[str]:
        """The layout's columns, and `names`."""
        return [*(PREFIX + name for name in self.columns(engine)), *self.names]

    def relation(self, engine: TableSql, key: Sequence[str]) -> str:
        """The rows with the layout's columns and all expressions, each after those that it reads."""
        known = {**_WORDS, **self.constants, "key": ", ".join(key)}
        words, named = QueryWords(known, engine.name), set(known)
        text, step, left = engine.words.rows, dict(self.columns(engine)), dict(self.texts)
        while step:
            more = ", ".join(f"{sql} AS {engine.name(name)}" for name, sql in step.items())
            text, named = f"(SELECT *, {more} FROM {text})", named | step.keys()
            step = {name: sql.format_map(words) for name, sql in left.items() if words_in(sql) <= named}
            left = {name: sql for name, sql in left.items() if name not in step}
        return f"{text} AS judged"


def marks_query(table_terms: TableTerms, engine: TableSql) -> str:
    """The query for the marks of a table, which are facts without a key that still hold."""
    columns, first = layout_columns(table_terms, engine), engine.column(table_terms.shape.key[0])
    listed = ", ".join(f"{sql} AS {engine.name(name)}" for name, sql in columns.items())
    holds = "{role} = {fact} AND {kind} IS NOT NULL AND {start} IS NOT NULL AND {ended_at} IS NULL"
    holds = holds.format_map(QueryWords(dict(_WORDS), engine.name))
    return f"SELECT * FROM (SELECT {listed} FROM {engine.words.rows} WHERE {first} IS NULL) AS marks WHERE {holds}"


def words_in(text: str) -> set[str]:
    """The words in braces."""
    return {word for _, word, _, _ in Formatter().parse(text) if word}


def query_of_rows(table_terms: TableTerms) -> RowLaws:
    """The laws of a table of versions, or of a table with one row for each record."""
    names, columns = (table_terms.identity, table_terms.naming), partial(layout_columns, table_terms)
    terms = table_terms.terms
    if table_terms.shape.layout.span is None:
        laws = _KEYS | ({Law.ROW_HASH: "NOT " + _HASHED} if terms.hashed else {})
        return RowLaws(laws, columns, *names, f"{PREFIX}keyed")
    judge = table_terms.count_broken if terms.remembers else None
    laws, constants = _version_laws(table_terms), _constants(terms)
    return RowLaws(laws, columns, *names, f"{PREFIX}start", judge, terms.tracked, constants)


def query_of_events(shape: Shape, names: Mapping[str, Any], log: LogFacts) -> RowLaws:
    """The laws of an event log, except the law `offsets`. `names` are the system columns."""
    pairs = ((one, other) for one in (None, *Op) for other in Op if log.follows(one, other))
    follows = " OR ".join(
        f"({{before}} IS NOT DISTINCT FROM {'NULL' if one is None else int(one)} AND {{known}} = {int(other)})"
        for one, other in pairs
    )
    laws = {"follows": f"COALESCE({follows}, FALSE)"} | _EVENTS | (_CORRECTIONS if log.corrects else {})
    laws |= _PAIRS if log.keyed and log.paired and log.strict else {}
    laws |= {} if log.watermark is None else _WATERMARK
    identity = (shape.key if log.corrects else identity_names(names, shape)) or [names["offset"]]
    columns, constants = partial(event_columns, shape, names), {"watermark": str(log.watermark)}
    naming = shape.key or (names["offset"],)
    return RowLaws(laws, columns, identity, naming, f"{PREFIX}offset", constants=constants)


def event_columns(shape: Shape, names: Mapping[str, Any], engine: TableSql) -> Texts:
    """The columns of an event log. `names` are the system columns."""
    return {
        "op": operation_sql(engine.column, names),
        "time": engine.micros(shape, names["event_time"]),
        "offset": f"CAST({engine.column(names['offset'])} AS BIGINT)",
        "keyed": engine.whole_key(shape.key),
    }
