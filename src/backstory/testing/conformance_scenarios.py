"""The examination of a dialect's loads, compared with the rule in all scenarios (sections 3, 8 and 9)."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from backstory.doors.historize.hashes import Hashes
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import ColumnRole, ModelColumn
from backstory.doors.historize.resolve import schema_of
from backstory.stores.sql.columns import Datatype, instant_text
from backstory.strategies.scd2 import rule
from backstory.strategies.scd2.statements import hist_merge, hist_steps
from backstory.testing.conformance_bench import (
    DAY,
    PEPPER,
    SCHEMA,
    Bench,
    bring_rows,
    dataset_of,
    examination,
    fresh,
    require,
    require_equal,
    sample_model,
    steps_run,
)


class _Stop(Exception):
    """An exception that rolls back a transaction."""


def examine_transactions(bench: Bench) -> None:
    """Examine locks, and the rollback of a failed transaction if the dialect supports it."""
    with examination("lock"):
        for _ in range(2):
            with bench.engine.lock(SCHEMA) as taken:
                require(taken is True, "a free lock is not granted")
    with examination("transaction"):
        table = bench.make("rc_taken_back", [ModelColumn(target_column_name="a", datatype=Datatype.BIGINT)])
        if not bench.dialect.supports_transactions:
            return
        with suppress(_Stop), bench.engine.transaction():
            bench.insert("rc_taken_back", {"a": 1})
            raise _Stop
        require_equal(
            bench.engine.execute_scalar(f"SELECT COUNT(*) FROM {table}"),
            0,
            of="the count of rows after a rollback",
        )


# Scenarios

Snapshot = Mapping[str, str]
# The loads, each with its scenario, run, second and content of the base. A value is the record's name.
LIFE: Sequence[tuple[str, str, int, Snapshot]] = (
    ("A23, the first load", "r1", 1, {"a": "1", "b": "1"}),
    ("A24, a change and a deletion", "r'2\\{{ load_timestamp }}", 2, {"a": "2"}),
    ("A26, the same run again", "r'2\\{{ load_timestamp }}", 2, {"a": "2"}),
    ("A25, a key that returns", "r3", 3, {"a": "2", "b": "1"}),
    ("a load that changes nothing", "r4", 4, {"a": "2", "b": "1"}),
    ("everything at once", "r5", 5, {"b": "2", "c": "1"}),
    ("everything returns", "r6", 6, {"a": "2", "b": "2", "c": "2"}),
)


def examine_scenarios(bench: Bench) -> None:
    """Run all scenarios with the four steps, and with the MERGE if the dialect supports it."""
    ways = [False, True] if bench.dialect.supports_hist_merge else [False]
    for merges in ways:
        way = "MERGE" if merges else "four steps"
        life = _Life.begun(bench, merges=merges)
        for scenario, run, second, snapshot in LIFE:
            life.load(f"{scenario}, {way}", run, second, snapshot)
        for steps in range(1, 4):
            life = _Life.begun(bench, merges=merges)
            life.load(LIFE[0][0], *LIFE[0][1:])
            life.interrupt(f"A27, stopped after step {steps}, {way}", steps)


@dataclass
class _Life:
    """A history in the database, and the same history as the rule computes it."""

    bench: Bench
    full: Load
    versions: list[rule.Version] = field(default_factory=list)

    @classmethod
    def begun(cls, bench: Bench, *, merges: bool) -> "_Life":
        model = sample_model()
        return cls(bench, fresh(bench, model, dataset_of(model, "rc_c"), merges=merges))

    def load(self, scenario: str, run: str, second: int, snapshot: Snapshot) -> None:
        """Load a snapshot in the database and by the rule. Compare the tables and the counts."""
        started = DAY + timedelta(seconds=second)
        load = self._load_of(run, started, snapshot)
        rows = self._by_rule(load, run, started, snapshot)
        steps = [hist_merge(load.pair)] if load.merges else hist_steps(load.pair)
        counts = steps_run(self.bench, steps, run, started)
        self._compare(scenario)
        if not load.merges:
            with examination(scenario):
                expected = {step.step: rows[step.step] for step in steps}
                require_equal(counts, expected, of="the count of rows that each step touched")

    def interrupt(self, scenario: str, steps: int) -> None:
        """Run A24, stop after some of its steps, and run it again with the same timestamp."""
        _, run, second, snapshot = LIFE[1]
        started = DAY + timedelta(seconds=second)
        load = self._load_of(run, started, snapshot)
        self._by_rule(load, run, started, snapshot)
        steps_run(self.bench, hist_steps(load.pair)[:steps], run, started)
        again = [hist_merge(load.pair)] if load.merges else hist_steps(load.pair)
        steps_run(self.bench, again, run, started)
        self._compare(scenario)

    def _load_of(self, run: str, started: datetime, snapshot: Snapshot) -> Load:
        rows = [{"cust_id": key, "name": name, "city": None} for key, name in snapshot.items()]
        return bring_rows(self.bench, self.full, rows, run, started)

    def _by_rule(self, load: Load, run: str, started: datetime, snapshot: Snapshot) -> Mapping[str, int]:
        hashes = Hashes(schema_of(load.model, load.dataset), PEPPER)
        rows = []
        for key, name in snapshot.items():
            values = {"cust_id": key, "name": name, "city": None}
            rows.append(
                rule.BaseRow(
                    hashes.base_key(load.dataset, values), hashes.row_hash(load.dataset, values), values
                )
            )
        self.versions, tally = rule.historize(
            self.versions,
            rows,
            started,
            run,
            lambda key, instant: hashes.hist_key(load.dataset, key, instant),
        )
        return tally.rows

    def _compare(self, scenario: str) -> None:
        columns = self.full.hist.target_columns
        dataset = self.full.dataset
        expected = [
            {
                dataset.hist_key: version.hist_key,
                dataset.key: version.key,
                **version.values,
                ColumnRole.ROW_HASH: version.row_hash,
                ColumnRole.STARTED: instant_text(version.started),
                ColumnRole.ENDED: version.ended and instant_text(version.ended),
                ColumnRole.STATE: version.state,
                ColumnRole.LOAD_RUN_ID: version.run,
                ColumnRole.LOADED_AT: instant_text(version.loaded_at),
            }
            for version in self.versions
        ]
        with examination(scenario):
            stored = self.bench.texts(self.full.hist_table, columns)
            ordered = sorted(expected, key=lambda row: str(row[dataset.hist_key]))
            require_equal(stored, ordered, of="the history")
