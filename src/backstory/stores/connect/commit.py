"""The only way to change a table over Spark Connect: a MERGE into a branch, which is then published.

The branch begins at the snapshot of the plan. Iceberg moves `main` to the branch only if `main` is still at
that snapshot, so a commit always matches its plan. A new table and its rows are created in one step.
"""

import json
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException

from backstory.errors import Failed
from backstory.formats.delivered import arrow_schema
from backstory.model.change import Change, Commit, Note, RowBatches
from backstory.model.layout import FILE, POSITION, ROW_ID, Layout
from backstory.model.table import Shape, TableName
from backstory.observe import COMMITS, time_stage
from backstory.spark.connect import needs_java
from backstory.spark.versions import arrow_of
from backstory.stores.branches import BRANCH, DELIVERY, MAIN, PENDING, ancestors, head_of, preview_notes
from backstory.stores.connect.create import (
    ROWS,
    create,
    drop_or_rename,
    new_properties,
    require_alterable,
    reshape,
    set_properties,
)
from backstory.stores.connect.store import (
    ConnectStore,
    fast_forward,
    in_commit,
    require_unchanged,
)
from backstory.stores.iceberg.commit import commit, require_for_branch
from backstory.stores.iceberg.create import PROPERTIES
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import UPDATED_IN, frame_of, keeps_row_ids
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.positions import FEW
from backstory.stores.iceberg.schema import json_schema, spark_type
from backstory.stores.iceberg.slice import PLACE
from backstory.stores.iceberg.store import IcebergTable
from backstory.stores.port import conflict, refuse_names

_OUR_PROPERTIES: Final = "backstory."
MERGE_MODE: Final = "write.merge.mode"


@commit.register
def _(store: ConnectStore, table: IcebergTable | None, change: Change, note: Note) -> Commit:
    """Commit a change once. Without a table, the change creates it.

    Raises TryAgain if another writer committed first. Raises Refused for a name that no table can have, and
    UsageError for a change that only Java can make. A failed commit may leave files until snapshots expire.
    """
    if table is not None and change.tags:
        return _move_branches(store, table, change)
    if store.branch is not None:
        table = require_for_branch(store.branch, table, change)
    if table is not None and (change.dropped or (change.into and change.into.table != table.shape.table)):
        drop_or_rename(store, table, change)
        return Commit(None, change.counts)
    if table is None and change.recreate:  # SQL replaces no table, but can create one
        change = replace(change, recreate=store.has(cast("Shape", change.into).table))
    _require_sql(table, change)
    shape = change.into or cast("IcebergTable", table).shape
    change = replace(change, into=shape, added=_arrow(change.added), removed=_arrow(change.removed))
    if change.whole and change.added is not None and ROW_ID in change.added.column_names:
        raise needs_java("A rewrite of all rows, which keep their ids,")
    count = 0 if change.added is None else len(change.added)
    if change.expected not in {None, count}:
        raise conflict(shape.table)  # the source of the rows has changed since it was counted
    counts = change.counts
    if change.count_as:
        counts = {**counts, change.count_as: count}
    notes = {**note.properties(counts), **change.late_properties(_pending(table, shape))}
    snapshot = create(store, change, notes) if table is None else _change(store, table, change, notes)
    with translate_faults(shape.table):
        store.refresh(shape.table)
    COMMITS.inc()
    return Commit(snapshot, counts)


def _require_sql(table: IcebergTable | None, change: Change) -> None:
    """Raise UsageError for a change that SQL cannot make in one visible commit.

    Raises Refused for a name that no table can have.
    """
    into = change.into or (None if table is None else table.shape)
    parts = Change(**{name: getattr(change, name) for name in _BY_SQL})
    if into is None or change != parts:
        raise needs_java("This change of a table")
    refuse_names(into.names)
    if table is None:
        return
    require_alterable(table, change, into)
    if change.back_to is not None:
        _require_restorable(table, change, into)
    if table.properties.get(MERGE_MODE) != PROPERTIES[MERGE_MODE]:
        raise needs_java("A table whose files are written again by each MERGE")


# The parts of a change that SQL can make. A change with any other part is refused.
_BY_SQL: Final = (
    *("counts", "removed", "added", "into", "renamed", "properties"),
    *("whole", "snapshot", "count_as", "expected", "late_properties", "back_to"),
)


def _require_restorable(table: IcebergTable, change: Change, into: Shape) -> None:
    """Raise UsageError unless the table is a base with row ids and had the same columns at that snapshot.

    The state is restored by a new commit. In other layouts, however, the newest commit has a meaning of its
    own.
    """
    then = table.snapshot_by_id(change.back_to)
    has_columns = then is not None and then.get("schema-id") == table.schema_id and into == table.shape
    if into.layout is not Layout.BASE or not (has_columns and keeps_row_ids(table)):
        raise needs_java("A return to an earlier state")


def _arrow(rows: Any) -> Any:
    """Rows as an Arrow table. Positions by file are returned unchanged.

    Raises UsageError for a frame with more rows than may be collected.
    """
    if isinstance(rows, RowBatches):
        return pa.concat_tables(rows.tables())
    if rows is None or isinstance(rows, pa.Table | Mapping):
        return rows
    collected = arrow_of(rows.limit(FEW + 1))
    if len(collected) > FEW:
        raise needs_java(f"A change of more than {FEW} rows by Spark")
    return collected


def _pending(table: IcebergTable | None, shape: Shape) -> IcebergTable:
    """The table as it will be after the commit, without the ids of its new columns."""
    schema = {"schemas": [json_schema(shape.columns)], "current-schema-id": 0}
    if table is None:
        return IcebergTable(shape, schema, "")
    return replace(table, shape=shape, metadata={**table.metadata, **schema})


def _change(store: ConnectStore, table: IcebergTable, change: Change, notes: Mapping[str, str]) -> int:
    """Add columns, change rows, then set properties. Returns the snapshot."""
    shape, pending = cast("Shape", change.into), new_properties(table, change.properties)
    name, newest = table.shape.table, table.newest
    branch = DELIVERY + uuid.uuid4().hex
    onto = store.branch or MAIN
    # Until the branch is published, the commit does not count as one of the table's commits.
    if store.branch is not None:  # a preview: its properties stay pending, and the table does not follow it
        later = {**table.pending, **change.properties}
        notes = {**notes, **preview_notes(store.branch, later, table.stored)}
    else:
        notes = {**notes, BRANCH: branch, **({PENDING: json.dumps(pending)} if pending else {})}
    with in_commit(replace(store, branch=None), name, notes) as of_table:
        require_unchanged(of_table, table)
        if table.pending and onto == MAIN:
            # An interrupted delivery is completed first. Then this one is planned again.
            set_properties(of_table, name, table.pending)
            _drop_branches(of_table, name, table.finished)
            raise conflict(name)
        before = reshape(of_table, table, shape, change.renamed)
        # Branches of earlier deliveries. None of them can be published after this one.
        refs = (table.metadata.get("refs") or ()) if onto == MAIN else ()
        others = [other for other in refs if other.startswith(DELIVERY)]
        at = "" if newest is None else f" AS OF VERSION {newest.id}"
        of_table.spark.sql(f"ALTER TABLE {of_table.sql_name(name)} CREATE BRANCH {branch}{at}")
        with ExitStack() as undo:
            undo.callback(_drop_branches, of_table, name, [branch])
            # In a table without commits, Iceberg begins the branch with an empty commit.
            base = head_of(of_table.metadata(name), branch) if newest is None else newest.id
            with time_stage("write"):
                if change.back_to is not None:
                    snapshot = restore_rows(of_table, shape, change.back_to, branch, base)
                else:
                    stored = replace(of_table, branch=store.branch)
                    rows = stage_rows(stored, table, change)
                    snapshot = write_rows(of_table, change, rows, branch, base)
                if onto == MAIN:
                    _require_properties(of_table, name, before)
            undo.pop_all()
        # From here on, the branch may be published. The next commit completes any step that fails here.
        with time_stage("commit"):
            _publish(of_table, name, onto, branch, snapshot)
            with suppress(PySparkException):
                if pending and onto == MAIN and _has_branch(of_table, name, branch):
                    set_properties(of_table, name, pending)
                _drop_branches(of_table, name, [*others, branch])
        return snapshot


def _require_properties(store: ConnectStore, table: TableName, before: Mapping[str, str]) -> None:
    """Raise TryAgain if another writer has set properties.

    In a REST catalog, writers of properties also make a snapshot, so nothing needs to be checked.
    """
    if store.setting(f"spark.sql.catalog.{store.catalog}.type") == "rest":
        return
    now = store.metadata(table).get("properties") or {}
    if any(now.get(name) != before.get(name) for name in {*before, *now} if name.startswith(_OUR_PROPERTIES)):
        raise conflict(table)


def _has_branch(store: ConnectStore, table: TableName, branch: str) -> bool:
    """Whether the table still has this branch. Another writer that completes a delivery drops its branch."""
    store.spark.sql(f"REFRESH TABLE {store.sql_name(table)}")
    return bool(store.spark.table(store.sql_name(table, "refs")).where(f"name = '{branch}'").count())


def _drop_branches(store: ConnectStore, table: TableName, branches: Sequence[str]) -> None:
    """Drop the branches in the given order. After a failure, the next commit drops the rest."""
    with suppress(PySparkException):
        for each in branches:
            store.spark.sql(f"ALTER TABLE {store.sql_name(table)} DROP BRANCH IF EXISTS {quote(each)}")


def _publish(store: ConnectStore, table: TableName, onto: str, branch: str, snapshot: int) -> None:
    """Move the branch `onto`, which may be the table's main branch, to another branch's newest commit.

    Raises TryAgain unless `onto` is still at the commit where the other branch began. The response can be
    lost, so after an error the table's metadata shows whether `onto` has the snapshot.
    """
    try:
        fast_forward(store, table, onto, branch)
    except PySparkException:
        metadata = store.metadata(table)
        if snapshot not in {each["snapshot-id"] for each in ancestors(metadata, head_of(metadata, onto))}:
            raise


def _move_branches(store: ConnectStore, table: IcebergTable, change: Change) -> Commit:
    """Begin, publish or drop the branch of a preview.

    Raises UsageError for tags, and for a branch whose publication would set properties of the table.
    """
    rest = replace(change, tags={}, properties={}, back_to=None)
    is_branch = all(tag is None or tag.max_age is None for tag in change.tags.values())
    no_tag = not {name for name, tag in change.tags.items() if tag is None} & table.tags.keys()
    if rest != Change(counts=change.counts) or not (is_branch and no_tag and change.tags):
        raise needs_java("A tag, or this change of a table,")
    if new_properties(table, change.properties):
        branches = " ".join(change.tags)
        raise needs_java(
            "A branch that changes properties of its table", f"publish {table.shape.table} {branches}"
        )
    name = table.shape.table
    altering = f"ALTER TABLE {store.sql_name(name)}"
    with in_commit(store, name, {}) as own:
        require_unchanged(own, table)
        for branch, tag in change.tags.items():
            if tag is not None:
                own.spark.sql(f"{altering} CREATE BRANCH {quote(branch)} AS OF VERSION {tag.snapshot}")
                continue
            if change.back_to is not None:
                # The branch may get another commit, but only the planned commits are published.
                exactly = DELIVERY + uuid.uuid4().hex
                own.spark.sql(f"{altering} CREATE BRANCH {exactly} AS OF VERSION {change.back_to}")
                try:
                    _publish(own, name, MAIN, exactly, change.back_to)
                finally:
                    with suppress(PySparkException):
                        own.spark.sql(f"{altering} DROP BRANCH IF EXISTS {exactly}")
            if head_of(own.metadata(name), branch) == head_of(table.metadata, branch):
                own.spark.sql(f"{altering} DROP BRANCH {quote(branch)}")
    with translate_faults(name):
        store.refresh(name)
    return Commit(None, change.counts)


# The columns of staged rows in addition to the table's columns.
_ACTION: Final = "backstory action"
_STAGED: Final = (FILE, POSITION, _ACTION)
_UPDATE, _DELETE, _INSERT = "update", "delete", "insert"
# The aliases of the table and of the view. No column has such a name, because a column would be found first.
_TABLE, _OURS = "`backstory stored`", "`backstory staged`"
_AT_PLACE: Final = f"{_TABLE}.{FILE} = {_OURS}.{FILE} AND {_TABLE}.{POSITION} = {_OURS}.{POSITION}"
_ADDED, _GONE, _BACK = _SUMS = ("added-records", "added-position-deletes", "removed-position-deletes")


def write_rows(store: ConnectStore, change: Change, rows: pa.Table, branch: str, base: int | None) -> int:
    """Change the rows of the branch with one statement, and return its snapshot.

    A row that is removed and added with the same id is updated, and keeps its id. If rows are only added, no
    MERGE is needed, because a MERGE reads the table. Raises TryAgain if the branch is gone, and Failed if the
    snapshot does not have exactly these rows.
    """
    shape, actions = cast("Shape", change.into), Counter(rows[_ACTION].to_pylist())
    frame_of(store, rows).createOrReplaceTempView(ROWS)
    values = {
        each.name: f"CAST({_OURS}.{quote(each.name)} AS {spark_type(each.type)})" for each in shape.columns
    }
    target, names = store.sql_name(shape.table, f"branch_{branch}"), ", ".join(map(quote, values))
    selected = f"({names}) SELECT {', '.join(values.values())} FROM {ROWS} AS {_OURS}"  # noqa: S608 - quoted
    if {*actions} <= {_INSERT}:
        statement = f"INSERT {'OVERWRITE' if change.whole else 'INTO'} {target} {selected}"
    else:
        statement = (
            f"MERGE INTO {target} AS {_TABLE} "  # noqa: S608 - quoted names
            f"USING {ROWS} AS {_OURS} ON {_AT_PLACE} "
            f"WHEN MATCHED AND {_OURS}.{quote(_ACTION)} = '{_UPDATE}' THEN UPDATE SET "
            f"{', '.join(f'{_TABLE}.{quote(each)} = {value}' for each, value in values.items())} "
            f"WHEN MATCHED THEN DELETE "
            f"WHEN NOT MATCHED AND {_OURS}.{quote(_ACTION)} = '{_INSERT}' "
            f"THEN INSERT ({names}) VALUES ({', '.join(values.values())})"
        )
    store.spark.sql(statement)
    made, sums = _commit_on_branch(store, shape.table, branch, base)
    added, gone = actions[_UPDATE] + actions[_INSERT], actions[_UPDATE] + actions[_DELETE]
    if change.whole:  # all former rows and the files of their deletions are removed
        is_complete = int(made.summary["total-records"]) == sums[_ADDED] == added
    else:
        is_complete = (added, gone) == (sums[_ADDED], sums[_GONE] - sums[_BACK])
    if not is_complete:
        raise _other_rows(shape.table)
    return int(made.snapshot_id)


def restore_rows(store: ConnectStore, shape: Shape, then: int, branch: str, base: int | None) -> int:
    """Restore the rows of an earlier snapshot on the branch with one statement, and return its snapshot.

    Rows that the branch still has keep their ids. Restored rows get new ids.
    """
    names = list(map(quote, shape.names))
    values = [f"{_OURS}.{name}" for name in names]
    former = f"SELECT {', '.join(names)}, {ROW_ID}, {UPDATED_IN} FROM {store.sql_name(shape.table)}"  # noqa: S608
    store.spark.sql(
        f"MERGE INTO {store.sql_name(shape.table, f'branch_{branch}')} AS {_TABLE} "  # noqa: S608
        f"USING ({former} VERSION AS OF {then}) AS {_OURS} ON {_TABLE}.{ROW_ID} = {_OURS}.{ROW_ID} "
        f"WHEN MATCHED AND {_TABLE}.{UPDATED_IN} <> {_OURS}.{UPDATED_IN} THEN UPDATE SET "
        f"{', '.join(f'{_TABLE}.{name} = {value}' for name, value in zip(names, values, strict=True))} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(values)}) "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )
    made, _ = _commit_on_branch(store, shape.table, branch, base)
    return int(made.snapshot_id)


def _commit_on_branch(
    store: ConnectStore, name: TableName, branch: str, base: int | None
) -> tuple[Any, dict[str, int]]:
    """The commit that a statement made on the branch, and its row counts.

    Raises TryAgain if another delivery dropped the branch.
    """
    made = store.spark.sql(
        f"SELECT s.snapshot_id, s.parent_id, s.summary FROM {store.sql_name(name, 'snapshots')} AS s "  # noqa: S608
        f"JOIN {store.sql_name(name, 'refs')} AS r ON r.snapshot_id = s.snapshot_id WHERE r.name = '{branch}'"
    ).collect()
    if not made or made[0].parent_id != base:
        raise conflict(name)  # another delivery dropped the branch, and the statement may have made a new one
    return made[0], {each: int(made[0].summary.get(each, 0)) for each in _SUMS}


def stage_rows(store: ConnectStore, table: IcebergTable, change: Change) -> pa.Table:
    """The rows that the statement merges: the places of removed rows, and the added rows.

    An added row has the place of the removed row with the same id, if there is one. Raises Failed if ids do
    not match the removed rows.
    """
    shape, added = cast("Shape", change.into), change.added
    schema = arrow_schema({each.name: each.type for each in shape.columns})
    places, rows = (
        _places(change.removed),
        schema.empty_table() if added is None else added.select(schema.names),
    )
    at = ids = pa.nulls(len(rows), pa.int64())
    if added is not None and ROW_ID in added.column_names:
        ids = added[ROW_ID].combine_chunks()
    if ids.null_count < len(ids):
        at = pc.index_in(ids, value_set=_row_ids(store, table, places)).cast(pa.int64())
        if at.null_count != ids.null_count or len(at.drop_null()) != len(pc.unique(at.drop_null())):
            raise _other_rows(table.shape.table)
    gone = pc.invert(pc.is_in(pa.array(range(len(places)), pa.int64()), value_set=at))
    actions = pc.if_else(pc.is_valid(at), _UPDATE, _INSERT)
    changed = pa.table([*rows.columns, *places.take(at).columns, actions], [*schema.names, *_STAGED])
    ending = places.filter(gone)
    nothing = [pa.nulls(len(ending), field.type) for field in schema]
    ended = pa.table([*nothing, *ending.columns, pa.repeat(_DELETE, len(ending))], [*schema.names, *_STAGED])
    return pa.concat_tables([changed, ended]).unify_dictionaries()


def _places(removed: pa.Table | Mapping[str, Any] | None) -> pa.Table:
    """The files and positions of removed rows, as one table."""
    if removed is None:
        return PLACE.empty_table()
    if isinstance(removed, pa.Table):
        return removed.select(PLACE.names).cast(PLACE)
    parts = [
        pa.table([pa.repeat(file, len(positions)), pa.array(list(positions), pa.int64())], schema=PLACE)
        for file, positions in removed.items()
    ]
    return pa.concat_tables([PLACE.empty_table(), *parts])


def _row_ids(store: ConnectStore, table: IcebergTable, places: pa.Table) -> pa.Array:
    """The row id at each place. Raises TryAgain if a place no longer has a row."""
    frame_of(store, places).createOrReplaceTempView(ROWS)
    query = (
        f"SELECT {_TABLE}.{FILE}, {_TABLE}.{POSITION}, {_TABLE}.{ROW_ID} "  # noqa: S608 - quoted names
        f"FROM {store.sql_name(table.shape.table)} AS {_TABLE} JOIN {ROWS} AS {_OURS} ON {_AT_PLACE}"
    )
    rows = arrow_of(store.spark.sql(query))
    if len(rows) != len(places):
        raise conflict(table.shape.table)
    found = places.append_column("place", pa.array(range(len(places)))).join(rows, PLACE.names)
    return found.sort_by("place")[ROW_ID].combine_chunks()


def _other_rows(table: TableName) -> Failed:
    return Failed(
        "other-rows",
        f"Spark would change other rows of {table} than planned.",
        "The table is unchanged; please report this with the versions of Spark and Iceberg.",
    )
