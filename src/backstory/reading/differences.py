"""The differences between a table's records in two states, computed by DuckDB or Spark (native.md V96)."""

# ruff: noqa: S608 - all names and values in these queries are our own

from collections.abc import Sequence
from typing import Final

from backstory.reading.lifetimes import END_THEN, NO_FACT, TRUE_AT, SqlSyntax

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
RETURNED, REVERTED, PASSED = "returned", "reverted", "passed"
# Kinds of records that are the same in both states.
BETWEEN: Final = (RETURNED, REVERTED, PASSED)
SIDES: Final = ("before", "after")
# Columns of a version: its row, all compared values as one, and whether it was true before and after. The
# values are needed for passages and for tables without a key.
COLUMNS: Final = ("row", "values", *SIDES)
# Columns of a record: its kind of change, its kind if the rows before and after are equal, one of its rows,
# its rows before and after, and whether it was absent in between.
ANSWER: Final = ("change", "otherwise", "row", "was", "is", "away")
_STEPS: Final = ("copy", "gone", "renewed", "reverted")

# Whether a row was known, at a recorded time, to be true at an instant (V6).
_HELD: Final = TRUE_AT.format(started="{start}", ended=END_THEN, at="{at}")
_KNOWN: Final = f"COALESCE({{recorded}} <= {{until}} AND {_HELD}, FALSE)"
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
_HAPPENED: Final = "BOOL_OR({gone}) AS {away}, BOOL_OR({renewed}) AS {reverted}"


def moves_query(syntax: SqlSyntax, versions: str, between: tuple[int, int], *, through: bool = False) -> str:
    """The query for the versions, out of the query `versions`, that are true at only one of two instants.

    The instants are microseconds since 1970. The answer has `SIDES`: whether a version is true at the first
    instant, and at the second. With `through` it has all versions that begin or end between them.
    """
    low, high = map(syntax.at, sorted(between))
    one, other = (syntax.fill(f"COALESCE({TRUE_AT}, FALSE)", at=syntax.at(each)) for each in between)
    moved = _TOUCHED if through else _MOVED
    source = f"({versions}) AS versions"
    return _fill(
        syntax, _MOVES, source=source, first=one, second=other, moved=_fill(syntax, moved, low=low, high=high)
    )


def revisions_query(syntax: SqlSyntax, instant: int, between: tuple[int, int]) -> str:
    """The query for rows of layout `versions` that held at `instant` as known at only one of two times.

    All times are in microseconds since 1970.
    """
    one, other = (syntax.fill(_KNOWN, at=syntax.at(instant), until=syntax.at(each)) for each in between)
    source = syntax.fill(f"{{rows}} WHERE {NO_FACT}")
    return _fill(syntax, _MOVES, source=source, first=one, second=other, moved=_fill(syntax, _MOVED))


def differences_query(
    syntax: SqlSyntax, key: Sequence[str], *, through: bool = False, timed: bool = False
) -> str:
    """The query for the records that may differ; `key` names the columns that identify a record.

    It reads `COLUMNS` of the versions that were true in one of two states, or, with `through`, of the
    versions that begin or end between them. In `timed` tables the start of a version identifies its record
    too. The answer has the columns of the key and `ANSWER`; `otherwise` and `away` are NULL unless `through`.
    The caller compares the rows of the records that are `CHANGED`.
    """
    names = [syntax.name(each) for each in key] or [_fill(syntax, each) for each in ("{values}", "{copy}")]
    record = ", ".join([*names, *([_fill(syntax, "{started}")] if timed else [])])
    sides = (_PASSAGES if through else "{rows}") if key else _COPIES
    happened = _HAPPENED if through else "CAST(NULL AS BOOLEAN) AS {away}"
    text = _DIFFERENCES.replace("PASSAGES", _AT_BOTH if through else "CAST(NULL AS VARCHAR(8))")
    text = text.replace("SIDES", sides).replace("HAPPENED", happened)
    return _fill(syntax, text, record=record)


def _fill(syntax: SqlSyntax, text: str, **more: str) -> str:
    return syntax.fill(text, columns=(*COLUMNS, *ANSWER, *_STEPS), **more)
