"""From when to when the rows of a table were true: one query a layout, which DuckDB and Spark run.

A query reads a relation that has, beside columns of its own, the values that the layout records of each row,
under the names of `COLUMNS`; instants are times in UTC. The answer has the rows that are versions, each with
`STARTED` and `ENDED`, which is NULL while the version is true.
"""

# ruff: noqa: S608 - no name or value in these queries is anybody else's

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from backstory.model.layout import Layout
from backstory.model.versions_layout import Role
from backstory.strategies.events.terms import Op

# What rows record. No column of a source is called so.
COLUMNS: Final = (
    *("start", "end", "flag", "gone"),
    *("recorded", "role", "moved", "end_before"),
    *("offset", "op", "time"),
)
_ANSWER: Final = ("started", "ended", "known_from", "known_to")
STARTED, ENDED, KNOWN_FROM, KNOWN_TO = (f"backstory: {each.replace('_', ' ')}" for each in _ANSWER)
_BRINGS: Final = f"({int(Op.APPEND)}, {int(Op.CORRECT_TO)})"


def internal_name(column: str) -> str:
    """The name that a column of `COLUMNS` has in a relation."""
    return f"backstory: {column}"


@dataclass(frozen=True, slots=True)
class SqlSyntax:
    """How an engine writes a query: quotes, instants by their microseconds since 1970, the relation `rows`.

    `endless` takes the place of the end of a version that has none and is not open.
    """

    quote: str
    instant: str
    rows: str
    endless: str = "NULL"

    def name(self, name: str) -> str:
        """A name in quotes."""
        return f"{self.quote}{name.replace(self.quote, 2 * self.quote)}{self.quote}"

    def at(self, micros: int) -> str:
        """An instant."""
        return self.instant.format(micros)

    def fill(
        self, text: str, key: Sequence[str] = (), columns: Sequence[str] | None = None, **more: str
    ) -> str:
        """The text with names of columns, and with more of its parts, for the words in braces."""
        names = {each: self.name(internal_name(each)) for each in columns or (*COLUMNS, *_STEPS)}
        names |= {each: self.name(internal_name(each.replace("_", " "))) for each in _ANSWER}
        keys = [self.name(each) for each in key]
        same = "".join(f"one.{each} IS NOT DISTINCT FROM later.{each} AND " for each in keys)
        return text.format(
            **names,
            of_record=f"PARTITION BY {', '.join(keys)} " if keys else "",
            key="".join(f"{each}, " for each in keys),
            same_record=same,
            rows=self.rows,
            endless=self.endless,
            **more,
        )


# A version without an end is refused before DuckDB sees it.
DUCKDB: Final = SqlSyntax('"', "make_timestamp({})", "recorded")
SPARK: Final = SqlSyntax("`", "timestamp_micros({})", "recorded")


@dataclass(frozen=True, slots=True)
class LogKind:
    """What a log's events are: each one of its own (a ledger), or states of records.

    With `corrects` a row says what it does; `timely` are logs whose retractions have a time of their own.
    """

    each_its_own: bool
    corrects: bool
    timely: bool


# Columns of queries within a query.
_STEPS: Final = ("next_op", "next_recorded", "begun", "following", "own_end", "sooner", "nth", "step")
# A version has length, and nothing else has (native.md V3, V5).
_LASTING: Final = "({ended} IS NULL OR {ended} > {started})"
_KNOWN: Final = "({known_to} IS NULL OR {known_to} > {known_from})"
NO_FACT: Final = f"({{role}} IS NULL OR {{role}} <> '{Role.FACT}')"
_NATIVE: Final = """
SELECT *, {start} AS {started}, {end} AS {ended} FROM {rows} WHERE {end} IS NULL OR {end} > {start}
"""
# The end of a row as it was known: the one before it was last moved, or the one since (V6, V93).
END_THEN: Final = "CASE WHEN {moved} > {until} THEN {end_before} ELSE {end} END"
_NATIVE_THEN: Final = f"""
SELECT * FROM (
  SELECT *, {{start}} AS {{started}}, {END_THEN} AS {{ended}}
  FROM {{rows}} WHERE {{recorded}} <= {{until}} AND {NO_FACT}
) AS known WHERE {_LASTING}
"""
_PLAIN: Final = "SELECT *, {start} AS {started}, {end} AS {ended} FROM {rows}"
# A version that stands for a record that was not there is none; an end in the far future is none.
_ADOPTED: Final = """
SELECT *, {start} AS {started}, CASE WHEN {end} < {far} THEN {end} END AS {ended} FROM {rows} WHERE NOT {gone}
"""
# A version whose successor starts before its end, or within a millisecond of it, reaches up to that start: at
# any instant at most one is true, the one that began last.
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
# An event of a ledger or an append is true from its time on, for ever, unless it was corrected.
_EVENTS: Final = f"""
SELECT *, {{time}} AS {{started}}, CASE WHEN FALSE THEN {{time}} END AS {{ended}},
  {{recorded}} AS {{known_from}},
  CASE WHEN {{next_op}} = {int(Op.CORRECT_FROM)} THEN {{next_recorded}} END AS {{known_to}}
FROM (
  SELECT *,
    LEAD({{op}}) OVER ({{of_record}}ORDER BY {{offset}}) AS {{next_op}},
    LEAD({{recorded}}) OVER ({{of_record}}ORDER BY {{offset}}) AS {{next_recorded}}
  FROM {{rows}} WHERE {{is_known}}
) AS events WHERE {{op}} IN {_BRINGS}
"""
# One that does not say what it does brings something.
_EVERY: Final = """
SELECT *, {time} AS {started}, CASE WHEN FALSE THEN {time} END AS {ended}, {recorded} AS {known_from},
  CASE WHEN FALSE THEN {recorded} END AS {known_to}
FROM {rows} WHERE {is_known}
"""
_UNCORRECTED: Final = f"({{next_op}} IS NULL OR {{next_op}} <> {int(Op.CORRECT_FROM)})"
# From when each event counts. A retraction without a time of its own counts from when it is known. A record
# that is back at the time of its predecessor, or before it, begins when that was known to be gone.
_BEGUN: Final = f"""
CASE WHEN {{op}} = {int(Op.RETRACT)} THEN {{recorded}}
  WHEN LAG({{op}}) OVER record = {int(Op.RETRACT)} AND {{time}} <= LAG({{time}}, 2) OVER record
  THEN GREATEST({{time}}, LAG({{recorded}}) OVER record) ELSE {{time}} END
"""
_STATES: Final = f"""
SELECT *, BEGUN AS {{begun}} FROM {{rows}} WHERE {{is_known}} AND {{op}} <> {int(Op.CORRECT_FROM)}
WINDOW record AS ({{of_record}}ORDER BY {{offset}})
"""
# A version ends where any later event of its record begins, also one that is recorded late
# (odf-ingest.md 2.10); a version that was true at no instant is none.
_LIVES: Final = f"""
SELECT * FROM (
  SELECT *, {{begun}} AS {{started}}, MIN({{begun}}) OVER (
    {{of_record}}ORDER BY {{offset}} DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS {{ended}}
  FROM states
) AS lives WHERE {{op}} IN {_BRINGS} AND ({{ended}} IS NULL OR {{started}} IS NULL OR {{ended}} > {{started}})
"""
# A row has two steps: its end before it was last moved, and its end since (V6).
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
# An event is stated until a later one that begins before its end ends it, and anew with each late one.
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
        ON {{same_record}}later.{{offset}} >= one.{{offset}} WHERE one.{{op}} IN {_BRINGS}
    ) AS steps
  ) AS steps WHERE {{nth}} = {{offset}} OR {{sooner}} IS NULL OR {{ended}} < {{sooner}}
) AS statements WHERE {_LASTING} AND {_KNOWN}
"""


def versions_query(
    words: SqlSyntax, layout: Layout, key: Sequence[str], log: LogKind | None = None, until: int | None = None
) -> str:
    """The query for the versions of a table; `key` are names of the columns that tell records apart.

    `log` is the kind of an event log. With `until`, in microseconds since 1970, the versions are as they were
    known then, on layout `versions` and of event logs.
    """
    if log is not None:
        alone = f"SELECT * FROM ({_EVENTS}) AS events WHERE {_UNCORRECTED}" if log.corrects else _EVERY
        return _of_log(words, alone if log.each_its_own else _LIVES, key, log, until)
    if layout is Layout.VERSIONS:
        return words.fill(_NATIVE) if until is None else words.fill(_NATIVE_THEN, until=words.at(until))
    span = layout.span
    if span is None or span.far is None:
        return words.fill(_PLAIN)
    return words.fill(_ADOPTED if layout.is_adopted else _FIVETRAN, key, far=words.at(span.far))


def statements_query(words: SqlSyntax, key: Sequence[str], log: LogKind | None = None) -> str:
    """The query for the statements of a table of layout `versions`, or of an event log (V97).

    The answer has each version as it was stated, with `KNOWN_FROM` and `KNOWN_TO` (NULL: still).
    """
    if log is None:
        return words.fill(_NATIVE_STATEMENTS)
    alone = f"SELECT * FROM ({_EVENTS}) AS events WHERE {_KNOWN}" if log.corrects else _EVERY
    return _of_log(words, alone if log.each_its_own else _STATE_STATEMENTS, key, log, None)


def _of_log(words: SqlSyntax, text: str, key: Sequence[str], log: LogKind, until: int | None) -> str:
    """A query of an event log, of the events that it had at a time."""
    known = "TRUE" if until is None else f"{words.name(internal_name('recorded'))} <= {words.at(until)}"
    if not log.each_its_own:
        begun = "{time}" if log.timely else _BEGUN
        text = f"WITH states AS ({_STATES.replace('BEGUN', begun)}) {text}"
    return words.fill(text, key, is_known=known)
