"""Deliver a full copy to a table of layout `versions`, in at most one commit."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import lit

from backstory.doors.native.copy_inputs import CopyInputs, gather_inputs
from backstory.doors.native.copy_plan import PlannedCopy, open_copy_plan
from backstory.doors.native.evolution import (
    EvolvedShape,
    column_ids,
    delivered_columns,
    evolve_shape,
    new_table,
)
from backstory.doors.native.feeds.renames import refuse_retyped_order, renamed_options
from backstory.doors.native.instants import interval_text, refuse_changed_scopes
from backstory.doors.native.options import SnapshotRequest
from backstory.doors.native.receipts import SnapshotPlan, SnapshotReceipt, schema_changes
from backstory.doors.native.refusals import (
    decimal_comma_error,
    refuse_absences,
    refuse_copy_faults,
    refuse_empty,
    refuse_mass_delete,
    refuse_mass_null,
    refuse_other_columns,
    refuse_other_content,
    refuse_untyped_key,
    warnings_of,
)
from backstory.doors.native.retyping import is_empty, refuse_misfits, with_floats_as_stored, without_types
from backstory.doors.native.settings import (
    Absences,
    TableSettings,
    agree_settings,
    find_absences,
    mistakes_property,
    policy_property,
    refuse_unknown,
    refuses_absences,
    stored_settings,
)
from backstory.doors.native.sources import SourceRows
from backstory.doors.native.stored_rows import join_places, mark_condition
from backstory.doors.native.whole_rows import DERIVED, with_row_key
from backstory.engine.deliver import Plan
from backstory.engine.plans import join_rows
from backstory.errors import BackstoryError
from backstory.formats.delivered import shape_rows
from backstory.model.change import TOKEN, Change, Commit, Note, RowBatches
from backstory.model.instant import iso
from backstory.model.layout import FILE, MEMORY, POSITION, VALID_FROM, Layout
from backstory.model.versions_layout import COPIED_AT, MEMORY_SINCE, RECORDED, SCOPE, SETTLED, WHOLE_ROWS
from backstory.spark.session_settings import hold_settings
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.conditions import has_no_values, is_withdrawn
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.literals import column, instant, quote
from backstory.stores.iceberg.positions import FEW, file_code
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, load
from backstory.stores.port import require_layout
from backstory.strategies.copies.plan import APPEARED, CHANGED, CLOSED, LOSES
from backstory.strategies.copies.version_rows import copy_mark, withdraw_facts
from backstory.strategies.part_plan import ADDED, REMOVED

DOOR = "native"
Answer = SnapshotReceipt | SnapshotPlan


def copy_change(inputs: CopyInputs, copy: PlannedCopy, *, records_copy: bool = False) -> Change | None:
    """The Change of a copy, or None if nothing changes. `records_copy` forces a commit even without rows."""
    evolved, rows = inputs.evolved, copy.planned.rows(ADDED)
    marks, replaced = _marks(inputs, copy)
    added = join_rows(inputs.store, rows, marks)
    if inputs.table is None:
        properties = {
            **inputs.settings.properties(),
            **policy_property({}, inputs.request),
            **_memory(inputs),
            **({WHOLE_ROWS: "true"} if inputs.request.whole_rows else {}),
        }
        return Change(copy.outcomes, added=added, into=evolved.shape, properties=properties)
    if evolved.retyped:
        return _replace_all_rows(inputs, copy, marks, replaced)
    if added is None and not evolved.is_changed and not records_copy:
        return None
    return Change(
        copy.outcomes,
        join_places(copy.planned.places(REMOVED, inputs.table), replaced),
        in_few_files(added, copy.rows_to_add + len(marks), inputs.terms.key),
        evolved.shape if evolved.is_changed else None,
        evolved.renamed,
        _properties(inputs),
        snapshot=records_copy,
        expected=None if added is None else copy.rows_to_add + len(marks),
    )


def _marks(inputs: CopyInputs, copy: PlannedCopy) -> tuple[pa.Table, pa.Table]:
    """The row that remembers the copy (V31), and the place of the stored mark that it replaces."""
    place, terms = inputs.place, inputs.terms
    none = shape_rows(copy_mark(0, 0, terms.memory, None), terms.columns, ids=terms.ids).slice(0, 0)
    nowhere = pa.table({FILE: pa.array([], pa.string()), POSITION: pa.array([], pa.int64())})
    if not place.remembers:
        return none, nowhere
    ids = field_ids(inputs)
    restated = place.mark is not None and copy.differing_records > 0 and place.mark.columns != ids
    if place.mark is not None and not restated:
        return none, nowhere
    own = copy_mark(terms.at, terms.recorded, terms.memory, ids, place.scope)
    own = shape_rows(own, terms.columns, ids=terms.ids)
    if not restated:
        return own, nowhere
    scope = column(MEMORY).getField(SCOPE).eqNullSafe(lit(place.scope))
    here = arrow_of(
        inputs.stored_frame.where(mark_condition() & scope & (column(VALID_FROM) == instant(terms.at)))
    )
    former = shape_rows(withdraw_facts(here, terms.recorded, terms.memory), terms.columns, ids=terms.ids)
    return pa.concat_tables([own, former]), here.select([FILE, POSITION])


def _replace_all_rows(inputs: CopyInputs, copy: PlannedCopy, marks: pa.Table, replaced: pa.Table) -> Change:
    """The Change that rewrites all rows in the table's new types: remaining rows and added rows."""
    assert inputs.table is not None
    stored = inputs.stored_frame.withColumn(FILE, file_code(copy.salt))
    there = inputs.store.spark.table(inputs.store.sql_name(inputs.table.shape.table)).count()
    removed: Any = copy.planned.rows(REMOVED)
    added: Any = copy.planned.rows(ADDED)
    stay = stored if removed is None else stored.join(removed, [FILE, POSITION], "left_anti")
    if len(replaced):
        former = frame_of(inputs.store, replaced).withColumn(FILE, file_code(copy.salt))
        stay = stay.join(former, [FILE, POSITION], "left_anti")
    count = there - copy.rows_to_remove - len(replaced) + copy.rows_to_add + len(marks)
    rows: DataFrame = stay.drop(FILE, POSITION)
    if added is not None:
        rows = rows.unionByName(added)
    change = Change(
        copy.outcomes,
        added=in_few_files(join_rows(inputs.store, rows, marks), count, inputs.terms.key),
        into=inputs.evolved.shape,
        renamed=inputs.evolved.renamed,
        properties=_properties(inputs),
        expected=count,
    )
    return replace(change, whole=True)


def in_few_files(added: Any, count: int, key: Sequence[str]) -> Any:
    """A frame of added rows, sorted by key. One task writes a small number of rows, to few files (V12)."""
    if added is None or isinstance(added, pa.Table | RowBatches):
        return added
    rows: DataFrame = added.coalesce(1) if count <= FEW else added
    return rows.sortWithinPartitions(*map(quote, key))


def _properties(inputs: CopyInputs) -> Mapping[str, str]:
    """The new properties of an existing table."""
    evolved, table = inputs.evolved, inputs.table
    assert table is not None
    settings = inputs.settings.properties() if evolved.renamed else {}
    feed = renamed_options(table.properties, evolved)
    policy = policy_property(table.properties, inputs.request)
    return {**settings, **feed, **policy, **mistakes_property(table, evolved), **_memory(inputs)}


def _memory(inputs: CopyInputs) -> Mapping[str, str]:
    """The properties that begin the table's memory (V28)."""
    place = inputs.place
    if not place.begins:
        return {}
    return {SETTLED: interval_text(place.settled or ()), MEMORY_SINCE: iso(place.recorded)}


def field_ids(inputs: CopyInputs) -> tuple[int, ...]:
    """The field ids of the delivered columns, written in full, so that they exclude later columns (V138)."""
    ids = column_ids(inputs.store, inputs.table, inputs.evolved)
    return tuple(sorted(ids[column.name] for column in inputs.evolved.delivered))


@dataclass(frozen=True, slots=True)
class NativeSnapshot:
    """A full copy as a delivery."""

    source: SourceRows
    request: SnapshotRequest

    @contextmanager
    def open_plan(self, store: IcebergStore) -> Iterator[Plan[Answer]]:
        """The plan against the table's current state.

        Raises Refused for a copy that would corrupt the history.
        """
        with hold_settings(store.session), translate_faults(self.request.into):
            table = load(store, self.request.into)
            if table is not None:
                require_layout(table, Layout.VERSIONS)
            request = with_row_key(table, self.source.fields.names, self.request)
            with replace(self, request=request).open_keyed_plan(store, table) as plan:
                yield plan

    @contextmanager
    def open_keyed_plan(self, store: IcebergStore, table: IcebergTable | None) -> Iterator[Plan[Answer]]:
        """The plan against this state of the table, once the request has the columns of the key."""
        source, shape, settings = self._agree(store, table)
        if table is not None:
            refuse_misfits(store, table, shape)
        inputs = gather_inputs(store, table, source, evolved=shape, settings=settings, request=self.request)
        absences = find_absences(table, shape, "copy")
        with open_copy_plan(inputs) as copy:
            _refuse(inputs, copy, absences)
            change = copy_change(inputs, copy, records_copy=self._records_absences(table, absences))
            receipt = self._receipt(inputs, copy, absences)
            inputs.require_unchanged()
            if change is not None:
                change = replace(change, late_properties=lambda _: self._token(inputs, copy))
            at, recorded = iso(inputs.place.at), iso(inputs.place.recorded)
            note = Note(DOOR, "", {RECORDED: recorded, COPIED_AT: at, **absences.properties})
            yield Plan(table, change, note, receipt, self.request.dry_run)

    def _agree(
        self, store: IcebergStore, table: IcebergTable | None
    ) -> tuple[SourceRows, EvolvedShape, TableSettings]:
        """The source, with the shape and settings that the table and the copy agree on."""
        source = self.source
        if table is not None:
            source = with_floats_as_stored(source, table.shape, self.request.rename)
        try:
            return source, *self._agree_on_rows(store, table, source)
        except BackstoryError as stop:
            commas = self.source.with_commas & set(stop.keys)
            if stop.code == "type-changed" and commas:
                raise decimal_comma_error(stop, sorted(commas)) from None
            # A source without rows has no meaningful types.
            if (
                table is None
                or stop.code not in {"type-changed", "missing-column"}
                or not is_empty(self.source, store.memory)
            ):
                raise
        refuse_empty(0, allowed=self.request.allow_empty)
        source = without_types(self.source)
        return source, *self._agree_on_rows(store, table, source)

    def _agree_on_rows(
        self, store: IcebergStore, table: IcebergTable | None, source: SourceRows
    ) -> tuple[EvolvedShape, TableSettings]:
        columns, empty = delivered_columns(source.fields)
        key = self.request.key or ()
        if self.request.whole_rows:
            if all(column.name in empty for column in columns) and is_empty(source, store.memory):
                key = tuple(empty)
            columns = (*columns, *DERIVED)
        if table is None:
            refuse_untyped_key(source, key, empty)
            shape, settings = (
                new_table(self.request.into, columns, empty, self.request),
                agree_settings(None, self.request),
            )
        else:
            shape = evolve_shape(
                table.shape,
                columns,
                empty,
                self.request,
                partial(has_no_values, store, table),
                partial(is_withdrawn, store, table),
            )
            refuse_changed_scopes(store, table, shape)
            refuse_retyped_order(table.properties, shape)
            settings = agree_settings(
                stored_settings(table.properties).rename_columns(shape.renamed), self.request
            )
        refuse_unknown(settings, [col.name for col in shape.shape.user_columns], shape.shape.key)
        return shape, settings

    def _records_absences(self, table: IcebergTable | None, absences: Absences) -> bool:
        """Whether a commit without rows must record missing columns, or the policy for such copies."""
        if table is None:
            return False
        judged = self.request.on_schema_change == "accept" or refuses_absences(table.properties, self.request)
        return (judged and absences.changed) or bool(policy_property(table.properties, self.request))

    def _token(self, inputs: CopyInputs, copy: PlannedCopy) -> dict[str, str]:
        """The property with a digest of the copy and its instant (V14).

        For a first copy, it is computed once the rows are written.
        """
        inputs.require_unchanged()
        at, names = iso(inputs.place.at), sorted(inputs.terms.delivered)
        content = [str(self.request.into), at, names, copy.row_count, copy.content]
        return {TOKEN: hashlib.sha256(json.dumps(content).encode()).hexdigest()}

    def _receipt(
        self, inputs: CopyInputs, copy: PlannedCopy, absences: Absences
    ) -> Callable[[Commit | None], Answer]:
        table = str(self.request.into)
        foreign = () if inputs.table is None else inputs.table.foreign_writes
        evolved = inputs.evolved
        absence_lines = absences.as_lines(all_of_them=bool(evolved.added))
        in_words = partial(
            schema_changes, evolved, copy.likely_renames, self.source.with_commas, absence_lines
        )
        if self.request.dry_run:
            keys = copy.keys_of_outcomes() if copy.differing_records else {}
            warnings = [*foreign, *warnings_of(copy.losses)]
            plan = SnapshotPlan(
                table,
                copy.outcomes,
                keys,
                copy.changes_by_column,
                in_words(),
                copy.withdrawn_statements,
                warnings,
            )
            return lambda _committed: plan

        def receipt(committed: Commit | None) -> SnapshotReceipt:
            snapshot = None if committed is None else committed.snapshot_id
            recorded = None if snapshot is None else iso(inputs.place.recorded)
            before = iso(inputs.place.recorded - timedelta(microseconds=1))
            undo = "" if snapshot is None else f"backstory rewind {table} {before}"
            return SnapshotReceipt(table, copy.outcomes, in_words(undo), recorded, snapshot, foreign)

        return receipt


def _refuse(inputs: CopyInputs, copy: PlannedCopy, absences: Absences) -> None:
    """Raise Refused for faulty rows and records, and for a copy that changes too much."""
    request, sums = inputs.request, copy.planned.sums
    refuse_copy_faults(inputs.store, inputs.terms.key, sums.counts, sums.samples)
    if inputs.place.is_stored and not request.restate and copy.differing_records:
        refuse_other_content(inputs.place.at, copy.keys(APPEARED, CHANGED, CLOSED), copy.differing_records)
    refuse_empty(copy.row_count, allowed=request.allow_empty)
    refuses = refuses_absences({} if inputs.table is None else inputs.table.properties, request)
    if request.whole_rows:
        _refuse_lost_rows(inputs, copy, absences, refuses_columns=refuses)
        return
    if refuses:
        refuse_absences(absences.new, copy.likely_renames, absences.kind)
    refuse_mass_delete(copy.outcomes["closed"], copy.records_before, request, lambda: copy.keys(CLOSED))
    refuse_mass_null(copy.losses, request, lambda name: copy.keys(f"{LOSES}{name}"))


def _refuse_lost_rows(
    inputs: CopyInputs, copy: PlannedCopy, absences: Absences, *, refuses_columns: bool
) -> None:
    """Raise Refused for a copy of whole rows that closes too many rows, or has other columns.

    Equal rows are counted once for each occurrence. If the columns differ, every row differs. If different
    columns are accepted, only the number of rows is checked.
    """
    request, before = inputs.request, copy.rows_before
    added, returned = sorted(inputs.evolved.added), absences.changed and not absences.new
    if refuses_columns:
        refuse_other_columns(absences.new, added)
    changes = bool(added or absences.new or returned)
    if changes and request.on_schema_change == "accept":
        lost = max(0, before - copy.rows_now)
    else:
        lost = copy.rows_gone
    refuse_mass_delete(lost, before, request, lambda: copy.keys(CLOSED, CHANGED), other_columns=changes)
