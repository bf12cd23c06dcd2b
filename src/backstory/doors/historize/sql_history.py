"""The history's load on a database: checks, the four steps or one MERGE, counts that add up (section 3)."""

import time
from collections.abc import Mapping, Sequence

from backstory.doors.historize import preflight
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import Role
from backstory.doors.historize.receipts import Outcome, Step
from backstory.doors.historize.steps import Statement, actions, hist_merge, hist_steps
from backstory.errors import Failed
from backstory.stores.sql.engines.engine import Engine


def load_history(engine: Engine, load: Load, values: Mapping[str, str], *, dry_run: bool) -> Outcome:
    """Bring the base's state into the history: the outcome of that, in the transaction that is open.

    Raises Refused with the codes of section 3.6, Failed if the counts of the steps do not add up.
    """
    started = time.monotonic()
    preflight.run_checks(engine, load, preflight.hist_checks(load), values)
    before = _counted(engine, load, values)
    _guard(load, before)
    keys = _sample(engine, load, values) if dry_run else {}
    steps = [Step("preflight", 0, _milliseconds(started))]
    steps += (
        _merged(engine, load, before, values)
        if load.merges
        else run_statements(engine, hist_steps(load), values)
    )
    rows = {"close_deleted": 0} | {step.name: step.rows for step in steps}
    _require_sum(load, before, rows, _count(engine, f"{load.hist_table} AS h WHERE {load.open('h')}", values))
    again = before["again"] - before["healed"]
    counts = {
        "new": rows["insert_new"] - again,
        "changed": rows["insert_changed"],
        "deleted": rows["close_deleted"],
        "reappeared": again,
        "unchanged": before["base"] - rows["insert_changed"] - rows["insert_new"],
    }
    return Outcome(counts, steps=steps, base=before["base"], keys=keys)


def _counted(engine: Engine, load: Load, values: Mapping[str, str]) -> dict[str, int]:
    """What there is before the load, and what the load will find."""
    live = load.live("r")
    base, hist = f"{load.base} AS r WHERE ", f"{load.hist_table} AS h WHERE {load.open('h')}"
    found = {
        "base": base + (live.removeprefix(" AND ") or "1 = 1"),
        "open": hist,
        "gone": f"{hist} AND {load.gone()}",
        "changed": f"{hist} AND {load.changed()}",
        "new": f"{base}{load.no_open()}{live}",
        "again": f"{base}{load.no_open()} AND {load.seen_before()}{live}",
        "healed": f"{base}{load.no_open()} AND {load.closed_now()}{live}",
    }
    if not load.closes_deleted:
        del found["gone"]
    return {"gone": 0} | {name: _count(engine, of, values) for name, of in found.items()}


def _guard(load: Load, before: Mapping[str, int]) -> None:
    """P6 and P7."""
    rules, open_, gone = load.dataset.historization, before["open"], before["gone"]
    if not before["base"] and open_ and not rules.allow_empty_snapshot:
        raise preflight.rejection("EMPTY_SNAPSHOT", f"The base {load.dataset.name} is empty.")
    if told := preflight.mass_delete(rules, gone, open_):
        raise preflight.rejection("MASS_DELETE", told)


def _merged(engine: Engine, load: Load, before: Mapping[str, int], values: Mapping[str, str]) -> list[Step]:
    """The single MERGE, told as the four steps and itself."""
    kept = engine.keep("backstory_actions", actions(load), values)
    rows = {
        "close_changed": before["changed"],
        "close_deleted": before["gone"],
        "insert_changed": before["changed"] + before["healed"],
        "insert_new": before["new"] - before["healed"],
    }
    merged = run_statements(engine, [hist_merge(load, kept)], values)
    return [*(Step(name, count) for name, count in rows.items()), *merged]


def _require_sum(load: Load, before: Mapping[str, int], rows: Mapping[str, int], after: int) -> None:
    """The identities of section 6.3."""
    opened = rows["insert_changed"] + rows["insert_new"]
    expected = before["open"] - rows["close_changed"] - rows["close_deleted"] + opened
    if after != expected or rows["insert_changed"] != rows["close_changed"] + before["healed"]:
        raise Failed("COUNTS", f"The counts of {load.dataset.name} do not add up; nothing was written.")


def _sample(engine: Engine, load: Load, values: Mapping[str, str]) -> dict[str, Sequence[object]]:
    """Up to ten business keys of each outcome, for a dry run."""
    names = [column.name for column in load.mirrored if column.system_role is Role.BUSINESS_KEY]
    wheres = {
        "new": (load.base, "r", f"{load.no_open()}{load.live('r')}"),
        "changed": (load.hist_table, "h", f"{load.open('h')} AND {load.changed()}"),
        "deleted": (load.hist_table, "h", f"{load.open('h')} AND {load.gone()}"),
    }
    found: dict[str, Sequence[object]] = {}
    if not load.closes_deleted:
        del wheres["deleted"]
        found["deleted"] = []
    for outcome, (source, alias, where) in wheres.items():
        sql = preflight.keys_query(load, names, source, alias, where)
        found[outcome] = [preflight.told_key(names, row) for row in engine.query(sql, values)]
    return found


def _count(engine: Engine, of: str, values: Mapping[str, str]) -> int:
    return int(engine.query(f"SELECT COUNT(*) FROM {of}", values)[0][0])


def run_statements(engine: Engine, statements: Sequence[Statement], values: Mapping[str, str]) -> list[Step]:
    """Run statements one after the other; a step for each."""
    done = []
    for statement in statements:
        started = time.monotonic()
        rows = engine.run(statement.sql, values)
        done.append(Step(statement.step, rows, _milliseconds(started)))
    return done


def _milliseconds(since: float) -> int:
    return round((time.monotonic() - since) * 1000)
