"""The geometries of a shapefile as GeoJSON; pyshp reads their points, after a look at their bounds (O24)."""

import json
import os
import struct
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import shapefile  # type: ignore[import-untyped]

from backstory.formats.produced import malformed
from backstory.formats.shapefile.rings import Point, polygons

_FILE_CODE = struct.pack(">i", 9994)
_HEADER = 100
_RECORD = struct.Struct(">ii")
_SHORTEST = 4  # bytes of a record: its kind alone
_POINTS = {shapefile.POINT, shapefile.POINTZ, shapefile.POINTM}
_MULTIPOINTS = {shapefile.MULTIPOINT, shapefile.MULTIPOINTZ, shapefile.MULTIPOINTM}
_LINES = {shapefile.POLYLINE, shapefile.POLYLINEZ, shapefile.POLYLINEM}
_POLYGONS = {shapefile.POLYGON, shapefile.POLYGONZ, shapefile.POLYGONM}
_WITH_HEIGHT = {shapefile.POINTZ, shapefile.POLYLINEZ, shapefile.POLYGONZ, shapefile.MULTIPOINTZ}
_BROKEN = (shapefile.ShapefileException, struct.error, ValueError, LookupError, AssertionError)


def geometries_of(file: BinaryIO, name: str, count: int) -> Iterator[str | None]:
    """`count` geometries, NULL for an empty one; Refused if there are more or fewer, or one is broken."""
    _refuse_broken_bounds(file, name, count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of another length in the header; the bounds were looked at
        shapes = shapefile.Reader(shp=file).iterShapes()
    for number in range(1, count + 1):
        try:
            built = _text(next(shapes))
        except _BROKEN as stop:
            raise malformed(name, f"row {number}", f"the geometry cannot be read ({stop})") from None
        yield built


def _text(shape: Any) -> str | None:
    """GeoJSON, of each number the digits that make it this number again; measures have no place in it."""
    if shape is None or shape.shapeType == shapefile.NULL:
        return None
    points = [(float(x), float(y)) for x, y in (point[:2] for point in shape.points)]
    if shape.shapeType in _WITH_HEIGHT:
        heights = zip(points, shape.z, strict=True)
        points = [(*point, float(height)) for point, height in heights]  # type: ignore[misc]
    kind, coordinates = _placed(shape, points)
    return json.dumps({"type": kind, "coordinates": coordinates}, separators=(",", ":"), allow_nan=False)


def _placed(shape: Any, points: Sequence[Point]) -> tuple[str, Any]:
    """The kind of GeoJSON and its coordinates; ValueError for a shape that it has no kind for."""
    if shape.shapeType in _POINTS:
        return "Point", points[0]
    if shape.shapeType in _MULTIPOINTS:
        return "MultiPoint", points
    starts = [*getattr(shape, "parts", ()), len(points)]
    parts = [points[start:end] for start, end in pairwise(starts)]
    if shape.shapeType in _LINES:
        return ("MultiLineString", parts) if len(parts) > 1 else ("LineString", parts[0] if parts else [])
    if shape.shapeType in _POLYGONS:
        built = polygons(parts)
        return ("MultiPolygon", built) if len(built) > 1 else ("Polygon", built[0] if built else [])
    raise ValueError(f"GeoJSON has no {shape.shapeTypeName}")


def _refuse_broken_bounds(file: BinaryIO, name: str, count: int) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if file.read(len(_FILE_CODE)) != _FILE_CODE or size < _HEADER:
        raise malformed(name, "", "its .shp is not a shapefile")
    place, number = _HEADER, 0
    while place < size:
        number += 1
        file.seek(place)
        head = file.read(_RECORD.size)
        length = _RECORD.unpack(head)[1] * 2 if len(head) == _RECORD.size else 0
        place += _RECORD.size + length
        if length < _SHORTEST or place > size:
            raise malformed(name, f"row {number}", "its geometry is incomplete")
    if number != count:
        raise malformed(name, "", f"the table has {count} rows, and the .shp {number} geometries")
