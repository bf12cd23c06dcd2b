"""The rows of a small table, read from its files without Spark: the same rows, or none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.table import TableName
from backstory.stores.metadata.columns import arrow_of, parted_ids, read_fields
from backstory.stores.metadata.described import Described, Opening
from backstory.stores.metadata.hidden import Unreadable, hidden_rows
from backstory.stores.metadata.manifests import DATA, live_files
from backstory.stores.openings import TableFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyroaring import BitMap64

# Plain Python takes about as long for so many rows as Spark takes to start.
MOST_ROWS: Final = 200_000
# Arrow does for so many, where no row is looked at one by one.
MOST_IN_ARROW: Final = 2_000_000


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
        fields: Sequence[Mapping[str, Any]],
        names: Sequence[str],
        most: int = MOST_ROWS,
    ) -> pa.Table:
        """The live rows of a snapshot, with these of the fields, as Spark gives them.

        Raises Unreadable for more than is small, or than `most`, and for what cannot be read exactly.
        """
        told = {each["name"]: each for each in fields}
        if missing := set(names) - set(told):
            raise Unreadable(f"no column {min(missing)}")
        schema = pa.schema([(name, arrow_of(told[name]["type"])) for name in names])
        if snapshot is None:
            return pa.Table.from_batches([], schema)
        _require_small(snapshot, most)
        data, deletes = _sorted_out(snapshot, self.opener)
        self.opener.ahead(each.file_path for each in [*deletes, *data])
        hidden = hidden_rows(deletes, self.opener).positions
        wanted = [told[name] for name in names]
        try:
            parts = [self._file(each, wanted, schema, hidden.get(each.file_path)) for each in data]
        except TooLarge:
            raise Unreadable("more than the memory may hold") from None
        return pa.concat_tables(parts) if parts else pa.Table.from_batches([], schema)

    def whole_file(self, file: "DataFile", names: Sequence[str]) -> pa.Table:
        """All rows of a file, hidden ones too, with these columns of now; raises what `rows` raises."""
        told = {each["name"]: each for each in self.table.fields}
        schema = pa.schema([(name, arrow_of(told[name]["type"])) for name in names])
        try:
            return self._file(file, [told[name] for name in names], schema, None)
        except TooLarge:
            raise Unreadable("more than the memory may hold") from None

    def _file(
        self,
        file: "DataFile",
        wanted: Sequence[Mapping[str, Any]],
        schema: pa.Schema,
        hidden: "BitMap64 | None",
    ) -> pa.Table:
        if file.file_format.value != "PARQUET" or file.key_metadata is not None:
            raise Unreadable(f"rows in {file.file_format.value}")
        with self.opener.parquet(file.file_path) as opened:
            table = read_fields(
                opened, wanted, parted_ids(self.table.told), partial(self.lease.hold, file.file_path)
            ).cast(schema)
        return table if hidden is None else table.filter(left(hidden, table.num_rows))


def _require_small(snapshot: Mapping[str, Any], most: int) -> None:
    """Raise Unreadable for a snapshot of more rows than `most`, or that does not tell how many."""
    told = (snapshot.get("summary") or {}).get("total-records")
    if told is None or int(told) > most:
        raise Unreadable(f"{told} rows")


def _sorted_out(snapshot: Mapping[str, Any], opener: TableFiles) -> "tuple[list[DataFile], list[DataFile]]":
    """The data files of a snapshot, and its delete files."""
    data: list[DataFile] = []
    deletes: list[DataFile] = []
    for _, file in live_files(snapshot["manifest-list"], opener):
        (data if file.content.value == DATA else deletes).append(file)
    return data, deletes


def left(hidden: "BitMap64", rows: int) -> pa.Array:
    """Which rows of a file are not hidden."""
    found = np.ones(rows, dtype=bool)
    found[np.asarray(hidden.to_array())] = False
    return pa.Array.from_buffers(
        pa.bool_(), rows, [None, pa.py_buffer(np.packbits(found, bitorder="little"))]
    )
