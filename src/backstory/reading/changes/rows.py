"""Which rows of a layout the feed reports, and which columns identify a row (native.md, V104 and V105)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backstory.errors import Refused, UsageError, option
from backstory.model.change_feed import CHANGE_COLUMNS
from backstory.model.history import History
from backstory.model.instant import TMAX
from backstory.model.layout import DELETED, MEMORY, Layout
from backstory.model.remembered import ROLE
from backstory.model.schema import Shape
from backstory.model.spelling import is_reserved
from backstory.reading.frames.event_logs import system_columns
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.port import ToldTable

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True, slots=True)
class ToldRows:
    """The columns that are shown, by the names of the table; those that identify a row; which rows count.

    The condition is made where a session runs.
    """

    columns: dict[str, str]
    identity: tuple[str, ...]
    condition: "Callable[[], Column] | None"


def feed_rows(table: ToldTable, *, current: bool) -> ToldRows:
    """The rows that the feed reports: those without a role, or the current ones without technical columns.

    Raises UsageError for `current` on an event log, and Refused for columns named like the feed's own.
    """
    shape = table.shape
    rows = _current(shape) if current else _all(table)
    for name in rows.columns.values():
        if is_reserved(name, CHANGE_COLUMNS):
            raise Refused(
                "reserved-column",
                f"A column of {shape.table} has the name {name}, which the feed uses itself.",
                "Rename the column.",
            )
    return rows


def identity_of(table: ToldTable) -> tuple[str, ...]:
    """The columns that tell the rows of a table apart; none where nothing but their values does."""
    shape = table.shape
    if shape.layout is Layout.ODF:
        return (system_columns(table)["offset"],)
    span = shape.layout.span
    of_version = History(shape).version_key
    if shape.layout is Layout.HIST and of_version in shape.names:
        return (of_version,)
    return (*shape.key, span.start) if span and shape.key else shape.key


def _all(table: ToldTable) -> ToldRows:
    names = table.shape.names
    condition = _is_version if MEMORY in names else None
    return ToldRows({name: name for name in names if name != MEMORY}, identity_of(table), condition)


def _is_version() -> "Column":
    return column(MEMORY)[ROLE].isNull()


def _current(shape: Shape) -> ToldRows:
    if shape.layout is Layout.ODF:
        raise UsageError(
            "no-current",
            f"The rows of {shape.table} are events, and no event is current or not.",
            f"Omit {option('current', value=True)}.",
        )
    columns = {each.name: each.source for each in shape.user_columns}
    return ToldRows(columns, shape.key, _is_current(shape))


def _is_current(shape: Shape) -> "Callable[[], Column] | None":
    """The condition for open versions of a history, or live rows that are not deleted; None if all are."""
    marked = shape.layout.span is not None or shape.column(DELETED) is not None
    return (lambda: _current_condition(shape)) if marked else None


def _current_condition(shape: Shape) -> "Column":
    from pyspark.sql.functions import coalesce, expr, lit

    span = shape.layout.span
    if shape.layout is Layout.FIVETRAN_HISTORY and span:
        return coalesce(column(span.open), column(span.end) >= instant(micros_of(TMAX)), lit(False))
    if span:
        return expr(span.open)
    return ~column(DELETED).eqNullSafe(lit(True))
