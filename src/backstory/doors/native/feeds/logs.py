"""Which log a table's messages are of, and how far it is known: one that starts again is refused (V136)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.ordering import LOG_NUMBER
from backstory.doors.native.options import ApplyRequest
from backstory.errors import Refused, option
from backstory.formats.envelopes.log_source import LogSource
from backstory.model.instant import EPOCH, iso
from backstory.model.versions_layout import LOG, FactKind
from backstory.strategies.feeds.terms import AT, FURTHER, KIND, FormerLogs

DAY: Final = 24 * 60 * 60 * 1_000_000
Position = list[Any]


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The messages of a delivery that have a place in its log: the first and last place, and time.

    `truncate` is the place of the last truncate, None for none.
    """

    first: Position
    last: Position
    earliest: int
    latest: int
    truncate: Position | None = None


@dataclass(frozen=True, slots=True)
class LogProgress:
    """The log that a table has messages of, and the last place, time and truncate that are known of it.

    `number` counts the logs that the table had; it leads in `truncate`. `settles`: up to when everything is
    settled from now on. Where the log began anew, `former` is up to when there was none of its messages, the
    last time that is known of the logs before it, and their last place if the source has the same name.
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
        """What tells messages of the logs before it from its own; None where it did not begin anew."""
        if self.former is None:
            return None
        until, latest, last = self.former
        return FormerLogs(until, latest, None if last is None else (self.number, *last))

    def properties(self) -> dict[str, str]:
        """As the table keeps it."""
        values = {name: getattr(self, name) for name in _KEPT}
        return {LOG: json.dumps(values, ensure_ascii=False)}


_KEPT: Final = ("connector", "server", "table", "number", "last", "latest", "truncate", "former")


def stored_log(properties: Mapping[str, str]) -> LogProgress | None:
    """What a table keeps of its log; None for one that has no messages of any."""
    text = properties.get(LOG)
    return None if text is None else LogProgress(**json.loads(text))


def span_of(events: pa.Table) -> LogSpan | None:
    """The first and last place and time of events; None where none has a place."""
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
    """The first or last place, part by part."""
    place: Position = []
    for name in parts:
        place.append(pc.min_max(rows[name])[which].as_py())
        rows = rows.filter(pc.equal(rows[name], pa.scalar(place[-1], rows[name].type)))
    return place


def progress(
    known: LogProgress | None, span: LogSpan | None, request: ApplyRequest, recorded: int
) -> LogProgress | None:
    """How far the log is known with a delivery; Refused for one of another log, or from the future."""
    if request.log is None:
        return None
    if span is not None and span.latest > recorded + DAY and not request.allow_future:
        latest = iso(EPOCH + timedelta(microseconds=span.latest))
        raise Refused(
            "time-ahead",
            f"Messages say that they are of {latest}, more than a day from now.",
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
    """What is known of the logs before one that begins anew; messages of a source of another name say so."""
    latest = max(
        (time for time in (known.latest, (known.former or (0, None))[1]) if time is not None), default=None
    )
    if until is None or latest is None:
        return None if known.former is None else (*known.former[:2], None)
    renamed = _restart_reason(known, delivered, None, chosen=True)
    return until, latest, None if renamed else known.last


def refuse_another_log(properties: Mapping[str, str], request: ApplyRequest) -> None:
    """Raise Refused for messages of another source than the table's, whose places may have other parts."""
    known = stored_log(properties)
    if known is None or request.log is None or request.new_log:
        return
    if reason := _restart_reason(known, _one_source(request.log), None, chosen=False):
        raise _restart_error(reason)


def late_place(known: LogProgress | None, now: LogProgress | None, span: LogSpan | None) -> Position | None:
    """The first place of a delivery, where it is not behind all that is known of its log (V134)."""
    if known is None or now is None or span is None or now.number != known.number:
        return None
    return [now.number, *span.first] if known.last is not None and span.first <= known.last else None


def _one_source(source: LogSource) -> LogProgress:
    if len(source.servers) > 1:
        raise _restart_error(f"they are of several servers: {', '.join(sorted(source.servers))}")
    parts = (source.connectors, source.servers, source.tables)
    connector, server, table = (next(iter(names), "") for names in parts)
    return LogProgress(connector, server, table)


def _restart_reason(known: LogProgress, delivered: LogProgress, span: LogSpan | None, *, chosen: bool) -> str:
    """Why messages are of another log than those of the table; empty for messages of the same one.

    Their places fall while their times rise: of all of them, or of some where it is said to be a new log.
    """
    one, other = f"{known.server}/", f"{delivered.server}/"
    if known.connector and delivered.connector and known.connector != delivered.connector:
        return f"the connector was {known.connector}, and is {delivered.connector}"
    if known.server and delivered.server and not (one.startswith(other) or other.startswith(one)):
        return f"the server was {known.server}, and is {delivered.server}"
    if known.table and delivered.table and known.table != delivered.table:
        if chosen:
            return f"the table was {known.table}, and is {delivered.table}"
        raise Refused(
            "several-sources",
            f"The table has changes of the source's table {known.table}; "
            f"these messages are of {delivered.table}.",
            "Nothing was written; apply them to a table of their own, or after a rename at the source use "
            f"{option('new_log', value=True)}.",
        )
    if span is None or known.last is None or known.latest is None:
        return ""
    falls = (span.first if chosen else span.last) < known.last
    rises = (span.latest if chosen else span.earliest) > known.latest
    return "the places in the log fall while the times rise" if falls and rises else ""


def _restart_error(reason: str) -> Refused:
    return Refused(
        "log-restarted",
        f"The messages are of a log that starts again: {reason}.",
        "Nothing was written; if the log is the same, apply these messages together with those behind them. "
        "Otherwise apply the messages of each log separately, those of the new one with "
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
    """The events with the number of their log in the places that they have there."""
    position = events[FURTHER].combine_chunks()
    names = position.type.names
    there = np.asarray(pc.struct_field(position, names[-1]).is_valid())
    parts = {name: pc.struct_field(position, name) for name in names}
    parts[LOG_NUMBER] = pa.array(np.full(len(events), number), pa.int64(), mask=~there)
    struct = pa.StructArray.from_arrays(list(parts.values()), fields=list(position.type))
    return events.set_column(events.column_names.index(FURTHER), FURTHER, struct)
