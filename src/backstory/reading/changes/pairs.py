"""The changes among rows that commits removed and added: one query for DuckDB and Spark (native.md V105)."""

# ruff: noqa: S608 - all names in these queries are our own

from collections.abc import Sequence
from typing import Final

from backstory.model.change_feed import NUMBER, SIGN, ChangeType
from backstory.model.layout import DELETED, Layout
from backstory.model.table import Shape
from backstory.reading.lifetimes import ColumnSql, SqlSyntax

# A column of moved rows beside their sign and number: the commit, which sorts as its number.
COMMIT: Final = "moved: commit"
# Columns of a change: its type and its commit.
TYPE, LAST = "moved: type", "moved: last"
_NTH, _SURPLUS = "moved: nth {}", "moved: surplus {}"
# The types of removed and added rows, without and with the other row of an update.
_SINGLE: Final = f"CASE WHEN {{sign}} < 0 THEN '{ChangeType.DELETE}' ELSE '{ChangeType.INSERT}' END"
_PAIR: Final = f"CASE WHEN {{sign}} < 0 THEN '{ChangeType.BEFORE}' ELSE '{ChangeType.AFTER}' END"
# Equal rows cancel as bags.
_CANCELED: Final = """(
  SELECT * FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY {same}, {sign} ORDER BY {sign}) AS {nth},
      SUM({sign}) OVER (PARTITION BY {same}) AS {surplus}
    FROM {moved}
  ) AS counted WHERE {nth} <= {surplus} * {sign}
) AS moved"""


def changes_query(
    syntax: SqlSyntax, record: Sequence[str], content: Sequence[str], *, net: bool, only_added: bool = False
) -> str:
    """The query for the changes among moved rows, by the columns of a record and of its other values.

    One removed and one added row of a record are an update; more rows are deletes and inserts. With `net`,
    the changes are those of all commits together, each with the last commit that touched its record, even if
    that commit restored a former row (V106). With `only_added`, no row was removed.
    """
    names = {"sign": SIGN, "number": NUMBER, "commit": COMMIT, "type": TYPE, "last": LAST}
    words = {word: syntax.name(name) for word, name in names.items()}
    records, values = ([syntax.name(each) for each in names] for names in (record, content))
    single, pair = (text.format(**words) for text in (_SINGLE, _PAIR))
    number, commit, type_, last = (words[word] for word in ("number", "commit", "type", "last"))
    if only_added and not net:
        return f"SELECT *, {single} AS {type_}, {commit} AS {last} FROM {syntax.rows}"

    def cancel(moved: str, same: Sequence[str], step: int) -> str:
        own = {"nth": syntax.name(_NTH.format(step)), "surplus": syntax.name(_SURPLUS.format(step))}
        return _CANCELED.format(moved=moved, same=", ".join(same), **own, **words)

    moved = cancel(syntax.rows, [*records, *values, number], 1)
    touched = f"MAX({commit}) OVER (PARTITION BY {', '.join(records)})" if net else commit
    moved = f"(SELECT *, {touched} AS {last} FROM {moved}) AS moved"
    if net:
        moved = cancel(moved, [*records, *values], 2)
    record_of = f"OVER (PARTITION BY {', '.join(records if net else [*records, number])})"
    paired = f"COUNT(*) {record_of} = 2 AND SUM({words['sign']}) {record_of} = 0"
    return f"SELECT *, CASE WHEN {paired} THEN {pair} ELSE {single} END AS {type_} FROM {moved}"


def current_condition(shape: Shape, syntax: SqlSyntax, column: ColumnSql) -> str:
    """Whether a row is an open version, or a live row that is not deleted."""
    span = shape.layout.span
    if span is None:
        return "TRUE" if shape.column(DELETED) is None else f"NOT COALESCE({column(DELETED)}, FALSE)"
    end = column(span.end)
    if span.far is None:
        return f"{end} IS NULL"
    stored = shape.column(span.end)
    end = syntax.read_instant(end, None if stored is None else stored.type.kind)
    late = f"{end} >= {syntax.at(span.far)}"
    if shape.layout is Layout.FIVETRAN_HISTORY:
        return f"COALESCE({column(span.flag)}, {late}, FALSE)"
    return f"({end} IS NULL OR {late})"
