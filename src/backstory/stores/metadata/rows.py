"""The rows of a small table, or few rows of any, read from files without Spark: the same rows, or none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.table import TableName
from backstory.stores.metadata.columns import arrow_of, parted_ids
from backstory.stores.metadata.described import Described, Opening
from backstory.stores.metadata.hidden import Unreadable, hidden_rows
from backstory.stores.metadata.manifests import DATA, live_files
from backstory.stores.metadata.row_groups import Field
from backstory.stores.metadata.row_selection import HeldParts, RowSelection
from backstory.stores.metadata.searches import AnyOf, RowSearch, Searches, search_rows
from backstory.stores.metadata.values import left
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
class Files:
    """A table whose files are read here, the catalog that opens them, and what they may take of memory."""

    table: Described
    catalog: Opening
    lease: MemoryLease

    @property
    def opener(self) -> TableFiles:
        """How its files are opened."""
        return self.catalog.opener(self.table)

    def beside(self, name: TableName) -> "Files | None":
        """Another table of the catalog, in the same memory; None if there is none."""
        found = self.catalog.describe(name)
        return None if found is None else Files(found, self.catalog, self.lease)

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
        search = search_rows(self.table.told, fields, searches) if searches and sought else None
        data, deletes = _sorted_out(snapshot, self.opener, search)
        self.opener.open_ahead(each.file_path for each in [*deletes, *data])
        hidden = hidden_rows(deletes, self.opener, {each.file_path for each in data}).positions
        wanted = RowSelection([told[name] for name in names], parted_ids(self.table.told))
        if search is not None:
            wanted = replace(wanted, of=search.fields, chosen=search.chosen, may_have=search.may_have)
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
        wanted = RowSelection([told[name] for name in names], parted_ids(self.table.told))
        try:
            parts = _Reading(self, wanted, file.record_count).parts(file, None)
        except TooLarge:
            raise Unreadable("more than the memory may hold") from None
        return pa.concat_tables([each.cast(schema) for each in parts] or [pa.Table.from_batches([], schema)])


@dataclass(slots=True)
class _Reading:
    """The files of one question, as they are read: so many rows were kept, and so many bytes looked at."""

    files: Files
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
        if self.wanted.chosen is not None and self.size > MOST_BYTES:
            raise Unreadable(f"more than {MOST_BYTES} bytes to search")


def _visible_rows(hidden: "BitMap64 | None", rows: int) -> pa.Array | None:
    """Which rows of a file are not deleted, as booleans; None if no row is."""
    return None if hidden is None else left(hidden, rows)


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


def _sorted_out(
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
