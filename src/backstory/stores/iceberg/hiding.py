"""Which positions of which files a delete file hides."""

import io
from collections.abc import Mapping
from functools import cache
from typing import Any

import pyarrow.parquet as pq
from pyroaring import BitMap64

from backstory.errors import Refused
from backstory.model.places import FILE, POSITION
from backstory.stores.framed import unframed
from backstory.stores.iceberg.data_files import download
from backstory.stores.iceberg.moves import VECTOR, Hidden
from backstory.stores.iceberg.scripts import FileLine
from backstory.stores.iceberg.store import StoredTable
from backstory.stores.iceberg.vectors import FILE_PATH, POSITION_IN_FILE, positions_by_file


def hidden_by(table: StoredTable) -> Hidden:
    """What tells the positions that delete files of the table hide; each of them is read once."""

    @cache
    def read(location: str, format_: str, place: tuple[int, int], hidden: str) -> Mapping[str, BitMap64]:
        content = download(table, location, *place)
        if format_ == VECTOR:
            positions = unframed(content)
            if positions is None:
                raise _spoilt(location)
            return {hidden: positions}
        if format_ != "PARQUET":
            raise _unreadable(format_)
        rows = pq.read_table(io.BytesIO(content), columns=[FILE_PATH, POSITION_IN_FILE])
        return positions_by_file(rows.select([FILE_PATH, POSITION_IN_FILE]).rename_columns([FILE, POSITION]))

    def hidden(line: FileLine) -> Mapping[str, BitMap64]:
        vector = line.format == VECTOR
        place = (line.offset, line.length) if vector else (0, line.size)
        return read(line.location, line.format, place, line.hidden)

    return hidden


def _unreadable(format_: str) -> Refused:
    return Refused(
        "delete-format",
        f"Another writer hides rows by files of the format {format_}, which backstory does not read.",
        "Compact the table with `backstory maintain`, and read the changes after that.",
    )


def _spoilt(location: str) -> Refused:
    return Refused(
        "deletion-vector-spoilt",
        f"The deletion vector in {location} is damaged: its checksum is wrong.",
        "Restore the file from a copy, or take the table back to an earlier commit with `backstory rewind`.",
    )


def row_groups(table: StoredTable, location: str, size: int, positions: BitMap64) -> list[int] | None:
    """Where the row groups of a Parquet file begin that hold these positions; None for another format."""
    ending = _ending(table, location, size)
    if ending is None:
        return None
    found, first = [], 0
    for group, offset in enumerate(_split_offsets(ending)):
        count = ending.row_group(group).num_rows
        if positions.range_cardinality(first, first + count):
            found.append(offset)
        first += count
    return found


def _split_offsets(metadata: pq.FileMetaData) -> list[int]:
    """Where row groups begin: at the dictionary page of their first column, if it has one."""
    offsets = []
    for group in range(metadata.num_row_groups):
        column = metadata.row_group(group).column(0)
        dictionary = column.dictionary_page_offset
        offsets.append(int(column.data_page_offset if dictionary is None else dictionary))
    return offsets


def _ending(table: StoredTable, location: str, size: int) -> Any:
    """The metadata of a Parquet file, of which the last bytes are read alone."""
    tail = download(table, location, max(size - 8, 0), min(size, 8))
    if tail[-4:] != b"PAR1":
        return None
    length = int.from_bytes(tail[:4], "little") + 8
    return pq.read_metadata(io.BytesIO(download(table, location, size - length, length)))
