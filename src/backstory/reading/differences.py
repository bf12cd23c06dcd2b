"""How the records of a table differ between two states, by queries for DuckDB and Spark (native.md V96)."""

# ruff: noqa: S608 - no name or value in these queries is anybody else's

from collections.abc import Sequence
from typing import Final

from backstory.reading.lifetimes import END_THEN, NO_FACT, SqlSyntax

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
RETURNED, REVERTED, PASSED = "returned", "reverted", "passed"
# Kinds of records that are the same in both states.
BETWEEN: Final = (RETURNED, REVERTED, PASSED)
SIDES: Final = ("before", "after")
# A version: its row, whether it was true before and after, and all compared values as one, which passages and
# tables without a key need.
COLUMNS: Final = ("row", "values", *SIDES)
# A record: its kind of change, its kind if its rows before and after have the same values, a row of it, its
# rows before and after, and whether it was away in between.
ANSWER: Final = ("change", "otherwise", "row", "was", "is", "away")
_STEPS: Final = ("copy", "gone", "renewed", "reverted")

# Whether a version is true at an instant (V99), and whether a row was known to be so at a time (V6).
_TRUE: Final = "COALESCE({started} <= {at} AND COALESCE({at} < {ended}, TRUE), FALSE)"
_KNOWN: Final = f"""
COALESCE({{recorded}} <= {{until}} AND {{start}} <= {{at}} AND COALESCE({{at}} < {END_THEN}, TRUE), FALSE)
"""
_MOVES: Final = """
SELECT * FROM (SELECT *, {first} AS {before}, {second} AS {after} FROM {source}) AS sides WHERE {moved}
"""
_MOVED: Final = "{before} <> {after}"
_TOUCHED: Final = """
{started} IS NOT NULL AND ({started} > {low} AND {started} <= {high} OR {ended} > {low} AND {ended} <= {high})
"""

# Without a key a row is told from its copies by its number, so that rows come and go as often as they exist.
_COPIES: Final = """(
  SELECT *, ROW_NUMBER() OVER (PARTITION BY {values}, {after} ORDER BY {after}) AS {copy} FROM {rows}
) AS copies"""
# Whether a record was gone after each version, and whether it had other values before.
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
_HAPPENED: Final = "BOOL_OR({gone}) AS {away}, BOOL_OR({renewed}) AS {reverted}"


def moves_query(words: SqlSyntax, versions: str, between: tuple[int, int], *, through: bool = False) -> str:
    """The query for the versions among those of another query that are true at one of two instants only.

    The instants are microseconds since 1970. The answer has `SIDES`: whether a version is true at the first
    instant, and at the second. With `through` it has all versions that begin or end between them.
    """
    low, high = map(words.at, sorted(between))
    one, other = (words.fill(_TRUE, at=words.at(each)) for each in between)
    moved = _TOUCHED if through else _MOVED
    source = f"({versions}) AS versions"
    return _fill(
        words, _MOVES, source=source, first=one, second=other, moved=_fill(words, moved, low=low, high=high)
    )


def revisions_query(words: SqlSyntax, instant: int, between: tuple[int, int]) -> str:
    """The query for the rows of layout `versions` that were known of an instant at one of two times only."""
    one, other = (words.fill(_KNOWN, at=words.at(instant), until=words.at(each)) for each in between)
    source = words.fill(f"{{rows}} WHERE {NO_FACT}")
    return _fill(words, _MOVES, source=source, first=one, second=other, moved=_fill(words, _MOVED))


def differences_query(
    words: SqlSyntax, key: Sequence[str], *, through: bool = False, timed: bool = False
) -> str:
    """The query for the records that may differ; `key` are names of the columns that tell records apart.

    It reads `COLUMNS` of versions that were true in one of two states, or with `through` of all that begin or
    end between them. Records of `timed` tables have a time of their own. The answer has the key's columns and
    `ANSWER`, of which `otherwise` and `away` are NULL unless `through`. The caller compares the rows of the
    records that are `CHANGED`.
    """
    names = [words.name(each) for each in key] or [_fill(words, each) for each in ("{values}", "{copy}")]
    record = ", ".join([*names, *([_fill(words, "{started}")] if timed else [])])
    sides = (_PASSAGES if through else "{rows}") if key else _COPIES
    happened = _HAPPENED if through else "CAST(NULL AS BOOLEAN) AS {away}"
    text = _DIFFERENCES.replace("PASSAGES", _AT_BOTH if through else "CAST(NULL AS VARCHAR(8))")
    text = text.replace("SIDES", sides).replace("HAPPENED", happened)
    return _fill(words, text, record=record)


def _fill(words: SqlSyntax, text: str, **more: str) -> str:
    return words.fill(text, columns=(*COLUMNS, *ANSWER, *_STEPS), **more)
