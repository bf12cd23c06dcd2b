"""The rows of a table whose files open here, on this machine or in an object store, as Spark reads them.

Reading them takes a fraction of the time that Spark takes to plan, to read and to hand them over.
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
from backstory.stores.iceberg.moves import BY_VALUE, ROWS, VECTOR, HiddenPositions, hidden_positions
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.scripts import FileLine, files_of_scan
from backstory.stores.iceberg.search_bounds import SearchBounds, all_of, search_bounds
from backstory.stores.iceberg.store import Store, StoredTable
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

# Beyond so many files Spark's tasks read them faster.
MOST_FILES: Final = 1_000
# So many rows of a file, of which some are asked for by their places, are read together.
BY_PLACE: Final = 1 << 17
# The places of rows read here; a file's name is kept once, not with each row.
PLACE_SCHEMA: Final = pa.schema([(FILE, pa.dictionary(pa.int32(), pa.string())), (POSITION, pa.int64())])
ANY: Final[Mapping[str, pa.Array]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LocalRows:
    """A table as it stands, whose files are read here as far as the lease can hold them."""

    store: Store
    table: StoredTable
    lease: MemoryLease

    def read(
        self,
        names: Sequence[str],
        of: Sequence[str | tuple[str, ...]] = (),
        chosen: ChooseRows | None = None,
        *,
        among: Mapping[str, pa.Array] = ANY,
        where: Any = None,
        may_have: MayHave | None = None,
    ) -> pa.Table:
        """The chosen rows, or all, with these columns; `_file`, `_pos` and `_row_id` may be among them.

        `chosen` tells of the columns `of` a file's rows, or of parts of structs, which are; `among` has the
        values of columns, one of which rows must have. Where all are of the condition `where`, as Iceberg's
        JSON has it, files that have none such are passed over; where `may_have` says no, row groups. Raises
        Unreadable for what cannot be read exactly here, TooLarge for more than the lease can hold.
        """
        selection, schema, condition = self._selection(names, of, chosen, among, where, may_have)
        files, hidden = self._files(condition), hidden_positions(self.table)
        self._open_ahead(files)
        # A column or two of a file are read by one thread; so files are read side by side.
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            read = list(pool.map(partial(self._read_file, selection, schema, hidden, str(condition)), files))
        parts = [rows for each in read for rows in each]
        return pa.concat_tables(parts or [schema.empty_table()]).unify_dictionaries()

    def batches(
        self,
        names: Sequence[str],
        of: Sequence[str | tuple[str, ...]] = (),
        chosen: ChooseRows | None = None,
        *,
        among: Mapping[str, pa.Array] = ANY,
        where: Any = None,
    ) -> Iterator[pa.Table]:
        """The same rows, some at a time, held by the caller alone; of a few files some are read ahead."""
        selection, schema, condition = self._selection(names, of, chosen, among, where, None)
        files, hidden = self._files(condition), hidden_positions(self.table)
        self._open_ahead(files)
        readers = (
            partial(self._file_parts, selection, schema, hidden, each, lambda _: None) for each in files
        )
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            yield from read_ahead(pool, readers, pa.cpu_count())

    def _selection(
        self,
        names: Sequence[str],
        of: Sequence[str | tuple[str, ...]],
        chosen: ChooseRows | None,
        among: Mapping[str, pa.Array],
        where: Any,
        may_have: MayHave | None,
    ) -> tuple[RowSelection, pa.Schema, Any]:
        """What to read of each file, the columns that come out, and the condition that chooses the files."""
        fields = self._fields()
        types = dict(zip(PLACE_SCHEMA.names, PLACE_SCHEMA.types, strict=True))
        schema = pa.schema([(name, types.get(name) or arrow_of(fields[name]["type"])) for name in names])
        searched = {
            name: bounds for name, each in among.items() if (bounds := search_bounds(each)) is not None
        }
        selection = RowSelection(
            [fields[name] for name in names if name not in types],
            partition_column_ids(self.table.iceberg),
            [_field_or_parts(fields, name) for name in dict.fromkeys([*of, *among])],
            partial(_match_values, chosen, among) if among else chosen,
            partial(_may_have, may_have, searched),
        )
        return selection, schema, all_of(where, *(each.condition(name) for name, each in searched.items()))

    def read_at(self, places: pa.Table, names: Sequence[str]) -> pa.Table:
        """These columns of the rows that `read` gave with these places, in their order.

        What is not asked of all rows can so be asked of few. The lease holds the last answer of these
        columns. Raises what `read` raises.
        """
        fields = self._fields()
        asked = [fields[name] for name in names]
        schema = pa.schema([(each["name"], arrow_of(each["type"])) for each in asked])
        answer = f"by place: {', '.join(names)}"
        self.lease.hold(answer, 0)
        if not len(places):
            return schema.empty_table()
        files = places[FILE].combine_chunks().dictionary_encode()
        codes, positions = np.asarray(files.indices), np.asarray(places[POSITION])
        order = np.lexsort((positions, codes))
        parts = np.split(positions[order], np.flatnonzero(np.diff(codes[order])) + 1)
        locations = files.dictionary.take(pa.array(np.unique(codes))).to_pylist()
        parted = partition_column_ids(self.table.iceberg)  # asked here: the pool's threads know no JVM
        with self.store.memory.lease() as lease, ThreadPoolExecutor(pa.cpu_count()) as pool:
            read = list(pool.map(partial(self._read_file_at, lease, asked, parted), locations, parts))
        self.lease.hold(answer, sum(rows.nbytes for rows in read))
        return pa.concat_tables(read).cast(schema).take(pa.array(np.argsort(order)))

    def _read_file_at(
        self,
        lease: MemoryLease,
        asked: Sequence[Field],
        parted: Collection[int],
        location: str,
        positions: np.ndarray,
    ) -> pa.Table:
        """The rows of a file at positions that ascend, of the row groups that these lie in."""
        holding = HeldParts(lease, location)
        with _open_parquet(self.table.files, location) as file:
            for groups in combine_groups(file.metadata, groups_at(file.metadata, positions), BY_PLACE):
                rows = read_fields(file, asked, parted, holding.hold, groups)
                found = np.isin(positions_in(file.metadata, groups), positions, assume_unique=True)
                holding.keep(rows.filter(pa.array(found)))
        return pa.concat_tables(holding.whole())

    def _fields(self) -> dict[str, Field]:
        """The table's fields by name, and that of the rows' ids."""
        lineage = {"id": FIELD_IDS[ROW_ID], "name": ROW_ID, "type": "long"}
        told = fields_of(self.store.jvm, self.table.iceberg.schema())
        return {ROW_ID: lineage, **{each["name"]: each for each in told}}

    def _read_file(
        self,
        wanted: RowSelection,
        schema: pa.Schema,
        hidden: HiddenPositions,
        condition: str,
        found: tuple[FileLine, Sequence[FileLine]],
    ) -> list[pa.Table]:
        """The rows of a file, in parts, which the lease holds."""
        holding = HeldParts(self.lease, f"{found[0].location} where {condition}")
        for rows in self._file_parts(wanted, schema, hidden, found, holding.hold):
            holding.keep(rows)
        return holding.whole()

    def _file_parts(
        self,
        wanted: RowSelection,
        schema: pa.Schema,
        hidden: HiddenPositions,
        found: tuple[FileLine, Sequence[FileLine]],
        hold: Callable[[int], None],
    ) -> Iterator[pa.Table]:
        line, hiding = found
        standing = cache(partial(_visible_rows, hidden, line, hiding))
        with _open_parquet(self.table.files, line.location) as file:
            for rows, positions in wanted.parts(file, standing, hold):
                yield _add_places(rows, line, positions).select(schema.names).cast(schema)

    def _open_ahead(self, files: Sequence[tuple[FileLine, Sequence[FileLine]]]) -> None:
        self.table.files.open_ahead(each.location for line, hiding in files for each in (line, *hiding))

    def _files(self, where: Any) -> list[tuple[FileLine, list[FileLine]]]:
        """The files of rows of which one is not hidden at least, each with those that hide rows of it."""
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
        files = [(line, hiding) for line, hiding in files if not _is_hidden(line, hiding)]
        if len(files) > MOST_FILES:
            raise Unreadable(f"{len(files)} files")
        return files


def _is_hidden(line: FileLine, hiding: Sequence[FileLine]) -> bool:
    """Whether a vector, of which a file has one at most, hides all of its rows."""
    return any(each.format == VECTOR and each.count == line.count for each in hiding)


def _field_or_parts(fields: Mapping[str, Field], of: str | tuple[str, ...]) -> Field:
    """A field, or a struct with some parts of it."""
    if isinstance(of, str):
        return fields[of]
    whole = fields[of[0]]
    parts = [each for each in whole["type"]["fields"] if each["name"] in of[1:]]
    return {**whole, "type": {**whole["type"], "fields": parts}}


def _visible_rows(reading: HiddenPositions, line: FileLine, hiding: Sequence[FileLine]) -> pa.Array | None:
    """Which rows of a file are not deleted, as booleans; None if no row is."""
    positions = [hidden[line.location] for hidden in map(reading, hiding) if line.location in hidden]
    return mask_of_visible(reduce(or_, positions), line.count) if positions else None


def _match_values(chosen: ChooseRows | None, among: Mapping[str, pa.Array], rows: pa.Table) -> Values:
    """Which rows have one of the values in each column, and of those which are chosen."""
    found = reduce(pc.and_, (pc.is_in(rows[name], value_set=values) for name, values in among.items()))
    if chosen is None:
        return found
    flags = truths_of(found).copy()
    flags[flags] = truths_of(chosen(rows.filter(found)))
    return pa.array(flags)


def _may_have(asked: MayHave | None, looked: Mapping[str, SearchBounds], statistics: Statistics) -> bool:
    found = all(each.may_be_in(statistics(name)) for name, each in looked.items())
    return found and (asked is None or asked(statistics))


@contextmanager
def _open_parquet(files: TableFiles, location: str) -> Iterator[pq.ParquetFile]:
    """A file of rows; Unreadable where it opens elsewhere, is gone, or is no such file: Spark tells of it."""
    try:
        with files.parquet(location) as file:
            yield file
    except (OSError, pa.ArrowInvalid) as stop:
        raise Unreadable(str(stop)) from stop


def _add_places(rows: pa.Table, line: FileLine, positions: np.ndarray) -> pa.Table:
    """The rows of a file with their places, and the ids that they have from it or brought with them."""
    if ROW_ID in rows.column_names and line.first_row is not None:
        ids = pc.coalesce(rows[ROW_ID], pa.array(positions + line.first_row))
        rows = rows.set_column(rows.column_names.index(ROW_ID), ROW_ID, ids)
    file = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(positions), np.int32)), [line.location])
    return rows.append_column(FILE, file).append_column(POSITION, pa.array(positions))
