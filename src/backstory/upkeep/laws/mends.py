"""The mending of records in Spark's tasks: stored rows that go, rows that come, and what was done."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from backstory.errors import MAX_KEYS
from backstory.model import remembered as memory
from backstory.model.instant import EPOCH, iso
from backstory.model.keys import key_text
from backstory.model.layout import MEMORY, RECORDED_AT, Layout
from backstory.model.places import FILE, POSITION, ROW_ID
from backstory.upkeep.laws.judged import PREFIX, Judged
from backstory.upkeep.laws.lives import lives
from backstory.upkeep.laws.mending import mended
from backstory.upkeep.laws.rule import violations
from backstory.upkeep.laws.terms import RecordRow

GONE, COME, TOLD = 0, 1, 2
ACT, SAID = f"{PREFIX}act", f"{PREFIX}told"


@dataclass
class MendTally:
    """What was mended: rows by outcome, laws that were broken, records, some of them before and after.

    `left` are the laws that stay broken, with up to ten keys of each.
    """

    counts: Counter[str] = field(default_factory=Counter)
    laws: Counter[str] = field(default_factory=Counter)
    keys: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)
    left: dict[str, list[str]] = field(default_factory=dict)

    def add(self, other: "MendTally") -> None:
        """Count what another task did."""
        self.counts += other.counts
        self.laws += other.laws
        self.keys += other.keys
        self.samples = sorted([*self.samples, *other.samples], key=lambda each: each["key"])[:MAX_KEYS]
        for law, keys in other.left.items():
            self.left[law] = sorted({*self.left.get(law, []), *keys})[:MAX_KEYS]

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.__dict__)

    @classmethod
    def of(cls, text: str) -> "MendTally":
        """What `to_json` told."""
        told = json.loads(text)
        return cls(**{**told, "counts": Counter(told["counts"]), "laws": Counter(told["laws"])})


def mend(judged: Judged, names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The acts of mending: rows that go, rows that come, and one row that tells of both."""
    tally, schema = MendTally(), None
    for life in lives(batches, judged.identity):
        schema = life.select(list(names)).schema
        acts = _mended(judged, names, life, tally)
        if acts is not None:
            yield from acts.to_batches()
    if schema is not None:
        nothing = schema.empty_table()
        yield from _acts(nothing, nothing, tally.to_json()).to_batches()


def _mended(judged: Judged, names: Sequence[str], life: pa.Table, tally: MendTally) -> pa.Table | None:
    values = life.to_pylist()
    places = {FILE, POSITION, *names[names.index(POSITION) + 1 :]}
    twins = [repr([row[name] for name in names if name not in places]) for row in values]
    rows = [judged.row(place, each, twins[place], each.get(ROW_ID)) for place, each in enumerate(values)]
    broken = violations(rows, judged.terms)
    if not broken:
        return None
    after = mended(rows, judged.terms)
    stays = {row.place: row for row in after}
    changed = [row for row in after if row != rows[row.place]]
    gone = [row.place for row in rows if row.place not in stays]
    key = key_text(judged.naming, [values[0][name] for name in judged.naming])
    for law in violations(after, judged.terms):
        tally.left[law.value] = [*tally.left.get(law.value, []), key][:MAX_KEYS]
    tally.laws.update({law.value: times for law, times in broken.items()})
    tally.keys += 1
    tally.counts.update(dropped=len(gone), rewritten=len(changed))
    if len(tally.samples) < MAX_KEYS:
        shown = {"before": _cells(judged, rows), "after": _cells(judged, after)}
        tally.samples.append({"key": key, "laws": [law.value for law in broken], **shown})
    if not gone and not changed:
        return None
    stored = life.select(list(names))
    moved = [row.place for row in changed]
    leaving, staying = (pa.array(each, pa.int64()) for each in (sorted({*gone, *moved}), moved))
    return _acts(stored.take(leaving), _written(judged, stored.take(staying), changed))


def _acts(gone: pa.Table, come: pa.Table, told: str | None = None) -> pa.Table:
    """Rows that go, rows that come, and one that tells, with NULLs for the rest."""
    rows = pa.concat_tables([gone, come])
    act = [GONE] * gone.num_rows + [COME] * come.num_rows
    said: list[str | None] = [None] * len(act)
    if told is not None:
        nulls = {each.name: pa.nulls(1, each.type) for each in rows.schema}
        rows, act, said = (
            pa.concat_tables([rows, pa.table(nulls, schema=rows.schema)]),
            [*act, TOLD],
            [*said, told],
        )
    columns = [pa.array(act, pa.int8()), pa.array(said, pa.string()), *rows.columns]
    return pa.table(columns, names=[ACT, SAID, *rows.column_names])


def _written(judged: Judged, rows: pa.Table, mended_: Sequence[RecordRow]) -> pa.Table:
    """The stored rows with the ends, flags, states and memory that they should have had."""
    span = judged.shape.layout.span
    assert span is not None
    columns: dict[str, Any] = {
        span.end: _instants([row.end for row in mended_], rows.schema.field(span.end).type)
    }
    if span.flag:
        columns[span.flag] = pa.array([row.flag for row in mended_], pa.bool_())
    if span.state:
        columns[span.state] = pa.array([row.state for row in mended_], rows.schema.field(span.state).type)
    if judged.shape.layout is Layout.VERSIONS:
        told = rows.schema.field(RECORDED_AT).type
        columns[RECORDED_AT] = _instants([row.written for row in mended_], told)
        before = rows[MEMORY].to_pylist()
        after = [_memory(row, each) for row, each in zip(mended_, before, strict=True)]
        columns[MEMORY] = pa.array(after, rows.schema.field(MEMORY).type)
    columns |= _values(rows, mended_)
    for name, values in columns.items():
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), values)
    return rows


def _values(rows: pa.Table, mended_: Sequence[RecordRow]) -> dict[str, Any]:
    """The tracked values of versions that their facts tell otherwise."""
    names = {name: None for row in mended_ for name in row.values}
    told = {name: [row.values[name] for row in mended_] for name in names}
    stored = {name: rows[name].to_pylist() for name in names}
    return {
        name: pa.array(values, rows.schema.field(name).type)
        for name, values in told.items()
        if repr(values) != repr(stored[name])
    }


def _instants(micros: Sequence[int | None], type_: pa.DataType) -> pa.Array:
    numbers = pa.array(micros, pa.int64())
    zoned = pa.types.is_timestamp(type_) and type_.tz is not None
    return numbers.cast(type_) if zoned else numbers.cast(pa.timestamp("us")).cast(type_)


def _memory(row: RecordRow, before: Mapping[str, Any] | None) -> dict[str, Any] | None:
    said = {
        **(before or {}),
        memory.ROLE: row.role,
        memory.KIND: row.kind,
        memory.SCOPE: row.scope,
        memory.OWN_TIME: _instant(row.time),
        memory.ENDED_AT: _instant(row.ended_at),
        memory.END_BEFORE: _instant(row.end_before),
    }
    return None if all(value is None for value in said.values()) else said


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else EPOCH + timedelta(microseconds=micros)


def _cells(judged: Judged, rows: Sequence[RecordRow]) -> list[dict[str, Any]]:
    """The rows by what the layout's own columns say of them, by their starts; never their values."""
    span = judged.shape.layout.span
    assert span is not None
    shown = []
    for row in sorted(rows, key=lambda row: (row.start or 0, row.place))[: 2 * MAX_KEYS]:
        said: dict[str, Any] = {span.start: _time_text(row.start), span.end: _time_text(row.end)}
        said |= {span.flag: row.flag} if span.flag else {}
        said |= {span.state: row.state} if span.state else {}
        if judged.terms.remembers:
            said |= {RECORDED_AT: _time_text(row.written)} | ({memory.ROLE: row.role} if row.role else {})
        shown.append(said)
    return shown


def _time_text(micros: int | None) -> str | None:
    """Microseconds since 1970 as an ISO time in UTC."""
    time = _instant(micros)
    return None if time is None else iso(time.astimezone(UTC))
