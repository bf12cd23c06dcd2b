"""The one way to change a table over Spark Connect: a MERGE into a branch, which the table then follows.

The branch begins at the snapshot of the plan. Iceberg moves `main` to it only while `main` is still there, so
that a plan and its commit are tied to each other. A new table is created with its rows at once.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import Failed
from backstory.formats.delivered import arrow_schema
from backstory.model.change import COLUMNS_STATE, Change, Commit, Note, RowBatches
from backstory.model.layout import FILE, POSITION, ROW_ID, YEAR, Layout
from backstory.model.table import Shape, TableName
from backstory.model.types import added_fields, widens
from backstory.observe.metrics import COMMITS, time_stage
from backstory.spark.connect import needs_java
from backstory.spark.session_settings import OUR_SETTINGS
from backstory.spark.versions import arrow_of, frame_of_arrow
from backstory.stores.branches import BRANCH, DELIVERY, MAIN, PENDING, ancestors, head_of
from backstory.stores.commit import commit as commit_of
from backstory.stores.connect.store import ConnectStore
from backstory.stores.iceberg.commit import require_for_branch
from backstory.stores.iceberg.create import PROPERTIES, refuse_paths, table_properties
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import spark_fields, without_row_ids
from backstory.stores.iceberg.literals import column, quote, text_literal
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.slice import PLACE
from backstory.stores.iceberg.store import SOURCE_NAMES, IcebergTable, source_names
from backstory.stores.port import refuse_names
from backstory.stores.refusals import conflict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The setting of a session that its commits contain as a property.
NOTE: Final = "spark.sql.iceberg.snapshot-property."
# The view of staged rows, and their columns besides the table's.
_ROWS: Final = "backstory_rows"
_ACTION: Final = "backstory action"
# Names for both in a statement, which no column has: a column would be found first.
_TABLE, _OURS = "`backstory stored`", "`backstory staged`"
_AT_PLACE: Final = f"{_TABLE}.{FILE} = {_OURS}.{FILE} AND {_TABLE}.{POSITION} = {_OURS}.{POSITION}"
_OUR_PROPERTIES: Final = "backstory."
MERGE_MODE: Final = "write.merge.mode"
_UPDATE, _DELETE, _INSERT = "update", "delete", "insert"
# Texts in Spark's errors that mean that another writer was faster.
_CONFLICTS: Final = (
    "CommitFailedException",
    "ValidationException",
    "AlreadyExistsException",
    "TABLE_OR_VIEW_ALREADY_EXISTS",
    "is not an ancestor of",
    "branch does not exist",
    "already exists",
    "Ref does not exist",
)


@commit_of.register(ConnectStore)
def commit(store: ConnectStore, table: IcebergTable | None, change: Change, note: Note) -> Commit:
    """Commit a change once; without a table the change creates it.

    Raises TryAgain if another writer committed first, Refused for a name that no table can have, and
    UsageError for a change that only Java makes. A failed commit may leave files, until snapshots expire.
    """
    if table is not None and (change.tags or change.back_to is not None):
        return _move_branches(store, table, change)
    if store.branch is not None:
        table = require_for_branch(store.branch, table, change)
    _require_sql(table, change)
    shape, added = change.into or cast("IcebergTable", table).shape, _arrow(change.added)
    count = 0 if added is None else len(added)
    if change.expected not in {None, count}:
        raise conflict(shape.table)  # their source has changed since it was counted
    counts = change.counts
    if change.count_as:
        counts = {**counts, change.count_as: count}
    notes = {**note.properties(counts), **change.late_properties(table)}
    if table is None:
        snapshot = _create(store, shape, change.properties, added, notes)
    else:
        snapshot = _change(store, table, replace(change, into=shape), added, notes)
    with translate_faults(shape.table):
        store.refresh(shape.table)
    COMMITS.inc()
    return Commit(snapshot, counts)


def _require_sql(table: IcebergTable | None, change: Change) -> None:
    """Raise UsageError for a change that SQL does not make by one visible commit."""
    into = change.into or (None if table is None else table.shape)
    plain = all(isinstance(rows, _PLAIN) for rows in (change.added, change.removed))
    parts = Change(**{name: getattr(change, name) for name in _BY_SQL})
    if not plain or into is None or change != parts:
        raise needs_java("This change of a table")
    if into.layout not in {Layout.VERSIONS, Layout.RUN_LOG}:
        raise needs_java(f"A table of layout {into.layout}")
    if table is None:
        return
    _require_alterable(table, change, into)
    if table.properties.get(MERGE_MODE) != PROPERTIES[MERGE_MODE]:
        raise needs_java("A table whose files are written again by each MERGE")
    if table.iceberg.currentSnapshot() is None:
        raise needs_java("The first commit to an empty table")


# The parts of a change that SQL makes; with any other part it is refused.
_BY_SQL: Final = (
    *("counts", "removed", "added", "into", "renamed", "properties"),
    *("snapshot", "count_as", "expected", "late_properties"),
)
_PLAIN: Final = (pa.Table, RowBatches, Mapping, type(None))


def _arrow(rows: pa.Table | RowBatches | None) -> pa.Table | None:
    return pa.concat_tables(rows.tables()) if isinstance(rows, RowBatches) else rows


@contextmanager
def _session(store: ConnectStore, table: TableName, notes: Mapping[str, str]) -> Iterator["SparkSession"]:
    """A session of one commit, whose settings are the commit's notes; no other commit gets them.

    Raises TryAgain if another writer was faster.
    """
    from pyspark.errors import PySparkException

    session: Any = store.spark.cloneSession()  # type: ignore[attr-defined]
    try:
        for name, value in OUR_SETTINGS.items():
            session.conf.set(name, value)
        for name, value in notes.items():
            session.conf.set(NOTE + name, value)
        with translate_faults(table):
            try:
                yield session
            except PySparkException as fault:
                if any(text in str(fault) for text in _CONFLICTS):
                    raise conflict(table) from fault
                raise
    finally:
        with suppress(PySparkException):
            session.client.release_session()


def _create(
    store: ConnectStore,
    shape: Shape,
    properties: Mapping[str, str | None],
    added: pa.Table | None,
    notes: Mapping[str, str],
) -> int:
    """Create a table of this shape with its rows, at once; returns its first snapshot."""
    from pyspark.sql.functions import partitioning

    refuse_names(store.reserves, shape.names)
    refuse_paths(shape.table)
    schema = arrow_schema({each.name: each.type for each in shape.columns})
    rows = schema.empty_table() if added is None else without_row_ids(added).select(schema.names)
    with _session(store, shape.table, notes) as session:
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {quote(store.catalog)}.{quote(shape.table.schema)}")
        typed = _frame(session, rows).select(
            *(
                column(each.name).cast(spark_type(each.type)).alias(each.name, metadata={"comment": each.doc})
                for each in shape.columns
            )
        )
        writer = typed.writeTo(store.sql_name(shape.table)).using("iceberg")
        for name, value in {**table_properties(store, shape), **properties}.items():
            writer = writer.tableProperty(name, value or "")
        parts = [
            partitioning.years(quote(name)) if transform == YEAR else column(name)
            for transform, name in shape.layout.partitioning
        ]
        with time_stage("commit"):
            (writer.partitionedBy(*parts) if parts else writer).create()
        if shape.layout.is_sorted and shape.key:
            order = ", ".join(map(quote, shape.key))
            session.sql(f"ALTER TABLE {store.sql_name(shape.table)} WRITE LOCALLY ORDERED BY {order}")
        snapshots = session.table(store.sql_name(shape.table, "snapshots"))
        return int(snapshots.where("parent_id IS NULL").collect()[0].snapshot_id)


def _frame(session: "SparkSession", rows: pa.Table) -> "DataFrame":
    return frame_of_arrow(session, rows, spark_fields(rows.schema))


def _change(
    store: ConnectStore,
    table: IcebergTable,
    change: Change,
    added: pa.Table | None,
    notes: Mapping[str, str],
) -> int:
    """Add columns, change rows, then set properties; returns the snapshot."""
    from pyspark.errors import PySparkException

    shape, pending = cast("Shape", change.into), _new_properties(table, change.properties)
    name, base = table.shape.table, int(table.iceberg.currentSnapshot().snapshotId())
    branch = DELIVERY + uuid.uuid4().hex
    of_table, onto = replace(store, branch=None), store.branch or MAIN
    # Until the branch is published, the commit does not count as one of the table.
    if store.branch is not None:  # a preview: its properties stay pending, and the table does not follow it
        notes = {**notes, BRANCH: store.branch, PENDING: json.dumps({**table.pending, **change.properties})}
    else:
        notes = {**notes, BRANCH: branch, **({PENDING: json.dumps(pending)} if pending else {})}
    with _session(store, name, notes) as session:
        session.sql(f"REFRESH TABLE {of_table.sql_name(name)}")
        if store.metadata_location(name, session) != table.metadata:
            raise conflict(name)
        if table.pending and onto == MAIN:
            # A delivery was interrupted: it is completed, then this one is planned again.
            _set_properties(store, session, name, table.pending)
            _drop_branches(store, session, name, table.finished)
            raise conflict(name)
        before = _reshape(of_table, session, table, shape, change.renamed)
        # Branches that began before: none of them can be published once this one is the table.
        refs = table.iceberg.refs() if onto == MAIN else ()
        others = [other for other in refs if other.startswith(DELIVERY)]
        session.sql(f"ALTER TABLE {of_table.sql_name(name)} CREATE BRANCH {branch} AS OF VERSION {base}")
        with ExitStack() as undo:
            undo.callback(_drop_branches, of_table, session, name, [branch])
            with time_stage("write"):
                rows = _staged_rows(session, store, table, change.removed, added, shape)
                snapshot = _write(of_table, session, shape, rows, branch, base)
                if onto == MAIN:
                    _require_properties(store, name, before)
            undo.pop_all()
        # From here on the table may have followed the branch: the next commit does what fails here.
        with time_stage("commit"):
            _publish(of_table, session, name, onto, branch, snapshot)
            with suppress(PySparkException):
                if pending and onto == MAIN and _has_branch(store, session, name, branch):
                    _set_properties(store, session, name, pending)
                _drop_branches(of_table, session, name, [*others, branch])
        return snapshot


def _new_properties(table: IcebergTable, properties: Mapping[str, str | None]) -> dict[str, str | None]:
    """The properties whose value the table does not have yet."""
    return {name: value for name, value in properties.items() if table.properties.get(name) != value}


def _require_properties(store: ConnectStore, table: TableName, before: Mapping[str, str]) -> None:
    """Raise TryAgain if another writer has set properties; a REST catalog makes a snapshot then."""
    if store.setting(f"spark.sql.catalog.{store.catalog}.type") == "rest":
        return
    now = store.find(table)
    if now is None or any(
        now.properties().get(name) != before.get(name)
        for name in {*before, *now.properties()}
        if name.startswith(_OUR_PROPERTIES)
    ):
        raise conflict(table)


def _has_branch(store: ConnectStore, session: "SparkSession", table: TableName, branch: str) -> bool:
    """Whether the table still has this branch: another writer that completes a delivery drops its branch."""
    session.sql(f"REFRESH TABLE {store.sql_name(table)}")
    return bool(session.table(store.sql_name(table, "refs")).where(f"name = '{branch}'").count())


def _drop_branches(
    store: ConnectStore, session: "SparkSession", table: TableName, branches: Sequence[str]
) -> None:
    """Drop branches in this order; after a failure the next commit drops the rest."""
    from pyspark.errors import PySparkException

    with suppress(PySparkException):
        for each in branches:
            session.sql(f"ALTER TABLE {store.sql_name(table)} DROP BRANCH IF EXISTS {quote(each)}")


def _set_properties(
    store: ConnectStore, session: "SparkSession", table: TableName, properties: Mapping[str, str | None]
) -> None:
    """Set properties of the table; None removes one."""
    altering = f"ALTER TABLE {store.sql_name(table)}"
    pairs = [
        f"{text_literal(name)} = {text_literal(value)}"
        for name, value in properties.items()
        if value is not None
    ]
    removed = [text_literal(name) for name, value in properties.items() if value is None]
    if removed:
        session.sql(f"{altering} UNSET TBLPROPERTIES IF EXISTS ({', '.join(removed)})")
    if pairs:
        session.sql(f"{altering} SET TBLPROPERTIES ({', '.join(pairs)})")


def _reshape(
    store: ConnectStore, session: "SparkSession", table: IcebergTable, into: Shape, renamed: Mapping[str, str]
) -> Mapping[str, str]:
    """Give the table the columns of the new shape; a kill before the rows leaves columns without new values.

    The properties are set first, so that a new column is never taken for another one of its source. Returns
    the table's properties.
    """
    refuse_names(store.reserves, into.names)
    altering = f"ALTER TABLE {store.sql_name(table.shape.table)}"
    statements = [f"{altering} {clause}" for clause in _alterations(table.shape, into, renamed)]
    state = str(max(map(int, table.iceberg.schemas())) + len(statements) if statements else table.schema_id)
    properties = {SOURCE_NAMES: source_names(into), COLUMNS_STATE: state}
    if source_names(into) == source_names(table.shape):
        del properties[SOURCE_NAMES]
    if table.properties.get(COLUMNS_STATE) in {None, state}:
        del properties[COLUMNS_STATE]
    _set_properties(store, session, table.shape.table, properties)
    for statement in statements:
        session.sql(statement)
    return {**table.properties, **properties}


def _alterations(before: Shape, into: Shape, renamed: Mapping[str, str]) -> Iterator[str]:
    """The clauses that change the columns, each of which leaves a table that can be read.

    A type is widened before its comment, which contains it, and which is valid only for a type that fits.
    """
    for old, new in renamed.items():
        if old != new:
            yield f"RENAME COLUMN {quote(old)} TO {quote(new)}"
    known = {renamed.get(each.name, each.name): each.type for each in before.columns}
    wider = [
        each
        for each in into.columns
        if each.name in known and each.type != known[each.name] and widens(known[each.name], each.type)
    ]
    types = [
        f"{quote(each.name)} TYPE {spark_type(each.type)}"
        for each in wider
        if spark_type(each.type) != spark_type(known[each.name])
    ]
    if types:
        yield f"ALTER COLUMN {', '.join(types)}"
    if wider:
        yield "ALTER COLUMN " + ", ".join(
            f"{quote(each.name)} COMMENT {text_literal(each.doc)}" for each in wider
        )
    places = ("FIRST", *(f"AFTER {quote(name)}" for name in into.names))
    # New columns come first, because copies remember their ids.
    added = [
        f"{quote(each.name)} {spark_type(each.type)} COMMENT {text_literal(each.doc)} {place}"
        for each, place in zip(into.columns, places, strict=False)
        if each.name not in known
    ]
    added += [
        f"{'.'.join(map(quote, (each.name, *part.within, part.name)))} {spark_type(part.type)}"
        for each in into.columns
        if each.name in known
        for part in added_fields(known[each.name], each.type) or ()
    ]
    if added:
        yield f"ADD COLUMNS ({', '.join(added)})"


def _require_alterable(table: IcebergTable, change: Change, into: Shape) -> None:
    """Raise UsageError for a shape to which no series of statements leads that may end at any time."""
    before, renamed = table.shape, {old: new for old, new in change.renamed.items() if old != new}
    if into.table != before.table or into.layout is not before.layout:
        raise needs_java("Another name or layout of a table")
    settings = _new_properties(table, change.properties)
    texts = [*settings.values(), *(table.properties.get(name) for name in settings)]
    names_one = any(
        json.dumps(name, ensure_ascii=False) in (text or "")
        for name in chain(*renamed.items())
        for text in texts
    )
    if {*renamed} & {*before.key} or {*renamed.values()} & {*before.names} or names_one:
        raise needs_java("A new name for a key column, or for a column that options of the table name,")
    if any(column.source_name for column in before.columns if column.name in renamed):
        raise needs_java("Another source of a column")
    known = {renamed.get(each.name, each.name): each.type for each in before.columns}
    if [name for name in into.names if name in known] != [*known]:
        raise needs_java("A dropped column, or another order of columns,")
    for each in into.columns:
        type_ = known.get(each.name, each.type)
        if not (widens(type_, each.type) or added_fields(type_, each.type)):
            raise needs_java(f"A type of column {each.name} to which its own does not widen")


def _write(
    store: ConnectStore, session: "SparkSession", shape: Shape, rows: pa.Table, branch: str, base: int
) -> int:
    """Change the rows of the branch by one statement; returns its snapshot.

    A row that is removed and added with the same id is updated, and keeps its id. A MERGE reads the table;
    new rows alone need none. Raises TryAgain if the branch is gone, and Failed if the snapshot does not have
    exactly these rows.
    """
    name, actions = shape.table, Counter(rows[_ACTION].to_pylist())
    _frame(session, rows).createOrReplaceTempView(_ROWS)
    values = {
        each.name: f"CAST({_OURS}.{quote(each.name)} AS {spark_type(each.type)})" for each in shape.columns
    }
    target, names = store.sql_name(name, f"branch_{branch}"), ", ".join(map(quote, values))
    if {*actions} <= {_INSERT}:
        statement = (
            f"INSERT INTO {target} ({names}) SELECT {', '.join(values.values())} FROM {_ROWS} AS {_OURS}"  # noqa: S608
        )
    else:
        statement = (
            f"MERGE INTO {target} AS {_TABLE} "  # noqa: S608 - quoted names
            f"USING {_ROWS} AS {_OURS} ON {_AT_PLACE} "
            f"WHEN MATCHED AND {_OURS}.{quote(_ACTION)} = '{_UPDATE}' THEN UPDATE SET "
            f"{', '.join(f'{_TABLE}.{quote(each)} = {value}' for each, value in values.items())} "
            f"WHEN MATCHED THEN DELETE "
            f"WHEN NOT MATCHED AND {_OURS}.{quote(_ACTION)} = '{_INSERT}' "
            f"THEN INSERT ({names}) VALUES ({', '.join(values.values())})"
        )
    session.sql(statement)
    made = session.sql(
        f"SELECT s.snapshot_id, s.parent_id, s.summary FROM {store.sql_name(name, 'snapshots')} AS s "  # noqa: S608
        f"JOIN {store.sql_name(name, 'refs')} AS r ON r.snapshot_id = s.snapshot_id WHERE r.name = '{branch}'"
    ).collect()
    if not made or made[0].parent_id != base:
        raise conflict(name)  # another delivery dropped the branch, and the statement may have begun one
    sums = {each: int(made[0].summary.get(each, 0)) for each in _SUMS}
    added, gone = actions[_UPDATE] + actions[_INSERT], actions[_UPDATE] + actions[_DELETE]
    if (added, gone) != (sums[_ADDED], sums[_GONE] - sums[_BACK]):
        raise _other_rows(name)
    return int(made[0].snapshot_id)


_ADDED, _GONE, _BACK = _SUMS = ("added-records", "added-position-deletes", "removed-position-deletes")


def _staged_rows(
    session: "SparkSession",
    store: ConnectStore,
    table: IcebergTable,
    removed: Any,
    added: pa.Table | None,
    shape: Shape,
) -> pa.Table:
    """The rows of the statement: removed places, and added rows at the place of the row with their id."""
    schema = arrow_schema({each.name: each.type for each in shape.columns})
    places, rows = _places(removed), schema.empty_table() if added is None else added.select(schema.names)
    nowhere, ids = pa.nulls(len(rows), pa.int64()), pa.nulls(len(rows), pa.int64())
    if added is not None and ROW_ID in added.column_names:
        ids = added[ROW_ID].combine_chunks()
    at = nowhere
    if ids.null_count < len(ids):
        at = pc.index_in(ids, value_set=_row_ids(session, store, table, places)).cast(pa.int64())
        if at.null_count != ids.null_count or len(at.drop_null()) != len(pc.unique(at.drop_null())):
            raise _other_rows(table.shape.table)
    gone = pc.invert(pc.is_in(pa.array(range(len(places)), pa.int64()), value_set=at))
    actions = pc.if_else(pc.is_valid(at), _UPDATE, _INSERT)
    changed = pa.table([*rows.columns, *places.take(at).columns, actions], [*schema.names, *_STAGED])
    ending = places.filter(gone)
    nothing = [pa.nulls(len(ending), field.type) for field in schema]
    ended = pa.table([*nothing, *ending.columns, pa.repeat(_DELETE, len(ending))], [*schema.names, *_STAGED])
    return pa.concat_tables([changed, ended]).unify_dictionaries()


_STAGED: Final = (FILE, POSITION, _ACTION)


def _places(removed: pa.Table | Mapping[str, Any] | None) -> pa.Table:
    """Places of rows as a table."""
    if removed is None:
        return PLACE.empty_table()
    if isinstance(removed, pa.Table):
        return removed.select(PLACE.names).cast(PLACE)
    parts = [
        pa.table([pa.repeat(file, len(positions)), pa.array(list(positions), pa.int64())], schema=PLACE)
        for file, positions in removed.items()
    ]
    return pa.concat_tables([PLACE.empty_table(), *parts])


def _row_ids(session: "SparkSession", store: ConnectStore, table: IcebergTable, places: pa.Table) -> pa.Array:
    """The row id at each place; TryAgain if a place has no row any more."""
    _frame(session, places).createOrReplaceTempView(_ROWS)
    query = (
        f"SELECT {_TABLE}.{FILE}, {_TABLE}.{POSITION}, {_TABLE}.{ROW_ID} "  # noqa: S608 - quoted names
        f"FROM {store.sql_name(table.shape.table)} AS {_TABLE} JOIN {_ROWS} AS {_OURS} ON {_AT_PLACE}"
    )
    rows = arrow_of(session.sql(query))
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


def _publish(
    store: ConnectStore, session: "SparkSession", table: TableName, onto: str, branch: str, snapshot: int
) -> None:
    """Move the table, or its branch `onto`, to another branch; TryAgain unless it is where that one began.

    The answer can be lost: the table is asked whether it has the snapshot.
    """
    from pyspark.errors import PySparkException

    name = text_literal(f"{quote(table.schema)}.{quote(table.name)}")
    try:
        session.sql(
            f"CALL {quote(store.catalog)}.system.fast_forward({name}, '{onto}', '{branch}')"
        ).collect()
    except PySparkException:
        metadata = store.find(table).json
        if snapshot not in {each["snapshot-id"] for each in ancestors(metadata, head_of(metadata, onto))}:
            raise


def _move_branches(store: ConnectStore, table: IcebergTable, change: Change) -> Commit:
    """Begin, publish or drop the branch of a preview.

    Raises UsageError for tags, and for a branch whose publication would set properties of the table.
    """
    from pyspark.errors import PySparkException

    rest = replace(change, tags={}, properties={}, back_to=None)
    is_branch = all(tag is None or tag.max_age is None for tag in change.tags.values())
    no_tag = not {name for name, tag in change.tags.items() if tag is None} & table.tags.keys()
    if rest != Change(counts=change.counts) or not (is_branch and no_tag and change.tags):
        raise needs_java("A tag, or this change of a table,")
    if _new_properties(table, change.properties):
        raise needs_java("A branch that changes properties of its table")
    name = table.shape.table
    altering = f"ALTER TABLE {store.sql_name(name)}"
    with _session(store, name, {}) as session:
        session.sql(f"REFRESH TABLE {store.sql_name(name)}")
        if store.metadata_location(name, session) != table.metadata:
            raise conflict(name)
        for branch, tag in change.tags.items():
            if tag is not None:
                session.sql(f"{altering} CREATE BRANCH {quote(branch)} AS OF VERSION {tag.snapshot}")
                continue
            if change.back_to is not None:
                # The branch may get another commit: exactly the planned ones are published.
                exactly = DELIVERY + uuid.uuid4().hex
                session.sql(f"{altering} CREATE BRANCH {exactly} AS OF VERSION {change.back_to}")
                try:
                    _publish(store, session, name, MAIN, exactly, change.back_to)
                finally:
                    with suppress(PySparkException):
                        session.sql(f"{altering} DROP BRANCH IF EXISTS {exactly}")
            head = head_of(table.iceberg.json, branch)
            if head_of(store.find(name).json, branch) == head:
                session.sql(f"{altering} DROP BRANCH {quote(branch)}")
    with translate_faults(name):
        store.refresh(name)
    return Commit(None, change.counts)
