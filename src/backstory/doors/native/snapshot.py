"""Deliver a full copy to a table of layout `versions`, in at most one commit."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import lit

from backstory.doors.native import refusals
from backstory.doors.native.copy_inputs import CopyInputs, gather_inputs
from backstory.doors.native.copy_plan import PlannedCopy, open_copy_plan
from backstory.doors.native.evolution import (
    EvolvedShape,
    delivered_columns,
    delivered_ids,
    evolve_shape,
    new_table,
)
from backstory.doors.native.feeds.agreement import refuse_retyped_order, renamed_options
from backstory.doors.native.instants import MICROSECOND, refuse_changed_scopes
from backstory.doors.native.options import SnapshotRequest
from backstory.doors.native.receipts import SnapshotPlan, SnapshotReceipt, schema_changes
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
from backstory.model.versions_layout import COPIED_AT, RECORDED, SCOPE, WHOLE_ROWS
from backstory.spark.session import hold_settings
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.conditions import has_no_values, is_withdrawn
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.literals import column, instant, quote
from backstory.stores.iceberg.positions import FEW, file_code
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, load
from backstory.stores.port import require_layout
from backstory.strategies.copies.comparison import CONTENT, ROWS_BEFORE, ROWS_GONE, ROWS_NOW
from backstory.strategies.copies.comparison import DELIVERED as ROWS_DELIVERED
from backstory.strategies.copies.plan import APPEARED, CHANGED, CLOSED, LOSES, TAKEN_BACK
from backstory.strategies.copies.version_rows import copy_mark, withdraw_facts
from backstory.strategies.part_plan import ADDED, REMOVED

DOOR = "native"
Answer = SnapshotReceipt | SnapshotPlan


@contextmanager
def open_copy(source: SourceRows, request: SnapshotRequest, store: IcebergStore) -> Iterator[Plan[Answer]]:
    """The plan of a full copy against the table's current state.

    Raises Refused for a copy that would corrupt the history.
    """
    with hold_settings(store.session), translate_faults(request.into):
        table = load(store, request.into)
        if table is not None:
            require_layout(table, Layout.VERSIONS)
        request = with_row_key(table, source.fields.names, request)
        rows, shape, settings = _agree(store, table, source, request)
        if table is not None:
            refuse_misfits(store, table, shape)
        inputs = gather_inputs(store, table, rows, evolved=shape, settings=settings, request=request)
        absences = find_absences(table, shape, "copy")
        with open_copy_plan(inputs) as copy:
            _refuse(inputs, copy, absences)
            change = copy_change(inputs, copy, records_copy=_records_absences(inputs, absences))
            receipt = _report(inputs, copy, absences, source.with_commas)
            inputs.require_unchanged()
            if change is not None:
                change = replace(change, late_properties=lambda _: _token(inputs, copy))
            at, recorded = iso(inputs.place.at), iso(inputs.place.recorded)
            note = Note(DOOR, "", {RECORDED: recorded, COPIED_AT: at, **absences.properties})
            yield Plan(table, change, note, receipt, request.dry_run)


def _agree(
    store: IcebergStore, table: IcebergTable | None, source: SourceRows, request: SnapshotRequest
) -> tuple[SourceRows, EvolvedShape, TableSettings]:
    """The source, with the shape and settings that the table and the copy agree on."""
    rows = source if table is None else with_floats_as_stored(source, table.shape, request.rename)
    try:
        return rows, *_agree_on_rows(store, table, rows, request)
    except BackstoryError as stop:
        commas = source.with_commas & set(stop.keys)
        if stop.code == "type-changed" and commas:
            raise refusals.decimal_comma_error(stop, sorted(commas)) from None
        # A source without rows has no meaningful types.
        may_lack_rows = table is not None and stop.code in {"type-changed", "missing-column"}
        if not may_lack_rows or not is_empty(source, store.memory):
            raise
    refusals.refuse_empty(0, allowed=request.allow_empty)
    rows = without_types(source)
    return rows, *_agree_on_rows(store, table, rows, request)


def _agree_on_rows(
    store: IcebergStore, table: IcebergTable | None, source: SourceRows, request: SnapshotRequest
) -> tuple[EvolvedShape, TableSettings]:
    columns, empty = delivered_columns(source.fields)
    key = request.key or ()
    if request.whole_rows:
        if all(column.name in empty for column in columns) and is_empty(source, store.memory):
            key = tuple(empty)
        columns = (*columns, *DERIVED)
    if table is None:
        refusals.refuse_untyped_key(source, key, empty)
        shape, stored = new_table(request.into, columns, empty, request), None
    else:
        valueless, withdrawn = partial(has_no_values, store, table), partial(is_withdrawn, store, table)
        shape = evolve_shape(table.shape, columns, empty, request, valueless, withdrawn)
        refuse_changed_scopes(store, table, shape)
        refuse_retyped_order(table.properties, shape)
        stored = stored_settings(table.properties).rename_columns(shape.renamed)
    settings = agree_settings(stored, request)
    refuse_unknown(settings, [col.name for col in shape.shape.user_columns], shape.shape.key)
    return shape, settings


def _refuse(inputs: CopyInputs, copy: PlannedCopy, absences: Absences) -> None:
    """Raise Refused for faulty rows and records, and for a copy that changes too much."""
    request, sums = inputs.request, copy.planned.sums
    refusals.refuse_copy_faults(inputs.store, inputs.terms.key, sums.counts, sums.samples)
    if inputs.place.is_stored and not request.restate and copy.differing_records:
        refusals.refuse_other_content(
            inputs.place.at, copy.keys(APPEARED, CHANGED, CLOSED), copy.differing_records
        )
    refusals.refuse_empty(copy.count(ROWS_DELIVERED), allowed=request.allow_empty)
    refuses = refuses_absences({} if inputs.table is None else inputs.table.properties, request)
    if request.whole_rows:
        _refuse_lost_rows(inputs, copy, absences, refuses_columns=refuses)
        return
    if refuses:
        refusals.refuse_absences(absences.new, copy.likely_renames, absences.kind)
    refusals.refuse_mass_delete(
        copy.outcomes["closed"], copy.records_before, request, lambda: copy.keys(CLOSED)
    )
    refusals.refuse_mass_null(copy.losses, request, lambda name: copy.keys(f"{LOSES}{name}"))


def _refuse_lost_rows(
    inputs: CopyInputs, copy: PlannedCopy, absences: Absences, *, refuses_columns: bool
) -> None:
    """Raise Refused for a copy of whole rows that closes too many rows, or has other columns.

    Equal rows are counted once for each occurrence. If different columns are accepted, each row may differ,
    so only the decrease in the number of rows is checked.
    """
    request, before = inputs.request, copy.count(ROWS_BEFORE)
    added, returned = sorted(inputs.evolved.added), absences.changed and not absences.new
    if refuses_columns:
        refusals.refuse_other_columns(absences.new, added)
    changes = bool(added or absences.new or returned)
    accepted = changes and request.on_schema_change == "accept"
    lost = max(0, before - copy.count(ROWS_NOW)) if accepted else copy.count(ROWS_GONE)
    refusals.refuse_mass_delete(
        lost, before, request, lambda: copy.keys(CLOSED, CHANGED), other_columns=changes
    )


def _records_absences(inputs: CopyInputs, absences: Absences) -> bool:
    """Whether a commit without rows must record missing columns, or a new policy on missing columns."""
    if inputs.table is None:
        return False
    properties, request = inputs.table.properties, inputs.request
    judged = request.on_schema_change == "accept" or refuses_absences(properties, request)
    return (judged and absences.changed) or bool(policy_property(properties, request))


def copy_change(inputs: CopyInputs, copy: PlannedCopy, *, records_copy: bool = False) -> Change | None:
    """The Change of a copy, or None if nothing changes. `records_copy` forces a commit even without rows."""
    evolved, rows = inputs.evolved, copy.planned.rows(ADDED)
    marks, replaced = _marks(inputs)
    added = join_rows(inputs.store, rows, marks)
    if inputs.table is None:
        properties = {
            **inputs.settings.properties(),
            **policy_property({}, inputs.request),
            **inputs.place.properties(),
            **({WHOLE_ROWS: "true"} if inputs.request.whole_rows else {}),
        }
        return Change(copy.outcomes, added=added, into=evolved.shape, properties=properties)
    if evolved.retyped:
        return _replace_all_rows(inputs, copy, marks, replaced)
    if added is None and not evolved.changes and not records_copy:
        return None
    return Change(
        copy.outcomes,
        join_places(copy.planned.places(REMOVED, inputs.table), replaced),
        in_few_files(added, copy.rows_to_add + len(marks), inputs.terms.key),
        evolved.shape if evolved.changes else None,
        evolved.renamed,
        _properties(inputs),
        snapshot=records_copy,
        expected=None if added is None else copy.rows_to_add + len(marks),
    )


def _marks(inputs: CopyInputs) -> tuple[pa.Table, pa.Table]:
    """The rows that remember the copy (V31), and the places of the stored marks that they replace."""
    place, terms = inputs.place, inputs.terms
    none = shape_rows(copy_mark(0, 0, terms.memory, None), terms.columns, ids=terms.ids).slice(0, 0)
    nowhere = pa.table({FILE: pa.array([], pa.string()), POSITION: pa.array([], pa.int64())})
    if not place.remembers:
        return none, nowhere
    ids = delivered_ids(inputs.table, inputs.evolved)
    restated = place.mark is not None and inputs.request.restate and place.mark.columns != ids
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
    return Change(
        copy.outcomes,
        added=in_few_files(join_rows(inputs.store, rows, marks), count, inputs.terms.key),
        into=inputs.evolved.shape,
        renamed=inputs.evolved.renamed,
        properties=_properties(inputs),
        whole=True,
        expected=count,
    )


def in_few_files(added: Any, count: int, key: Sequence[str]) -> Any:
    """The added rows, sorted by key if they are a frame. One task writes a small number of rows (V12)."""
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
    return {**settings, **feed, **policy, **mistakes_property(table, evolved), **inputs.place.properties()}


def _token(inputs: CopyInputs, copy: PlannedCopy) -> dict[str, str]:
    """The property with a digest of the copy and its instant (V14).

    For a first copy, it is computed once the rows are written.
    """
    inputs.require_unchanged()
    at, names = iso(inputs.place.at), sorted(inputs.terms.delivered)
    content = [str(inputs.request.into), at, names, copy.count(ROWS_DELIVERED), copy.count(CONTENT)]
    return {TOKEN: hashlib.sha256(json.dumps(content).encode()).hexdigest()}


def _report(
    inputs: CopyInputs, copy: PlannedCopy, absences: Absences, with_commas: Collection[str]
) -> Callable[[Commit | None], Answer]:
    table, evolved, recorded = str(inputs.request.into), inputs.evolved, inputs.place.recorded
    foreign = () if inputs.table is None else inputs.table.foreign_writes
    lines = absences.as_lines(all_of_them=bool(evolved.added))
    if inputs.request.dry_run:
        plan = SnapshotPlan(
            table,
            copy.outcomes,
            copy.keys_of_outcomes() if copy.differing_records else {},
            copy.changes_by_column,
            schema_changes(evolved, copy.likely_renames, with_commas, lines),
            copy.count(TAKEN_BACK),
            [*foreign, *refusals.warnings_of(copy.losses)],
        )
        return lambda _committed: plan

    def receipt(commit: Commit | None) -> SnapshotReceipt:
        snapshot = None if commit is None else commit.snapshot_id
        undo = "" if snapshot is None else f"backstory rewind {table} {iso(recorded - MICROSECOND)}"
        changes = schema_changes(evolved, copy.likely_renames, with_commas, lines, undo)
        time = None if snapshot is None else iso(recorded)
        return SnapshotReceipt(table, copy.outcomes, changes, time, snapshot, foreign)

    return receipt
