"""The laws of an event log in one scan: operations of each record, offsets of all, the watermark."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from backstory.errors import MAX_KEYS
from backstory.journal.chain import WATERMARK, snapshots
from backstory.journal.log_table import log_rows
from backstory.journal.verify import history
from backstory.model.instant import parse_instant
from backstory.reading.frames.event_logs import identity_of, op_of, system_columns
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, micros_in, micros_of, quoted
from backstory.stores.iceberg.snapshots import ancestry
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.port import ToldTable
from backstory.strategies.events.terms import Op
from backstory.upkeep.laws.events import LogFacts, LogRow, broken_events
from backstory.upkeep.laws.judged import NEXT, PREFIX
from backstory.upkeep.laws.lives import Broken, suspects
from backstory.upkeep.laws.plan import run
from backstory.upkeep.laws.terms import Law

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

MANIFEST: Final = "backstory.odf.manifest"
BEFORE: Final = f"{PREFIX}before"
# What came before of the same time.
THEN: Final = f"{PREFIX}then"
OP, TIME, OFFSET, KEYED = (f"{PREFIX}{name}" for name in ("op", "time", "offset", "keyed"))


@dataclass(frozen=True, slots=True)
class ByEvents:
    """What the rule finds in the events of a record."""

    log: LogFacts

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
        """How often they break each law."""
        events = [LogRow(row[OP], row[TIME], row[KEYED]) for row in rows]
        return {law.value: times for law, times in broken_events(events, self.log).items()}


def broken_log(store: Store, table: StoredTable) -> Broken:
    """The laws that a dataset's rows break, how often, and up to ten keys of each."""
    from pyspark.sql import Observation, Window
    from pyspark.sql.functions import coalesce, lag, lead, lit

    names, shape = system_columns(table), table.shape
    newest = next((told for each in ancestry(table) if (told := each.get_property(WATERMARK))), None)
    log = facts_of(table, names, newest)
    rows = store.spark.table(store.sql_name(shape.table))
    identifying = [column(each) for each in shape.key] if log.corrects else identity_of(names, shape)
    identity = {f"{PREFIX}key {place}": each for place, each in enumerate(identifying)}
    identity = identity or {f"{PREFIX}key": column(names["offset"])}
    whole = [column(name).isNotNull() for name in shape.key]
    columns = {
        **identity,
        OP: op_of(names).cast("int"),
        TIME: micros_in(rows, names["event_time"]),
        OFFSET: column(names["offset"]).cast("bigint"),
        KEYED: _all(whole),
    }
    seen = Observation()
    shown = shape.key or (names["offset"],)
    rows = _observed(rows.withColumns(columns).select(*map(quoted, dict.fromkeys([*columns, *shown]))), seen)
    window = Window.partitionBy(*map(quoted, identity)).orderBy(quoted(OFFSET))
    beside = {BEFORE: lag(quoted(OP)).over(window), NEXT: lead(quoted(OP)).over(window)}
    if log.corrects:
        timed = Window.partitionBy(*map(quoted, [*identity, TIME])).orderBy(quoted(OFFSET))
        beside[THEN] = lag(quoted(OP)).over(timed)
    rows = rows.withColumns(beside)
    late = lit(False) if log.watermark is None else coalesce(column(TIME) > log.watermark, lit(True))
    sure = _surely_follows(log) & ~late & (column(KEYED) | lit(not log.keyed))
    found = suspects(rows, list(identity), OFFSET, sure)
    broken = run(table, found, ByEvents(log), list(identity), shown)
    missed = _offsets(store, table, names["offset"], seen.get)
    return broken | ({Law.OFFSETS.value: missed} if missed[0] else {})


def facts_of(table: ToldTable, names: Mapping[str, Any], told: str | None) -> LogFacts:
    """What a log says of itself, of which its newest watermark is told."""
    watermark = None if told is None else micros_of(parse_instant(told))
    keyed, paired = bool(table.shape.key), names["op"] is not None
    corrects = keyed and paired and bool(names["events"])
    return LogFacts(keyed, paired, _is_strict(table), watermark, corrects)


def _is_strict(table: ToldTable) -> bool:
    """Whether no source takes a changelog as it comes, by the manifest that the table keeps."""
    return not any(
        str(each.get("validation", "")).lower() == "schema"
        for each in _objects(json.loads(table.properties.get(MANIFEST) or "{}"))
    )


def _objects(document: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(document, dict):
        yield document
        document = list(document.values())
    if isinstance(document, list):
        for each in document:
            yield from _objects(each)


def _all(conditions: "Sequence[Column]") -> "Column":
    from functools import reduce
    from operator import and_

    from pyspark.sql.functions import lit

    return reduce(and_, conditions, lit(True))


def _surely_follows(log: LogFacts) -> "Column":
    """Whether an event may follow on the one before it, and is no half of a pair."""
    from functools import reduce
    from operator import or_

    from pyspark.sql.functions import lit

    before, op = column(BEFORE), column(OP)
    pairs = [
        before.eqNullSafe(lit(None if one is None else int(one)).cast("int")) & (op == int(other))
        for one in (None, *Op)
        for other in Op
        if log.follows(one, other)
    ]
    half = (op == int(Op.CORRECT_FROM)) & column(NEXT).isNull() & lit(log.strict)
    sure = reduce(or_, pairs, lit(False)) & ~half
    if log.corrects:
        gone = column(THEN).isNull() | (column(THEN) == int(Op.CORRECT_FROM))
        sure &= gone == (op != int(Op.CORRECT_FROM))
    return sure


def _observed(rows: "DataFrame", seen: "Observation") -> "DataFrame":
    """The same rows; on the way their offsets are counted and added up."""
    from pyspark.sql.functions import bit_xor, count, lit, xxhash64

    hashed = rows.withColumn(f"{PREFIX}hash", xxhash64(quoted(OFFSET)))
    observed = hashed.observe(
        seen, count(lit(1)).alias("rows"), bit_xor(quoted(f"{PREFIX}hash")).alias("hash")
    )
    return observed.drop(f"{PREFIX}hash")


def wrong_offsets(
    logged: Sequence[Mapping[str, Any]], properties: Iterable[Mapping[str, str]], rows: int
) -> tuple[list[str], int]:
    """The first offsets of blocks whose offsets are wrong, and how many offsets there should be.

    By the blocks, or as many as there are `rows` where no block has offsets.
    """
    blocks, problems = history(logged, properties)
    wrong = [str(each.offsets[0]) for each in problems if each.what == "offsets" and each.offsets]
    ends = [block.offsets[1] for block in blocks if block.offsets]
    return wrong, ends[-1] + 1 if ends else rows


def _offsets(store: Store, table: StoredTable, offset: str, seen: Mapping[str, Any]) -> tuple[int, list[str]]:
    """How many offsets are missing, too many or of no block, and the first ten of them.

    The numbers from 0 on have one count and one hash; only where the log has others is it read again.
    """
    from pyspark.sql.functions import bit_xor, xxhash64

    told, wanted = wrong_offsets(log_rows(store, table.shape.table), snapshots(table), seen["rows"])
    (whole,) = store.spark.range(wanted).agg(bit_xor(xxhash64("id")).alias("hash")).collect()
    if (seen["rows"], seen["hash"]) == (wanted, whole["hash"]):
        return len(told), told[:MAX_KEYS]
    wrong = _misplaced(store, table, offset, wanted)
    with translate_faults(table.shape.table):
        keys = [str(row["offset"]) for row in wrong.orderBy("offset").limit(MAX_KEYS).collect()]
        (total,) = wrong.selectExpr("sum(times) AS times").collect()
    return int(total["times"] or 0) + len(told), keys


def _misplaced(store: Store, table: StoredTable, offset: str, wanted: int) -> "DataFrame":
    """The offsets that are not there exactly once, and by how many rows; NULL is none."""
    from pyspark.sql.functions import abs as distance
    from pyspark.sql.functions import coalesce, col, count, lit, when

    rows = store.spark.table(store.sql_name(table.shape.table))
    there = rows.groupBy(column(offset).cast("bigint").alias("offset")).agg(count(lit(1)).alias("rows"))
    numbers = store.spark.range(wanted).select(col("id").alias("number"))
    both = there.join(numbers, col("offset") == col("number"), "full")
    due = when(col("number").isNull(), 0).otherwise(1)
    times = distance(coalesce("rows", lit(0)) - due)
    return both.select(coalesce("offset", "number").alias("offset"), times.alias("times")).where("times > 0")
