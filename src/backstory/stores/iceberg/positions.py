"""The places of rows in data files."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap64

from backstory.model.layout import FILE, POSITION
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.data_files import positions_by_file
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import Store
from backstory.stores.iceberg.workers import map_batches
from backstory.stores.port import StoredTable
from backstory.stores.refusals import conflict

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

FEW = 100_000
PATH: Final = "file_path"


def file_code(salt: int, path: str = FILE) -> "Column":
    """A number for a file, to go through joins in place of its path, which may be most of a row."""
    from pyspark.sql.functions import lit, xxhash64

    return xxhash64(lit(salt), column(path))


def positions_by_path(
    store: Store, table: StoredTable, coded: Mapping[int, BitMap64], salt: int
) -> dict[str, BitMap64]:
    """Positions by coded file as those by path; TryAgain where a number is of two files, or of none."""
    files = store.spark.table(store.sql_name(table.shape.table, "data_files"))
    rows = files.select(PATH, file_code(salt, PATH)).collect()
    paths = {code: path for path, code in rows}
    if len(paths) < len(rows) or not coded.keys() <= paths.keys():
        raise conflict(table.shape.table)
    return {paths[code]: positions for code, positions in coded.items()}


def add_places(positions: dict[str, BitMap64], places: "pa.Table") -> dict[str, BitMap64]:
    """The positions by path, with the places of a few rows more."""
    for file, position in zip(places[FILE].to_pylist(), places[POSITION].to_pylist(), strict=True):
        positions.setdefault(file, BitMap64()).add(position)
    return positions


def positions_of(frame: "DataFrame", count: int | None = None) -> dict[Any, BitMap64]:
    """For each data file, as the frame names it, the positions of its rows.

    Each of Spark's tasks packs those of its rows, unless few are counted.
    """
    places = frame.select(FILE, POSITION)
    if count is not None and count <= FEW:
        return positions_by_file(arrow_of(places)) if count else {}
    file = places.schema[FILE].dataType.simpleString()
    packed = map_batches(places, _pack, f"file {file}, positions binary").collect()
    positions: dict[Any, BitMap64] = {}
    for row in packed:
        _add_positions(positions, {row.file: BitMap64.deserialize(bytes(row.positions))})
    return positions


def _pack(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """The positions of a partition by file."""
    import pyarrow as pa

    positions: dict[Any, BitMap64] = {}
    for batch in batches:
        _add_positions(positions, positions_by_file(pa.Table.from_batches([batch])))
    if positions:
        packed = [each.serialize() for each in positions.values()]
        yield pa.record_batch({"file": pa.array(list(positions)), "positions": pa.array(packed, pa.binary())})


def _add_positions(positions: dict[Any, BitMap64], more: Mapping[Any, BitMap64]) -> None:
    for file, marked in more.items():
        if file in positions:
            positions[file] |= marked  # in place: a partition has many batches
        else:
            positions[file] = marked
