"""Rewind a table of versions: take back what it learnt after a time (native.md V84, V85)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.engine.deliver import Plan, deliver
from backstory.engine.planned import PlanTerms
from backstory.engine.runner import run_plan
from backstory.engine.sides import Side
from backstory.errors import UsageError
from backstory.formats.delivered import arrow_schema
from backstory.model.change import Change, Committed, Note
from backstory.model.instant import iso, parse_instant
from backstory.model.layout import MEMORY, RECORDED_AT, Layout
from backstory.model.places import ROW_ID
from backstory.model.remembered import (
    COPIED_AT,
    ENDED_AT,
    FORMER_MEMORIES,
    KNOWN_FROM,
    LACKS,
    MEMORY_SINCE,
    OVERWRITE,
    RECORDED,
    SETTLED,
)
from backstory.model.table import TableName
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_with_ids
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.slice import PLACE
from backstory.stores.iceberg.snapshots import IcebergSnapshot, ancestry
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan, PlanSums, Whole
from backstory.strategies.rewind.plan import KEYS, RewindTerms, plan_rewind
from backstory.upkeep.rewound import OUTCOMES, Rewound, commit_fields
from backstory.upkeep.rollback import roll_back

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TOUCHED: Final = "touched"


def rewind(store: Store, table: TableName, time: datetime, *, apply: bool = False) -> Rewound:
    """Take back what the table learnt after a time; without `apply` only tell what would go.

    Raises UsageError (`known-pruned`) for a time that the table no longer knows of, Refused
    (`snapshots-expired`) where a commit of that time is gone; a second time nothing is committed.
    """
    layout = existing(store, table).shape.layout
    if layout is Layout.VERSIONS:
        return deliver(store, _Rewinding(table, time, dry_run=not apply))
    return roll_back(store, table, time, apply=apply)


@dataclass(frozen=True, slots=True)
class _Rewinding:
    table: TableName
    time: datetime
    dry_run: bool

    @property
    def tables(self) -> list[TableName]:
        """The one table."""
        return [self.table]

    @contextmanager
    def planned(self, store: Store) -> Iterator[Plan[Rewound]]:
        """Read what was learnt since; None where there is nothing."""
        stored = existing(store, self.table)
        _refuse_pruned(stored, self.time)
        commits = [each for each in ancestry(stored) if (_recorded(each) or self.time) > self.time]
        change, counts, keys = None, dict[str, int](), list[dict[str, Any]]()
        with ExitStack() as held, translate_faults(self.table):
            rows = rows_with_ids(store, stored).withColumns({each: column(each) for each in PLACE.names})
            touched = rows.where(learnt_after(self.time))
            now = _next(stored, touched) if stored.rows else None
            if now is not None:
                planned = held.enter_context(run_plan(_plan_terms(store, stored, touched, self.time, now)))
                counts = {name: count for name, count in planned.sums.counts.items() if count}
                keys = _keys(planned.sums, stored.shape.key)
                properties = memory_at(stored.properties, self.time, now)
                gone, come = planned.places(REMOVED, stored), planned.rows(ADDED)
                change = Change(counts, gone, come, properties=properties) if counts else None
            yield self._plan(stored, commits, change, now, counts, keys)

    def _plan(
        self,
        stored: StoredTable,
        commits: Sequence[IcebergSnapshot],
        change: Change | None,
        now: datetime | None,
        counts: Mapping[str, int],
        keys: list[dict[str, Any]],
    ) -> Plan[Rewound]:
        def receipt(committed: Committed | None) -> Rewound:
            return Rewound(
                str(self.table),
                iso(self.time),
                committed is not None,
                {name: counts.get(name, 0) for name in OUTCOMES},
                [commit_fields(each) for each in commits] if change else [],
                keys,
                iso(now) if committed and now else None,
                committed.snapshot_id if committed else None,
            )

        return Plan(stored, change, _note(stored, self.time, now), receipt, self.dry_run)


def learnt_after(known: datetime) -> "Column":
    """Whether a row says something that the table did not say at this time (V85)."""
    time = instant(micros_of(known))
    return (column(RECORDED_AT) > time) | (column(MEMORY)[ENDED_AT] > time)


def _plan_terms(
    store: Store, stored: StoredTable, touched: "DataFrame", known: datetime, now: datetime
) -> PlanTerms:
    columns, key = stored.shape.columns, stored.shape.key
    untold = frozenset(json.loads(stored.properties.get(OVERWRITE) or "[]"))
    terms = RewindTerms(columns, key, micros_of(known), micros_of(now), untold)
    ids = [pa.field(ROW_ID, pa.int64())] if ROW_ID in touched.columns else []
    added = pa.schema([*arrow_schema({each.name: each.type for each in columns}), *ids])
    schema = pa.schema([*added, *PLACE])
    side = Side(schema, lambda: touched.select(*map(column, schema.names)))
    kinds = {REMOVED: PLACE, ADDED: added}
    return PlanTerms(store, stored.shape.table, {TOUCHED: side}, key, kinds, partial(_plan_part, terms))


def _plan_part(terms: RewindTerms, sides: Mapping[str, pa.Table], _whole: Whole) -> PartPlan:
    return plan_rewind(terms, sides[TOUCHED])


def _refuse_pruned(table: StoredTable, time: datetime) -> None:
    since = table.properties.get(KNOWN_FROM)
    if since is not None and time < parse_instant(since):
        raise UsageError(
            "known-pruned",
            f"What {table.shape.table} knew before {since} was pruned.",
            "Nothing was written; give a later time.",
        )


def _next(table: StoredTable, touched: "DataFrame") -> datetime | None:
    """The recorded time of the commit (V10); None if nothing was learnt since."""
    from pyspark.sql.functions import greatest, unix_micros
    from pyspark.sql.functions import max as newest

    latest = newest(unix_micros(greatest(column(RECORDED_AT), column(MEMORY)[ENDED_AT])))
    (row,) = touched.agg(latest).collect()
    if row[0] is None:
        return None
    recorded = [_recorded(each) for each in ancestry(table)][:1]
    times = [datetime.fromtimestamp(0, UTC) + timedelta(microseconds=row[0]), *filter(None, recorded)]
    return max(datetime.now(UTC), max(times) + timedelta(microseconds=1))


def _keys(sums: PlanSums, key: Sequence[str]) -> list[dict[str, Any]]:
    """Up to ten keys of what a rewind changes, in order."""
    few = sums.samples.get(KEYS)
    return [] if few is None else few.sort_by([(name, "ascending") for name in key]).to_pylist()


def memory_at(properties: Mapping[str, str], time: datetime, now: datetime) -> dict[str, str | None]:
    """The properties of the memory that the table had at a time, and of those that it had since (V84, E20).

    What `maintain` settled stays settled.
    """
    settled, since = properties.get(SETTLED), properties.get(MEMORY_SINCE)
    if settled and (json.loads(settled) or [""])[0] is None:
        return {}
    if since is not None and parse_instant(since) <= time:
        return {}
    former = json.loads(properties.get(FORMER_MEMORIES) or "[]")
    again = next(
        (each for each in former if parse_instant(each["since"]) <= time < parse_instant(each["until"])), None
    )
    if since is None and again is None:
        return {}
    if since is not None:
        former.append({"since": since, "settled": settled, "until": iso(now)})
    return {
        SETTLED: again and again["settled"],
        MEMORY_SINCE: again and again["since"],
        FORMER_MEMORIES: json.dumps(former),
    }


def _note(table: StoredTable, time: datetime, now: datetime | None) -> Note:
    """What the commit says of deliveries that stand again: the newest copy's instant (V14), and absences."""
    standing = [each for each in ancestry(table) if (_recorded(each) or time) <= time]
    at, lists = (
        next(filter(None, (each.get_property(name) for each in standing)), None)
        for name in (COPIED_AT, LACKS)
    )
    more = {RECORDED: now and iso(now), COPIED_AT: at, LACKS: lists or "{}"}
    return Note("native", f"rewind {iso(time)}", {name: text for name, text in more.items() if text})


def _recorded(snapshot: IcebergSnapshot) -> datetime | None:
    time = snapshot.get_property(RECORDED)
    return parse_instant(time) if time else None
