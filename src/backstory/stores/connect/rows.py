"""The rows of a commit over Spark Connect: one statement changes a branch by file and position."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import Failed
from backstory.formats.delivered import arrow_schema
from backstory.model.layout import FILE, POSITION, ROW_ID
from backstory.model.table import Shape, TableName
from backstory.spark.versions import arrow_of, frame_of_arrow
from backstory.stores.connect.store import ConnectStore
from backstory.stores.iceberg.frames import UPDATED_IN, spark_fields
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.slice import PLACE
from backstory.stores.iceberg.store import IcebergTable
from backstory.stores.refusals import conflict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The view of staged rows, and its columns in addition to the table's columns.
_ROWS: Final = "backstory_rows"
_ACTION: Final = "backstory action"
_STAGED: Final = (FILE, POSITION, _ACTION)
_UPDATE, _DELETE, _INSERT = "update", "delete", "insert"
# The aliases of the table and of the view. No column has such a name, because a column would be found first.
_TABLE, _OURS = "`backstory stored`", "`backstory staged`"
_AT_PLACE: Final = f"{_TABLE}.{FILE} = {_OURS}.{FILE} AND {_TABLE}.{POSITION} = {_OURS}.{POSITION}"
_ADDED, _GONE, _BACK = _SUMS = ("added-records", "added-position-deletes", "removed-position-deletes")


def frame_in(session: "SparkSession", rows: pa.Table) -> "DataFrame":
    return frame_of_arrow(session, rows, spark_fields(rows.schema))


def write_rows(
    store: ConnectStore,
    session: "SparkSession",
    shape: Shape,
    rows: pa.Table,
    branch: str,
    base: int | None,
    *,
    whole: bool,
) -> int:
    """Change the rows of the branch with one statement, and return its snapshot. `whole` replaces all rows.

    A row that is removed and added with the same id is updated, and keeps its id. If rows are only added, no
    MERGE is needed, because a MERGE reads the table. Raises TryAgain if the branch is gone, and Failed if the
    snapshot does not have exactly these rows.
    """
    name, actions = shape.table, Counter(rows[_ACTION].to_pylist())
    frame_in(session, rows).createOrReplaceTempView(_ROWS)
    values = {
        each.name: f"CAST({_OURS}.{quote(each.name)} AS {spark_type(each.type)})" for each in shape.columns
    }
    target, names = store.sql_name(name, f"branch_{branch}"), ", ".join(map(quote, values))
    selected = f"({names}) SELECT {', '.join(values.values())} FROM {_ROWS} AS {_OURS}"  # noqa: S608 - quoted
    if {*actions} <= {_INSERT}:
        statement = f"INSERT {'OVERWRITE' if whole else 'INTO'} {target} {selected}"
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
    made, sums = _commit_on_branch(store, session, name, branch, base)
    added, gone = actions[_UPDATE] + actions[_INSERT], actions[_UPDATE] + actions[_DELETE]
    if whole:  # all former rows and the files of their deletions are removed
        is_complete = int(made.summary["total-records"]) == sums[_ADDED] == added
    else:
        is_complete = (added, gone) == (sums[_ADDED], sums[_GONE] - sums[_BACK])
    if not is_complete:
        raise _other_rows(name)
    return int(made.snapshot_id)


def restore_rows(
    store: ConnectStore, session: "SparkSession", shape: Shape, then: int, branch: str, base: int | None
) -> int:
    """Restore the rows of an earlier snapshot on the branch with one statement, and return its snapshot.

    Rows that the branch still has keep their ids. Restored rows get new ids.
    """
    names = list(map(quote, shape.names))
    values = [f"{_OURS}.{name}" for name in names]
    former = f"SELECT {', '.join(names)}, {ROW_ID}, {UPDATED_IN} FROM {store.sql_name(shape.table)}"  # noqa: S608
    session.sql(
        f"MERGE INTO {store.sql_name(shape.table, f'branch_{branch}')} AS {_TABLE} "  # noqa: S608
        f"USING ({former} VERSION AS OF {then}) AS {_OURS} ON {_TABLE}.{ROW_ID} = {_OURS}.{ROW_ID} "
        f"WHEN MATCHED AND {_TABLE}.{UPDATED_IN} <> {_OURS}.{UPDATED_IN} THEN UPDATE SET "
        f"{', '.join(f'{_TABLE}.{name} = {value}' for name, value in zip(names, values, strict=True))} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(values)}) "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )
    made, _ = _commit_on_branch(store, session, shape.table, branch, base)
    return int(made.snapshot_id)


def _commit_on_branch(
    store: ConnectStore, session: "SparkSession", name: TableName, branch: str, base: int | None
) -> tuple[Any, dict[str, int]]:
    """The commit that a statement made on the branch, and its row counts.

    Raises TryAgain if another delivery dropped the branch.
    """
    made = session.sql(
        f"SELECT s.snapshot_id, s.parent_id, s.summary FROM {store.sql_name(name, 'snapshots')} AS s "  # noqa: S608
        f"JOIN {store.sql_name(name, 'refs')} AS r ON r.snapshot_id = s.snapshot_id WHERE r.name = '{branch}'"
    ).collect()
    if not made or made[0].parent_id != base:
        raise conflict(name)  # another delivery dropped the branch, and the statement may have made a new one
    return made[0], {each: int(made[0].summary.get(each, 0)) for each in _SUMS}


def stage_rows(
    session: "SparkSession",
    store: ConnectStore,
    table: IcebergTable,
    removed: Any,
    added: pa.Table | None,
    shape: Shape,
) -> pa.Table:
    """The rows of the statement: removed places, and added rows.

    An added row has the place of the stored row with the same id, if there is one.
    """
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


def _places(removed: pa.Table | Mapping[str, Any] | None) -> pa.Table:
    """Positions of rows as a table."""
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
    """The row id at each place. Raises TryAgain if a place no longer has a row."""
    frame_in(session, places).createOrReplaceTempView(_ROWS)
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
