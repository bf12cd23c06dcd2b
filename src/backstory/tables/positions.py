"""The places of rows in data files, packed where Spark runs."""

from typing import TYPE_CHECKING

from pyroaring import BitMap64

if TYPE_CHECKING:
    import pyarrow as pa


def positions_of(frame: object) -> dict[str, BitMap64]:
    """For each data file the positions of its rows, packed where Spark runs."""
    packed = (
        frame.select("_file", "_pos")  # type: ignore[attr-defined]
        .groupBy("_file")
        .applyInArrow(_packed, "file string, positions binary")
        .collect()
    )
    return {row.file: BitMap64.deserialize(bytes(row.positions)) for row in packed}


def _packed(rows: "pa.Table") -> "pa.Table":
    import pyarrow as pa
    from pyroaring import BitMap64

    bitmap = BitMap64(rows["_pos"].to_numpy())
    return pa.table({"file": [rows["_file"][0].as_py()], "positions": [bitmap.serialize()]})
