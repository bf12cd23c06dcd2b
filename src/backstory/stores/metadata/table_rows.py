"""The rows of a small table, or few rows of any, read from files without Spark: the same rows, or none.

The rows of a small table in the order in which Spark sorts them.

Up to which value of a column a table must be read for so many rows: bounds tell before rows are read.

The rows that commits of a small table moved: of files that came or went, or that vectors hide since.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.table import TableName
from backstory.stores.metadata.deletes import Unreadable, Vector, deleted_positions, read_vector, vector_of
from backstory.stores.metadata.parquet_files import Field, arrow_of, greatest_in_groups, partition_ids
from backstory.stores.metadata.row_selection import HeldParts, RowSelection
from backstory.stores.metadata.searches import AnyOf, Between, RowSearch, Searches, bounds_of, search_rows
from backstory.stores.metadata.table_metadata import (
    DATA,
    POSITIONS,
    VECTOR,
    ReadableCatalog,
    TableMetadata,
    live_files,
)
from backstory.stores.metadata.values import integers, mask_of_visible
from backstory.stores.table_files import TableFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyroaring import BitMap64

# Plain Python takes about as long for so many rows as Spark takes to start.
MOST_ROWS: Final = 200_000
# Where no row is looked at one by one, memory is the bound before this is.
MOST_IN_ARROW: Final = 1 << 26
# Of so many bytes rows are searched for here: reading them takes about as long as Spark takes to start.
MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class TableReader:
    """A table whose files are read here, the catalog that opens them, and what they may take of memory."""

    table: TableMetadata
    catalog: ReadableCatalog
    lease: MemoryLease

    @property
    def opener(self) -> TableFiles:
        """How its files are opened."""
        return self.catalog.opener(self.table)

    def other_table(self, name: TableName) -> "TableReader | None":
        """Another table of the catalog, in the same memory; None if there is none."""
        found = self.catalog.describe(name)
        return None if found is None else TableReader(found, self.catalog, self.lease)

    def rows(
        self,
        snapshot: Mapping[str, Any] | None,
        fields: Sequence[Field],
        names: Sequence[str],
        most: int | None = None,
        searches: Searches | None = None,
    ) -> pa.Table:
        """The live rows of a snapshot, with these of the fields, as Spark gives them.

        With `searches` those that have what is searched for: no others are counted or kept, and files and row
        groups that cannot have them are not read. Raises Unreadable for more rows than `most`, or
        than `MOST_ROWS`, and for what cannot be read exactly.
        """
        told = {each["name"]: each for each in fields}
        sought = searches.columns if isinstance(searches, AnyOf) else searches or {}
        if missing := {*names, *sought} - set(told):
            raise Unreadable(f"no column {min(missing)}")
        schema = pa.schema([(name, arrow_of(told[name]["type"])) for name in names])
        if snapshot is None:
            return pa.Table.from_batches([], schema)
        if not sought:
            _require_small(snapshot, most or MOST_ROWS)
        search = search_rows(self.table.metadata, fields, searches) if searches and sought else None
        data, deletes = _relevant_files(snapshot, self.opener, search)
        self.opener.open_ahead(each.file_path for each in [*deletes, *data])
        hidden = deleted_positions(deletes, self.opener, {each.file_path for each in data}).positions
        wanted = RowSelection([told[name] for name in names], partition_ids(self.table.metadata))
        if search is not None:
            wanted = replace(
                wanted, filter_fields=search.fields, choose=search.choose, may_have=search.may_have
            )
        reading = _Reading(self, wanted, most or MOST_ROWS)
        try:
            parts = [each for file in data for each in reading.parts(file, hidden.get(file.file_path))]
        except TooLarge:
            raise Unreadable("more than the memory may hold") from None
        return pa.concat_tables([each.cast(schema) for each in parts] or [pa.Table.from_batches([], schema)])

    def whole_file(self, file: "DataFile", names: Sequence[str]) -> pa.Table:
        """All rows of a file, hidden ones too, with these columns of now; raises what `rows` raises."""
        told = {each["name"]: each for each in self.table.fields}
        schema = pa.schema([(name, arrow_of(told[name]["type"])) for name in names])
        wanted = RowSelection([told[name] for name in names], partition_ids(self.table.metadata))
        try:
            parts = _Reading(self, wanted, file.record_count).parts(file, None)
        except TooLarge:
            raise Unreadable("more than the memory may hold") from None
        return pa.concat_tables([each.cast(schema) for each in parts] or [pa.Table.from_batches([], schema)])


@dataclass(slots=True)
class _Reading:
    """The files of one question, as they are read: so many rows were kept, and so many bytes looked at."""

    files: TableReader
    wanted: RowSelection
    most: int
    rows: int = 0
    size: int = 0

    def parts(self, file: "DataFile", hidden: "BitMap64 | None") -> list[pa.Table]:
        """The wanted rows of a file, but for the hidden ones."""
        if file.file_format.value != "PARQUET" or file.key_metadata is not None:
            raise Unreadable(f"rows in {file.file_format.value}")
        holding = HeldParts(self.files.lease, file.file_path)

        def hold(size: int) -> None:
            holding.hold(size)
            self._look_at(size)

        with self.files.opener.parquet(file.file_path) as opened:
            standing = partial(_visible_rows, hidden, opened.metadata.num_rows)
            for rows, _ in self.wanted.parts(opened, standing, hold):
                holding.keep(rows)
                self.rows += rows.num_rows
                if self.rows > self.most:
                    raise Unreadable(f"more than {self.most} rows")
        return holding.whole()

    def _look_at(self, size: int) -> None:
        self.size += size
        if self.wanted.choose is not None and self.size > MOST_BYTES:
            raise Unreadable(f"more than {MOST_BYTES} bytes to search")


def _visible_rows(hidden: "BitMap64 | None", rows: int) -> pa.Array | None:
    """Which rows of a file are not deleted, as booleans; None if no row is."""
    return None if hidden is None else mask_of_visible(hidden, rows)


def is_small(snapshot: Mapping[str, Any]) -> bool:
    """Whether all rows of a snapshot are read here, by their number."""
    told = number_of_rows(snapshot)
    return told is not None and int(told) <= MOST_ROWS


def _require_small(snapshot: Mapping[str, Any], most: int) -> None:
    """Raise Unreadable for a snapshot of more rows than `most`, or that does not tell how many."""
    told = number_of_rows(snapshot)
    if told is None or int(told) > most:
        raise Unreadable(f"{told} rows")


def number_of_rows(snapshot: Mapping[str, Any]) -> str | None:
    """How many rows its files hold, hidden ones included; None where it does not tell."""
    told: str | None = (snapshot.get("summary") or {}).get("total-records")
    return told


def _relevant_files(
    snapshot: Mapping[str, Any], opener: TableFiles, search: RowSearch | None
) -> "tuple[list[DataFile], list[DataFile]]":
    """The data files of a snapshot that may have the rows, and all its delete files."""
    data: list[DataFile] = []
    deletes: list[DataFile] = []
    for partition, file in live_files(snapshot["manifest-list"], opener):
        if file.content.value != DATA:
            deletes.append(file)
        elif search is None or search.may_be_in_file(file, partition):
            data.append(file)
    return data, deletes


def rows_in_order(files: TableReader, names: Sequence[str], order: Sequence[str]) -> pa.Table:
    """These columns of the rows, sorted as Spark sorts; Unreadable for what Spark alone reads or sorts."""
    table = files.table
    rows = files.rows(table.snapshot, table.fields, list(dict.fromkeys([*names, *order])))
    return sort_like_spark(rows, order)


def sort_like_spark(rows: pa.Table, order: Sequence[str]) -> pa.Table:
    """The rows, sorted as Spark sorts; Unreadable for what Spark alone sorts."""
    if any(pa.types.is_floating(rows[name].type) for name in order):
        raise Unreadable("numbers that are equal and look different")
    keys: dict[str, pa.ChunkedArray] = {}
    for place, name in enumerate(order):
        keys |= {f"{place} is told": rows[name].is_valid(), f"{place}": rows[name]}
    try:
        places = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise Unreadable("a key that is not sorted here") from None
    return rows.take(places)


if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

# So many values of one column are looked through; their bytes are bounded besides.
MOST_VALUES: Final = 1 << 26


def least_values(
    files: TableReader,
    snapshot: Mapping[str, Any],
    fields: list[Field],
    name: str,
    count: int,
    least: Any = None,
) -> Between | None:
    """The span of a column that at least so many rows have values in, or NULL; None if the table has fewer.

    With `least` the span begins there, and NULL is not in it. Raises Unreadable where bounds do not tell, and
    for more than is read here.
    """
    field = next((each for each in fields if each["name"] == name), None)
    if field is None:
        raise Unreadable(f"no column {name}")
    span = _span_of_groups(files, snapshot, field, count, least)
    if span is None:
        return None
    values = files.rows(snapshot, fields, [name], MOST_VALUES, {name: span})[name]
    more = count - values.null_count
    if len(values) < count:
        return span  # rows that are hidden were counted
    return replace(span, greatest=_nth(values.drop_null(), more)) if more > 0 else span


def _nth(values: pa.ChunkedArray, number: int) -> Any:
    table = pa.table({"value": values})
    places = pc.select_k_unstable(table, number, [("value", "ascending")])
    return table["value"].take(places[-1:]).to_pylist()[0]


def _span_of_groups(
    files: TableReader, snapshot: Mapping[str, Any], field: Field, count: int, begin: Any
) -> Between | None:
    """The span of the row groups that together have so many rows: those with the least values."""
    bounded = _files_with_bounds(files, snapshot, field)
    found = sorted((each for each in bounded if begin is None or each[1] >= begin), key=lambda each: each[0])
    if not found:
        return None
    groups: list[tuple[Any, int]] = []
    for least, greatest, file in found:
        if sum(rows for most, rows in groups if most < least) >= count:
            break
        with files.opener(file.file_path) as source, pq.ParquetFile(source) as opened:
            told = greatest_in_groups(opened, field, greatest)
        groups += [each for each in told if begin is None or each[0] >= begin]
    rows = 0
    for greatest, more in sorted(groups, key=lambda each: each[0]):
        rows += more
        if rows >= count:
            return Between(found[0][0] if begin is None else begin, greatest, null=begin is None)
    return None


def _files_with_bounds(
    files: TableReader, snapshot: Mapping[str, Any], field: Field
) -> "Iterator[tuple[Any, Any, DataFile]]":
    """The data files with their bounds, but for those in which all values are NULL."""
    for _, file in live_files(snapshot["manifest-list"], files.opener):
        if file.content.value != DATA:
            continue
        bounds = bounds_of(file, field)
        if bounds is not None:
            yield bounds.min, bounds.max, file
        elif (file.null_value_counts or {}).get(field["id"]) != file.record_count:
            raise Unreadable(f"no bounds of {field['name']}")


if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from backstory.stores.metadata.table_metadata import Known

REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of rows in a snapshot, and what hides rows of it."""

    file: "DataFile"
    vector: Vector | None


@dataclass(slots=True)
class CommitMoves:
    """The rows that commits of a table let go and come, with these columns; each file is read once.

    Raises Unreadable for more than is small, and for what is not read exactly here.
    """

    files: TableReader
    names: Sequence[str]
    manifests: "Known" = field(default_factory=dict)
    read: dict[str, pa.Table] = field(default_factory=dict)
    moved: int = 0

    def of_commits(
        self, before: int | None, commits: Sequence[tuple[int, str]]
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """For each commit, by its snapshot and operation, the rows that went and those that came."""
        there = {} if before is None else self._live_files(before)
        for snapshot, operation in commits:
            then = self._live_files(snapshot)
            yield self._diff({} if operation == REPLACE else there, {} if operation == REPLACE else then)
            there = then

    def _diff(
        self, before: Mapping[str, LiveFile], after: Mapping[str, LiveFile]
    ) -> tuple[pa.Table, pa.Table]:
        gone, come = [], []
        for path in sorted({*before, *after}):
            was, now = before.get(path), after.get(path)
            if was is not None and now is not None and was.vector == now.vector:
                continue
            one, other = self._live_positions(was), self._live_positions(now)
            gone.append(self._rows(was or now, one - other))
            come.append(self._rows(now or was, other - one))
        return self._concat(gone), self._concat(come)

    def _concat(self, parts: list[pa.Table | None]) -> pa.Table:
        found = [each for each in parts if each is not None]
        return pa.concat_tables(found) if found else pa.table({name: [] for name in self.names})

    def _live_files(self, snapshot: int) -> dict[str, LiveFile]:
        """The data files of a snapshot by their paths, each with its deletion vector."""
        described = self.files.table.snapshot_by_id(snapshot)
        if described is None:
            raise Unreadable("a snapshot that is gone")
        data: dict[str, DataFile] = {}
        vectors: dict[str, Vector] = {}
        for _, file in live_files(described["manifest-list"], self.files.opener, self.manifests):
            if file.content.value == DATA:
                data[file.file_path] = file
            elif file.content.value == POSITIONS and file.file_format.value == VECTOR:
                vectors.update([vector_of(file)])
            else:
                raise Unreadable("rows that other files than vectors hide")
        return {path: LiveFile(file, vectors.get(path)) for path, file in data.items()}

    def _live_positions(self, standing: LiveFile | None) -> BitMap64:
        if standing is None:
            return BitMap64()
        every = BitMap64(range(standing.file.record_count))
        if standing.vector is None:
            return every
        return every - read_vector(standing.vector, self.files.opener)

    def _rows(self, standing: LiveFile | None, positions: BitMap64) -> pa.Table | None:
        if standing is None or not positions:
            return None
        file = standing.file
        if file.file_path not in self.read:
            self._count(file.record_count)
            self.read[file.file_path] = self.files.whole_file(file, self.names)
        self._count(len(positions))
        places = np.fromiter(positions, dtype=np.int64, count=len(positions))
        return self.read[file.file_path].take(integers(places))

    def _count(self, rows: int) -> None:
        self.moved += rows
        if self.moved > MOST_ROWS:
            raise Unreadable(f"{self.moved} rows")
