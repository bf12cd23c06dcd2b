"""The rows of a table, read by the driver exactly as Spark would, if this process can open the files.

That takes a fraction of the time in which Spark plans the query, reads the rows and transfers them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial, reduce
from operator import or_
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backstory.formats.memory import MemoryLease
from backstory.model.layout import FILE, POSITION, ROW_ID
from backstory.stores.iceberg.data_files import partition_column_ids
from backstory.stores.iceberg.frames import FIELD_IDS
from backstory.stores.iceberg.jvm import scan_where
from backstory.stores.iceberg.positions import BY_VALUE, ROWS, VECTOR, HiddenPositions, hidden_positions
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.scripts import FileLine, files_of_scan
from backstory.stores.iceberg.search_bounds import SearchBounds, all_of, search_bounds
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.metadata.deletes import Unreadable
from backstory.stores.metadata.parquet_files import (
    Field,
    MayHave,
    Statistics,
    Values,
    arrow_of,
    groups_at,
    positions_in,
    read_fields,
)
from backstory.stores.metadata.row_selection import ChooseRows, HeldParts, RowSelection, combine_groups
from backstory.stores.metadata.values import mask_of_visible, truths_of
from backstory.stores.read_ahead import read_ahead
from backstory.stores.table_files import TableFiles

# Spark's tasks read more files than this faster.
MOST_FILES: Final = 1_000
# The number of rows of a file that are read together, if only rows at some places are wanted.
BY_PLACE: Final = 1 << 17
# The columns of a row's place; a file's name is stored once, not for each row.
PLACE_SCHEMA: Final = pa.schema([(FILE, pa.dictionary(pa.int32(), pa.string())), (POSITION, pa.int64())])
ANY: Final[Mapping[str, pa.Array]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LocalRows:
    """A table as it was loaded. Its rows are read here as long as the lease can hold them."""

    store: IcebergStore
    table: IcebergTable
    lease: MemoryLease

    def read(
        self,
        names: Sequence[str],
        filter_columns: Sequence[str | tuple[str, ...]] = (),
        choose: ChooseRows | None = None,
        *,
        values: Mapping[str, pa.Array] = ANY,
        where: Any = None,
        may_have: MayHave | None = None,
    ) -> pa.Table:
        """These columns of the chosen rows, or of all rows. They may include `_file`, `_pos` and `_row_id`.

        `choose` returns a mask of the chosen rows of a file, from the `filter_columns`. A tuple there is a
        struct with some of its parts. `values` are wanted values by column, and a row must have one of them.
        The condition `where`, in Iceberg's JSON form, skips files, and `may_have` skips row groups. Both must
        hold for all chosen rows. Raises Unreadable for rows that cannot be read exactly here, and TooLarge if
        the lease cannot hold them.
        """
        selection, schema, condition = self._selection(names, filter_columns, choose, values, where, may_have)
        files, hidden = self._files(condition), hidden_positions(self.table)
        self._open_ahead(files)
        # One thread reads the columns of a file, so several files are read concurrently.
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            read = list(pool.map(partial(self._read_file, selection, schema, hidden, str(condition)), files))
        parts = [rows for part in read for rows in part]
        return pa.concat_tables(parts or [schema.empty_table()]).unify_dictionaries()

    def batches(
        self,
        names: Sequence[str],
        filter_columns: Sequence[str | tuple[str, ...]] = (),
        choose: ChooseRows | None = None,
        *,
        values: Mapping[str, pa.Array] = ANY,
        where: Any = None,
    ) -> Iterator[pa.Table]:
        """The rows of `read` in batches, which the lease does not hold. A few files are read ahead."""
        selection, schema, condition = self._selection(names, filter_columns, choose, values, where, None)
        files, hidden = self._files(condition), hidden_positions(self.table)
        self._open_ahead(files)
        readers = (
            partial(self._file_parts, selection, schema, hidden, file, lambda _: None) for file in files
        )
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            yield from read_ahead(pool, readers, pa.cpu_count())

    def _selection(
        self,
        names: Sequence[str],
        filter_columns: Sequence[str | tuple[str, ...]],
        choose: ChooseRows | None,
        values: Mapping[str, pa.Array],
        where: Any,
        may_have: MayHave | None,
    ) -> tuple[RowSelection, pa.Schema, Any]:
        """The selection of rows in each file, the schema of the result, and the condition for files."""
        fields = self._fields()
        types = dict(zip(PLACE_SCHEMA.names, PLACE_SCHEMA.types, strict=True))
        schema = pa.schema([(name, types.get(name) or arrow_of(fields[name]["type"])) for name in names])
        searched = {
            name: bounds for name, wanted in values.items() if (bounds := search_bounds(wanted)) is not None
        }
        selection = RowSelection(
            [fields[name] for name in names if name not in types],
            partition_column_ids(self.table.iceberg),
            [_field_or_parts(fields, name) for name in dict.fromkeys([*filter_columns, *values])],
            partial(_match_values, choose, values) if values else choose,
            partial(_may_have, may_have, searched),
        )
        return (
            selection,
            schema,
            all_of(where, *(bounds.condition(name) for name, bounds in searched.items())),
        )

    def read_at(self, places: pa.Table, names: Sequence[str]) -> pa.Table:
        """These columns of the rows at places that `read` returned, in the order of the places.

        It reads columns that only few rows need. The lease holds the last result for these columns. Raises
        the errors of `read`.
        """
        by_name = self._fields()
        fields = [by_name[name] for name in names]
        schema = pa.schema([(field["name"], arrow_of(field["type"])) for field in fields])
        answer = f"by place: {', '.join(names)}"
        self.lease.hold(answer, 0)
        if not len(places):
            return schema.empty_table()
        files = places[FILE].combine_chunks().dictionary_encode()
        codes, positions = np.asarray(files.indices), np.asarray(places[POSITION])
        order = np.lexsort((positions, codes))
        parts = np.split(positions[order], np.flatnonzero(np.diff(codes[order])) + 1)
        locations = files.dictionary.take(pa.array(np.unique(codes))).to_pylist()
        # Called here: the pool's threads have no JVM connection.
        partition_ids = partition_column_ids(self.table.iceberg)
        with self.store.memory.lease() as lease, ThreadPoolExecutor(pa.cpu_count()) as pool:
            read = list(pool.map(partial(self._read_file_at, lease, fields, partition_ids), locations, parts))
        self.lease.hold(answer, sum(rows.nbytes for rows in read))
        return pa.concat_tables(read).cast(schema).take(pa.array(np.argsort(order)))

    def _read_file_at(
        self,
        lease: MemoryLease,
        fields: Sequence[Field],
        partition_ids: Collection[int],
        location: str,
        positions: np.ndarray,
    ) -> pa.Table:
        """The rows of a file at ascending positions, read from the row groups with these positions."""
        holding = HeldParts(lease, location)
        with _open_parquet(self.table.files, location) as file:
            for groups in combine_groups(file.metadata, groups_at(file.metadata, positions), BY_PLACE):
                rows = read_fields(file, fields, partition_ids, holding.hold, groups)
                wanted = np.isin(positions_in(file.metadata, groups), positions, assume_unique=True)
                holding.keep(rows.filter(pa.array(wanted)))
        return pa.concat_tables(holding.whole())

    def _fields(self) -> dict[str, Field]:
        """The table's fields by name, including the field of row ids."""
        if not self.store.has_java:
            raise Unreadable("only Java lists the files of a table")
        lineage = {"id": FIELD_IDS[ROW_ID], "name": ROW_ID, "type": "long"}
        fields = fields_of(self.store.jvm, self.table.iceberg.schema())
        return {ROW_ID: lineage, **{field["name"]: field for field in fields}}

    def _read_file(
        self,
        wanted: RowSelection,
        schema: pa.Schema,
        hidden: HiddenPositions,
        condition: str,
        file: tuple[FileLine, Sequence[FileLine]],
    ) -> list[pa.Table]:
        """The rows of a file, in parts that the lease holds. `file` includes its delete files."""
        holding = HeldParts(self.lease, f"{file[0].location} where {condition}")
        for rows in self._file_parts(wanted, schema, hidden, file, holding.hold):
            holding.keep(rows)
        return holding.whole()

    def _file_parts(
        self,
        wanted: RowSelection,
        schema: pa.Schema,
        hidden: HiddenPositions,
        file: tuple[FileLine, Sequence[FileLine]],
        hold: Callable[[int], None],
    ) -> Iterator[pa.Table]:
        line, deletes = file
        visible = cache(partial(_visible_rows, hidden, line, deletes))
        with _open_parquet(self.table.files, line.location) as parquet:
            for rows, positions in wanted.parts(parquet, visible, hold):
                yield _add_places(rows, line, positions).select(schema.names).cast(schema)

    def _open_ahead(self, files: Sequence[tuple[FileLine, Sequence[FileLine]]]) -> None:
        self.table.files.open_ahead(file.location for line, deletes in files for file in (line, *deletes))

    def _files(self, where: Any) -> list[tuple[FileLine, list[FileLine]]]:
        """The data files with at least one visible row, each with its delete files."""
        jvm, iceberg = self.store.jvm, self.table.iceberg
        scan = iceberg.newScan() if where is None else scan_where(jvm, iceberg, where)
        files: list[tuple[FileLine, list[FileLine]]] = []
        for line in files_of_scan(jvm, scan, jvm.java.util.HashMap()):
            if line.content == BY_VALUE:
                raise Unreadable("deletions by equality")
            if line.content != ROWS:
                files[-1][1].append(line)
            elif line.format != "PARQUET":
                raise Unreadable(f"{line.format} in {line.location}")
            else:
                files.append((line, []))
        files = [(line, deletes) for line, deletes in files if not _is_hidden(line, deletes)]
        if len(files) > MOST_FILES:
            raise Unreadable(f"{len(files)} files")
        return files


def _is_hidden(line: FileLine, deletes: Sequence[FileLine]) -> bool:
    """Whether a file's vector hides all of its rows. A file has at most one vector."""
    return any(delete.format == VECTOR and delete.count == line.count for delete in deletes)


def _field_or_parts(fields: Mapping[str, Field], column: str | tuple[str, ...]) -> Field:
    """A field, or a struct with only some of its parts."""
    if isinstance(column, str):
        return fields[column]
    whole = fields[column[0]]
    parts = [part for part in whole["type"]["fields"] if part["name"] in column[1:]]
    return {**whole, "type": {**whole["type"], "fields": parts}}


def _visible_rows(reading: HiddenPositions, line: FileLine, deletes: Sequence[FileLine]) -> pa.Array | None:
    """A mask of a file's rows that are not deleted, or None if no row is deleted."""
    positions = [hidden[line.location] for hidden in map(reading, deletes) if line.location in hidden]
    return mask_of_visible(reduce(or_, positions), line.count) if positions else None


def _match_values(choose: ChooseRows | None, values: Mapping[str, pa.Array], rows: pa.Table) -> Values:
    """A mask of the rows that have one of the values in each column and that are chosen."""
    matches = reduce(pc.and_, (pc.is_in(rows[name], value_set=wanted) for name, wanted in values.items()))
    if choose is None:
        return matches
    flags = truths_of(matches).copy()
    flags[flags] = truths_of(choose(rows.filter(matches)))
    return pa.array(flags)


def _may_have(further: MayHave | None, bounds: Mapping[str, SearchBounds], statistics: Statistics) -> bool:
    """Whether a row group may have searched values in each column, and rows that pass another test."""
    is_possible = all(spans.may_be_in(statistics(name)) for name, spans in bounds.items())
    return is_possible and (further is None or further(statistics))


@contextmanager
def _open_parquet(files: TableFiles, location: str) -> Iterator[pq.ParquetFile]:
    """An open data file.

    Raises Unreadable if it is damaged or cannot be opened here, so that Spark reports it.
    """
    try:
        with files.parquet(location) as file:
            yield file
    except (OSError, pa.ArrowInvalid) as stop:
        raise Unreadable(str(stop)) from stop


def _add_places(rows: pa.Table, line: FileLine, positions: np.ndarray) -> pa.Table:
    """The rows of a file with their places and ids. An id is stored, or follows from the file."""
    if ROW_ID in rows.column_names and line.first_row is not None:
        ids = pc.coalesce(rows[ROW_ID], pa.array(positions + line.first_row))
        rows = rows.set_column(rows.column_names.index(ROW_ID), ROW_ID, ids)
    file = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), np.int32)), [line.location])
    return rows.append_column(FILE, file).append_column(POSITION, pa.array(positions))
