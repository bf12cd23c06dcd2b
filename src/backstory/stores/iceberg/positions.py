"""The places of rows in data files."""

from typing import TYPE_CHECKING

from pyroaring import BitMap64

from backstory.model.places import FILE, POSITION
from backstory.stores.iceberg.vectors import positions_by_file

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

FEW = 100_000


def positions_of(frame: "DataFrame", count: int | None = None) -> dict[str, BitMap64]:
    """For each data file the positions of its rows; packed where Spark runs, unless few are counted."""
    places = frame.select(FILE, POSITION)
    if count is not None and count <= FEW:
        return positions_by_file(places.toArrow()) if count else {}
    packed = places.groupBy(FILE).applyInArrow(_packed, "file string, positions binary").collect()
    return {row.file: BitMap64.deserialize(bytes(row.positions)) for row in packed}


def _packed(rows: "pa.Table") -> "pa.Table":
    import pyarrow as pa
    from pyroaring import BitMap64

    bitmap = BitMap64(rows[POSITION].to_numpy())
    return pa.table({"file": [rows[FILE][0].as_py()], "positions": [bitmap.serialize()]})
