"""Questions about points in time as queries of any dialect (section 7.4).

Times are ISO text or aware datetimes. A time before the prune watermark is refused, because versions
that were valid then may be gone from the table.
"""

from typing import TYPE_CHECKING, Literal

from backstory.doors.historize.histories import (
    History,
    Key,
    Query,
    Shown,
    instant_of,
    select,
    shown,
)
from backstory.doors.historize.model import Role
from backstory.doors.historize.runs import Known
from backstory.errors import UsageError
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.stores.sql.dialects.dialect import Dialect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def as_of(history: History, time: object) -> Query:
    """The versions that were valid at a time, at most one of a record."""
    return select(
        history.dialect,
        shown(history, "h", history.columns),
        f"FROM {history.table} AS h\nWHERE {valid(history, 'h', time)}",
    )


def as_of_run(history: History, run_id: str, known: Known | None) -> Query:
    """The versions that were valid when a run had ended; UsageError for a run that did not end well."""
    if known is None or known.receipt is None:
        raise UsageError(
            "unknown-run",
            f"No load {run_id!r} of {history.hist.target_dataset_name} ended well.",
            "Name the run id of a successful load.",
        )
    return as_of(history, known.load_timestamp)


def current(history: History) -> Query:
    """The open versions."""
    return select(
        history.dialect,
        shown(history, "h", history.columns),
        f"FROM {history.table} AS h\nWHERE {history.of('h', Role.ENDED)} IS NULL",
    )


def timeline(history: History, key: Key) -> Query:
    """All versions of a record by their start, archived ones too, and how long it was away before each.

    `gap_before` is NULL where a version follows the one before it at once, and for the first one. It is
    an interval; on SQL Server, which has none, it is a number of microseconds.
    """
    started, ended = history.of("h", Role.STARTED), history.of("h", Role.ENDED)
    over = f"OVER (PARTITION BY {history.of('h', history.key)} ORDER BY {started})"
    before = f"LAG({ended}) {over}"
    gap = f"CASE WHEN {before} < {started} THEN {_difference(history.dialect, started, before)} END"
    return select(
        history.dialect,
        [*shown(history, "h", history.columns), Shown("gap_before", gap)],
        f"FROM {history.everything} AS h\nWHERE {history.is_record('h', key)}\nORDER BY {started}",
    )


def _difference(dialect: Dialect, later: str, earlier: str) -> str:
    if dialect.SQLGLOT_NAME == "tsql":
        return f"DATEDIFF_BIG(MICROSECOND, {earlier}, {later})"
    return f"{later} - {earlier}"


def join_as_of(
    child: History, parent: History, fk: str, time: object, how: Literal["left", "inner"] = "left"
) -> Query:
    """The child's versions valid at a time, each beside its parent's, whose columns are `parent_<name>`."""
    _require_foreign_key(child, fk)
    side = f"(SELECT * FROM {parent.table} AS p WHERE {valid(parent, 'p', time)})"
    return select(
        child.dialect,
        [*shown(child, "c", child.columns), *shown(parent, "p", parent.columns, "parent_")],
        f"FROM {child.table} AS c\n{how.upper()} JOIN {side} AS p ON {parent.of('p', parent.key)} = "
        f"{child.of('c', fk)}\nWHERE {valid(child, 'c', time)}",
    )


def join_valid(child: History, parent: History, fk: str, since: object | None = None) -> Query:
    """Each pair of a child's version and its parent's, and when both were valid: `valid_from`, `valid_to`.

    `since` leaves out what ended by then. Where one of the two was pruned it must be given, and lie
    no earlier than the watermark.
    """
    _require_foreign_key(child, fk)
    for history in (child, parent):
        if since is not None:
            history.whole_at(instant_of(since))
        elif history.watermark:
            raise UsageError(
                "since-needed",
                f"{history.hist.target_dataset_name} was pruned, so its past is not whole.",
                f"Give since, {history.watermark:%Y-%m-%dT%H:%M:%S.%fZ} or later.",
            )
    starts = [history.of(alias, Role.STARTED) for history, alias in ((child, "c"), (parent, "p"))]
    ends = [history.of(alias, Role.ENDED) for history, alias in ((child, "c"), (parent, "p"))]
    begin = f"CASE WHEN {starts[0]} < {starts[1]} THEN {starts[1]} ELSE {starts[0]} END"
    end = f"CASE WHEN {ends[0]} IS NULL OR {ends[1]} < {ends[0]} THEN {ends[1]} ELSE {ends[0]} END"
    meet = [
        f"({ends[0]} IS NULL OR {starts[1]} < {ends[0]})",
        f"({ends[1]} IS NULL OR {starts[0]} < {ends[1]})",
    ]
    if since is not None:
        literal = child.dialect.timestamp_literal(instant_of(since))
        meet += [f"({each} IS NULL OR {each} > {literal})" for each in ends]
    return select(
        child.dialect,
        [
            *shown(child, "c", child.columns),
            *shown(parent, "p", parent.columns, "parent_"),
            Shown(VALID_FROM, begin),
            Shown(VALID_TO, end),
        ],
        f"FROM {child.table} AS c\nJOIN {parent.table} AS p ON {parent.of('p', parent.key)} = "
        f"{child.of('c', fk)}\nWHERE {' AND '.join(meet)}",
    )


def frame(spark: "SparkSession", query: Query) -> "DataFrame":
    """The rows of a query in the dialect of Spark."""
    return spark.sql(query.sql)


def valid(history: History, alias: str, time: object) -> str:
    """Whether a version was valid at a time."""
    literal = history.dialect.timestamp_literal(history.whole_at(instant_of(time)))
    started, ended = history.of(alias, Role.STARTED), history.of(alias, Role.ENDED)
    return f"{started} <= {literal} AND ({ended} IS NULL OR {ended} > {literal})"


def _require_foreign_key(child: History, fk: str) -> None:
    known = [column.name for column in child.columns if column.system_role is Role.FOREIGN_KEY]
    if fk not in known:
        raise UsageError(
            "unknown-reference",
            f"{child.hist.target_dataset_name} has no foreign key {fk!r}.",
            f"It has {', '.join(known) or 'none'}.",
        )
