"""A table's rows, read by the driver, and the slice of a table that a delivery can touch.

The driver reads exactly as Spark would, from few row groups of few files, if this process can open the files
and hold the rows. That takes a fraction of the time in which Spark plans the query, reads the rows and
transfers them. Otherwise Spark reads the slice: stored rows of the keys, or only the late versions.
"""

import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial, reduce
from itertools import count
from operator import and_
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backstory.formats.delivered import arrow_schema
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.instant import EPOCH, MILLISECOND
from backstory.model.layout import ACTIVE, END, FILE, POSITION, ROW_ID, START
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import FIELD_IDS, frame_of, keeps_row_ids
from backstory.stores.iceberg.literals import column, instant, literals, quote
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.metadata.parquet_files import (
    ChooseRows,
    Field,
    HeldParts,
    RowSelection,
    Values,
    arrow_type_of,
    combine_groups,
    groups_at,
    partition_ids,
    positions_in,
    read_fields,
)
from backstory.stores.metadata.searches import (
    AnyOf,
    Between,
    EqualTo,
    OneOf,
    RowSearch,
    Searches,
    search_rows,
)
from backstory.stores.metadata.table_metadata import Unreadable, file_fields, live_files
from backstory.stores.metadata.table_rows import FileToRead, files_to_read
from backstory.stores.metadata.values import mask_of_visible, truths_of
from backstory.stores.table_files import TableFiles, read_ahead

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyroaring import BitMap64
    from pyspark.sql import Column, DataFrame


# If there are more files than this, Spark's tasks read them faster.
MOST_FILES: Final = 1_000
# The number of rows of a file that are read together, if only rows at some places are needed.
BY_PLACE: Final = 1 << 17
# Numbers reads, because a lease can hold the results of several reads of a file.
_READS: Final = count()
# The columns of a row's place. A file's name is stored once, not for each row.
PLACE_SCHEMA: Final = pa.schema([(FILE, pa.dictionary(pa.int32(), pa.string())), (POSITION, pa.int64())])


@dataclass(frozen=True, slots=True)
class LocalRows:
    """A table as it was loaded, whose rows this process reads if the lease can hold them."""

    store: IcebergStore
    table: IcebergTable
    lease: MemoryLease

    def read(
        self,
        names: Sequence[str],
        filter_columns: Sequence[str | tuple[str, ...]] = (),
        choose: ChooseRows | None = None,
        searches: Collection[Searches] = (),
    ) -> pa.Table:
        """These columns of the chosen rows, or of all rows. They may include `_file`, `_pos` and `_row_id`.

        Rows match all `searches`, which also skip files and row groups. `choose` computes a mask of the
        chosen rows from the `filter_columns`. A tuple in `filter_columns` has the name of a struct and then
        the names of the parts to read. Raises Unreadable for rows that cannot be read exactly here, and
        TooLarge if the lease cannot hold them.
        """
        selection, schema, row_searches = self._selection(names, filter_columns, choose, searches)
        number = next(_READS)

        def read(live: FileToRead) -> list[pa.Table]:
            file, deleted = live
            holding = HeldParts(self.lease, f"{file.file_path} in read {number}")
            for rows in self._file_parts(selection, schema, file, deleted, holding.hold):
                holding.keep(rows)
            return holding.whole()

        files = self._files(row_searches)
        # One thread reads the columns of a file, so several files are read concurrently.
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            parts = [rows for part in pool.map(read, files) for rows in part]
        return pa.concat_tables(parts or [schema.empty_table()]).unify_dictionaries()

    def batches(
        self,
        names: Sequence[str],
        filter_columns: Sequence[str | tuple[str, ...]] = (),
        choose: ChooseRows | None = None,
        searches: Collection[Searches] = (),
    ) -> Iterator[pa.Table]:
        """The rows of `read` in batches, which the lease does not hold. A few files are read ahead."""
        selection, schema, row_searches = self._selection(names, filter_columns, choose, searches)
        readers = (
            partial(self._file_parts, selection, schema, file, deleted, lambda _: None)
            for file, deleted in self._files(row_searches)
        )
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            yield from read_ahead(pool, readers, pa.cpu_count())

    def _selection(
        self,
        names: Sequence[str],
        filter_columns: Sequence[str | tuple[str, ...]],
        choose: ChooseRows | None,
        searches: Collection[Searches],
    ) -> tuple[RowSelection, pa.Schema, list[RowSearch]]:
        """The selection of rows in each file, the schema of the result, and the searches for files."""
        fields, specs = self._fields(), self.table.metadata["partition-specs"]
        types = dict(zip(PLACE_SCHEMA.names, PLACE_SCHEMA.types, strict=True))
        schema = pa.schema([(name, types.get(name) or arrow_type_of(fields[name]["type"])) for name in names])
        row_searches = [search_rows(specs, [*fields.values()], each) for each in searches if each]
        searched = [name for search in row_searches for name in search.columns if name in fields]
        selection = RowSelection(
            [fields[name] for name in names if name not in types],
            partition_ids(specs),
            [_field_or_parts(fields, name) for name in dict.fromkeys([*filter_columns, *searched])],
            partial(_choose_rows, row_searches, choose) if row_searches else choose,
            lambda statistics: all(search.may_have(statistics) for search in row_searches),
        )
        return selection, schema, row_searches

    def read_at(self, places: pa.Table, names: Sequence[str]) -> pa.Table:
        """These columns of the rows at places that `read` returned, in the order of the places.

        Use it for columns that only a few rows need. The lease holds the last result for these columns.
        Raises the errors of `read`.
        """
        by_name = self._fields()
        fields = [by_name[name] for name in names]
        schema = pa.schema([(field["name"], arrow_type_of(field["type"])) for field in fields])
        answer = f"by place: {', '.join(names)}"
        self.lease.hold(answer, 0)
        if not len(places):
            return schema.empty_table()
        files = places[FILE].combine_chunks().dictionary_encode()
        codes, positions = np.asarray(files.indices), np.asarray(places[POSITION])
        order = np.lexsort((positions, codes))
        parts = np.split(positions[order], np.flatnonzero(np.diff(codes[order])) + 1)
        locations = files.dictionary.take(pa.array(np.unique(codes))).to_pylist()
        partitioned_by = partition_ids(self.table.metadata["partition-specs"])
        with self.store.memory.lease() as lease, ThreadPoolExecutor(pa.cpu_count()) as pool:

            def read_file(location: str, positions: np.ndarray) -> pa.Table:
                """The rows of a file at ascending positions."""
                holding = HeldParts(lease, location)
                with _open_parquet(self.table.files, location) as file:
                    for groups in combine_groups(
                        file.metadata, groups_at(file.metadata, positions), BY_PLACE
                    ):
                        rows = read_fields(file, fields, partitioned_by, holding.hold, groups)
                        wanted = np.isin(positions_in(file.metadata, groups), positions, assume_unique=True)
                        holding.keep(rows.filter(pa.array(wanted)))
                return pa.concat_tables(holding.whole())

            read = list(pool.map(read_file, locations, parts))
        self.lease.hold(answer, sum(rows.nbytes for rows in read))
        return pa.concat_tables(read).cast(schema).take(pa.array(np.argsort(order)))

    def _fields(self) -> dict[str, Field]:
        """The table's fields by name, including the field of row ids."""
        if not self.store.has_java:
            raise Unreadable("only Java lists the files of a table")
        lineage = {"id": FIELD_IDS[ROW_ID], "name": ROW_ID, "type": "long"}
        return {ROW_ID: lineage, **{field["name"]: field for field in self.table.fields}}

    def _file_parts(
        self,
        wanted: RowSelection,
        schema: pa.Schema,
        file: "DataFile",
        deleted: "BitMap64 | None",
        hold: Callable[[int], None],
    ) -> Iterator[pa.Table]:
        live_mask = cache(partial(mask_of_visible, deleted, file.record_count))
        with _open_parquet(self.table.files, file.file_path) as parquet:
            for rows, positions in wanted.parts(parquet, live_mask, hold):
                yield _add_places(rows, file, positions).select(schema.names).cast(schema)

    def _files(self, searches: Collection[RowSearch]) -> list[FileToRead]:
        """The data files that may have chosen rows, with the positions of their deleted rows."""
        snapshot = self.table.snapshot
        if snapshot is None:
            return []
        try:
            live = live_files(snapshot, self.table.manifests)
            return files_to_read(live, self.table.files, searches, MOST_FILES)
        except (OSError, ValueError, zlib.error) as stop:
            raise Unreadable(str(stop)) from stop


def _field_or_parts(fields: Mapping[str, Field], column: str | tuple[str, ...]) -> Field:
    """A field, or a struct with only some of its parts."""
    if isinstance(column, str):
        return fields[column]
    whole = fields[column[0]]
    parts = [part for part in whole["type"]["fields"] if part["name"] in column[1:]]
    return {**whole, "type": {**whole["type"], "fields": parts}}


def _choose_rows(searches: Collection[RowSearch], choose: ChooseRows | None, rows: pa.Table) -> Values:
    """A mask of the chosen rows that match all searches."""
    matches = reduce(pc.and_, (search.choose(rows) for search in searches))
    if choose is None:
        return matches
    flags = truths_of(matches).copy()
    flags[flags] = truths_of(choose(rows.filter(matches)))
    return pa.array(flags)


@contextmanager
def _open_parquet(files: TableFiles, location: str) -> Iterator[pq.ParquetFile]:
    """An open data file. Raises Unreadable if it cannot be opened here, so that Spark reports the error."""
    try:
        with files.parquet(location) as file:
            yield file
    except (OSError, pa.ArrowInvalid) as stop:
        raise Unreadable(str(stop)) from stop


def _add_places(rows: pa.Table, file: "DataFile", positions: np.ndarray) -> pa.Table:
    """The rows of a file with their places and ids. An id is stored, or computed from the position."""
    first_row = file_fields(file)["first_row_id"]
    if ROW_ID in rows.column_names and first_row is not None:
        ids = pc.coalesce(rows[ROW_ID], pa.array(positions + first_row))
        rows = rows.set_column(rows.column_names.index(ROW_ID), ROW_ID, ids)
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), np.int32)), [file.file_path])
    return rows.append_column(FILE, names).append_column(POSITION, pa.array(positions))


FIRST: Final = datetime.min.replace(tzinfo=EPOCH.tzinfo)
_MICROSECOND: Final = timedelta(microseconds=1)


def slice_here(
    store: IcebergStore, table: IcebergTable, names: Sequence[str], keys: pa.Table, since: int | None
) -> pa.Table | None:
    """The slice for distinct keys with these columns, read by the driver, or None if Spark must read it."""
    # Spark decides which floats are equal.
    if any(pa.types.is_floating(values.type) for values in keys.columns):
        return None
    searches: list[Searches] = [{name: OneOf(keys[name].combine_chunks()) for name in keys.column_names}]
    if since is not None:
        searches.append(_touched_versions(since))
    choose = partial(_match_pairs, keys) if keys.num_columns > 1 else None
    with store.memory.lease() as lease:
        try:
            return LocalRows(store, table, lease).read(names, (), choose, searches)
        except (TooLarge, Unreadable):
            return None


def _match_pairs(keys: pa.Table, rows: pa.Table) -> pa.ChunkedArray:
    """A mask of the rows that equal one of the keys in all of its columns."""
    first, *others = keys.column_names
    places, key_places = _places_in(rows[first], keys[first])
    for name in others:
        pairs = zip((places, key_places), _places_in(rows[name], keys[name]), strict=True)
        places, key_places = _places_in(*(pc.add(pc.multiply(a, keys.num_rows), b) for a, b in pairs))
    return pc.is_valid(places)


def _places_in(values: pa.ChunkedArray, keys: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """Two columns of indices in the distinct keys: for `values`, and for `keys`. NULL counts as a value."""
    distinct = pc.unique(keys)
    return (pc.index_in(column, value_set=distinct).cast(pa.int64()) for column in (values, keys))


def _touched_versions(since: int) -> Searches:
    """A search for versions that were not closed before an instant, in microseconds."""
    end = max((FIRST - EPOCH) // _MICROSECOND, since - MILLISECOND)
    return AnyOf({ACTIVE: EqualTo(True), END: Between(_instant(end)), START: Between(_instant(since))})


def _instant(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


# Iceberg skips files and row groups by lists of up to 200 values.
LISTED_KEYS = 200
BROADCAST = 64 << 20
# Among many rows, only keys of these types are searched for.
SEARCHABLE = (
    pa.types.is_integer,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_date,
    pa.types.is_timestamp,
)
PLACE = pa.schema([pa.field(FILE, pa.string()), pa.field(POSITION, pa.int64())])


def read_slice(
    store: IcebergStore, table: IcebergTable, keys: pa.Table, since: int | None = None
) -> pa.Table:
    """The rows of these keys, with `_file` and `_pos`, and with `_row_id` if rows have ids.

    `keys` has the key's columns and may repeat keys. `since`, in microseconds, excludes versions that were
    closed before it: inactive versions that end more than a millisecond before it and start before it.
    """
    ids = [pa.field(ROW_ID, pa.int64())] if keeps_row_ids(table) else []
    columns = arrow_schema({column.name: column.type for column in table.shape.columns})
    schema = pa.schema([*columns, *PLACE_SCHEMA, *ids])
    if not table.rows or not keys.num_rows:
        return schema.empty_table()
    distinct = keys.group_by(keys.column_names).aggregate([])
    with translate_faults(table.shape.table):
        here = slice_here(store, table, schema.names, distinct, since)
        if here is not None:
            return here.cast(schema)
        frame = _with_keys(store, store.spark.table(store.sql_name(table.shape.table)), distinct, since)
        names = [quote(name) for name in schema.names]
        return arrow_of(frame.select(*names)).cast(schema)


def may_be_touched(since: int) -> "Column":
    """The condition for versions that were not closed before an instant, in microseconds."""
    return column(ACTIVE) | (column(END) >= instant(since - MILLISECOND)) | (column(START) >= instant(since))


def searchable_columns(keys: pa.Table) -> pa.Table:
    """The columns of keys whose types can be searched for. NaN, for example, is in no range."""
    return keys.select([field.name for field in keys.schema if any(is_(field.type) for is_ in SEARCHABLE)])


def rows_of_keys(store: IcebergStore, frame: "DataFrame", keys: pa.Table) -> "DataFrame":
    """The rows of a frame that have one of the keys, in the columns with the same names."""
    return _with_keys(store, frame, keys.group_by(keys.column_names).aggregate([]), None)


def _with_keys(store: IcebergStore, frame: "DataFrame", distinct: pa.Table, since: int | None) -> "DataFrame":
    """The rows with one of these keys.

    A list of up to `LISTED_KEYS` keys lets Iceberg skip files. More keys, or keys with NULL, need a join.
    """
    conditions = [] if since is None else [may_be_touched(since)]
    has_null = any(values.null_count for values in distinct.columns)
    listed = distinct.num_rows <= LISTED_KEYS and not has_null
    if listed:
        conditions += [
            column(name).isin(literals(pc.unique(distinct[name]))) for name in distinct.column_names
        ]
    elif not has_null:
        conditions += _in_range(distinct)
    if conditions:
        frame = frame.where(reduce(and_, conditions))
    return frame if listed else _join_keys(store, frame, distinct)


def _join_keys(store: IcebergStore, frame: "DataFrame", distinct: pa.Table) -> "DataFrame":
    from pyspark.sql.functions import broadcast

    names = [f"key {place} {uuid.uuid4()}" for place in range(distinct.num_columns)]
    wanted = frame_of(store, distinct.rename_columns(names))
    if distinct.nbytes < BROADCAST:
        wanted = broadcast(wanted)
    matches = []
    for name, other in zip(distinct.column_names, names, strict=True):
        left, right = column(name), column(other)
        matches.append(left.eqNullSafe(right) if distinct[name].null_count else left == right)
    return frame.join(wanted, reduce(and_, matches), "left_semi")


def _in_range(keys: pa.Table) -> "list[Column]":
    conditions = []
    for name in searchable_columns(keys).column_names:
        bounds = pc.min_max(keys[name])
        least, greatest = literals(pa.array([bounds["min"], bounds["max"]], keys[name].type))
        conditions.append(column(name).between(least, greatest))
    return conditions
