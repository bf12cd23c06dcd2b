"""The history's load on a database: checks, the four steps or one MERGE, counts that add up (section 3)."""

import time
from collections.abc import Mapping, Sequence

from backstory.doors.historize import preflight
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import ColumnRole
from backstory.doors.historize.receipts import LoadOutcome, LoadStep
from backstory.errors import Failed
from backstory.model.keys import key_text
from backstory.stores.sql.engines.engine import Engine
from backstory.stores.sql.statement import Statement
from backstory.strategies.scd2.statements.cases import closing, no_open
from backstory.strategies.scd2.statements.count import tally
from backstory.strategies.scd2.statements.merge import actions, hist_merge
from backstory.strategies.scd2.statements.steps import hist_steps
from backstory.strategies.scd2.transitions import BEGINNINGS, CLOSINGS, TRANSITIONS, Past, State, Tally


def load_history(engine: Engine, load: Load, values: Mapping[str, str], *, dry_run: bool) -> LoadOutcome:
    """Bring the base's state into the history: the outcome of that, in the transaction that is open.

    Raises Refused with the codes of section 3.6, Failed if the counts of the steps do not add up.
    """
    started, pair = time.monotonic(), load.pair
    preflight.run_checks(engine, load, preflight.hist_checks(load), values)
    found = tally(pair, lambda sql: engine.query(sql, values))
    _guard(load, found)
    keys = _sample(engine, load, values) if dry_run else {}
    steps = [LoadStep("preflight", 0, _milliseconds(started))]
    steps += (
        _merged(engine, load, found, values)
        if load.merges
        else run_statements(engine, hist_steps(pair), values)
    )
    after = engine.query(f"SELECT COUNT(*) FROM {pair.table} AS h WHERE {pair.is_open('h')}", values)
    _require_sum(load, found, {step.name: step.rows for step in steps}, int(after[0][0]))
    return LoadOutcome(found.counts, steps=steps, base=found.delivered, keys=keys)


def _guard(load: Load, found: Tally) -> None:
    """P6 and P7."""
    rules, gone = load.dataset.historization, found.counts[State.DELETED]
    if not found.delivered and found.opened and not rules.allow_empty_snapshot:
        raise preflight.rejection("EMPTY_SNAPSHOT", f"The base {load.dataset.name} is empty.")
    if told := preflight.mass_delete(rules, gone, found.opened):
        raise preflight.rejection("MASS_DELETE", told)


def _merged(engine: Engine, load: Load, found: Tally, values: Mapping[str, str]) -> list[LoadStep]:
    """The single MERGE, told as the four steps and itself."""
    kept = engine.keep("backstory_actions", actions(load.pair), values)
    merged = run_statements(engine, [hist_merge(load.pair, kept)], values)
    return [*(LoadStep(name, count) for name, count in found.rows.items()), *merged]


def _require_sum(load: Load, found: Tally, rows: Mapping[str, int], after: int) -> None:
    """The identities of section 6.3: each statement touched the rows that the table of transitions tells."""
    told = found.rows
    opened = found.opened - sum(told[name] for name in CLOSINGS) + sum(told[name] for name in BEGINNINGS)
    if after != opened or any(rows.get(name, 0) != count for name, count in told.items()):
        raise Failed("COUNTS", f"The counts of {load.dataset.name} do not add up; nothing was written.")


def _sample(engine: Engine, load: Load, values: Mapping[str, str]) -> dict[str, Sequence[object]]:
    """Up to ten business keys of each outcome, for a dry run."""
    pair = load.pair
    names = [column.name for column in load.mirrored if column.system_role is ColumnRole.BUSINESS_KEY]
    wheres = {str(State.NEW): (pair.base, "r", f"{no_open(pair)}{pair.live('r')}")}
    for now, condition in closing(pair).items():
        counted = TRANSITIONS[Past.OPEN, now].counted
        wheres[str(counted)] = (pair.table, "h", f"{pair.is_open('h')} AND {condition}")
    found: dict[str, Sequence[object]] = dict.fromkeys((State.NEW, State.CHANGED, State.DELETED), ())
    for outcome, (source, alias, where) in wheres.items():
        sql = preflight.keys_query(load, names, source, alias, where)
        found[outcome] = [key_text(names, row) for row in engine.query(sql, values)]
    return found


def run_statements(
    engine: Engine, statements: Sequence[Statement], values: Mapping[str, str]
) -> list[LoadStep]:
    """Run statements one after the other; a step for each."""
    done = []
    for statement in statements:
        started = time.monotonic()
        rows = engine.run(statement.sql, values)
        done.append(LoadStep(statement.step, rows, _milliseconds(started)))
    return done


def _milliseconds(since: float) -> int:
    return round((time.monotonic() - since) * 1000)
