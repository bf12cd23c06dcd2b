"""Which declarations did not end well when their project last ran, a run that was broken off included."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from backstory.doors.native.options import names_files
from backstory.engine.runs import RUN
from backstory.errors import TryAgain, UsageError, option
from backstory.model.table import table_name
from backstory.projects.declarations import Declaration, Project
from backstory.projects.locks import goes_on
from backstory.projects.log import BEGUN, newest_rows, rows_of_log
from backstory.projects.receipts import UNDONE
from backstory.stores.iceberg.snapshots import all_snapshots
from backstory.stores.iceberg.store import Store, load

Rows = Sequence[Mapping[str, Any]]


def undone(store: Store, project: Project, selected: Iterable[Declaration], logged: Rows) -> set[str]:
    """The names of those of the selected declarations; what a run that goes on does is left to it.

    Raises UsageError where no run of the project is on record, TryAgain where nothing is left but what a run
    that goes on does.
    """
    of_project = [row for row in logged if row["project"] == str(project.path)]
    if not of_project:
        raise UsageError(
            "no-run",
            f"No run of {project.path} is on record in {store.searched}.",
            f"Run it without {option('failed', value=True)}.",
        )
    rows = newest_rows(of_project)
    going_on = {run for run in _runs_without_end(rows) if goes_on(store, run)}
    if _runs_without_end(rows) - going_on:  # it may have ended between the two looks
        rows = newest_rows([row for row in rows_of_log(store) if row["project"] == str(project.path)])
    last = {row["name"]: row for row in rows if row["run_id"] not in going_on}
    left = {
        each.name for each in selected if each.name in last and not _is_done(store, each, last[each.name])
    }
    if going_on and not left:
        raise TryAgain(
            "run-under-way",
            f"The run {max(going_on)} has not ended yet.",
            "Run it again once that has ended.",
        )
    return left


def _runs_without_end(rows: Rows) -> set[str]:
    return {row["run_id"] for row in rows if row["status"] == BEGUN}


def _is_done(store: Store, declared: Declaration, row: Mapping[str, Any]) -> bool:
    """Whether it ended well; without an end on record, whether its one delivery was committed."""
    if row["status"] != BEGUN:
        return row["status"] not in UNDONE
    times = declared.times
    if times is None or (times.each and names_files(declared.source)):
        return False  # several deliveries: a commit is not the last one
    stored = load(store, table_name(declared.name))
    commits = all_snapshots(stored) if stored else ()
    return any(each.get_property(RUN) == row["run_id"] for each in commits)
