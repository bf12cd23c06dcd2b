"""The log of a table's messages and the progress in it. A log that starts again is refused (V136)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.events import LOG_NUMBER
from backstory.doors.native.options import ApplyRequest
from backstory.errors import Refused, option
from backstory.formats.envelopes.events import LogSource
from backstory.model.instant import EPOCH, iso
from backstory.model.versions_layout import LOG, FactKind
from backstory.strategies.feeds.terms import AT, FURTHER, KIND, FormerLogs

DAY: Final = 24 * 60 * 60 * 1_000_000
Position = list[Any]

_STORED_FIELDS: Final = ("connector", "server", "table", "number", "last", "latest", "truncate", "former")


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The first and last position and time of a delivery's messages.

    Messages without a position are ignored. `truncate` is the position of the last truncate, or None.
    """

    first: Position
    last: Position
    earliest: int
    latest: int
    truncate: Position | None = None


@dataclass(frozen=True, slots=True)
class LogProgress:
    """The log of a table's messages, with the last known position, time and truncate.

    `number` counts the table's logs, and is the first part of `truncate`. `settles` is the instant up to
    which a new log settles everything. `former` describes the logs before a new one. It contains the instant
    before the new log's first message, and the last known time of the former logs. If the source's name has
    not changed, it also contains the former logs' last position.
    """

    connector: str
    server: str
    table: str
    number: int = 1
    last: Position | None = None
    latest: int | None = None
    truncate: Position | None = None
    settles: int | None = None
    former: tuple[int, int, Position | None] | None = None

    @property
    def former_logs(self) -> FormerLogs | None:
        """The terms that separate messages of former logs, or None if the log never started again."""
        if self.former is None:
            return None
        until, latest, last = self.former
        return FormerLogs(until, latest, None if last is None else (self.number, *last))

    def properties(self) -> dict[str, str]:
        """The progress as JSON, for the table's property."""
        values = {name: getattr(self, name) for name in _STORED_FIELDS}
        return {LOG: json.dumps(values, ensure_ascii=False)}


def stored_log(properties: Mapping[str, str]) -> LogProgress | None:
    """The progress in a table's properties, or None if it has no messages of a log."""
    text = properties.get(LOG)
    return None if text is None else LogProgress(**json.loads(text))


def span_of(events: pa.Table) -> LogSpan | None:
    """The span of events in their log, or None if no event has a position."""
    position = events[FURTHER].combine_chunks()
    parts = [name for name in position.type.names if name != LOG_NUMBER]
    rows = pa.table({name: pc.struct_field(position, name) for name in parts})
    rows = rows.append_column(AT, events[AT].cast(pa.int64())).append_column(KIND, events[KIND])
    for name in (*parts, AT):
        rows = rows.filter(rows[name].is_valid())
    if not len(rows):
        return None
    times = pc.min_max(rows[AT])
    truncates = rows.filter(pc.equal(rows[KIND], FactKind.TRUNCATE.value))
    return LogSpan(
        _extreme(rows, parts, "min"),
        _extreme(rows, parts, "max"),
        times["min"].as_py(),
        times["max"].as_py(),
        _extreme(truncates, parts, "max") if len(truncates) else None,
    )


def _extreme(rows: pa.Table, parts: Sequence[str], which: str) -> Position:
    """The first or last position, compared part by part."""
    place: Position = []
    for name in parts:
        place.append(pc.min_max(rows[name])[which].as_py())
        rows = rows.filter(pc.equal(rows[name], pa.scalar(place[-1], rows[name].type)))
    return place


def progress(
    known: LogProgress | None, span: LogSpan | None, request: ApplyRequest, recorded: int
) -> LogProgress | None:
    """The progress of the log after a delivery. Raises Refused for another log and for future times."""
    if request.log is None:
        return None
    if span is not None and span.latest > recorded + DAY and not request.allow_future:
        latest = iso(EPOCH + timedelta(microseconds=span.latest))
        raise Refused(
            "time-ahead",
            f"Messages have times up to {latest}, more than a day ahead.",
            f"Nothing was written; set the clock of the source, or use {option('allow_future', value=True)}.",
        )
    delivered = _one_source(request.log)
    if known is None:
        return _extend(delivered, span)
    if reason := _restart_reason(known, delivered, span, chosen=request.new_log):
        if not request.new_log:
            raise _restart_error(reason)
        settles = None if span is None else span.earliest - 1
        new = replace(delivered, number=known.number + 1, truncate=known.truncate, settles=settles)
        new = replace(new, former=_former_progress(known, delivered, settles))
        return _extend(new, span)
    server = known.server if f"{known.server}/".startswith(f"{delivered.server}/") else delivered.server
    now = replace(
        known,
        connector=delivered.connector or known.connector,
        server=server,
        table=delivered.table or known.table,
    )
    return _extend(now, span)


def _former_progress(
    known: LogProgress, delivered: LogProgress, until: int | None
) -> tuple[int, int, Position | None] | None:
    """The description of the logs before a new one, without a position if the source's name changed."""
    latest = max(
        (time for time in (known.latest, (known.former or (0, None))[1]) if time is not None), default=None
    )
    if until is None or latest is None:
        return None if known.former is None else (*known.former[:2], None)
    renamed = _restart_reason(known, delivered, None, chosen=True)
    return until, latest, None if renamed else known.last


def refuse_another_log(properties: Mapping[str, str], request: ApplyRequest) -> None:
    """Raise Refused for messages from another source, whose positions may have different parts."""
    known = stored_log(properties)
    if known is None or request.log is None or request.new_log:
        return
    if reason := _restart_reason(known, _one_source(request.log), None, chosen=False):
        raise _restart_error(reason)


def late_place(known: LogProgress | None, now: LogProgress | None, span: LogSpan | None) -> Position | None:
    """The first position of a delivery, if it is not after the last known position, or else None (V134)."""
    if known is None or now is None or span is None or now.number != known.number:
        return None
    return [now.number, *span.first] if known.last is not None and span.first <= known.last else None


def _one_source(source: LogSource) -> LogProgress:
    if len(source.servers) > 1:
        raise _restart_error(f"they come from several servers: {', '.join(sorted(source.servers))}")
    parts = (source.connectors, source.servers, source.tables)
    connector, server, table = (next(iter(names), "") for names in parts)
    return LogProgress(connector, server, table)


def _restart_reason(known: LogProgress, source: LogProgress, span: LogSpan | None, *, chosen: bool) -> str:
    """The reason why messages belong to a log other than the table's, or an empty string if they do not.

    A log has started again if positions fall while times rise. This must hold for all messages, or only for
    some if a new log was requested.
    """
    one, other = f"{known.server}/", f"{source.server}/"
    if known.connector and source.connector and known.connector != source.connector:
        return f"the connector was {known.connector}, and is {source.connector}"
    if known.server and source.server and not (one.startswith(other) or other.startswith(one)):
        return f"the server was {known.server}, and is {source.server}"
    if known.table and source.table and known.table != source.table:
        if chosen:
            return f"the table was {known.table}, and is {source.table}"
        raise Refused(
            "several-sources",
            f"The table has changes of the source's table {known.table}; "
            f"these messages are of {source.table}.",
            "Nothing was written; apply them to another table. If the table was renamed at the source, use "
            f"{option('new_log', value=True)}.",
        )
    if span is None or known.last is None or known.latest is None:
        return ""
    falls = (span.first if chosen else span.last) < known.last
    rises = (span.latest if chosen else span.earliest) > known.latest
    return "the positions in the log fall while the times rise" if falls and rises else ""


def _restart_error(reason: str) -> Refused:
    return Refused(
        "log-restarted",
        f"The messages are from a log that starts again: {reason}.",
        "Nothing was written; if the log is the same, apply these messages together with the later ones. "
        "Otherwise apply the messages of each log separately; for the new log use "
        f"{option('new_log', value=True)}.",
    )


def _extend(log: LogProgress, span: LogSpan | None) -> LogProgress:
    if span is None:
        return log
    truncates = [] if log.truncate is None else [log.truncate]
    truncates += [] if span.truncate is None else [[log.number, *span.truncate]]
    return replace(
        log,
        last=span.last if log.last is None else max(log.last, span.last),
        latest=span.latest if log.latest is None else max(log.latest, span.latest),
        truncate=max(truncates, default=None),
    )


def number_events(events: pa.Table, number: int) -> pa.Table:
    """The events with the number of their log in their positions."""
    position = events[FURTHER].combine_chunks()
    names = position.type.names
    there = np.asarray(pc.struct_field(position, names[-1]).is_valid())
    parts = {name: pc.struct_field(position, name) for name in names}
    parts[LOG_NUMBER] = pa.array(np.full(len(events), number), pa.int64(), mask=~there)
    struct = pa.StructArray.from_arrays(list(parts.values()), fields=list(position.type))
    return events.set_column(events.column_names.index(FURTHER), FURTHER, struct)
