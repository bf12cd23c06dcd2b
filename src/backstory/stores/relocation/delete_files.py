"""Files that hide rows, with other paths of the files whose rows they hide."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from backstory.errors import Failed

REFERENCED: Final = "referenced-data-file"
_MAGIC: Final = b"PFA1"
_TAIL: Final = 12  # the payload's length, flags and the magic, behind it
Move = Callable[[str], str]


def rewrite_vectors(file: Path, target: Path, move: Move) -> None:
    """A Puffin file of deletion vectors: its footer alone has paths, so that all offsets stay."""
    content = file.read_bytes()
    (length,) = struct.unpack("<i", content[-_TAIL:-8])
    flags, start = content[-8:-4], len(content) - _TAIL - length
    if content[:4] != _MAGIC or content[-4:] != _MAGIC or content[start - 4 : start] != _MAGIC:
        raise unreadable(file)
    if flags != bytes(4):
        raise unreadable(file)  # a compressed footer: nobody writes one beside vectors
    footer = json.loads(content[start : start + length])
    for blob in footer["blobs"]:
        properties = blob.get("properties") or {}
        if REFERENCED in properties:
            properties[REFERENCED] = move(properties[REFERENCED])
    payload = json.dumps(footer, ensure_ascii=False, separators=(",", ":")).encode()
    target.write_bytes(content[:start] + payload + struct.pack("<i", len(payload)) + flags + _MAGIC)


def rewrite_positions(file: Path, target: Path, move: Move) -> dict[str, str]:
    """A Parquet file of positions, sorted by the new paths; gives the new path of each that it has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from backstory.stores.iceberg.vectors import FILE_PATH, POSITION_IN_FILE

    with pq.ParquetFile(file) as opened:
        groups = opened.metadata.num_row_groups
        rows = opened.read()
        compression = opened.metadata.row_group(0).column(0).compression if groups else "ZSTD"
    paths = rows[FILE_PATH].to_pylist()
    moves = {each: move(each) for each in dict.fromkeys(paths)}
    place, kept = rows.schema.get_field_index(FILE_PATH), rows.schema.field(FILE_PATH)
    rows = rows.set_column(place, kept, pa.array([moves[each] for each in paths], kept.type))
    rows = rows.sort_by([(FILE_PATH, "ascending"), (POSITION_IN_FILE, "ascending")])
    pq.write_table(rows, target, compression=compression, store_schema=False)
    return moves


def paths_in(file: Path) -> list[str]:
    """The files whose rows a Parquet file of positions hides."""
    import pyarrow.parquet as pq

    from backstory.stores.iceberg.vectors import FILE_PATH

    return list(dict.fromkeys(pq.read_table(file, columns=[FILE_PATH])[FILE_PATH].to_pylist()))


def unreadable(file: Path) -> Failed:
    """The error for a file that cannot be rewritten."""
    return Failed(
        "not-relocatable",
        f"The file {file.name} cannot be rewritten for another folder.",
        "Nothing was changed; run `backstory maintain` in the former folder, then copy that again.",
    )
