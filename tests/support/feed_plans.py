"""The plan of feeds on the rule's rows, for one whole delivery or in parts."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from part_plans import whole_plan

from backstory.formats.delivered import arrow_schema, shape_rows
from backstory.model.layout import FILE, POSITION, ROW_ID, VALID_TO
from backstory.model.table import Column
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import MEMORY_TYPE, OWN_COLUMNS, FactKind
from backstory.strategies.copies.comparison import plan_rows
from backstory.strategies.copies.plan import CopyTerms
from backstory.strategies.copies.version_rows import (
    OPEN,
    are_live,
    copy_mark,
    memory_field,
    micros,
    withdraw_facts,
)
from backstory.strategies.feeds.arrival import check_delivery
from backstory.strategies.feeds.copy_plan import FeedCopyTerms
from backstory.strategies.feeds.plan import join_counts, plan_records
from backstory.strategies.feeds.terms import ASSERTED, AT, BEFORE_IMAGE, FURTHER, KIND, FeedTerms
from backstory.strategies.keys import key_parts

DATA = ("v", "w", "i", "o")
NUMBERS = {name: number + 2 for number, name in enumerate(DATA)}
TEXT, NUMBER = ColumnType(Kind.STRING), ColumnType(Kind.DOUBLE)
FURTHER_TYPE = ColumnType(Kind.STRUCT, parts=(("s", NUMBER), ("c", ColumnType(Kind.BOOLEAN))))
MEMORY = ColumnType(Kind.STRUCT, parts=(*MEMORY_TYPE.parts, ("sequence", FURTHER_TYPE)))
OWN = (*OWN_COLUMNS[:-1], Column(OWN_COLUMNS[-1].name, MEMORY))
USERS = tuple(Column(name, TEXT) for name in ("k", *DATA))
COLUMNS = (*USERS, *OWN)
SCHEMA = pa.schema([*arrow_schema({each.name: each.type for each in COLUMNS}), pa.field(ROW_ID, pa.int64())])
DELIVERED = pa.schema(
    [
        *arrow_schema({each.name: each.type for each in USERS}),
        pa.field(AT, pa.timestamp("us", "UTC")),
        pa.field(KIND, pa.string()),
        pa.field(FURTHER, pa.struct([("s", pa.float64()), ("c", pa.bool_())])),
        pa.field(ASSERTED, pa.list_(pa.int32())),
        pa.field(BEFORE_IMAGE, pa.struct([(name, pa.string()) for name in DATA])),
    ]
)


def terms_of(table, recorded, *, log=False, **more):
    return FeedTerms(
        columns=tuple(each for each in COLUMNS if each.name not in DATA or each.name in table.columns),
        key=("k",),
        tracked=tuple(name for name in DATA if name in table.tracked),
        recorded=recorded,
        numbers={name: NUMBERS[name] for name in table.columns},
        overwritten=tuple(name for name in DATA if name in table.overwritten),
        sequence=("s", "c") if log else ("s",),
        log=log,
        settled=table.settled,
        former=table.former,
        ids=True,
        **more,
    )


def stored(rows):
    """The rule's rows as a table contains them. Instants and recorded times are in microseconds."""
    stored_rows = []
    for row in rows:
        memory = {
            "role": row.role and row.role.value,
            "ended_at": row.ended_at,
            "end_before": row.end_before,
            "kind": row.kind and row.kind.value,
            "sequence": _sequence(row.sequence),
            "time": row.time,
            "columns": None if row.columns is None else [NUMBERS[name] for name in row.columns],
            "scope": None if row.scope is None else json.dumps(dict(row.scope)),
        }
        times = {"valid_from": row.start, "valid_to": row.end, "recorded_at": row.recorded}
        memory_cell = memory if any(value is not None for value in memory.values()) else None
        stored_rows.append(
            {"k": row.key, **row.values, **times, "is_current": row.end is None, "_memory": memory_cell}
        )
    return pa.Table.from_pylist([{**row, ROW_ID: number} for number, row in enumerate(stored_rows)], SCHEMA)


def delivered(events):
    rows = [
        {
            "k": each.key,
            **each.values,
            AT: each.at,
            KIND: each.kind.value,
            FURTHER: _sequence(each.sequence),
            ASSERTED: None if each.columns is None else [NUMBERS[name] for name in each.columns],
            BEFORE_IMAGE: each.before,
        }
        for each in events
    ]
    return pa.Table.from_pylist(rows, DELIVERED)


def _sequence(values):
    return dict(zip("sc", (*values, None), strict=False)) if values else None


def differences(rows, others):
    """The rows that only one of two tables has, without ids and places. The order of lists is ignored."""
    one, other = (Counter(_plain(row) for row in each.to_pylist()) for each in (rows, others))
    return sorted((one - other).elements()), sorted((other - one).elements())


def _plain(row):
    memory = row["_memory"] or {}
    times = (
        row["valid_from"],
        row["valid_to"],
        row["recorded_at"],
        memory.get("ended_at"),
        memory.get("end_before"),
        memory.get("time"),
    )
    columns = memory.get("columns")
    memory_values = [memory.get(name) for name in ("role", "kind", "sequence", "scope")]
    values = [row.get(name) for name in ("k", *DATA)]
    shown = ["~" if each is None else str(each.microsecond) for each in times]
    open_ = row["is_current"], row["_memory"] is None
    return repr((values, shown, open_, memory_values, columns if columns is None else sorted(columns)))


def placed(rows):
    rows = rows.append_column(FILE, pa.repeat("f", len(rows)))
    return rows.append_column(POSITION, pa.array(range(len(rows)), pa.int64()))


def slice_of(rows, since, low=None):
    """The rows that are open or end at or after an instant (V78), or are not before a position of a log.

    Rows of a log count from their own times on (V134).
    """
    if low is not None:
        own, position = micros(memory_field(rows, "time")), memory_field(rows, "sequence").to_pylist()
        behind = np.array([each is not None and (each["s"], each["c"]) >= low for each in position], bool)
        behind &= own < OPEN
        since = min([since, *own[behind], *micros(rows["valid_from"])[behind]])
        raised = np.array(memory_field(rows, "kind").to_pylist()) == FactKind.TRUNCATE.value
        return rows.filter(pa.array((micros(rows[VALID_TO]) >= since) | behind | (raised & (own < OPEN))))
    return rows.filter(pa.array(micros(rows[VALID_TO]) >= since))


def planned(terms, events, rows, parts=1, since=None, low=None):
    """The plan, and the rows of the table after it. Rewritten rows keep their ids."""
    rows = placed(rows)
    live = rows.filter(are_live(rows))
    live = live if since is None else slice_of(live, since, low)
    mark = pc.is_in(
        memory_field(live, "kind"), value_set=pa.array([FactKind.COPY.value, FactKind.TRUNCATE.value])
    )
    marks, records = live.filter(mark), live.filter(pc.invert(pc.fill_null(mark, False)))
    arrival = check_delivery(terms, events, marks)
    sides = [(each, key_parts(each, terms.key, parts)) for each in (arrival.events, records)]
    plans = (
        plan_records(terms, arrival, *(each.filter(pa.array(of == part)) for each, of in sides))
        for part in range(parts)
    )
    plan = with_marks(arrival, plans)
    return plan, _after(rows, plan.removed, plan.added)


def with_marks(arrival, plans):
    """The plans of all parts with the rows and counts of the arrival's marks."""
    plan = whole_plan(plans, partial(join_counts, arrival))
    samples = {**arrival.samples, **plan.samples}
    if plan.added is None:  # refused
        return replace(plan, removed=arrival.removed, added=arrival.added, samples=samples)
    removed, added = (
        pa.concat_tables(each) for each in ((arrival.removed, plan.removed), (arrival.added, plan.added))
    )
    return replace(plan, removed=removed, added=added, samples=samples)


def copied(terms, place, copy, rows, parts=1):
    """The plan of a copy: its counts by outcome, the keys that appear, and the rows after it."""
    rows = placed(rows)
    live = slice_of(rows.filter(are_live(rows)), place.at, (float("inf"), True) if terms.log else None)
    is_mark = pc.is_in(
        memory_field(live, "kind"), value_set=pa.array([FactKind.COPY.value, FactKind.TRUNCATE.value])
    )
    marks, records = live.filter(is_mark), live.filter(pc.invert(pc.fill_null(is_mark, False)))
    wanted = [(start, scope) == (place.at, place.text) for start, scope in _places_of(marks)]
    mine = pc.and_(pc.equal(memory_field(marks, "kind"), FactKind.COPY.value), pa.array(wanted, pa.bool_()))
    ids = None if place.columns is None else list(place.columns)
    own = copy_mark(place.at, terms.recorded, terms.memory, ids, place.text)
    own = shape_rows(own, terms.columns, ids=True)
    others = shape_rows(marks.filter(pc.invert(mine)), terms.columns, ids=True)
    copy_terms = _copy_terms(
        terms, place, copy, pa.concat_tables([others, own]), restated=copy.restate and pc.any(mine).as_py()
    )
    delivered_rows = pa.Table.from_pylist(
        [{"k": key, **values} for key, values in copy.rows.items()],
        pa.schema([pa.field(name, pa.string()) for name in ("k", *copy.columns)]),
    )
    sides = [(each, key_parts(each, terms.key, parts)) for each in (delivered_rows, records)]
    plan = whole_plan(
        plan_rows(copy_terms, *(each.filter(pa.array(of == part)) for each, of in sides), lambda these: these)
        for part in range(parts)
    )
    former = marks.filter(mine)
    stays = len(former) and not (copy.restate and memory_field(former, "columns")[0].as_py() != ids)
    gone, come = [plan.removed.select([FILE, POSITION])], [plan.added]
    if not stays:
        back = shape_rows(withdraw_facts(former, terms.recorded, terms.memory), terms.columns, ids=True)
        gone.append(former.select([FILE, POSITION]))
        come += [own, back]
    appeared = plan.appeared["k"].to_pylist()
    return Counter(plan.counts), appeared, _after(rows, pa.concat_tables(gone), pa.concat_tables(come))


def _copy_terms(terms, place, copy, marks, *, restated):
    tracked = [name for name in copy.columns if name in terms.tracked]
    renewed = [name for name in copy.columns if name in terms.overwritten]
    among = FeedCopyTerms(terms, place.at, marks, (*tracked, *renewed), bool(restated))
    return CopyTerms(
        terms.columns,
        terms.key,
        ("k", *copy.columns),
        tuple(tracked),
        tuple(renewed),
        terms.tracked,
        terms.overwritten,
        place.at,
        terms.recorded,
        restated=copy.restate,
        ids=True,
        scope=place.scope,
        feed=among,
    )


@dataclass(frozen=True)
class CopyPlace:
    """A copy among events: its instant, the field ids of its columns (None for all), and its scope."""

    at: int
    columns: tuple | None = None
    scope: tuple | None = None

    @property
    def text(self):
        return None if self.scope is None else json.dumps(dict(self.scope), sort_keys=True)


def _places_of(marks):
    return zip(micros(marks["valid_from"]), memory_field(marks, "scope").to_pylist(), strict=True)


def _after(rows, gone_places, come):
    """The rows after a plan. Rewritten rows keep their ids."""
    gone = np.zeros(len(rows), bool)
    gone[np.asarray(gone_places[POSITION])] = True
    assert gone.sum() == len(gone_places)
    row_ids = [id_ for id_ in come[ROW_ID].to_pylist() if id_ is not None]
    assert sorted(row_ids) == sorted(rows.filter(pa.array(gone))[ROW_ID].to_pylist())
    return pa.concat_tables([rows.filter(pa.array(~gone)).select(come.column_names), come])
