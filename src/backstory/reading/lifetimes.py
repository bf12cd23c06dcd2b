"""The SQL for the periods in which a table's rows were true, and for differences between two states.

DuckDB and Spark run these queries, one for each layout. A query reads a relation with the table's rows and
the values that the layout records for each row (`recorded_columns`). Instants are times in UTC. The answer
has the rows that are versions, each with `STARTED` and `ENDED`, which is NULL while the version is true.
Differences are described in native.md V96.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from backstory.model.layout import DELETED, MEMORY, RECORDED_AT, Layout
from backstory.model.table import Shape
from backstory.model.types import Kind
from backstory.model.versions_layout import END_BEFORE, ENDED_AT, ROLE, Role
from backstory.strategies.events.terms import LETTERS, Op

# Kinds of columns whose values are instants.
KINDS_OF_INSTANTS: Final = frozenset({Kind.UTC_DATETIME, Kind.NAIVE_DATETIME, Kind.NAIVE_DATE})
_ADDITIONS: Final = f"({int(Op.APPEND)}, {int(Op.CORRECT_TO)})"


def internal_name(word: str) -> str:
    """The name of an internal column in a relation, given its word in queries.

    No source column has a name of this form.
    """
    return f"backstory: {word.replace('_', ' ')}"


STARTED, ENDED, STATED_FROM, STATED_TO = map(internal_name, ("started", "ended", "known_from", "known_to"))


class QueryWords(dict[str, str]):
    """The SQL for words in braces. A word without SQL of its own is a column, whose name `column` returns."""

    def __init__(self, known: Mapping[str, str], column: Callable[[str], str]) -> None:
        super().__init__(known)
        self.column = column

    def __missing__(self, word: str) -> str:
        return self.column(word)


# The SQL of a column of a table, or of a field of a struct.
ColumnSql = Callable[..., str]


@dataclass(frozen=True, slots=True)
class SqlSyntax:
    """The syntax of an engine: quotes, conversions of instants, and the relation `rows`.

    `instant` and `micros` convert from and to microseconds since 1970. `utc`, `naive` and `date` read a
    column of that kind as instants. `endless` is SQL for the end of a version that lacks one but is not open.
    `stored` returns the names of columns in `rows`, if they are not the table's own.
    """

    quote: str
    instant: str
    micros: str
    utc: str
    naive: str
    date: str
    rows: str = "recorded"
    endless: str = "NULL"
    stored: ColumnSql | None = None

    def name(self, name: str) -> str:
        """Quote a name."""
        return f"{self.quote}{name.replace(self.quote, 2 * self.quote)}{self.quote}"

    def column(self, *path: str) -> str:
        """The SQL of a column of a table, or of a field of a struct."""
        return ".".join(map(self.name, path)) if self.stored is None else self.stored(*path)

    def at(self, micros: int) -> str:
        """Write an instant, in microseconds since 1970."""
        return self.instant.format(micros)

    def read_instant(self, column: str, kind: Kind | None) -> str:
        """The instant in a column: a date is its midnight in UTC, and a naive time is a time in UTC."""
        forms = {Kind.NAIVE_DATE: self.date, Kind.NAIVE_DATETIME: self.naive}
        return (self.utc if kind is None else forms.get(kind, self.utc)).format(column)

    def instant_in(self, shape: Shape, name: str) -> str:
        """The instant in a column of a table."""
        stored = shape.column(name)
        return self.read_instant(self.column(name), None if stored is None else stored.type.kind)

    def micros_in(self, shape: Shape, name: str) -> str:
        """The instant in a column of a table, in microseconds since 1970."""
        return self.micros.format(self.instant_in(shape, name))

    def fill(self, text: str, key: Sequence[str] = (), **more: str) -> str:
        """Replace words in braces with their SQL in this syntax or in `more`, or with internal columns."""
        keys = [self.name(each) for each in key]
        words = {
            "of_record": f"PARTITION BY {', '.join(keys)} " if keys else "",
            "key": "".join(f"{each}, " for each in keys),
            "same_record": "".join(f"one.{each} IS NOT DISTINCT FROM later.{each} AND " for each in keys),
            "rows": self.rows,
            "endless": self.endless,
        }
        return text.format_map(QueryWords(words | more, lambda word: self.name(internal_name(word))))


# For DuckDB, rows without an end are refused before the query, and times in UTC have no time zone.
DUCKDB: Final = SqlSyntax(
    '"', "make_timestamp({})", "epoch_us({})", utc="{}", naive="{}", date="CAST({} AS TIMESTAMP)"
)
SPARK: Final = SqlSyntax(
    "`",
    "timestamp_micros({})",
    "unix_micros({})",
    utc="CAST({} AS TIMESTAMP_LTZ)",
    naive="timestamp_micros(timestampdiff(MICROSECOND, timestamp_ntz'1970-01-01 00:00:00', {}))",
    date="timestamp_seconds(CAST(unix_date({}) AS BIGINT) * 86400)",
)


@dataclass(frozen=True, slots=True)
class LogKind:
    """The kind of an event log.

    With `each_its_own`, as in a ledger, each event is a record. Otherwise, it is a state of a record. With
    `corrects`, rows have an operation. In `timely` logs, retractions have their own event time.
    """

    each_its_own: bool
    corrects: bool
    timely: bool


# A row is a version if it ends after its start, or never (native.md V3, V5).
_LASTING: Final = "({ended} IS NULL OR {ended} > {started})"
_KNOWN: Final = "({known_to} IS NULL OR {known_to} > {known_from})"
NO_FACT: Final = f"({{role}} IS NULL OR {{role}} <> '{Role.FACT}')"
_NATIVE: Final = """
SELECT *, {start} AS {started}, {end} AS {ended} FROM {rows}
WHERE {start} IS NOT NULL AND ({end} IS NULL OR {end} > {start})
"""
# Whether a version is true at an instant, or NULL if the version has no start (V99).
TRUE_AT: Final = "{started} <= {at} AND ({ended} IS NULL OR {ended} > {at})"
# The end of a row as it was known at a time: before or after its end was last moved (V6, V93).
END_THEN: Final = "CASE WHEN {moved} > {until} THEN {end_before} ELSE {end} END"
_NATIVE_THEN: Final = f"""
SELECT * FROM (
  SELECT *, {{start}} AS {{started}}, {END_THEN} AS {{ended}}
  FROM {{rows}} WHERE {{recorded}} <= {{until}} AND {NO_FACT}
) AS known WHERE {{started}} IS NOT NULL AND {_LASTING}
"""
_PLAIN: Final = "SELECT *, {start} AS {started}, {end} AS {ended} FROM {rows}"
# A row that records an absence is not a version, and an end in the far future means that there is no end.
_ADOPTED: Final = """
SELECT *, {start} AS {started}, CASE WHEN {end} < {far} THEN {end} END AS {ended} FROM {rows} WHERE NOT {gone}
"""
# If the successor starts before the end of a version, or within a millisecond after it, the version ends at
# that start. So at most one version is true at any instant: the version that began last.
_FIVETRAN: Final = """
SELECT *, {start} AS {started},
  CASE WHEN {following} <= COALESCE({own_end}, {far}) + INTERVAL 1 MILLISECOND
    THEN {following} ELSE {own_end} END AS {ended}
FROM (
  SELECT *,
    LEAD({start}) OVER ({of_record}ORDER BY {start} NULLS FIRST) AS {following},
    CASE WHEN COALESCE({flag}, FALSE) OR COALESCE({end} >= {far}, FALSE) THEN NULL
      WHEN {end} IS NULL THEN {endless} ELSE {end} END AS {own_end}
  FROM {rows}
) AS reaching
"""
# An event of a ledger stays true from its time on, unless it was corrected.
_EVENTS: Final = f"""
SELECT *, {{time}} AS {{started}}, CASE WHEN FALSE THEN {{time}} END AS {{ended}},
  {{recorded}} AS {{known_from}},
  CASE WHEN {{next_op}} = {int(Op.CORRECT_FROM)} THEN {{next_recorded}} END AS {{known_to}}
FROM (
  SELECT *,
    LEAD({{op}}) OVER ({{of_record}}ORDER BY {{offset}}) AS {{next_op}},
    LEAD({{recorded}}) OVER ({{of_record}}ORDER BY {{offset}}) AS {{next_recorded}}
  FROM {{rows}} WHERE {{is_known}}
) AS events WHERE {{op}} IN {_ADDITIONS}
"""
# Events of a ledger without operations are all true.
_EVERY: Final = """
SELECT *, {time} AS {started}, CASE WHEN FALSE THEN {time} END AS {ended}, {recorded} AS {known_from},
  CASE WHEN FALSE THEN {recorded} END AS {known_to}
FROM {rows} WHERE {is_known}
"""
_UNCORRECTED: Final = f"({{next_op}} IS NULL OR {{next_op}} <> {int(Op.CORRECT_FROM)})"
# The time from which each event counts. A retraction without an event time counts from its recorded time. If
# a record returns at or before the time of its predecessor, it counts from the recorded time of the
# predecessor's retraction.
_COUNTS_FROM: Final = f"""
CASE WHEN {{op}} = {int(Op.RETRACT)} THEN {{recorded}}
  WHEN LAG({{op}}) OVER record = {int(Op.RETRACT)} AND {{time}} <= LAG({{time}}, 2) OVER record
  THEN GREATEST({{time}}, LAG({{recorded}}) OVER record) ELSE {{time}} END
"""
_STATES: Final = f"""
SELECT *, BEGUN AS {{begun}} FROM {{rows}} WHERE {{is_known}} AND {{op}} <> {int(Op.CORRECT_FROM)}
WINDOW record AS ({{of_record}}ORDER BY {{offset}})
"""
# A version ends where any later event of its record begins, including events that are recorded late
# (odf-ingest.md 2.10). A version that was true at no instant is left out.
_LIVES: Final = f"""
SELECT * FROM (
  SELECT *, {{begun}} AS {{started}}, MIN({{begun}}) OVER (
    {{of_record}}ORDER BY {{offset}} DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS {{ended}}
  FROM states
) AS lives WHERE {{op}} IN {_ADDITIONS}
  AND ({{ended}} IS NULL OR {{started}} IS NULL OR {{ended}} > {{started}})
"""
# A row has two statements: its end before it was last moved, and its end since then (V6).
_NATIVE_STATEMENTS: Final = f"""
SELECT * FROM (
  SELECT *, {{start}} AS {{started}},
    CASE WHEN {{step}} = 1 AND {{moved}} IS NOT NULL THEN {{end_before}} ELSE {{end}} END AS {{ended}},
    CASE WHEN {{step}} = 1 THEN {{recorded}} ELSE {{moved}} END AS {{known_from}},
    CASE WHEN {{step}} = 1 THEN {{moved}} END AS {{known_to}}
  FROM {{rows}} CROSS JOIN (VALUES (1), (2)) AS steps ({{step}})
  WHERE {NO_FACT} AND ({{step}} = 1 OR {{moved}} IS NOT NULL)
) AS steps WHERE {_LASTING} AND {_KNOWN}
"""
# An event has a new statement for each later event that begins before its end, as known until then.
_STATE_STATEMENTS: Final = f"""
SELECT * FROM (
  SELECT *, LEAD({{known_from}}) OVER (PARTITION BY {{key}}{{offset}} ORDER BY {{nth}}) AS {{known_to}} FROM (
    SELECT *, MIN({{ended}}) OVER (
      PARTITION BY {{key}}{{offset}} ORDER BY {{nth}} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS {{sooner}} FROM (
      SELECT one.*, one.{{begun}} AS {{started}},
        later.{{offset}} AS {{nth}}, later.{{recorded}} AS {{known_from}},
        CASE WHEN later.{{offset}} > one.{{offset}} THEN later.{{begun}} END AS {{ended}}
      FROM states AS one JOIN states AS later
        ON {{same_record}}later.{{offset}} >= one.{{offset}} WHERE one.{{op}} IN {_ADDITIONS}
    ) AS steps
  ) AS steps WHERE {{nth}} = {{offset}} OR {{sooner}} IS NULL OR {{ended}} < {{sooner}}
) AS statements WHERE {_LASTING} AND {_KNOWN}
"""


def recorded_columns(syntax: SqlSyntax, shape: Shape, names: Mapping[str, Any], *, remembered: bool) -> str:
    """The values that the layout records for each row, as a SELECT list.

    `names` are the system columns of an event log. Unless `remembered` is true, rows of layout `versions` are
    read without their recorded times.
    """
    span, layout, column = shape.layout.span, shape.layout, syntax.column
    if layout is Layout.ODF:
        columns = {"offset": column(names["offset"]), "op": operation_sql(column, names)}
        times = {"time": "event_time", "recorded": "system_time"}
        columns |= {name: syntax.instant_in(shape, names[each]) for name, each in times.items()}
    elif span is None:
        marks = layout is Layout.FIVETRAN_LIVE and shape.column(DELETED) is not None
        columns = {"deleted": column(DELETED) if marks else "FALSE"}
    else:
        read = partial(syntax.instant_in, shape) if layout.is_adopted else column
        columns = {"start": read(span.start), "end": read(span.end)}
        if layout is Layout.VERSIONS and remembered:
            memory = {"role": ROLE, "moved": ENDED_AT, "end_before": END_BEFORE}
            columns |= {"recorded": column(RECORDED_AT)}
            columns |= {name: column(MEMORY, field) for name, field in memory.items()}
        elif layout is Layout.FIVETRAN_HISTORY:
            columns["flag"] = column(span.open)
        elif layout.tombstone in shape.names:
            text = f"CAST({column(layout.tombstone)} AS STRING)"
            columns["gone"] = f"lower(coalesce({text}, 'false')) = 'true'"
        elif layout.is_adopted:
            columns["gone"] = "FALSE"
    return ", ".join(f"{sql} AS {syntax.name(internal_name(name))}" for name, sql in columns.items())


def operation_sql(column: ColumnSql, names: Mapping[str, Any]) -> str:
    """The SQL for the code of an event's operation, from the system columns of its log."""
    if names["op"] is not None:
        return column(names["op"])
    if names["observed"] is None:
        return str(int(Op.APPEND))
    cases = (f"WHEN '{LETTERS[op]}' THEN {int(op)}" for op in (Op.APPEND, Op.RETRACT))
    return f"CASE {column(names['observed'])} {' '.join(cases)} ELSE {int(Op.CORRECT_TO)} END"


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """The rows of a table, with the values that its layout records (`recorded_columns`), and their queries.

    `key` names the columns that identify a record, and `log` is the kind of an event log. `until`, in
    microseconds since 1970, is a recorded time: versions are as they were known then. Only layout `versions`
    and event logs support `until`. All instants are in microseconds since 1970.
    """

    syntax: SqlSyntax
    layout: Layout
    key: Sequence[str] = ()
    log: LogKind | None = None
    until: int | None = None

    def versions(self) -> str:
        """The query for the versions of the table."""
        log, until, fill = self.log, self.until, self.syntax.fill
        if log is not None:
            ledger = f"SELECT * FROM ({_EVENTS}) AS events WHERE {_UNCORRECTED}" if log.corrects else _EVERY
            return self._of_log(ledger if log.each_its_own else _LIVES, log, until)
        if self.layout is Layout.VERSIONS:
            return fill(_NATIVE) if until is None else fill(_NATIVE_THEN, until=self.syntax.at(until))
        span = self.layout.span
        if span is None or span.far is None:
            return fill(_PLAIN)
        return fill(_ADOPTED if self.layout.is_adopted else _FIVETRAN, self.key, far=self.syntax.at(span.far))

    def live_rows(self) -> str:
        """The query for the rows of a table without a history, except rows that are marked as deleted."""
        return self.syntax.fill("SELECT * FROM {rows} WHERE {deleted} IS DISTINCT FROM TRUE")

    def true_versions(self, instant: int | None) -> str:
        """The query for the versions that are true at an instant, by default now."""
        at = self.syntax.at(instant or 0)
        true = self.syntax.fill("{ended} IS NULL" if instant is None else TRUE_AT, at=at)
        return f"SELECT * FROM ({self.versions()}) AS versions WHERE {true}"

    def statements(self) -> str:
        """The query for the statements of the table (V97).

        The answer has each version as stated, with `STATED_FROM` and `STATED_TO` (NULL: still stated). Both
        are NULL if the layout does not record them.
        """
        log, fill = self.log, self.syntax.fill
        if log is not None:
            ledger = f"SELECT * FROM ({_EVENTS}) AS events WHERE {_KNOWN}" if log.corrects else _EVERY
            return self._of_log(ledger if log.each_its_own else _STATE_STATEMENTS, log, None)
        if self.layout is Layout.VERSIONS:
            return fill(_NATIVE_STATEMENTS)
        unknown = ", ".join(f"CAST(NULL AS TIMESTAMP) AS {{{name}}}" for name in ("known_from", "known_to"))
        return f"SELECT *, {fill(unknown)} FROM ({self.versions()}) AS versions"

    def _of_log(self, text: str, log: LogKind, until: int | None) -> str:
        """Complete the query of an event log so that it covers the events that it had at a recorded time."""
        recorded = self.syntax.name(internal_name("recorded"))
        known = "TRUE" if until is None else f"{recorded} <= {self.syntax.at(until)}"
        if not log.each_its_own:
            start = "{time}" if log.timely else _COUNTS_FROM
            text = f"WITH states AS ({_STATES.replace('BEGUN', start)}) {text}"
        return self.syntax.fill(text, self.key, is_known=known)

    def moves(self, between: tuple[int, int], *, through: bool = False) -> str:
        """The query for the versions that are true at only one of two instants.

        The answer has `SIDES`: whether a version is true at the first instant, and at the second. With
        `through`, the answer has all versions that begin or end between the two instants.
        """
        fill, at = self.syntax.fill, self.syntax.at
        low, high = map(at, sorted(between))
        one, other = (fill(f"COALESCE({TRUE_AT}, FALSE)", at=at(each)) for each in between)
        source, moved = f"({self.versions()}) AS versions", _TOUCHED if through else _MOVED
        return fill(_MOVES, source=source, first=one, second=other, moved=fill(moved, low=low, high=high))

    def revisions(self, instant: int, between: tuple[int, int]) -> str:
        """The query for rows that were true at `instant` as known at only one of two times."""
        fill, at = self.syntax.fill, self.syntax.at
        one, other = (fill(_HELD_THEN, at=at(instant), until=at(each)) for each in between)
        source = fill(f"{{rows}} WHERE {NO_FACT}")
        return fill(_MOVES, source=source, first=one, second=other, moved=fill(_MOVED))


ADDED, REMOVED, CHANGED = "added", "removed", "changed"
RETURNED, REVERTED, PASSED = "returned", "reverted", "passed"
# Kinds of records that are the same in both states.
BETWEEN: Final = (RETURNED, REVERTED, PASSED)
SIDES: Final = ("before", "after")
# Columns of a record: its kind of change, its kind if the rows before and after are equal, one of its rows,
# its rows before and after, and whether it was absent in between.
ANSWER: Final = ("change", "otherwise", "row", "was", "is", "away")

# Whether a row was known, at a recorded time, to be true at an instant (V6).
_HELD: Final = TRUE_AT.format(started="{start}", ended=END_THEN, at="{at}")
_HELD_THEN: Final = f"COALESCE({{recorded}} <= {{until}} AND {_HELD}, FALSE)"
_MOVES: Final = """
SELECT * FROM (SELECT *, {first} AS {before}, {second} AS {after} FROM {source}) AS sides WHERE {moved}
"""
_MOVED: Final = "{before} <> {after}"
_TOUCHED: Final = """
{started} IS NOT NULL AND ({started} > {low} AND {started} <= {high} OR {ended} > {low} AND {ended} <= {high})
"""

# Without a key, equal rows are numbered, so that each of them can be added or removed.
_COPIES: Final = """(
  SELECT *, ROW_NUMBER() OVER (PARTITION BY {values}, {after} ORDER BY {after}) AS {copy} FROM {rows}
) AS copies"""
# Whether a record was absent after each version, and whether it had other values before.
_PASSAGES: Final = """(
  SELECT *, COALESCE({ended} < LEAD({started}) OVER record, FALSE) AS {gone},
    LAG({started}) OVER record IS NOT NULL
      AND {values} IS DISTINCT FROM LAG({values}) OVER record AS {renewed}
  FROM {rows} WINDOW record AS (PARTITION BY {record} ORDER BY {started})
) AS passages"""
_AT_BOTH: Final = f"""
    CASE WHEN {{is}} IS NULL THEN '{PASSED}' WHEN {{away}} THEN '{RETURNED}'
      WHEN {{reverted}} THEN '{REVERTED}' END"""
_DIFFERENCES: Final = f"""
SELECT * FROM (
  SELECT *, PASSAGES AS {{otherwise}}, CASE
      WHEN {{was}} IS NULL AND {{is}} IS NOT NULL THEN '{ADDED}'
      WHEN {{is}} IS NULL AND {{was}} IS NOT NULL THEN '{REMOVED}'
      WHEN {{was}} IS NOT NULL THEN '{CHANGED}' END AS {{change}}
  FROM (
    SELECT {{record}}, FIRST({{row}}) AS {{row}}, FIRST({{row}}) FILTER (WHERE {{before}}) AS {{was}},
      FIRST({{row}}) FILTER (WHERE {{after}}) AS {{is}}, HAPPENED
    FROM SIDES GROUP BY {{record}}
  ) AS records
) AS differences WHERE {{change}} IS NOT NULL OR {{otherwise}} IS NOT NULL
"""
_BETWEEN_FLAGS: Final = "BOOL_OR({gone}) AS {away}, BOOL_OR({renewed}) AS {reverted}"


def differences_query(
    syntax: SqlSyntax, key: Sequence[str], *, through: bool = False, timed: bool = False
) -> str:
    """The query for the records that may differ. `key` names the columns that identify a record.

    The query reads versions that were true in either of two states or, with `through`, versions that begin or
    end between the two. In `timed` tables, the start of a version is part of its record's identity. The
    answer has the columns of the key and `ANSWER`. Without `through`, `otherwise` and `away` are NULL. The
    caller compares the rows of the records that are `CHANGED`.
    """
    names = [syntax.name(each) for each in key] or [syntax.fill(each) for each in ("{values}", "{copy}")]
    record = ", ".join([*names, *([syntax.fill("{started}")] if timed else [])])
    sides = (_PASSAGES if through else "{rows}") if key else _COPIES
    happened = _BETWEEN_FLAGS if through else "CAST(NULL AS BOOLEAN) AS {away}"
    text = _DIFFERENCES.replace("PASSAGES", _AT_BOTH if through else "CAST(NULL AS VARCHAR(8))")
    text = text.replace("SIDES", sides).replace("HAPPENED", happened)
    return syntax.fill(text, record=record)
