"""Reading: `as_of` and `current` against filters by hand, `join_as_of` against the equi-join, and `check`.

Run `make bench-full ONLY=reading`, or `python -m benchmarks.reading.run [--scale 0.1] [--rounds 3]`. The
tables have 4 M versions, four for each record: a native table, a model's history and Fivetran's. There are
1 M facts. Nothing is broadcast. The acts of a comparison take turns, after a round that warms up; the result
is the ratio of the medians. The page has processor seconds of Spark's tasks next to the clock; they are more
reliable on a shared machine.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from backstory.model import layout
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.settings import Settings
from backstory.spark.session import start_session
from backstory.stores.iceberg.store import IcebergStore, existing
from backstory.table import Table
from benchmarks.asked import Asked, asked, scratch
from benchmarks.reading import ground
from benchmarks.report import Report

SPARK: Final = {"spark.master": "local[2]", "spark.driver.memory": "6g", "spark.ui.enabled": "false"}
LAYOUTS: Final = (Layout.VERSIONS, Layout.HIST, Layout.FIVETRAN_HISTORY)
Act = Callable[[], object]


@dataclass(frozen=True)
class Cost:
    """The cost of an act: seconds of the clock, processor seconds of tasks, rows that tasks read."""

    clock: float
    processor: float
    read: int


@dataclass
class Meter:
    """Measure acts one by one; the session's status store contains the stages that it has run."""

    spark: Any
    seen: set[int] = field(default_factory=set)

    def stages(self) -> list[Any]:
        """The stages since the last call."""
        context, jvm = self.spark.sparkContext._jsc.sc(), self.spark._jvm
        context.listenerBus().waitUntilEmpty()
        none = self.spark.sparkContext._gateway.new_array(jvm.double, 0)
        told = context.statusStore().stageList(None, False, False, none, jvm.java.util.ArrayList())
        found = [told.apply(place) for place in range(told.size())]
        found = [each for each in found if each.stageId() not in self.seen]
        self.seen |= {each.stageId() for each in found}
        return found

    def cost(self, act: Act) -> Cost:
        """Run an act, and return its cost."""
        self.stages()
        began = time.perf_counter()
        act()
        clock = time.perf_counter() - began
        stages = self.stages()
        processor = sum(int(each.executorCpuTime()) for each in stages) / 1e9
        return Cost(clock, processor, sum(int(each.inputRecords()) for each in stages))


def consumed(frame: Any) -> None:
    """Read every row and column of a frame, and discard them."""
    frame.write.format("noop").mode("overwrite").save()


def in_turn(meter: Meter, acts: Mapping[str, Act], given: Asked) -> dict[str, list[Cost]]:
    """The costs of each act, in turn; the first round is not counted."""
    found: dict[str, list[Cost]] = {name: [] for name in acts}
    for number in range(given.rounds + 1):
        for name, act in acts.items():
            cost = meter.cost(act)
            if number:
                found[name].append(cost)
        if number and given.left < 0:
            break
    return found


def by_hand(store: IcebergStore, table: TableName, kept: Layout) -> dict[str, str]:
    """The handwritten queries as of a time and for the present.

    For Fivetran's versions they use the start of the next version as the end of each.
    """
    rows, at = store.sql_name(table), f"TIMESTAMP '{ground.ASKED:%Y-%m-%d %H:%M:%S}Z'"
    if kept is Layout.FIVETRAN_HISTORY:
        start_, end = layout.START, "ends"
        following = f"lead({start_}) OVER (PARTITION BY id ORDER BY {start_})"
        rows = (
            f"(SELECT *, coalesce({following}, if({layout.ACTIVE}, NULL, {layout.END})) AS ends FROM {rows})"
        )
    else:
        start_, end = {
            Layout.VERSIONS: (layout.VALID_FROM, layout.VALID_TO),
            Layout.HIST: (layout.STARTED, layout.ENDED),
        }[kept]
    asked_ = f"SELECT id, name, city, {start_}, {end} FROM {rows} WHERE "
    told = {
        "as_of": f"{asked_}{start_} <= {at} AND ({end} IS NULL OR {end} > {at})",
        "current": f"{asked_}{end} IS NULL",
    }
    if kept is Layout.VERSIONS:
        ends = f"CASE WHEN _memory.ended_at > {at} THEN _memory.end_before ELSE valid_to END AS ends"
        then = f"recorded_at <= {at} AND coalesce(_memory.role, 'version') <> 'fact'"
        known = f"SELECT id, name, city, valid_from, ends FROM (SELECT *, {ends} FROM {rows} WHERE {then}) AS told"
        told["as_of with known_at"] = f"{known} WHERE valid_from <= {at} AND (ends IS NULL OR {at} < ends)"
    return told


def points(store: IcebergStore, meter: Meter, given: Asked, report: Report) -> None:
    """Measure `as_of` and `current` of each layout, and a native table as it was known at a time."""
    head = ("what", "ours", "processor", "by hand", "processor", "ratio", "by processor", "at most")
    lines: list[tuple[str, ...]] = []
    for kept in LAYOUTS:
        table = Table(store, ground.table_of(kept))
        asks: dict[str, Callable[[], Any]] = {
            "as_of": partial(table.as_of, ground.ASKED),
            "current": table.current,
            "as_of with known_at": partial(table.as_of, ground.ASKED, known_at=ground.ASKED),
        }
        for what, hand in by_hand(store, table.name, kept).items():
            acts: dict[str, Act] = {
                "ours": lambda ask=asks[what]: consumed(ask()),
                "by hand": lambda sql=hand: consumed(store.spark.sql(sql)),
            }
            found = in_turn(meter, acts, given)
            lines.append((f"{kept}: {what}", *beside(found["ours"], found["by hand"]), "1.2"))
            told_line("as_of", report, head, lines)


def joins(store: IcebergStore, meter: Meter, given: Asked, report: Report, folder: Path) -> None:
    """Measure `join_as_of` against the equi-join; with half of all rows on one key only `join_as_of` ends."""
    head = ("what", "ours", "processor", "against", "processor", "ratio", "by processor", "at most")
    count, keys = int(ground.FACTS * given.scale), int(ground.VERSIONS * given.scale) // ground.EACH
    facts = ground.facts(store.spark, str(folder / "facts"), count, keys, hot=False)
    table = Table(store, ground.table_of(Layout.VERSIONS))
    names = ("id", "name", "city", "valid_from", "valid_to")
    equi = facts.join(store.spark.table(store.sql_name(table.name)).select(*names), "id", "left")
    knowing = facts.withColumnRenamed("at", "seen")
    knowing = knowing.withColumn("at", knowing["seen"])
    hot = ground.facts(store.spark, str(folder / "hot"), count, keys, hot=True)
    crowded = Table(store, ground.table_of(Layout.VERSIONS, hot=True))
    acts: dict[str, Act] = {
        "join_as_of": lambda: consumed(table.join_as_of(facts, on="id", at="at")),
        "the equi-join": lambda: consumed(equi),
        "join_as_of as known at a time": lambda: consumed(
            table.join_as_of(facts, on="id", at="at", known_at=ground.ASKED)
        ),
        "join_as_of as known at each row's time": lambda: consumed(
            table.join_as_of(knowing, on="id", at="at", known_at="seen")
        ),
        "join_as_of, half of all on one key": lambda: consumed(crowded.join_as_of(hot, on="id", at="at")),
    }
    found = in_turn(meter, acts, given)
    ours, plain, *knowing_, hottest = acts
    compared = [(ours, plain, "1.5"), *((each, ours, "1.2") for each in knowing_), (hottest, ours, "")]
    lines: list[tuple[str, ...]] = []
    for one, other, bound in compared:
        lines.append((f"{one}, against {other}", *beside(found[one], found[other]), bound))
        told_line("join_as_of", report, head, lines)


def scans(store: IcebergStore, meter: Meter, given: Asked, report: Report) -> None:
    """Measure `check` of each layout: the rows that it reads, against the rows of the table."""
    head = ("table", "clock", "processor", "rows read", "of", "scans")
    lines: list[tuple[str, ...]] = []
    for kept in LAYOUTS:
        table = Table(store, ground.table_of(kept))
        broken = [each["law"] for each in table.check() if each["violations"]]
        assert not broken, (kept, broken)
        found = [meter.cost(table.check)]
        read, rows = statistics.median(each.read for each in found), existing(store, table.name).rows
        lines.append((kept, *seconds(found), f"{read:,.0f}", f"{rows:,}", f"{read / rows:.2f}"))
        told_line("check", report, head, lines)


def seconds(found: list[Cost]) -> tuple[str, str]:
    """The medians of the clock and of the processor."""
    clock, processor = zip(*((each.clock, each.processor) for each in found), strict=True)
    return f"{statistics.median(clock):.2f} s", f"{statistics.median(processor):.2f} s"


def beside(ours: list[Cost], theirs: list[Cost]) -> tuple[str, ...]:
    """Both medians, and their ratios."""
    ratios = (
        statistics.median(getattr(each, what) for each in ours)
        / statistics.median(getattr(each, what) for each in theirs)
        for what in ("clock", "processor")
    )
    return (*seconds(ours), *seconds(theirs), *(f"{ratio:.2f}" for ratio in ratios))


def told_line(section: str, report: Report, head: tuple[str, ...], lines: list[tuple[str, ...]]) -> None:
    """Write the table so far to the page, and print its last line."""
    report.table(section, head, lines)
    report.data[section] = [dict(zip(range(len(head)), line, strict=True)) for line in lines]
    report.write()
    print(f"{section}: {' | '.join(lines[-1])}", flush=True)


def main() -> None:
    """Make the tables, then measure."""
    given = asked(__doc__)
    count = int(ground.VERSIONS * given.scale)
    report = Report("reading", f"Reading histories of {count:,} versions", given)
    with scratch("reading") as folder:
        spark = start_session(Settings(folder / "warehouse", spark=SPARK))
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        store, meter = IcebergStore(spark), Meter(spark)
        for kept in LAYOUTS:
            ground.make(store, kept, count)
        ground.make(store, Layout.VERSIONS, count, hot=True)
        joins(store, meter, given, report, folder)
        points(store, meter, given, report)
        scans(store, meter, given, report)
        spark.stop()


if __name__ == "__main__":
    main()
