"""The restart of a history after a change of its source's shape: archive it, then make a first load.

The commit that archives the history records the archive's name. So the next run completes a restart that was
interrupted at any step: the rename, or the first load of a table that no longer exists. Its report names the
archive.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from typing import Any, Final, Protocol

from backstory.doors.native.instants import StoredInstants, is_newest
from backstory.engine.deliver import ARCHIVED
from backstory.errors import BackstoryError, TryAgain
from backstory.model.table import TableName, table_name
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, exists, load
from backstory.upkeep.ending import archive_history

# A property of an archived table: the name that a restart gives it.
RESTARTED: Final = "backstory.restarted-as"
# The refusals that another shape of the source causes. Guards and missing columns (`columns-changed`) are
# not among them: they ask whether the copy is meant.
SHAPE_CODES: Final = frozenset({"key-changed", "type-changed", "missing-column", "other-case"})
_UNTIL: Final = "_until_"
_TIME: Final = r"\d{8}_\d{6}(_\d+)?"


class Deliver(Protocol):
    """A function that delivers a copy to a table, or only plans it, and returns the receipt."""

    def __call__(self, table: TableName, *, dry_run: bool) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class FullCopy:
    """A full copy for a table of a project.

    `deliver` delivers it to a table, or only plans it, and returns the receipt. `at` is its time, or None for
    now. `restarts` is true if the declaration allows a restart, and `has_all_records` if a history can begin
    with the copy.
    """

    table: TableName
    deliver: Deliver
    at: datetime | None
    restarts: bool
    has_all_records: bool


def deliver_copy(
    store: IcebergStore, copy: FullCopy, archives: list[str], *, dry_run: bool
) -> Mapping[str, Any]:
    """The receipt of a copy.

    If its shape does not fit the table and restarts are allowed, the history restarts. The name of an archive
    is added to `archives` as soon as it exists. If a first load would refuse the copy, nothing is archived.
    """
    table, unfinished = copy.table, archive_to_complete(load(store, copy.table))
    if unfinished is not None:
        if dry_run:
            return copy.deliver(unfinished, dry_run=True)
        archive_history(store, table, unfinished)
        archives.append(str(unfinished))
    try:
        return copy.deliver(table, dry_run=dry_run)
    except BackstoryError as stop:
        stored = load(store, table)
        if stop.code not in SHAPE_CODES or stored is None or not copy.has_all_records:
            raise
        if copy.at is not None and not is_newest(StoredInstants(store, stored), copy.at):
            raise
        if not copy.restarts:
            remedy = "Or declare `restart: true` to archive the history and begin a new one."
            raise stop.reword(remedy=f"{stop.remedy} {remedy}") from None
        return _restart(store, copy, stop, archives, dry_run=dry_run)


def archive_to_complete(stored: IcebergTable | None) -> TableName | None:
    """The archive name that an interrupted restart chose for this table, or None."""
    name = None if stored is None or ARCHIVED not in stored.properties else stored.properties.get(RESTARTED)
    return None if name is None else table_name(name)


def archives_of(store: IcebergStore, table: TableName, names: Iterable[TableName]) -> list[IcebergTable]:
    """The former histories of a table that restarts archived, oldest first.

    `names` are the tables of its schema.
    """
    form = re.compile(f"{re.escape(table.name)}{_UNTIL}{_TIME}")
    loaded = (load(store, name) for name in sorted(names) if form.fullmatch(name.name))
    return [stored for stored in loaded if stored is not None and RESTARTED in stored.properties]


def archive_without_load(archives: Sequence[IcebergTable], logged: Iterable[Mapping[str, Any]]) -> str | None:
    """The newest archive of a missing table, if no report names it. `logged` are the rows of the log."""
    newest = str(archives[-1].shape.table)
    reports = (json.loads(row["archives"]) for row in logged if row["archives"])
    return None if any(newest in names for names in reports) else newest


def _restart(
    store: IcebergStore, copy: FullCopy, stop: BackstoryError, archives: list[str], *, dry_run: bool
) -> Mapping[str, Any]:
    archive = _free_name(store, copy.table)
    try:
        receipt = copy.deliver(archive, dry_run=True)
    except TryAgain:
        raise
    except BackstoryError as refusal:
        cause = refusal.message.replace(str(archive), str(copy.table))
        remedy = f"{stop.remedy} No new history is begun, because its first load is refused: {cause}"
        raise stop.reword(remedy=remedy) from None
    if not dry_run:
        archive_history(store, copy.table, archive, {RESTARTED: str(archive)})
    archives.append(str(archive))
    if not dry_run:
        receipt = copy.deliver(copy.table, dry_run=False)
    return {**receipt, "schema_changes": [f"new history: {stop.message}", *receipt["schema_changes"]]}


def _free_name(store: IcebergStore, table: TableName) -> TableName:
    """A free name for the archive, which contains the current time."""
    first = f"{table.name}{_UNTIL}{datetime.now(UTC):%Y%m%d_%H%M%S}"
    names = (TableName(table.schema, name) for name in chain([first], (f"{first}_{n}" for n in count(2))))
    return next(name for name in names if not exists(store, name))
