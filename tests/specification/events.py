"""Event logs in plain Python: one delivery to a stored log (odf-ingest.md, section 2, appendix A)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from backstory.model.change import exceeds
from backstory.strategies.events.terms import (
    EventTerms,
    Moment,
    OnConflict,
    Op,
    RowProblem,
    Strategy,
)
from specification.event_log import (
    Arrival,
    Event,
    LogOutcome,
    LogRejected,
    canonical,
    content,
    identity,
    key_of,
    ranked,
    state,
)

# The operation, the event time, the values, and the time by which the event is sorted.
Happening = tuple[Op, Any, Mapping[str, Any], Any]


def ingest(log: Sequence[Event], rows: Sequence[Arrival], terms: EventTerms, moment: Moment) -> LogOutcome:
    """The events that the rows, in the order of their arrival, add to the log. Raises LogRejected."""
    counts: Counter[str] = Counter()
    happened = _MERGE[terms.strategy](log, rows, terms, moment, counts)
    placed = happened if terms.strategy is Strategy.CHANGELOG else sorted(happened, key=_order(terms))
    events = [
        Event(moment.start + place, op, moment.system_time, time, values)
        for place, (op, time, values, _) in enumerate(placed)
    ]
    times = [event.time for event in events] + ([] if moment.watermark is None else [moment.watermark])
    for event in events:
        name = {Op.APPEND: "appended", Op.RETRACT: "retracted", Op.CORRECT_TO: "corrected"}.get(event.op)
        counts.update([name] if name else [])
        if event.op is Op.APPEND and moment.watermark is not None and event.time < moment.watermark:
            counts["late"] += 1
    return LogOutcome(events, counts, max(times, default=None))


def _append(
    _log: Sequence[Event], rows: Sequence[Arrival], _terms: EventTerms, moment: Moment, _counts: Counter[str]
) -> list[Happening]:
    return [_appended(row, moment) for row in rows]


def _ledger(
    log: Sequence[Event], rows: Sequence[Arrival], terms: EventTerms, moment: Moment, counts: Counter[str]
) -> list[Happening]:
    """Section 2.3: add new rows. A row without an event time is identified only by its key (O13)."""
    _require_keys(rows, terms)
    stored = {identity(terms, event.time, event.values): event for event in log}
    happenings: list[Happening] = []
    fresh, known, again = [], [], []
    for row in (_timed(log, row, terms, moment) for row in rows):
        event = stored.get(identity(terms, row.time, row.values))
        if event is None:
            fresh.append(row)
        else:
            known.append(row)
            again += [] if _same(event, row, terms) else [(event, row)]
    counts["unchanged"] += len(known) - len(again)
    if terms.on_conflict is OnConflict.ERROR and again:
        raise LogRejected(RowProblem.KNOWN_CONFLICT, [_key(terms, row.values) for _, row in again])
    if terms.on_conflict is OnConflict.CORRECT:
        _require_one(known, terms)
        for event, row in {event.offset: (event, row) for event, row in again}.values():
            happenings += _corrected(event, row, moment, terms)
    else:
        counts["conflicts"] += len(again)
    return happenings + [_appended(row, moment) for row in _require_one(fresh, terms)]


def _timed(log: Sequence[Event], row: Arrival, terms: EventTerms, moment: Moment) -> Arrival:
    """The row with the time of the event that it refers to, if the time belongs to the identity.

    A row without a time refers to the newest event of its key. Events with the same content are preferred.
    """
    if row.time is not None or not terms.time_in_key:
        return row
    known = [
        event
        for event in log
        if event.op is not Op.CORRECT_FROM and key_of(terms, event.values) == key_of(terms, row.values)
    ]
    alike = [event for event in known if content(None, event.values) == content(None, row.values)]
    time = (alike or known)[-1].time if known else moment.fallback
    return replace(row, time=time)


def _snapshot(
    log: Sequence[Event], rows: Sequence[Arrival], terms: EventTerms, moment: Moment, counts: Counter[str]
) -> list[Happening]:
    """Section 2.4: the delivered rows are the complete content, so that missing rows are retracted."""
    _require_keys(rows, terms)
    stored = state(log, terms)
    delivered = {identity(terms, row.time, row.values): row for row in _require_one(rows, terms)}
    happenings = []
    for key, row in delivered.items():
        happenings += _compared(stored.get(key), row, terms, moment, counts)
    gone = [event for key, event in stored.items() if key not in delivered]
    if terms.max_retract is not None and exceeds(len(gone), terms.max_retract, len(stored)):
        raise LogRejected("too-many-retracted", [_key(terms, event.values) for event in gone])
    return happenings + [_retracted(event, moment, terms) for event in gone]


def _upsert(
    log: Sequence[Event], rows: Sequence[Arrival], terms: EventTerms, moment: Moment, counts: Counter[str]
) -> list[Happening]:
    """Section 2.5: the last row of each key counts."""
    _require_keys(rows, terms)
    wrong = [row for row in rows if row.op not in {Op.APPEND, Op.RETRACT, Op.CORRECT_TO}]
    if wrong:
        raise LogRejected(RowProblem.WRONG_OP, [_key(terms, row.values) for row in wrong])
    if terms.sequence is not None:
        sequence = terms.sequence
        if any(row.values[sequence] is None for row in rows):
            raise LogRejected(RowProblem.NULL_SEQUENCE)
        rows = sorted(rows, key=lambda row: ranked(row.values[sequence]))
    stored = state(log, terms)
    happenings: list[Happening] = []
    for key, row in {identity(terms, row.time, row.values): row for row in rows}.items():
        if row.op == Op.RETRACT:
            happenings += [_retracted(stored[key], moment, terms)] if key in stored else []
            counts["absent"] += key not in stored
        else:
            happenings += _compared(stored.get(key), row, terms, moment, counts)
    return happenings


def _changelog(
    log: Sequence[Event], rows: Sequence[Arrival], terms: EventTerms, moment: Moment, _counts: Counter[str]
) -> list[Happening]:
    """Section 2.6: the rows contain their operations. With `strict`, they must obey V1 to V6."""
    wrong = [row for row in rows if row.op not in set(Op)]
    if wrong:
        raise LogRejected(RowProblem.WRONG_OP, [_key(terms, row.values) for row in wrong])
    happenings = []
    now = state(log, terms)
    if terms.strict:
        _require_keys(rows, terms)
    for place, row in enumerate(rows):
        key, op = identity(terms, row.time, row.values), Op(row.op)
        if terms.strict:
            _require_takeable(key, now.get(key), row)
            _require_paired(rows, place, terms)
        takes = terms.strict and op in {Op.RETRACT, Op.CORRECT_FROM}
        time = now[key].time if takes else _filled(row, moment)
        if op is Op.RETRACT:
            now.pop(key, None)
        else:
            now[key] = Event(-1, op, None, time, row.values)
        happenings.append((op, time, row.values, time))
    return happenings


def _require_takeable(key: Any, current: Event | None, row: Arrival) -> None:
    """V3 and V4: a row to add must not exist; a row to remove must exist with the same content."""
    if row.op == Op.APPEND and current is not None:
        raise LogRejected(RowProblem.PRESENT, [key])
    if row.op in {Op.RETRACT, Op.CORRECT_FROM}:
        if current is None:
            raise LogRejected(RowProblem.ABSENT, [key])
        if not _repeats(current, row):
            raise LogRejected(RowProblem.UNLIKE, [key])


def _require_paired(rows: Sequence[Arrival], place: int, terms: EventTerms) -> None:
    """V5: `-C` and `+C` of a record must be adjacent."""
    row = rows[place]
    key = identity(terms, row.time, row.values)
    for op, other, beside in ((Op.CORRECT_FROM, Op.CORRECT_TO, 1), (Op.CORRECT_TO, Op.CORRECT_FROM, -1)):
        neighbour = rows[place + beside] if 0 <= place + beside < len(rows) else None
        if row.op == op and not _pairs(neighbour, other, key, terms):
            raise LogRejected(RowProblem.UNPAIRED, [key])


def _pairs(row: Arrival | None, op: Op, key: Any, terms: EventTerms) -> bool:
    return row is not None and row.op == op and identity(terms, row.time, row.values) == key


def _compared(
    event: Event | None, row: Arrival, terms: EventTerms, moment: Moment, counts: Counter[str]
) -> list[Happening]:
    """The events for a delivered row, compared with the record's current event."""
    if event is None:
        return [_appended(row, moment)]
    if _same(event, row, terms):
        counts["unchanged"] += 1
        return []
    return _corrected(event, row, moment, terms)


def _same(event: Event, row: Arrival, terms: EventTerms) -> bool:
    names = row.values if terms.compare is None else terms.compare
    moved = terms.compare_time and row.time is not None and canonical(row.time) != canonical(event.time)
    return not moved and all(canonical(event.values[name]) == canonical(row.values[name]) for name in names)


def _repeats(event: Event, row: Arrival) -> bool:
    """Whether a retraction repeats the stored row. If it has no event time, the stored time counts."""
    time = event.time if row.time is None else row.time
    return content(time, row.values) == content(event.time, event.values)


def _filled(row: Arrival, moment: Moment) -> Any:
    return moment.fallback if row.time is None else row.time


def _appended(row: Arrival, moment: Moment) -> Happening:
    time = _filled(row, moment)
    return Op.APPEND, time, row.values, time


def _corrected(event: Event, row: Arrival, moment: Moment, terms: EventTerms) -> list[Happening]:
    time = _filled(row, moment)
    new: Happening = (Op.CORRECT_TO, time, row.values, time)
    return [(Op.CORRECT_FROM, event.time, event.values, time), new] if terms.pairs else [new]


def _retracted(event: Event, moment: Moment, terms: EventTerms) -> Happening:
    """The event of a retraction.

    As `-R` it has its own time, and as `D` the time of the observation (decision O3).
    """
    time = event.time if terms.retracts_in_place else moment.fallback
    return Op.RETRACT, time, event.values, time


def _key(terms: EventTerms, values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(values[name] for name in terms.key)


def _distinct(rows: Sequence[Arrival]) -> list[Arrival]:
    """The rows, with identical rows reduced to one."""
    by_content: dict[Any, Arrival] = {}
    for row in rows:
        by_content.setdefault(content(row.time, row.values), row)
    return list(by_content.values())


def _require_keys(rows: Sequence[Arrival], terms: EventTerms) -> None:
    missing = [
        row
        for row in rows
        if any(row.values[name] is None for name in terms.key) or (terms.time_required and row.time is None)
    ]
    if missing:
        raise LogRejected(RowProblem.NULL_KEY, [_key(terms, row.values) for row in missing])


def _require_one(rows: Sequence[Arrival], terms: EventTerms) -> list[Arrival]:
    """The rows, with identical rows reduced to one. Different rows of one record are rejected."""
    by_identity: dict[Any, Arrival] = {}
    for row in _distinct(rows):
        if by_identity.setdefault(identity(terms, row.time, row.values), row) is not row:
            raise LogRejected(RowProblem.CONFLICTING, [_key(terms, row.values)])
    return list(by_identity.values())


def _order(terms: EventTerms) -> Any:
    """The sort key: Append and Ledger by event time, others by key; then op, then all other values (step 7)."""

    def order(happening: Happening) -> Any:
        op, time, values, lead = happening
        key = [ranked(values[name]) for name in terms.key]
        rest = [ranked(values[name]) for name in values if name not in terms.key]
        if terms.strategy in {Strategy.APPEND, Strategy.LEDGER}:
            return [ranked(lead), *key, int(op), ranked(time), *rest]
        if terms.time_at is not None:
            key.insert(terms.time_at, ranked(lead))
        return [*key, int(op), ranked(time), *rest]

    return order


_MERGE = {
    Strategy.APPEND: _append,
    Strategy.LEDGER: _ledger,
    Strategy.SNAPSHOT: _snapshot,
    Strategy.UPSERT: _upsert,
    Strategy.CHANGELOG: _changelog,
}
