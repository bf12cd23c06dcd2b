"""The delivery of one declaration of a project: deliveries in order, restarts, and one receipt."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from attrs import evolve

from backstory.doors.historize import door as models
from backstory.doors.historize.receipts import LoadRequest
from backstory.doors.native import door as native
from backstory.doors.native.instants import StoredInstants, is_newest
from backstory.doors.native.options import ApplyRequest, SnapshotRequest, names_files, source_of
from backstory.doors.native.settings import changes_table
from backstory.doors.odf import door as datasets
from backstory.doors.odf.polling import IngestRequest
from backstory.doors.odf.registry import is_file
from backstory.engine.deliver import ARCHIVED
from backstory.engine.run_context import RunNotes, take_notes, with_remark
from backstory.errors import BackstoryError, Failed, Refused, TryAgain
from backstory.formats.source_files import refuse_address
from backstory.model.instant import iso
from backstory.model.table import ODF, TableName, table_name
from backstory.projects.declarations import Declaration
from backstory.projects.files import FileCopy, Mark, copies, copies_of_time, fill_in, new_copies
from backstory.projects.log import RunReceipt, Status, status_of
from backstory.projects.options import RunRequest
from backstory.settings import Rights
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, exists, load
from backstory.upkeep.ending import archive_history

# The outcomes of models and datasets, by the names that tables use.
_WORDS: Final = {
    "appended": "new",
    "corrected": "changed",
    "retracted": "closed",
    "deleted": "closed",
    "reappeared": "reopened",
}
# The errors of a late copy: its time is settled, or the table has no memory.
SETTLED, BACKWARDS = "settled", "time-backwards"
# The beginning of the schema change that reports a table's first delivery.
NEW_TABLE: Final = "new table: "
_UNCHANGED: Final = {"unchanged", "up-to-date", "uncacheable", "disabled"}
# A property of an archived table: the name that a restart gives it.
RESTARTED: Final = "backstory.restarted-as"
# The refusals that a changed shape of the source causes. Guards and missing columns (`columns-changed`) are
# not among them, because they question whether the copy is intended.
SHAPE_CODES: Final = frozenset({"key-changed", "type-changed", "missing-column", "other-case"})
_UNTIL: Final = "_until_"
_TIME: Final = r"\d{8}_\d{6}(_\d+)?"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A declaration to deliver in a run.

    `folder` has the project's files, and the settings grant `rights`. `notes` are about the delivery.
    """

    store: IcebergStore
    declared: Declaration
    request: RunRequest
    folder: Path
    rights: Rights
    notes: RunNotes

    def carry_out(self, taken: set[Mark]) -> RunReceipt:
        """Deliver the declaration.

        `taken` contains the marks of files from earlier deliveries, and the marks of new files are added.
        Raises the delivery's error, if there is one. If there are several files, the receipt contains the
        error instead, because earlier files are already committed.
        """
        if self.declared.error is not None:
            raise self.declared.error
        with take_notes(self.notes):
            if self.declared.kind == "model":
                return self._load_model()
            with with_remark(self.request.note, self.request.author):
                if self.declared.kind == "dataset":
                    return self._pull_dataset()
                return _with_pattern(self.declared, self._deliver(taken))

    def _deliver(self, taken: set[Mark]) -> RunReceipt:
        declared, notes, dry_run = self.declared, self.notes, self.request.dry_run
        source, times = fill_in(declared.source, declared.place), declared.times
        assert times is not None
        if names_files(source):
            refuse_address(source)
        if not (times.each and names_files(source)):
            name = str(self.folder / source) if names_files(source) else source
            return _sum_receipts(declared, [self.deliver_one(name)])
        pattern = times.pattern and fill_in(times.pattern, declared.place)
        listed = copies(source, replace(times, pattern=pattern), self.folder)
        if not listed and not taken:
            remedy = "Check the path and the pattern."
            raise Failed("not-found", f"No file matches {declared.source}.", remedy)
        files = new_copies(listed, taken)
        receipts, error = list[Mapping[str, Any]](), None
        names = [copy.name for copy in files] if dry_run else list[str]()
        for copy in files:
            mark = copy.whole_mark()
            notes.files.append(mark)
            try:
                self._refuse_shared_time(copy, files)
                receipts.append(self.deliver_one(str(copy.path), copy))
            except BackstoryError as stop:
                notes.files.remove(mark)
                error = error or _with_file(self._with_next_step(stop, copy), copy, len(receipts))
                if copy.at and stop.code == SETTLED:  # it is refused forever: newer files do not wait for it
                    continue
                break
            if dry_run:
                break
            taken.add(mark)
            names.append(copy.name)
            if receipts[-1].get("snapshot_id"):
                notes.files.clear()  # the commit has recorded them
        summed = replace(_sum_receipts(declared, receipts), files=names)
        return replace(summed, status=status_of(error), error=error) if error is not None else summed

    def _refuse_shared_time(self, copy: FileCopy, files: Sequence[FileCopy]) -> None:
        """Refuse new files that have one time but different content.

        Each would be taken for the full copy of that time, and would close the records of the others. If the
        time is settled, the error is the delivery's own, so that newer files do not wait.
        """
        if copy.at is None or self.declared.options.get("deletes") == "ignore":
            return
        names = [each.name for each in copies_of_time(copy, files)]
        if len(names) < 2:  # noqa: PLR2004 - one file
            return
        try:
            planned = replace(self, request=evolve(self.request, dry_run=True), notes=RunNotes(""))
            planned.deliver_one(str(copy.path), copy)
        except BackstoryError as stop:
            if stop.code == SETTLED:
                raise
        raise Refused(
            "same-instant",
            f"{', '.join(names)}: these files have one time, {iso(copy.at)}, but different content.",
            "Nothing of these files was written. One time has one copy: combine them into one file, or move "
            "all but one out of the source's pattern.",
        )

    def _with_next_step(self, error: BackstoryError, copy: FileCopy) -> BackstoryError:
        """The error of a late file, with a remedy that lets the next run continue."""
        if copy.at is None:
            return error
        if error.code == BACKWARDS and not self._has_place(copy.at):
            return error.reword(
                remedy="Nothing of this file was written, and newer files wait for it. The table does not "
                "remember its copies, so `backfill: true` does not help. Move this file out of the source's "
                "pattern to leave it out. To take it, rewind the newer copies, then deliver their files "
                "again."
            )
        remedies = {
            SETTLED: "Nothing of this file was written, and newer files are taken anyway. Move it out of "
            "the source's pattern to leave it out.",
            BACKWARDS: "Nothing of this file was written, and newer files wait for it. Declare `backfill: "
            "true` to take it, or move it out of the source's pattern to leave it out.",
        }
        return error.reword(remedy=remedies.get(error.code))

    def _has_place(self, at: datetime) -> bool:
        """Whether a table without memory takes a late copy with `backfill: true`."""
        stored = load(self.store, table_name(self.declared.name))
        ends = None if stored is None else StoredInstants(self.store, stored).ends()
        is_partial = self.declared.options.get("deletes") == "ignore"
        return not is_partial and (ends is None or not ends[0] <= at <= ends[1])

    def deliver_one(self, source: str, copy: FileCopy | None = None) -> Mapping[str, Any]:
        """The receipt of one delivery to a table."""
        run, declared = self.request, self.declared
        own = {"into": declared.name, "dry_run": run.dry_run, "branch": run.branch}
        options = {**declared.options, **own}
        if run.on_schema_change is not None:
            options["on_schema_change"] = run.on_schema_change
        if "query" in options:
            options["query"] = fill_in(options["query"], declared.place)
        if declared.kind == "apply":
            request = ApplyRequest(**options)
            return native.apply(self.store, source_of(source, request), request).to_dict()
        if copy is not None:
            options["at"] = copy.at
        full = SnapshotRequest(**options)
        if run.branch is not None:
            return self._snapshot(source, full)
        return self._deliver_copy(source, full)

    def _snapshot(self, source: str, request: SnapshotRequest) -> Mapping[str, Any]:
        return native.snapshot(self.store, source_of(source, request), request).to_dict()

    def _deliver_copy(self, source: str, copy: SnapshotRequest) -> Mapping[str, Any]:
        """The receipt of a full copy.

        If the copy's shape does not fit the table and the declaration allows it, the history restarts. The
        name of an archive is noted as soon as it exists. Nothing is archived if the copy would be refused
        when delivered as the first load of the new history.
        """
        store, table = self.store, copy.into
        unfinished = archive_to_complete(load(store, table))
        if unfinished is not None:
            if copy.dry_run:
                return self._snapshot(source, evolve(copy, into=str(unfinished)))
            archive_history(store, table, unfinished)
            self.notes.archives.append(str(unfinished))
        try:
            return self._snapshot(source, copy)
        except BackstoryError as stop:
            stored = load(store, table)
            if stop.code not in SHAPE_CODES or stored is None or not copy.has_all_records:
                raise
            if copy.at is not None and not is_newest(StoredInstants(store, stored), copy.at):
                raise
            if not self.declared.restart:
                remedy = "Or declare `restart: true` to archive the history and begin a new one."
                raise stop.reword(remedy=f"{stop.remedy} {remedy}") from None
            return self._restart(source, copy, stop)

    def _restart(self, source: str, copy: SnapshotRequest, stop: BackstoryError) -> Mapping[str, Any]:
        table, first = copy.into, f"{copy.into.name}{_UNTIL}{datetime.now(UTC):%Y%m%d_%H%M%S}"
        names = (TableName(table.schema, name) for name in chain([first], (f"{first}_{n}" for n in count(2))))
        archive = next(name for name in names if not exists(self.store, name))
        try:
            receipt = self._snapshot(source, evolve(copy, into=str(archive), dry_run=True))
        except TryAgain:
            raise
        except BackstoryError as refusal:
            cause = refusal.message.replace(str(archive), str(table))
            remedy = f"{stop.remedy} No new history is begun, because its first load is refused: {cause}"
            raise stop.reword(remedy=remedy) from None
        if not copy.dry_run:
            archive_history(self.store, table, archive, {RESTARTED: str(archive)})
        self.notes.archives.append(str(archive))
        if not copy.dry_run:
            receipt = self._snapshot(source, copy)
        return {**receipt, "schema_changes": [f"new history: {stop.message}", *receipt["schema_changes"]]}

    def _load_model(self) -> RunReceipt:
        options = dict(self.declared.options)
        url = options.pop("url", None)
        model = models.choose(self.folder / self.declared.source, options.pop("dialect", None))
        request = LoadRequest(**options, dry_run=self.request.dry_run)
        if model.on_spark:
            return _sum_parts(self.declared, models.historize_on_spark(model, self.store, request))
        address = url and fill_in(url, self.declared.place)
        return _sum_parts(self.declared, models.historize_on_database(model, address, request))

    def _pull_dataset(self) -> RunReceipt:
        source, options = self.declared.source, dict(self.declared.options)
        namespace = options.pop("namespace", ODF)
        argument = self.folder / source if is_file(source) else source
        request = IngestRequest(**options, dry_run=self.request.dry_run, rights=self.rights)
        pulled = datasets.pull_all(self.store, [argument], request, namespace=namespace)
        return _sum_parts(self.declared, pulled)


def _with_pattern(declared: Declaration, receipt: RunReceipt) -> RunReceipt:
    """The receipt. The first receipt of a table that belongs to a pattern reports the pattern and the key."""
    if declared.pattern is None or not any(change.startswith(NEW_TABLE) for change in receipt.schema_changes):
        return receipt
    key = declared.options["key"]
    names = key if isinstance(key, str) else ", ".join(key)
    change = f"new table of {declared.pattern} with the key ({names})"
    return replace(receipt, schema_changes=[change, *receipt.schema_changes])


def _with_file(error: BackstoryError, copy: FileCopy, before: int) -> BackstoryError:
    """The error of one of several files, with the file's name and the number of files delivered before it."""
    name, remedy = copy.path.name, error.remedy
    message = error.message if name in error.message else f"{name}: {error.message}"
    if before:
        files = "The file before it was" if before == 1 else f"The {before} files before it were"
        remedy = f"{remedy} {files} taken in this run."
    return error.reword(message, remedy)


def _sum_receipts(declared: Declaration, receipts: Sequence[Mapping[str, Any]]) -> RunReceipt:
    """The receipt of several deliveries. Counts are summed, but `unchanged` is from the last delivery."""
    counts: Counter[str] = Counter()
    for receipt in receipts:
        counts.update({name: count for name, count in receipt["counts"].items() if name != "unchanged"})
    changes = [*dict.fromkeys(change for receipt in receipts for change in receipt["schema_changes"])]
    changed = any(counts.values()) or any(map(changes_table, changes))
    changed = changed or any(receipt.get("snapshot_id") for receipt in receipts)
    counts["unchanged"] = receipts[-1]["counts"].get("unchanged", 0) if receipts else 0
    status: Status = "changed" if changed else "unchanged"
    return RunReceipt(declared.name, declared.kind, status, counts=dict(counts), schema_changes=changes)


def _sum_parts(declared: Declaration, receipts: Sequence[Any]) -> RunReceipt:
    """The joint receipt of several datasets, with the first error, if any."""
    counts: Counter[str] = Counter()
    for part in receipts:
        counts.update({_WORDS.get(name, name): count for name, count in part.counts.items()})
    error = next((part.error for part in receipts if part.error is not None), None)
    changed = any(part.status not in _UNCHANGED for part in receipts)
    parts = [part.to_dict() for part in receipts]
    return RunReceipt(
        declared.name,
        declared.kind,
        status_of(error) if error is not None else "changed" if changed else "unchanged",
        counts=dict(counts),
        schema_changes=[change for part in parts for change in part.get("schema_changes") or ()],
        parts=parts if len(parts) > 1 else (),
        error=error,
    )


def archive_to_complete(stored: IcebergTable | None) -> TableName | None:
    """The archive name that an interrupted restart chose for this table, or None."""
    name = None if stored is None or ARCHIVED not in stored.properties else stored.properties.get(RESTARTED)
    return None if name is None else table_name(name)


def archives_of(store: IcebergStore, table: TableName, names: Iterable[TableName]) -> list[IcebergTable]:
    """A table's former histories that restarts archived, oldest first.

    `names` are the tables of its schema.
    """
    form = re.compile(f"{re.escape(table.name)}{_UNTIL}{_TIME}")
    loaded = (load(store, name) for name in sorted(names) if form.fullmatch(name.name))
    return [each for each in loaded if each is not None and RESTARTED in each.properties]


def archive_without_load(archives: Sequence[IcebergTable], logged: Iterable[Mapping[str, Any]]) -> str | None:
    """The newest archive of a missing table, if no logged receipt names the archive.

    `logged` are the rows of the log.
    """
    newest = str(archives[-1].shape.table)
    reports = (json.loads(row["archives"]) for row in logged if row["archives"])
    return None if any(newest in names for names in reports) else newest
