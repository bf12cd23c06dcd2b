"""The rows of tables, read from files without Spark. Raises Unreadable unless these rows equal Spark's rows.

Small tables are read whole, and can be sorted like Spark. In any table, a few rows can be found by searches,
by the least values of a column, or by the commits that moved them.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from backstory.errors import Refused
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.change import NUMBER, REPLACE, SIGN
from backstory.stores.metadata.moves import (
    BY_VALUE,
    ROWS,
    FileLine,
    FilesOfCommit,
    HiddenPositions,
    ScannedFile,
    deleted_positions,
    file_line,
    hidden_positions,
    lines_by_file,
    moves_by_file,
)
from backstory.stores.metadata.parquet_files import (
    Field,
    HeldParts,
    RowSelection,
    arrow_type_of,
    greatest_in_groups,
    partition_ids,
)
from backstory.stores.metadata.searches import AnyOf, Between, RowSearch, Searches, bounds_of, search_rows
from backstory.stores.metadata.table_metadata import (
    DATA,
    VECTOR,
    Catalog,
    CommitMetadata,
    TableMetadata,
    Unreadable,
    changed_files,
    file_fields,
    live_files,
    may_delete_from,
)
from backstory.stores.metadata.values import mask_of_visible
from backstory.stores.table_files import TableFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyroaring import BitMap64


# A data file, and the positions of its deleted rows.
FileToRead: TypeAlias = "tuple[DataFile, BitMap64 | None]"
# With this many rows, plain Python takes about as long as Spark takes to start.
MOST_ROWS: Final = 200_000
# If rows are not processed one by one, the memory limits their number earlier.
MOST_IN_ARROW: Final = 1 << 26
# Up to this many bytes are searched, because reading them takes about as long as Spark takes to start.
MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class TableReader:
    """A table whose files are read here, with the catalog that opens them and a lease of memory."""

    table: TableMetadata
    catalog: Catalog
    lease: MemoryLease

    def rows(
        self,
        snapshot: Mapping[str, Any] | None,
        fields: Sequence[Field],
        names: Sequence[str],
        most: int | None = None,
        searches: Searches | None = None,
    ) -> pa.Table:
        """The live rows of a snapshot with these columns, as Spark returns them.

        With `searches`, only matching rows are counted and kept, and files and row groups without matching
        rows are not read. Raises Unreadable for more rows than `most`, by default `MOST_ROWS`, and for rows
        that cannot be read exactly.
        """
        by_name = {field["name"]: field for field in fields}
        sought = searches.columns if isinstance(searches, AnyOf) else searches or {}
        if missing := {*names, *sought} - set(by_name):
            raise Unreadable(f"no column {min(missing)}")
        specs = self.table.metadata.get("partition-specs") or []
        wanted = RowSelection([by_name[name] for name in names], partition_ids(specs))
        if snapshot is None:
            return self._read(wanted, (), 0)
        if not sought:
            count = number_of_rows(snapshot)
            if count is None or int(count) > (most or MOST_ROWS):
                raise Unreadable(f"{count} rows")
        search = search_rows(specs, fields, searches) if searches and sought else None
        if search is not None:
            filtered = [by_name[name] for name in sought]
            wanted = replace(wanted, filter_fields=filtered, choose=search.choose, may_have=search.may_have)
        live = live_files(snapshot, self.table.files)
        files = files_to_read(live, self.table.files, [] if search is None else [search])
        return self._read(wanted, files, most or MOST_ROWS)

    def whole_file(self, file: "DataFile", names: Sequence[str]) -> pa.Table:
        """All rows of a file, even deleted ones, with these current columns. Raises the errors of `rows`."""
        require_plain(file)
        by_name = {field["name"]: field for field in self.table.fields}
        specs = self.table.metadata.get("partition-specs") or []
        wanted = RowSelection([by_name[name] for name in names], partition_ids(specs))
        return self._read(wanted, [(file, None)], file.record_count)

    def _read(self, wanted: RowSelection, files: Iterable[FileToRead], most: int) -> pa.Table:
        """The wanted rows of files, except the deleted rows at these positions."""
        schema = pa.schema([(field["name"], arrow_type_of(field["type"])) for field in wanted.fields])
        parts, count, searched = list[pa.Table](), 0, 0

        def hold(held: HeldParts, size: int) -> None:
            nonlocal searched
            held.hold(size)
            searched += size
            if wanted.choose is not None and searched > MOST_BYTES:
                raise Unreadable(f"more than {MOST_BYTES} bytes to search")

        try:
            for file, deleted in files:
                held = HeldParts(self.lease, file.file_path)
                with self.table.files.parquet(file.file_path) as opened:
                    live_mask = cache(partial(mask_of_visible, deleted, opened.metadata.num_rows))
                    for rows, _ in wanted.parts(opened, live_mask, partial(hold, held)):
                        held.keep(rows)
                        count += rows.num_rows
                        if count > most:
                            raise Unreadable(f"more than {most} rows")
                parts += held.whole()
        except TooLarge:
            raise Unreadable("more than the memory may hold") from None
        return pa.concat_tables([part.cast(schema) for part in parts] or [pa.Table.from_batches([], schema)])


def is_small(snapshot: Mapping[str, Any]) -> bool:
    """Whether a snapshot has few enough rows to read all of them here."""
    count = number_of_rows(snapshot)
    return count is not None and int(count) <= MOST_ROWS


def number_of_rows(snapshot: Mapping[str, Any]) -> str | None:
    """The number of rows in a snapshot's files, including deleted rows, or None if its summary lacks it."""
    return (snapshot.get("summary") or {}).get("total-records")


def files_to_read(
    live: "Iterable[tuple[object, DataFile]]",
    opener: TableFiles,
    searches: Collection[RowSearch],
    most: int = sys.maxsize,
) -> list[FileToRead]:
    """The data files that may have rows of all searches, with the positions of deleted rows.

    `live` are the files of a snapshot. Files without live rows are left out. The files are opened in advance.
    Raises Unreadable for more files than `most`, and for files that only Spark can read.
    """
    data: dict[str, DataFile] = {}
    deletes: list[DataFile] = []
    for partition, file in live:
        if file.content.value != DATA:
            deletes.append(file)
        elif all(search.may_be_in_file(file, partition) for search in searches):
            require_plain(file)
            data[file.file_path] = file
    for file in deletes:
        if file.file_format.value == VECTOR:
            path = file_fields(file)["referenced_data_file"]
            if path in data and data[path].record_count == file.record_count:
                del data[path]
    if len(data) > most:
        raise Unreadable(f"{len(data)} files")
    paths = sorted(path.encode() for path in data)
    deletes = [file for file in deletes if may_delete_from(file, paths)]
    opener.open_ahead(file.file_path for file in [*deletes, *data.values()])
    deleted = deleted_positions(deletes, opener.read)
    return [(file, deleted.get(path)) for path, file in data.items()]


def require_plain(file: "DataFile") -> None:
    """Raise Unreadable for a data file that is encrypted, or in a format other than Parquet."""
    if file.file_format.value != "PARQUET" or file.key_metadata is not None:
        raise Unreadable(f"rows in {file.file_format.value}")


def rows_in_order(files: TableReader, names: Sequence[str], order: Sequence[str]) -> pa.Table:
    """These columns of the rows, sorted like Spark. Raises Unreadable if only Spark can read or sort them."""
    table = files.table
    rows = files.rows(table.snapshot, table.fields, list(dict.fromkeys([*names, *order])))
    return sort_like_spark(rows, order)


def sort_like_spark(rows: pa.Table, order: Sequence[str]) -> pa.Table:
    """The rows, sorted like Spark. Raises Unreadable if only Spark can sort them."""
    if any(pa.types.is_floating(rows[name].type) for name in order):
        raise Unreadable("equal numbers with different forms")
    keys: dict[str, pa.ChunkedArray] = {}
    for place, name in enumerate(order):
        keys |= {f"{place} is valid": rows[name].is_valid(), f"{place}": rows[name]}
    try:
        places = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise Unreadable("a key that is not sorted here") from None
    return rows.take(places)


# Up to this many values of one column are read. Their bytes are limited separately.
MOST_VALUES: Final = 1 << 26


def least_values(
    files: TableReader,
    snapshot: Mapping[str, Any],
    fields: list[Field],
    name: str,
    count: int,
    least: Any = None,
) -> Between | None:
    """The span of a column's least values, including NULL, that has at least `count` rows.

    Returns None if the table has fewer rows. If `least` is set, the span begins there and excludes NULL.
    Raises Unreadable if bounds are missing, and for too many rows.
    """
    field = next((one for one in fields if one["name"] == name), None)
    if field is None:
        raise Unreadable(f"no column {name}")
    span = _span_of_groups(files, snapshot, field, count, least)
    if span is None:
        return None
    values = files.rows(snapshot, fields, [name], MOST_VALUES, {name: span})[name]
    more = count - values.null_count
    if len(values) < count:
        return span  # deleted rows were counted
    return replace(span, greatest=_nth(values.drop_null(), more)) if more > 0 else span


def _nth(values: pa.ChunkedArray, number: int) -> Any:
    table = pa.table({"value": values})
    places = pc.select_k_unstable(table, number, [("value", "ascending")])
    return table["value"].take(places[-1:]).to_pylist()[0]


def _span_of_groups(
    files: TableReader, snapshot: Mapping[str, Any], field: Field, count: int, begin: Any
) -> Between | None:
    """The span of the row groups with the least values that together have `count` rows."""
    bounded = _files_with_bounds(files, snapshot, field)
    ordered = sorted((file for file in bounded if begin is None or file[1] >= begin), key=itemgetter(0))
    if not ordered:
        return None
    groups: list[tuple[Any, int]] = []
    for least, greatest, file in ordered:
        if sum(rows for most, rows in groups if most < least) >= count:
            break
        with files.table.files(file.file_path) as source, pq.ParquetFile(source) as opened:
            in_file = greatest_in_groups(opened, field, greatest)
        groups += [group for group in in_file if begin is None or group[0] >= begin]
    rows = 0
    for greatest, more in sorted(groups, key=itemgetter(0)):
        rows += more
        if rows >= count:
            return Between(ordered[0][0] if begin is None else begin, greatest, null=begin is None)
    return None


def _files_with_bounds(
    files: TableReader, snapshot: Mapping[str, Any], field: Field
) -> "Iterator[tuple[Any, Any, DataFile]]":
    """The data files with their bounds, except files whose values are all NULL."""
    for _, file in live_files(snapshot, files.table.files):
        if file.content.value != DATA:
            continue
        bounds = bounds_of(file, field)
        if bounds is None:
            raise Unreadable(f"no bounds of {field['name']}")
        if bounds.min is not None:
            yield bounds.min, bounds.max, file


def read_moved_rows(
    files: TableReader, names: Sequence[str], before: int | None, commits: Sequence[CommitMetadata]
) -> pa.Table:
    """The rows that commits removed and added: these columns, the commit's number in the range, and the sign.

    `before` is the snapshot before the commits, which are in order. Rows are in the order of commits, removed
    rows first. Each data file is read once. Raises Unreadable for too many rows, and for rows that cannot be
    read exactly here.
    """
    data: dict[str, DataFile] = {}
    changes = [
        FilesOfCommit(number, commit.operation == REPLACE, _lines_of_commit(files, commit.id, data))
        for number, commit in enumerate(commits)
    ]
    hidden = hidden_positions(files.table.files.read)
    try:
        touched = {path for commit in changes for path in lines_by_file(commit, hidden)}
        files_before = [] if before is None else _files_at(files, before, hidden, touched, data)
        moves = moves_by_file(files_before, changes, hidden)
    except Refused as stop:
        raise Unreadable(stop.message) from stop
    size = sum(data[path].record_count + sum(len(move.positions) for move in moves[path]) for path in moves)
    if size > MOST_ROWS:
        raise Unreadable(f"{size} rows")
    parts: dict[tuple[int, int, str], pa.Table] = {}
    for path, moves_of_file in moves.items():
        rows = files.whole_file(data[path], names)
        for move in moves_of_file:
            part = rows.take(np.asarray(move.positions.to_array()))
            for name, value in ((NUMBER, move.number), (SIGN, move.sign)):
                part = part.append_column(name, pa.array(np.full(len(part), value)))
            parts[move.number, move.sign, path] = part
    return pa.concat_tables(parts[place] for place in sorted(parts)) if parts else pa.table({})


def _lines_of_commit(files: TableReader, snapshot: int, data: dict[str, "DataFile"]) -> list[FileLine]:
    """The files that a commit added and removed. Its data files are put into `data`."""
    changed = list(changed_files(_snapshot(files, snapshot), files.table.files))
    data.update((file.file_path, file) for _, file in changed if file.content.value == DATA)
    return [file_line(sign, file) for sign, file in changed]


def _files_at(
    files: TableReader,
    snapshot: int,
    hidden: HiddenPositions,
    touched: Collection[str],
    data: dict[str, "DataFile"],
) -> list[ScannedFile]:
    """The touched data files of a snapshot, each with its delete files. They are put into `data`."""
    scanned: dict[str, ScannedFile] = {}
    deletes: list[FileLine] = []
    bounds = sorted(path.encode() for path in touched)
    for _, file in live_files(_snapshot(files, snapshot), files.table.files):
        line = file_line("=", file)
        if line.content == ROWS and line.location in touched:
            data[line.location], scanned[line.location] = file, (line, [])
        elif line.content != ROWS and may_delete_from(file, bounds):
            deletes.append(line)
    for line in deletes:
        paths: Iterable[str] = [line.hidden]
        if not line.hidden:  # deletes by value may hide rows of any file
            paths = scanned if line.content == BY_VALUE else hidden(line)
        for path in paths:
            if path in scanned:
                scanned[path][1].append(line)
    return list(scanned.values())


def _snapshot(files: TableReader, snapshot: int) -> Mapping[str, Any]:
    metadata = files.table.snapshot_by_id(snapshot)
    if metadata is None:
        raise Unreadable("an expired snapshot")
    return metadata
