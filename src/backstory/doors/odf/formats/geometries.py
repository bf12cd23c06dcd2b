"""The geometries of a shapefile as well-known text; pyshp reads them, after a look at their bounds."""

import os
import struct
import warnings
from collections.abc import Iterator
from typing import Any, BinaryIO

import shapefile  # type: ignore[import-untyped]

from backstory.doors.odf.formats.rows import malformed
from backstory.doors.odf.formats.wkt import PLANE, SPACE, wkt

_FILE_CODE = struct.pack(">i", 9994)
_HEADER = 100
_RECORD = struct.Struct(">ii")
_SHORTEST = 4  # bytes of a record: its kind alone
_WITH_HEIGHT = {shapefile.POINTZ, shapefile.POLYLINEZ, shapefile.POLYGONZ, shapefile.MULTIPOINTZ}
_BROKEN = (
    shapefile.ShapefileException,
    shapefile.GeoJSON_Error,
    shapefile.RingSamplingError,
    struct.error,
    ValueError,
    LookupError,
    AssertionError,
)


def geometries_of(file: BinaryIO, name: str, count: int) -> Iterator[str | None]:
    """`count` geometries, NULL for an empty one; Refused if there are more or fewer, or one is broken."""
    _refuse_broken_bounds(file, name, count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of another length in the header; the bounds were looked at
        shapes = shapefile.Reader(shp=file).iterShapes()
    for number in range(1, count + 1):
        try:
            made = _text(next(shapes))
        except _BROKEN as stop:
            raise malformed(name, f"row {number}", f"the geometry cannot be read ({stop})") from None
        yield made


def _text(shape: Any) -> str | None:
    if shape is None or shape.shapeType == shapefile.NULL:
        return None
    if shape.shapeType in _WITH_HEIGHT:
        # As GeoJSON pyshp gives the plane alone, and carries along what more a point has.
        shape.points = [(*point[:PLANE], height) for point, height in zip(shape.points, shape.z, strict=True)]
        return wkt(shape.__geo_interface__, SPACE)
    return wkt(shape.__geo_interface__)


def _refuse_broken_bounds(file: BinaryIO, name: str, count: int) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if file.read(len(_FILE_CODE)) != _FILE_CODE or size < _HEADER:
        raise malformed(name, "", "its .shp is no shapefile")
    at, number = _HEADER, 0
    while at < size:
        number += 1
        file.seek(at)
        head = file.read(_RECORD.size)
        length = _RECORD.unpack(head)[1] * 2 if len(head) == _RECORD.size else 0
        at += _RECORD.size + length
        if length < _SHORTEST or at > size:
            raise malformed(name, f"row {number}", "its geometry is not whole")
    if number != count:
        raise malformed(name, "", f"the table has {count} rows, and the .shp {number} geometries")
