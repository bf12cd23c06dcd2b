"""The laws of rows as SQL for DuckDB and Spark, and the facts about a table that these laws need.

A query is a list of steps. Each step adds columns to the rows, as expressions over the columns so far.
Instants are microseconds since 1970. The last step has a column for each law, which is true in rows that
break the law. The last step's column `SUSPECT` is true in rows whose records must also be checked in Python
(`mending.py`). For event logs, the facts include which events may follow each other (odf-ingest.md, section
2.10).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.journal.chain import WATERMARK
from backstory.model import versions_layout as memory
from backstory.model.instant import parse_instant
from backstory.model.layout import HIST_SUFFIX, KEY_SUFFIX, MEMORY, ROW_HASH, Layout
from backstory.model.table import Shape
from backstory.model.versions_layout import RECORDED, SEQUENCE, SETTLED, FactKind, Role
from backstory.reading.lifetimes import DUCKDB, SPARK, QueryWords, SqlSyntax, operation_sql
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

    If `valued` is true, the table keeps memory, so the values in its rows are checked too. `hashes` are the
    hashes that a row may have, as SQL, or empty if the way of hashing is unknown.
    """

    shape: Shape
    terms: LawTerms
    valued: bool = False
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
        marks = self.terms.marks
        types = [
            str(column.type).lower() for column in self.shape.columns if column.name in self.terms.tracked
        ]
        ordered = not any(word in each for word in _WITHOUT_ORDER for each in types)
        copies = all(mark.kind == FactKind.COPY for mark in marks) and len(marks) <= MOST_COPIES
        return self.terms.tracked if self.valued and ordered and copies else ()

    @property
    def has_sequence(self) -> bool:
        """Whether facts at one instant have a sequence."""
        column = self.shape.column(MEMORY)
        return column is not None and SEQUENCE in dict(column.type.parts)

    def with_marks(self, rows: Iterable[Mapping[str, Any]]) -> "TableTerms":
        """The terms with the marks in these rows, which have no key."""
        marks = (self.row(0, values) for values in rows)
        marks = (mark for mark in marks if mark.kind and mark.start is not None and mark.ended_at is None)
        return replace(self, terms=replace(self.terms, marks=tuple(marks)))

    def row(
        self, place: int, columns: Mapping[str, Any], twin: object = None, row_id: int | None = None
    ) -> RecordRow:
        """A row of a record from the columns of the first step."""
        fields: dict[str, Any] = {name: columns.get(PREFIX + name) for name in FIELDS}
        sequence = fields["sequence"]
        fields["sequence"] = () if sequence is None else tuple(sequence.values())
        values = {name: columns.get(name) for name in self.terms.tracked} if self.valued else {}
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
    newest = table.newest_property(RECORDED)
    known = None if newest is None else micros_of(parse_instant(newest))
    terms = replace(terms, remembers=True, newest=known, settled=_settled_interval(table))
    if table.properties.get(SETTLED) is None:
        return TableTerms(shape, terms)
    track, ignore, overwrite = (
        json.loads(table.properties.get(name) or "[]")
        for name in (memory.TRACK, memory.IGNORE, memory.OVERWRITE)
    )
    users = [column.name for column in shape.user_columns if not track or column.name in track]
    tracked = tuple(name for name in users if name not in {*ignore, *overwrite, *shape.key})
    numbers = {each["name"]: int(each["id"]) for each in table.fields}
    return TableTerms(shape, replace(terms, tracked=tracked, numbers=numbers), valued=True)


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


def _settled_interval(table: TableLike) -> tuple[int | None, int] | None:
    """The settled interval, or None if nothing is settled or the property cannot be parsed."""
    try:
        first, last = json.loads(table.properties.get(SETTLED) or "[]")
        return (None if first is None else micros_of(parse_instant(first))), micros_of(parse_instant(last))
    except (TypeError, ValueError, AttributeError):
        return None


_MANIFEST: Final = "backstory.odf.manifest"
_FOLLOWING: Final[Mapping[Op | None, frozenset[Op]]] = {
    None: frozenset({Op.APPEND}),
    Op.APPEND: frozenset({Op.CORRECT_FROM, Op.RETRACT}),
    Op.CORRECT_FROM: frozenset({Op.CORRECT_TO}),
    Op.CORRECT_TO: frozenset({Op.CORRECT_FROM, Op.RETRACT}),
    Op.RETRACT: frozenset({Op.APPEND}),
}
# A log without a row for the values before a correction.
_UNPAIRED: Final = {
    **_FOLLOWING,
    Op.APPEND: frozenset({Op.CORRECT_TO, Op.RETRACT}),
    Op.CORRECT_TO: frozenset({Op.CORRECT_TO, Op.RETRACT}),
    Op.CORRECT_FROM: frozenset[Op](),
}
# A ledger has many events of a key. A correction removes the old event before it adds the new one.
_LEDGER: Final = {
    None: frozenset({Op.APPEND}),
    Op.APPEND: frozenset({Op.APPEND, Op.CORRECT_FROM}),
    Op.CORRECT_FROM: frozenset({Op.CORRECT_TO}),
    Op.CORRECT_TO: frozenset({Op.APPEND, Op.CORRECT_FROM}),
    Op.RETRACT: frozenset[Op](),
}


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
            return op in _LEDGER[before]
        if not self.keyed:
            return op is Op.APPEND
        if not self.strict:
            return True
        return op in (_FOLLOWING if self.paired else _UNPAIRED)[before]


def log_facts(table: TableMetadata, names: Mapping[str, Any]) -> LogFacts:
    """The settings of a log, from its properties and system columns."""
    newest = table.newest_property(WATERMARK)
    watermark = None if newest is None else micros_of(parse_instant(newest))
    keyed, paired = bool(table.shape.key), names["op"] is not None
    corrects = keyed and paired and bool(names["events"])
    return LogFacts(keyed, paired, _is_strict(table), watermark, corrects)


def _is_strict(table: TableLike) -> bool:
    """Whether the manifest in the table's properties has no source that keeps a changelog as delivered."""
    validations = list[str]()

    def read(part: Mapping[str, Any]) -> None:
        validations.append(str(part.get("validation", "")).lower())

    json.loads(table.properties.get(_MANIFEST) or "{}", object_hook=read)
    return "schema" not in validations


SUSPECT: Final = PREFIX + "suspect"
OFFSET: Final = PREFIX + "offset"
HALF: Final = "half"  # a pair of operations without its second row
# The law of each column of the last step.
LAW_OF: Final = {PREFIX + law: law for law in Law} | {PREFIX + HALF: Law.OPERATIONS}
Step = dict[str, str]
Steps = list[Step]
# Counts how often the rows of one record break the laws that no query checks.
Judge = Callable[[pa.Table], Mapping[str, int]]

_INVALID_DIGIT: Final = {
    DUCKDB: "regexp_matches({hash}, '[^0-9a-f]')",
    SPARK: "regexp_like({hash}, '[^0-9a-f]')",
}
_RECORD: Final = "OVER (PARTITION BY {key} ORDER BY {start} NULLS FIRST, {until}"
_BEFORE: Final = f"{_RECORD} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
_AFTER: Final = f"{_RECORD} ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
_WHOLE: Final = f"{_RECORD} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"
_EVENTS: Final = "OVER (PARTITION BY {key} ORDER BY {offset})"


@dataclass(frozen=True, slots=True)
class TableSql:
    """The SQL of a table's columns in one engine, and the columns that identify records."""

    words: SqlSyntax
    column: Callable[[str], str]
    key: Sequence[str]

    def steps(self, known: Mapping[str, str], *steps: Mapping[str, str]) -> Steps:
        """The known columns and further steps, with column names in place of the words in braces."""
        words = QueryWords({"key": ", ".join(self.key)}, lambda name: self.words.name(PREFIX + name))
        filled = [{name: text.format_map(words) for name, text in step.items()} for step in steps]
        return [{PREFIX + name: sql for name, sql in each.items()} for each in (known, *filled) if each]

    def micros(self, shape: Shape, name: str) -> str:
        """SQL for the instants of a column in microseconds."""
        column = shape.column(name)
        kind = None if column is None else column.type.kind
        return self.words.micros.format(self.words.read_instant(self.column(name), kind))

    def whole_key(self, names: Sequence[str]) -> str:
        """SQL that tests whether no part of a key is NULL."""
        return " AND ".join(f"{self.column(name)} IS NOT NULL" for name in names) or "TRUE"

    def hash_columns(self, table_terms: TableTerms) -> Step:
        """The columns that contain a row's hash, and whether that hash fits the row's values."""
        if not table_terms.terms.hashed:
            return {}
        own = self.column(ROW_HASH)
        allowed = ", ".join(["'erased'", *table_terms.hashes])
        return {"hash": own} | ({"rightly": f"{own} IN ({allowed})"} if table_terms.hashes else {})

    def valid_hash(self, table_terms: TableTerms) -> str:
        """SQL that tests whether a row has a valid hash, or the word `erased` instead."""
        form = f"length({{hash}}) = 64 AND NOT {_INVALID_DIGIT[self.words]}"
        return (
            f"COALESCE({'{rightly}, ' if table_terms.hashes else ''}{{hash}} = 'erased' OR ({form}), FALSE)"
        )


def layout_columns(engine: TableSql, table_terms: TableTerms) -> Step:
    """The first step of the laws of versions: the layout's columns, by the names of `FIELDS`."""
    shape, span = table_terms.shape, table_terms.shape.layout.span
    assert span is not None
    columns = {"start": engine.micros(shape, span.start), "end": engine.micros(shape, span.end)}
    columns["keyed"] = engine.whole_key(table_terms.identity)
    columns |= {
        name: engine.column(each) for name, each in (("flag", span.flag), ("state", span.state)) if each
    }
    if table_terms.terms.remembers:
        columns["written"] = engine.micros(shape, span.written)
        plain = (memory.ROLE, memory.KIND, memory.SCOPE, memory.COLUMNS)
        timed = (memory.ENDED_AT, memory.END_BEFORE, memory.OWN_TIME)
        within = {name: f"({engine.column(MEMORY)}).{engine.words.name(name)}" for name in (*plain, *timed)}
        columns |= {name: within[name] for name in plain}
        columns |= {name: engine.words.micros.format(within[name]) for name in timed}
        if table_terms.has_sequence:
            columns["sequence"] = f"({engine.column(MEMORY)}).{engine.words.name(memory.SEQUENCE)}"
    values = {f"value {place}": engine.column(name) for place, name in enumerate(table_terms.foldable)}
    return columns | values | engine.hash_columns(table_terms)


def laws_of_lives(table_terms: TableTerms, engine: TableSql) -> Steps:
    """The laws of versions, which are ordered by start in each record."""
    terms = table_terms.terms
    is_open, version, until, opened, endless = "{end} IS NULL", "{keyed}", "{end}", "{version} AND {open}", ""
    if terms.far is not None:
        is_open = f"COALESCE({{end}} >= {terms.far}, {'FALSE' if terms.grain else 'TRUE'})"
    if terms.remembers:
        length = "{start} IS NOT NULL AND ({end} IS NULL OR {end} > {start})"
        version = f"{{keyed}} AND ({{role}} IS NULL OR COALESCE({length}, FALSE))"
    if terms.grain:
        # A version without an end counts as open if its flag is set, but then breaks the law of the marker.
        until = f"CASE WHEN {{end}} < {terms.far} THEN {{end}} + {terms.grain} END"
        opened = "{version} AND ({open} OR COALESCE({flag}, FALSE))"
        endless = " AND NOT ({end} IS NULL AND {start} IS NOT NULL)"
    lasting = f"COALESCE({{version}} AND {{start}} IS NOT NULL AND ({{open}} OR {{start}} < {until}), FALSE)"
    windows = {
        "last start": f"MAX(CASE WHEN {{version}} THEN {{start}} END) {_BEFORE}",
        "reached": f"MAX(CASE WHEN {{lasting}} THEN {{until}} END) {_BEFORE}",
        "was open": f"MAX(CASE WHEN {{opened}} THEN 1 END) {_BEFORE}",
    }
    laws: dict[str, str] = {
        Law.NULL_KEY: f"NOT ({{keyed}} OR {_IS_MARK})" if terms.remembers else "NOT {keyed}",
        Law.UNIQUE_START: "{version} AND COALESCE({start} = {last start}, FALSE)",
        Law.START_BEFORE_END: "{version} AND NOT {lasting}" + endless,
        Law.NO_OVERLAP: "{lasting} AND COALESCE({start} < {reached}, FALSE)",
        Law.ONE_OPEN: "{opened} AND {was open} IS NOT NULL",
    }
    if terms.flagged:
        laws[Law.OPEN_MARKER] = "{version} AND {flag} IS DISTINCT FROM {open}"
    if terms.stated:
        # A state is checked unless the model has its own words for states.
        words = ", ".join(f"'{each}'" for each in sorted(WORDS))
        windows["own"] = f"MAX(CASE WHEN {{version}} AND {{state}} NOT IN ({words}) THEN 1 END) {_WHOLE}"
        wrong = f"{{own}} IS NULL AND {{state}} = CASE WHEN {{open}} THEN '{DELETED}' ELSE '{NEW}' END"
        laws[Law.OPEN_MARKER] = f"{{version}} AND ({{state}} IS NULL OR ({wrong}))"
    if terms.hashed:
        laws[Law.ROW_HASH] = "{keyed} AND {wrong hash}"
    same: dict[str, str] = {}
    if terms.remembers:
        windows |= _windows_of_memory(table_terms)
        same = _same_values(table_terms)
        laws |= _laws_of_memory(terms) | {"suspect": _suspect(table_terms)}
    until = f"CASE WHEN {{open}} THEN {INFINITY} ELSE COALESCE({{end}}, {{start}}, 0) END"
    ends = {"until": until, "lasting": lasting, "opened": opened}
    known = layout_columns(engine, table_terms)
    first = {"version": version, "open": is_open}
    # Computed before the windows, so that the hashes are not sorted.
    first |= {"wrong hash": f"NOT {engine.valid_hash(table_terms)}"} if terms.hashed else {}
    return engine.steps(known, first, ends, windows, same, laws)


_IS_MARK: Final = (
    f"COALESCE({{role}} = '{Role.FACT}' AND {{kind}} IN ('{FactKind.COPY}', '{FactKind.TRUNCATE}'), FALSE)"
)
_MAY_BE_VERSION: Final = f"COALESCE({{kind}} = '{FactKind.UPSERT}', TRUE)"
_HAS_FIELDS_OF_KIND: Final = f"""COALESCE(CASE
  WHEN {{role}} IS NULL THEN {_MAY_BE_VERSION} AND {{scope}} IS NULL
  WHEN {{start}} IS DISTINCT FROM {{end}} OR {{start}} IS NULL THEN FALSE
  WHEN {{role}} = '{Role.PAST}' THEN {{keyed}} AND {_MAY_BE_VERSION}
  WHEN {{role}} = '{Role.FACT}' AND {{keyed}}
    THEN {{kind}} IN ('{FactKind.UPSERT}', '{FactKind.DELETE}', '{FactKind.VOID}')
  ELSE {_IS_MARK} END, FALSE)"""
_RECORDED: Final = "{written} IS NOT NULL AND ({ended_at} IS NULL OR {written} < {ended_at})"


def _laws_of_memory(terms: LawTerms) -> dict[str, str]:
    """The laws of single rows of layout `versions` (native.md V3, V6, V33)."""
    known = "" if terms.newest is None else f" AND COALESCE({{ended_at}}, {{written}}) <= {terms.newest}"
    is_fact = f"COALESCE({{role}} = '{Role.FACT}', FALSE) AND {{time}} IS NULL"
    return {
        Law.MEMORY: f"NOT {_HAS_FIELDS_OF_KIND}",
        Law.RECORDED: f"NOT ({_RECORDED}{known})",
        Law.SETTLED: f"{is_fact} AND {_is_settled('{start}', terms)}",
    }


def _windows_of_memory(table_terms: TableTerms) -> dict[str, str]:
    """The windows over neighbouring rows that show whether a record is plain."""
    windows = {
        "next": f"LEAD({{start}}) {_RECORD})",
        "floor": f"MIN({{written}}) {_AFTER}",
        "facts": f"MAX(CASE WHEN {{kind}} IS NOT NULL THEN 1 END) {_WHOLE}",
        "last end": f"LAG({{end}}) {_RECORD})",
    }
    if table_terms.has_sequence:
        windows["position"] = f"MAX(CASE WHEN {{time}} IS NOT NULL THEN {{sequence}} END) {_BEFORE}"
    values = range(len(table_terms.foldable))
    return windows | {f"before {value}": f"LAG({{value {value}}}) {_RECORD})" for value in values}


def _same_values(table_terms: TableTerms) -> dict[str, str]:
    """SQL that tests whether each value is the same as in the version that ends where this version begins."""
    before = "CASE WHEN {{last end}} = {{start}} THEN {{before {0}}} END"
    text = f"{{{{value {{0}}}}}} IS NOT DISTINCT FROM {before}"
    return {f"same {each}": text.format(each) for each in range(len(table_terms.foldable))}


def _suspect(table_terms: TableTerms) -> str:
    """SQL that is true unless it can show that a row's record keeps the laws one-belief, one-fact and fold.

    It can show this for plain records, in which each change began a version, and for copies.
    """
    position = "{sequence} IS NOT NULL AND ({position} IS NULL OR {sequence} > {position})"
    sure = (
        *("{keyed}", "{role} IS NULL", "{scope} IS NULL", _MAY_BE_VERSION, "{lasting}", _RECORDED),
        "({next} IS NULL OR (NOT {open} AND {next} > {start} AND {next} >= {end}))",
        "({ended_at} IS NULL OR {floor} IS NULL OR {ended_at} <= {floor})",
        f"({{time}} IS NULL OR ({position}))" if table_terms.has_sequence else "{time} IS NULL",
        _surely_folded(table_terms),
    )
    return f"NOT COALESCE({' AND '.join(sure)}, FALSE)"


def _surely_folded(table_terms: TableTerms) -> str:
    """SQL that tests whether a version surely begins and ends as its facts require (V22 to V24).

    If a table has neither facts nor copies, nothing is required.
    """
    terms = table_terms.terms
    if not table_terms.foldable:
        return "FALSE" if terms.marks else "{kind} IS NULL"
    values = range(len(table_terms.foldable))
    numbers = [terms.numbers[name] for name in terms.tracked]
    assigned = " AND ".join(
        f"(array_contains({{columns}}, {number}) OR {{same {each}}})"
        for each, number in zip(values, numbers, strict=True)
    )
    other = " AND ".join(f"{{same {value}}}" for value in values)
    changed = f"({{last end}} IS DISTINCT FROM {{start}} OR NOT ({other}))"
    upserted = f"(COALESCE({{kind}} = '{FactKind.UPSERT}', FALSE) AND ({{columns}} IS NULL OR ({assigned})))"
    begins = f"({_is_copied('{start}', terms)} OR {upserted}) AND {changed}"
    ends = f"{{end}} IS NULL OR COALESCE({{next}} = {{end}}, FALSE) OR {_is_copied('{end}', terms)}"
    settled = [_is_settled(each, terms) for each in ("{start}", "{end}")]
    folded = f"(({begins}) OR {settled[0]}) AND ({ends} OR {settled[1]})"
    return f"({folded})" if terms.marks else f"({{facts}} IS NULL OR ({folded}))"


def _is_copied(instant: str, terms: LawTerms) -> str:
    if not terms.marks:
        return "FALSE"
    return f"COALESCE({instant} IN ({', '.join(str(mark.start) for mark in terms.marks)}), FALSE)"


def _is_settled(instant: str, terms: LawTerms) -> str:
    if terms.settled is None:
        return "FALSE"
    first, last = terms.settled
    since = "" if first is None else f" AND {instant} >= {first}"
    return f"COALESCE({instant} <= {last}{since}, FALSE)"


def laws_of_keys(table_terms: TableTerms, engine: TableSql) -> Steps:
    """The laws of tables with one row for each record."""
    laws: Step = {Law.NULL_KEY: "NOT {keyed}", Law.UNIQUE_KEY: "{keyed} AND {nth} > 1"}
    laws |= {Law.ROW_HASH: f"NOT {engine.valid_hash(table_terms)}"} if table_terms.terms.hashed else {}
    known = {"keyed": engine.whole_key(table_terms.identity), **engine.hash_columns(table_terms)}
    return engine.steps(known, {"nth": "ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY {keyed})"}, laws)


def laws_of_events(shape: Shape, names: Mapping[str, Any], log: LogFacts, engine: TableSql) -> Steps:
    """The laws of events in a record's order (odf-ingest.md 2.10). `names` are the system columns."""
    known = {
        "op": operation_sql(engine.column, names),
        "time": engine.micros(shape, names["event_time"]),
        "offset": f"CAST({engine.column(names['offset'])} AS BIGINT)",
        "keyed": engine.whole_key(shape.key),
    }
    was = "{before} IS NOT DISTINCT FROM"
    follows = " OR ".join(
        f"({was} {'NULL' if one is None else int(one)} AND {{known}} = {int(other)})"
        for one in (None, *Op)
        for other in Op
        if log.follows(one, other)
    )
    steps = [
        {"known": f"CASE WHEN {{op}} IN ({', '.join(map(str, map(int, Op)))}) THEN {{op}} END"},
        {"before": f"LAG({{known}}) {_EVENTS}", "last": f"LEAD(1) {_EVENTS} IS NULL"},
        {"follows": f"COALESCE({follows}, FALSE)"},
    ]
    fits, correct_from = "{follows}", int(Op.CORRECT_FROM)
    if log.corrects:
        # A ledger corrects an event only if it has one at this time, and adds an event only if it has none.
        then = "LAG({known}) OVER (PARTITION BY {key}, {time}, {follows} ORDER BY {offset})"
        steps.append({"then": then})
        fits = f"{{follows}} AND COALESCE({{then}} <> {correct_from}, FALSE) = ({{known}} = {correct_from})"
    halved = log.keyed and log.paired and log.strict
    laws = {
        Law.NULL_KEY: "NOT {keyed}",
        Law.OPERATIONS: f"NOT ({fits})",
        Law.WATERMARK: "FALSE" if log.watermark is None else f"COALESCE({{time}} > {log.watermark}, TRUE)",
        HALF: f"{{last}} AND COALESCE({{known}} = {correct_from}, FALSE)" if halved else "FALSE",
    }
    return engine.steps(known, *steps, laws)


def nest_steps(steps: Steps, syntax: SqlSyntax) -> str:
    """The steps as one nested relation."""
    text = syntax.rows
    for step in steps:
        more = ", ".join(f"{sql} AS {syntax.name(name)}" for name, sql in step.items())
        text = f"(SELECT *, {more} FROM {text})"
    return text


@dataclass(frozen=True, slots=True)
class LawQuery:
    """The steps of a query in an engine, and the columns by which records are identified, shown and sorted.

    For suspect records, `judge` counts violations of the laws that no query checks. `judge` also needs the
    columns `values`.
    """

    steps: Callable[[TableSql], Steps]
    identity: Sequence[str]
    naming: Sequence[str]
    order: str
    judge: Judge | None = None
    values: Sequence[str] = ()


def query_of_rows(table_terms: TableTerms) -> LawQuery:
    """The laws of a table of versions, or of a table with one row for each record."""
    names = (table_terms.identity, table_terms.naming)
    if table_terms.shape.layout.span is None:
        return LawQuery(partial(laws_of_keys, table_terms), *names, f"{PREFIX}keyed")
    judge = table_terms.count_broken if table_terms.terms.remembers else None
    values = table_terms.terms.tracked if table_terms.valued else ()
    return LawQuery(partial(laws_of_lives, table_terms), *names, f"{PREFIX}start", judge, values)


def query_of_events(shape: Shape, names: Mapping[str, Any], log: LogFacts) -> LawQuery:
    """The laws of an event log, except the law `offsets`. `names` are the system columns."""
    identity = (shape.key if log.corrects else identity_names(names, shape)) or [names["offset"]]
    steps = partial(laws_of_events, shape, names, log)
    return LawQuery(steps, identity, shape.key or (names["offset"],), OFFSET)
