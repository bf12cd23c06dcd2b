"""R29, R47: Random loads, by the four steps and by the single MERGE, against the rule in plain Python.

A life is a history of any shape, and the loads that follow it. Their instants are later or earlier. There are
reruns, crashes after any of the four steps, duplicates, rows without key or hash, empty bases, and partial
snapshots. Every load runs through both engines, each with its own tables, and through the rule. After each
load the three histories, the counts and the codes of refusals are the same, and the laws hold.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from depth import deep
from historizing import DAY, Place, assert_lawful, aware, dataset, document, second
from specification.scd2 import BaseRow, LoadRejected, Rules, Version, historize

from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import prepare_load
from backstory.doors.historize.runs import LoadRun
from backstory.errors import Refused
from backstory.strategies.scd2.statements import hist_steps
from backstory.strategies.scd2.transitions import BEGINNINGS, CLOSINGS

LOADS, PARTS = deep(1_000, 100), deep(10, 1)
ENGINES = {"four_step": "rc_four", "merge": "rc_one"}
KEYS, VALUES = "abcde", ["1", "2", None]
SCOPES = {
    None: lambda _: True,
    "h.a = '1'": lambda version: version.values["a"] and version.values["a"] == "1",
}


@dataclass
class Side:
    """One way to load: an engine and its tables."""

    place: Place
    engine: str
    options: dict

    def __post_init__(self):
        rules = {name: value for name, value in self.options.items() if value is not None}
        if rules.pop("nobody") or "delete_scope" in rules:
            rules["snapshot"] = "partial"
        written = dataset(name=ENGINES[self.engine], historization={"engine": self.engine, **rules})
        self.place.use(document(written))
        self.model, self.dataset, self.schema = self.place.model, self.place.dataset, self.place.schema
        hist = sync_hist(self.dataset, None, DAY)
        self.plan = prepare_load(self.model, self.dataset, hist, self.place.dialect)

    def chosen(self):
        self.place.model, self.place.dataset, self.place.schema = self.model, self.dataset, self.schema
        return self.place

    def load(self, run, at):
        """The outcome of a load, or the code of its refusal."""
        work = LoadRun(self.dataset, "rawcore", run, second(at), DAY, skip_base=True)
        try:
            return self.place.target.load(self.plan, work)
        except Refused as refused:
            return refused.code

    def crash(self, run, at, steps):
        """Run only the first statements of the four, each with a commit."""
        target, run = self.place.target, LoadRun(self.dataset, "rawcore", run, second(at), DAY)
        values = run.values(target.dialect, target._pepper)
        for statement in hist_steps(self.plan.pair)[:steps]:
            target._engine.run(statement.sql, values)

    def history(self):
        """The versions in the rule's form, without the dataset's name."""
        self.chosen()
        listed = "k, a, row_hash, version_started_at, version_ended_at, version_state, load_run_id, loaded_at"
        rows = self.place.rows(f"SELECT {listed} FROM rawcore.{self.dataset.hist_name}")
        return [
            Version(
                (k, aware(start)),
                k,
                row_hash,
                {"a": a},
                aware(start),
                end and aware(end),
                state,
                run,
                aware(loaded),
            )
            for k, a, row_hash, start, end, state, run, loaded in rows
        ]


class Life:
    """A history, its loads, and their number."""

    def __init__(self, place, seed):
        self.chance = random.Random(seed)
        self.place, self.loads = place, Counter()
        options = {
            "duplicate_keys": self.chance.choice(["reject", "collapse_identical"]),
            "delete_scope": self.chance.choice([None, None, "h.a = '1'"]),
            "allow_empty_snapshot": self.chance.random() < 0.7,
            "max_delete_ratio": self.chance.choice([None, None, None, 0.5]),
        }
        options["nobody"] = options["delete_scope"] is None and self.chance.random() < 0.15
        self.rules = Rules(
            (lambda _: False) if options["nobody"] else SCOPES[options["delete_scope"]],
            options["allow_empty_snapshot"],
            options["max_delete_ratio"],
            options["duplicate_keys"] == "collapse_identical",
        )
        for engine in ENGINES.values():
            for table in (engine, f"{engine}_hist"):
                place.sql(f"DROP TABLE IF EXISTS rawcore.{table}")
        self.sides = [Side(place, engine, options) for engine in ENGINES]
        self.now = 10
        self.begun()

    def begun(self):
        """An existing history with open and closed versions, some without a hash."""
        lines = []
        for key in KEYS:
            at = 0
            while self.chance.random() < 0.4:
                at += self.chance.randint(1, 2)
                value, state = self.chance.choice(["1", "2", "-"]), self.chance.choice(["changed", "deleted"])
                lines.append(f"{key} {value} [{at},{at + 1}) {state} r0")
                at += 1
            if self.chance.random() < 0.4:
                legacy = " !hash" if self.chance.random() < 0.2 else ""
                lines.append(f"{key} {self.chance.choice(['1', '2', '-'])} [{at},-) new r0{legacy}")
                if self.chance.random() < 0.01:
                    lines.append(f"{key} 2 [{at + 1},-) new r0")
        for side in self.sides:
            side.chosen().put("\n".join(lines))

    def snapshot(self):
        """A base, which is usually valid."""
        words = [f"{key}:{self.chance.choice(['1', '2', '-'])}" for key in KEYS if self.chance.random() < 0.6]
        if self.chance.random() < 0.1:
            words += self.chance.choices([*words, "a:1", "a:2"], k=2)
        if self.chance.random() < 0.03:
            words.append(self.chance.choice(["f:1!key", "f:1!hash"]))
        return [] if self.chance.random() < 0.08 else words

    def live(self, loads):
        """Make this number of loads, each with possible faults."""
        words, run, at = self.snapshot(), "r1", self.now
        for number in range(1, loads + 1):
            kind = self.chance.choices(["next", "again", "same T", "crash", "early"], [10, 3, 2, 5, 2])[0]
            if self.rules.max_delete_ratio is not None and kind == "crash":
                kind = "next"  # the ratio refers to the versions that are still open
            if kind in {"next", "crash"}:
                self.now += self.chance.choice([1, 2])
                words, run, at = self.snapshot(), f"r{number}", self.now
            if kind == "same T":
                words = self.snapshot()
            if kind == "early":
                words, run, at = self.snapshot(), f"r{number}", self.chance.randint(1, self.now)
            self.check(kind, words, run, at)

    def check(self, kind, words, run, at):
        """Make one load on both sides and by the rule."""
        for side in self.sides:
            side.chosen().base(" ".join(words))
        before = self.sides[0].history()
        expected = self.expected(before, words, run, at)
        if kind == "crash" and not isinstance(expected, str):
            steps = self.chance.randint(0, len(hist_steps(self.sides[0].plan.pair)))
            for side in self.sides:
                side.crash(run, at, steps)
        interrupted = self.sides[0].history()
        for side in self.sides:
            outcome = side.load(run, at)
            message = f"{kind} {words} {run}@{at} by {side.engine}: {outcome}"
            if isinstance(expected, str):
                assert outcome == expected, message
                assert shown(side.history()) == shown(before), message
            else:
                assert shown(side.history()) == shown(expected[0]), message
                self.check_counts(side, outcome, interrupted, words, run, at, message)
                check_kept(before, side.history(), second(at))
                assert_lawful(side.chosen())
        self.loads[expected if isinstance(expected, str) else kind] += 1

    def expected(self, before, words, run, at):
        """The rule's result, or its code: the first of P1 to P7 if there are several."""
        rows = self.rows(words)
        try:
            free = replace(self.rules, allow_empty=True, max_delete_ratio=None)
            historize(before, rows, second(at), run, made, free)
            return historize(before, rows, second(at), run, made, self.rules)
        except LoadRejected as rejected:
            return rejected.code

    def check_counts(self, side, outcome, interrupted, words, run, at, message):
        """R47: The load's counts equal the rule's, starting from the state after the crash."""
        after, tally = historize(
            interrupted,
            self.rows(words),
            second(at),
            run,
            made,
            replace(self.rules, allow_empty=True, max_delete_ratio=None),
        )
        assert outcome.counts == tally.counts, message
        assert outcome.base == len({word.split(":")[0] for word in words}), message
        steps = {step.name: step.rows for step in outcome.steps if step.name not in {"preflight", "merge"}}
        assert {"close_deleted": 0} | steps == tally.rows, message
        assert tally.rows["insert_changed"] >= tally.rows["close_changed"]
        opened = sum(v.ended is None for v in after) - sum(v.ended is None for v in interrupted)
        assert opened == sum(tally.rows[name] for name in BEGINNINGS) - sum(
            tally.rows[name] for name in CLOSINGS
        )

    def rows(self, words):
        rows = []
        for word in words:
            pair, _, lacks = word.partition("!")
            key, value = (None if part == "-" else part for part in pair.split(":"))
            row_hash = self.place.hashes.row_hash(self.sides[0].dataset, {"k": key, "a": value})
            rows.append(
                BaseRow(None if lacks == "key" else key, None if lacks == "hash" else row_hash, {"a": value})
            )
        return rows


def made(key, started):
    return key, started


def shown(versions):
    """The versions in a fixed order."""
    return sorted(versions, key=repr)


def check_kept(before, after, now):
    """R12, R13: Closed rows are identical byte for byte, and at most three columns of open rows change."""
    by_key = {version.hist_key: version for version in after}
    for version in before:
        later = by_key[version.hist_key]
        if later != version:
            assert version.ended is None
            assert later == replace(version, ended=now, state=later.state, run=later.run)


@pytest.fixture
def duckdb_url():
    """A database in memory, because there are many loads."""
    return "duckdb://"


@pytest.mark.parametrize("part", range(PARTS))
def test_random_loads(place, part):
    """R29: Random loads, in parts; 1,000 on each database before a release."""
    loads = Counter()
    if place.name == "duckdb" and part > 1:
        place.sql("SET threads = 1")  # small tables load faster this way; two parts use every thread
    place.target._ensure("hist_run")
    place.sql(place.dialect.render_create_schema_if_not_exists("rawcore"))
    seed = part * 1000
    while (left := LOADS // PARTS - loads.total()) > 0:
        life = Life(place, seed)
        life.live(min(12, left))
        loads += life.loads
        seed += 1

    assert loads.total() == LOADS // PARTS
    assert {"next", "again", "crash", "NON_MONOTONIC_TIMESTAMP"} <= set(loads)
