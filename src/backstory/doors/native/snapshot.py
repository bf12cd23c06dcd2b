"""A full copy becomes one commit of a table of layout `versions`, or none (native.md, section 2.3)."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from backstory.doors.native.absences import Absences, absences
from backstory.doors.native.columns import delivered_columns
from backstory.doors.native.copy_plan import PlannedCopy, planned_copy
from backstory.doors.native.evolution import Evolved, evolved, new_table
from backstory.doors.native.receipts import SnapshotPlan, SnapshotReceipt, schema_changes
from backstory.doors.native.refusals import (
    decimal_commas,
    refuse_absences,
    refuse_empty,
    refuse_faults,
    refuse_mass_delete,
    refuse_mass_null,
    refuse_other_content,
    refuse_untyped_key,
    warnings_of,
)
from backstory.doors.native.request import SnapshotRequest
from backstory.doors.native.retyping import is_empty, refuse_misfits, untyped, with_floats_as_stored
from backstory.doors.native.settings import (
    TableSettings,
    agreed,
    policy_property,
    refuse_unknown,
    refuses_absences,
    settings_of,
)
from backstory.doors.native.sides import CopySides, sides_of
from backstory.doors.native.source import Source
from backstory.doors.native.writing import change_of
from backstory.engine.deliver import Plan
from backstory.errors import BackstoryError
from backstory.model.change import TOKEN, Committed, Note
from backstory.model.instant import iso
from backstory.model.layout import Layout
from backstory.model.remembered import COPIED_AT, RECORDED
from backstory.model.table import TableName
from backstory.spark.settled import hold_settings
from backstory.stores.iceberg.column_values import has_no_values, is_taken_back
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import Store, StoredTable, load
from backstory.stores.port import require_layout
from backstory.strategies.copies.touched import (
    APPEARED,
    CHANGED,
    CLOSED,
    LOSES,
)

DOOR = "native"
Answer = SnapshotReceipt | SnapshotPlan


@dataclass(frozen=True, slots=True)
class NativeSnapshot:
    """A full copy as a delivery."""

    name: TableName
    source: Source
    asked: SnapshotRequest

    @property
    def tables(self) -> Sequence[TableName]:
        """The one table."""
        return [self.name]

    @contextmanager
    def planned(self, store: Store) -> Iterator[Plan[Answer]]:
        """The plan on the table as it stands; Refused for what would not be right."""
        with hold_settings(store.session), translate_faults(self.name):
            table = load(store, self.name)
            if table is not None:
                require_layout(table, Layout.VERSIONS)
            source, shape, settings = self._agreed(store, table)
            if table is not None:
                refuse_misfits(store, table, shape)
            sides = sides_of(store, table, source, evolved=shape, settings=settings, asked=self.asked)
            absent = absences(table, shape, "copy")
            with planned_copy(sides) as copy:
                _refuse(sides, copy, absent)
                change = change_of(sides, copy, is_told=self._tells(table, absent))
                receipt = self._receipt(sides, copy, absent)
                if change is not None:
                    change = replace(change, told=lambda _: {TOKEN: self._token(sides, copy)})
                at, recorded = iso(sides.place.at), iso(sides.place.recorded)
                note = Note(DOOR, "", {RECORDED: recorded, COPIED_AT: at, **absent.properties})
                yield Plan(table, change, note, receipt, self.asked.dry_run)

    def _agreed(self, store: Store, table: StoredTable | None) -> tuple[Source, Evolved, TableSettings]:
        """The source, and the shape and the settings that table and copy agree on."""
        source = self.source
        if table is not None:
            source = with_floats_as_stored(source, table.shape, self.asked.rename)
        try:
            return source, *self._agreed_on(store, table, source)
        except BackstoryError as stop:
            commas = self.source.with_commas & set(stop.keys)
            if stop.code == "type-changed" and commas:
                raise decimal_commas(stop, sorted(commas)) from None
            # Of a source without rows the types say nothing.
            if (
                table is None
                or stop.code not in {"type-changed", "missing-column"}
                or not is_empty(self.source, store.memory)
            ):
                raise
        refuse_empty(0, self.asked)
        source = untyped(self.source)
        return source, *self._agreed_on(store, table, source)

    def _agreed_on(
        self, store: Store, table: StoredTable | None, source: Source
    ) -> tuple[Evolved, TableSettings]:
        columns, empty = delivered_columns(source.fields)
        if table is None:
            refuse_untyped_key(source, self.asked.key or (), empty)
            shape, settings = new_table(self.name, columns, empty, self.asked), agreed(None, self.asked)
        else:
            shape = evolved(
                table.shape,
                columns,
                empty,
                self.asked,
                partial(has_no_values, store, table),
                partial(is_taken_back, store, table),
            )
            settings = agreed(settings_of(table.properties).renamed(shape.renamed), self.asked)
        refuse_unknown(settings, [each.name for each in shape.shape.user_columns], shape.shape.key)
        return shape, settings

    def _tells(self, table: StoredTable | None, absent: Absences) -> bool:
        """Whether a commit is to say, without rows too, what is missing, or that such copies are refused."""
        if table is None:
            return False
        judged = self.asked.on_schema_change == "accept" or refuses_absences(table.properties, self.asked)
        return (judged and absent.changed) or bool(policy_property(table.properties, self.asked))

    def _token(self, sides: CopySides, copy: PlannedCopy) -> str:
        """A digest of the copy and its instant (V14); for a first copy, once its rows are written."""
        at, names = iso(sides.place.at), sorted(sides.terms.delivered)
        content = [str(self.name), at, names, copy.delivered, copy.content]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def _receipt(
        self, sides: CopySides, copy: PlannedCopy, absent: Absences
    ) -> Callable[[Committed | None], Answer]:
        table = str(self.name)
        foreign = () if sides.table is None else sides.table.foreign_writes
        evolved = sides.evolved
        gone = absent.in_words(all_of_them=bool(evolved.added))
        in_words = partial(schema_changes, evolved, copy.likely_renames, self.source.with_commas, gone)
        if self.asked.dry_run:
            keys = copy.keys_of_outcomes() if copy.differing else {}
            warnings = [*foreign, *warnings_of(copy.losses)]
            plan = SnapshotPlan(
                table, copy.outcomes, keys, copy.driving, in_words(), copy.taken_back, warnings
            )
            return lambda _committed: plan

        def receipt(committed: Committed | None) -> SnapshotReceipt:
            snapshot = None if committed is None else committed.snapshot_id
            recorded = None if snapshot is None else iso(sides.place.recorded)
            before = iso(sides.place.recorded - timedelta(microseconds=1))
            undo = "" if snapshot is None else f"backstory rewind {table} {before}"
            return SnapshotReceipt(table, copy.outcomes, in_words(undo), recorded, snapshot, foreign)

        return receipt


def _refuse(sides: CopySides, copy: PlannedCopy, absent: Absences) -> None:
    """Raise Refused for faults of rows and records, and then for a copy that changes too much."""
    asked, sums = sides.asked, copy.planned.sums
    refuse_faults(sides.store, sides.terms.key, sums.counts, sums.samples)
    if sides.place.stored and not asked.restate and copy.differing:
        refuse_other_content(sides.place.at, copy.keys(APPEARED, CHANGED, CLOSED), copy.differing)
    refuse_empty(copy.delivered, asked)
    if refuses_absences({} if sides.table is None else sides.table.properties, asked):
        refuse_absences(absent.new, copy.likely_renames, absent.kind)
    refuse_mass_delete(copy.outcomes["closed"], copy.there, asked, lambda: copy.keys(CLOSED))
    refuse_mass_null(copy.losses, asked, lambda name: copy.keys(f"{LOSES}{name}"))
