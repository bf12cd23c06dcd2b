"""Former runs, and how fresh what is declared is: by the log, and by commits of runs that logged nothing."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from backstory.engine.runs import RUN
from backstory.model.table import table_name
from backstory.projects.declarations import Declaration, Project
from backstory.projects.log import BEGUN, newest_rows
from backstory.projects.receipts import WELL
from backstory.stores.metadata.described import Catalog, Described

Rows = Sequence[Mapping[str, Any]]
NOT_BEGUN: Final = ("blocked", "stopped")


def former_runs(catalog: Catalog, logged: Rows) -> list[dict[str, Any]]:
    """The runs, newest first: when, how long (seconds), and how many declarations ended how.

    Of a run that goes on or was broken off the tables count that it changed; `ended` is false then.
    """
    by_run: dict[str, list[Mapping[str, Any]]] = {}
    for row in newest_rows(logged):
        if row["status"] != BEGUN:
            by_run.setdefault(row["run_id"], []).append(row)
    runs = [_in_a_row(run_id, rows) for run_id, rows in by_run.items()]
    begun = {row["run_id"] for row in logged}
    return sorted(
        [*runs, *_broken_off(catalog, by_run, begun)], key=lambda run: run["started_at"], reverse=True
    )


def _in_a_row(run_id: str, rows: Rows) -> dict[str, Any]:
    status = Counter(row["status"] for row in rows)
    times = [row["started_at"] for row in rows if row["started_at"] is not None]
    ends = [row["started_at"] + timedelta(seconds=row["seconds"]) for row in rows if row["started_at"]]
    began = min(times) if times else _time_of(run_id)
    return {
        "run_id": run_id,
        "started_at": began,
        "seconds": round((max(ends) - began).total_seconds(), 1) if ends else 0.0,
        **{name: status[name] for name in ("changed", "unchanged", "refused", "failed")},
        "not_begun": sum(status[name] for name in NOT_BEGUN),
        "ended": True,
    }


def _broken_off(
    catalog: Catalog, by_run: Mapping[str, object], begun: AbstractSet[str]
) -> Iterable[dict[str, Any]]:
    """The runs whose end is not on record: those that have `begun`, and those that only commits tell of."""
    tables: dict[str, list[datetime]] = {run_id: [] for run_id in begun if run_id not in by_run}
    for name in catalog.tables():
        described = catalog.describe(name)
        for run_id, time in _commits_of_runs(described).items():
            if run_id not in by_run:
                tables.setdefault(run_id, []).append(time)
    for run_id, times in tables.items():
        began = _time_of(run_id)
        yield {
            "run_id": run_id,
            "started_at": began,
            "seconds": round((max(times, default=began) - began).total_seconds(), 1),
            "changed": len(times),
            **dict.fromkeys(("unchanged", "refused", "failed", "not_begun"), None),
            "ended": False,
        }


def _commits_of_runs(table: Described | None) -> dict[str, datetime]:
    """The newest commit of each run."""
    commits = table.commits if table is not None else []
    return {each.properties[RUN]: each.committed_at for each in commits if RUN in each.properties}


def _time_of(run_id: str) -> datetime:
    """When a run began, which its name tells."""
    return datetime.strptime(run_id[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


def freshness(
    project: Project, catalog: Catalog, logged: Rows, now: datetime, names: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """For each declaration that is expected: when it was delivered last, when next at the latest, if late.

    One that was never delivered is late. Times are UTC; `age_hours` is None without a delivery.
    """
    wanted = frozenset(names)
    expected = [each for each in project.declarations if each.expect is not None]
    last = {
        row["name"]: row["started_at"]
        for row in logged
        if row["project"] == str(project.path) and row["status"] in WELL
    }
    return [
        _fresh(each, _later(last.get(each.name), _last_commit(catalog, each)), now)
        for each in expected
        if not wanted or each.name in wanted
    ]


def _last_commit(catalog: Catalog, declared: Declaration) -> datetime | None:
    """When a run last committed to a table of the declaration."""
    described = (catalog.describe(table_name(each)) for each in declared.writes)
    times = [time for each in described for time in _commits_of_runs(each).values()]
    return max(times, default=None)


def _later(*times: datetime | None) -> datetime | None:
    return max((each for each in times if each is not None), default=None)


def _fresh(declared: Declaration, last: datetime | None, now: datetime) -> dict[str, Any]:
    assert declared.expect is not None
    due = None if last is None else last + declared.expect
    return {
        "name": declared.name,
        "last_delivery": last,
        "age_hours": None if last is None else round((now - last).total_seconds() / 3600, 1),
        "expected_every_hours": round(declared.expect.total_seconds() / 3600, 1),
        "due": due,
        "late": due is None or due < now,
    }
