"""Count broken laws and mend rows, record by record, on the driver or in Spark's tasks."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.model import versions_layout as memory
from backstory.model.instant import EPOCH, iso
from backstory.model.layout import FILE, MEMORY, POSITION, RECORDED_AT, ROW_ID
from backstory.model.values import key_text
from backstory.stores.metadata.values import values_of
from backstory.upkeep.laws.mending import mend_rows
from backstory.upkeep.laws.queries import LAW_OF, SUSPECT, LawQuery
from backstory.upkeep.laws.table_terms import TableTerms
from backstory.upkeep.laws.terms import PREFIX, REMEMBERED, Law, RecordRow

FOUND: Final = "law string, violations bigint, keys array<string>"
_FOUND: Final = pa.schema({"law": pa.string(), "violations": pa.int64(), "keys": pa.list_(pa.string())})
Broken = dict[str, tuple[int, list[str]]]


def split_records(batches: Iterable[pa.Table], identity: Sequence[str]) -> Iterator[pa.Table]:
    """Split rows that are ordered by record into one table for each record."""
    pending: pa.Table | None = None
    for batch in batches:
        rows = batch if pending is None else pa.concat_tables([pending, batch])
        keys = [repr(row) for row in rows.select(list(identity)).to_pylist()]
        begin = 0
        for place in range(1, rows.num_rows):
            if keys[place] != keys[begin]:
                yield rows.slice(begin, place - begin)
                begin = place
        pending = rows.slice(begin)
    if pending is not None and pending.num_rows:
        yield pending


def examine(laws: LawQuery, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count how often rows, ordered by record, break each law, with up to ten keys for each law."""
    judge = laws.judge
    counts: Counter[str] = Counter()
    keys: dict[str, dict[str, None]] = {}

    def add(law: str, times: int, rows: pa.Table) -> None:
        counts[law] += times
        texts = keys.setdefault(law, {})
        for text in _key_texts(rows, laws.naming):
            if len(texts) == MAX_KEYS:
                break
            texts[text] = None

    def suspects() -> Iterator[pa.Table]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for name in LAW_OF.keys() & set(rows.column_names):
                if times := pc.sum(rows[name]).as_py():
                    add(LAW_OF[name], times, rows.filter(rows[name]))
            yield rows.filter(rows[SUSPECT]) if judge else rows.slice(0, 0)

    for life in split_records(suspects(), laws.identity):
        for law, times in judge(life).items() if judge else ():
            add(law, times, life)
    results = [{"law": law, "violations": times, "keys": [*keys[law]]} for law, times in counts.items()]
    yield pa.RecordBatch.from_pylist(results, _FOUND)


def _key_texts(rows: pa.Table, shown: Sequence[str]) -> Iterator[str]:
    """The keys of rows as people write them."""
    for begin in range(0, rows.num_rows, MAX_KEYS):
        part = rows.slice(begin, MAX_KEYS)
        for values in zip(*(values_of(part[name]) for name in shown), strict=True):
            yield key_text(shown, values)


def add_up(results: Iterable[Mapping[str, object]]) -> Broken:
    """The sum of the results of `examine`, with the first ten keys for each law."""
    totals: Broken = {}
    for row in results:
        law, times, more = row["law"], row["violations"], row["keys"]
        assert isinstance(law, str)
        assert isinstance(times, int)
        assert isinstance(more, list)
        count, keys = totals.get(law, (0, []))
        totals[law] = (count + times, sorted({*keys, *more})[:MAX_KEYS])
    return totals


REMOVE, STAY, ADD, REPORT = range(4)
ACT, REPORTED = f"{PREFIX}act", f"{PREFIX}told"

# The laws of a record in the order in which they are shown.
_SHOWN: Final = tuple(dict.fromkeys([Law.MEMORY, Law.RECORDED, Law.SETTLED, *REMEMBERED, *Law]))


@dataclass
class MendTally:
    """Counts of a repair: rows by outcome, broken laws, and records, with samples before and after."""

    counts: Counter[str] = field(default_factory=Counter)
    laws: Counter[str] = field(default_factory=Counter)
    keys: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Add the counts of another task, from its `to_json`."""
        other = json.loads(text)
        self.counts.update(other["counts"])
        self.laws.update(other["laws"])
        self.keys += other["keys"]
        self.samples = sorted([*self.samples, *other["samples"]], key=lambda each: each["key"])[:MAX_KEYS]

    def to_json(self) -> str:
        """The counts as JSON text."""
        return json.dumps(self.__dict__)


def mend_records(
    table_terms: TableTerms, names: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of broken records to remove, to keep and to add, and one row with the counts."""
    tally, schema = MendTally(), None
    tables = (pa.Table.from_batches([batch]) for batch in batches)
    for life in split_records(tables, table_terms.identity):
        stored = life.select(list(names))
        schema = stored.schema
        for act, rows in _mend_record(table_terms, life, stored, tally).items():
            yield from _act(act, rows).to_batches()
    if schema is not None:
        nothing = {each.name: pa.nulls(1, each.type) for each in schema}
        yield from _act(REPORT, pa.table(nothing, schema=schema), tally.to_json()).to_batches()


def _act(act: int, rows: pa.Table, report: str | None = None) -> pa.Table:
    columns = [pa.array([act] * len(rows), pa.int8()), pa.array([report] * len(rows), pa.string())]
    return pa.table([*columns, *rows.columns], names=[ACT, REPORTED, *rows.column_names])


def _mend_record(
    table_terms: TableTerms, life: pa.Table, stored: pa.Table, tally: MendTally
) -> dict[int, pa.Table]:
    """The rows of a record by action, or none for a healthy record."""
    times: Counter[str] = Counter(table_terms.count_broken(life) if table_terms.terms.remembers else {})
    for name in LAW_OF.keys() & set(life.column_names):
        times[LAW_OF[name].value] += life[name].to_pylist().count(True)
    laws = {law.value: times[law] for law in _SHOWN if times[law]}
    if not laws:
        return {}
    values, names = life.to_pylist(), stored.column_names
    places = {FILE, POSITION, *names[names.index(POSITION) + 1 :]}
    twins = [repr([row[name] for name in names if name not in places]) for row in values]
    rows = [table_terms.row(place, each, twins[place], each.get(ROW_ID)) for place, each in enumerate(values)]
    after = mend_rows(rows, table_terms.terms, set(map(Law, laws)))
    changed = [row for row in after if row != rows[row.place]]
    moved, left = {row.place for row in changed}, {row.place for row in after}
    removed = [row.place for row in rows if row.place in moved or row.place not in left]
    tally.laws.update(laws)
    tally.keys += 1
    tally.counts.update(dropped=len(rows) - len(after), rewritten=len(changed))
    if len(tally.samples) < MAX_KEYS:
        key = key_text(table_terms.naming, [values[0][name] for name in table_terms.naming])
        shown = {"before": _cells(table_terms, rows), "after": _cells(table_terms, after)}
        tally.samples.append({"key": key, "laws": [*laws], **shown})
    written = [
        _write_values(table_terms, {name: values[row.place][name] for name in names}, row) for row in changed
    ]
    return {
        REMOVE: stored.take(pa.array(removed, pa.int64())),
        STAY: stored.take(pa.array(sorted(left - moved), pa.int64())),
        ADD: pa.Table.from_pylist(written, stored.schema),
    }


def _write_values(table_terms: TableTerms, values: dict[str, Any], row: RecordRow) -> dict[str, Any]:
    """The values of a stored row with the repaired end, flag, state and memory."""
    span = table_terms.shape.layout.span
    assert span is not None
    values |= {span.end: _instant(row.end)} | ({span.flag: row.flag} if span.flag else {})
    values |= {span.state: row.state} if span.state else {}
    if table_terms.terms.remembers:
        values |= {RECORDED_AT: _instant(row.written), MEMORY: _memory(row, values[MEMORY])}
    return values | dict(row.values)


def _memory(row: RecordRow, before: Mapping[str, Any] | None) -> dict[str, Any] | None:
    fields = {
        **(before or {}),
        memory.ROLE: row.role,
        memory.KIND: row.kind,
        memory.SCOPE: row.scope,
        memory.OWN_TIME: _instant(row.time),
        memory.ENDED_AT: _instant(row.ended_at),
        memory.END_BEFORE: _instant(row.end_before),
    }
    return None if all(value is None for value in fields.values()) else fields


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else EPOCH + timedelta(microseconds=micros)


def _cells(table_terms: TableTerms, rows: Sequence[RecordRow]) -> list[dict[str, Any]]:
    """The layout's own columns of the rows, sorted by start. Values are never included."""
    span = table_terms.shape.layout.span
    assert span is not None
    shown = []
    for row in sorted(rows, key=lambda row: (row.start or 0, row.place))[: 2 * MAX_KEYS]:
        cells: dict[str, Any] = {span.start: _time_text(row.start), span.end: _time_text(row.end)}
        cells |= {span.flag: row.flag} if span.flag else {}
        cells |= {span.state: row.state} if span.state else {}
        if table_terms.terms.remembers:
            cells |= {RECORDED_AT: _time_text(row.written)} | ({memory.ROLE: row.role} if row.role else {})
        shown.append(cells)
    return shown


def _time_text(micros: int | None) -> str | None:
    """Microseconds since 1970 as an ISO time in UTC."""
    time = _instant(micros)
    return None if time is None else iso(time.astimezone(UTC))
