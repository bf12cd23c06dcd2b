"""Geometries as well-known text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

PLANE, SPACE = 2, 3
_Writer = Callable[[Any, int], str]


def wkt(geometry: Mapping[str, Any], dimensions: int = PLANE) -> str:
    """The text of a geometry given as GeoJSON has it, of two or three numbers a point.

    A number has as many digits as make it this number again.
    """
    kind, coordinates = geometry["type"], geometry["coordinates"]
    word = f"{kind.upper()} Z" if dimensions == SPACE else kind.upper()
    return f"{word} {_WRITERS[kind](coordinates, dimensions)}" if len(coordinates) else f"{word} EMPTY"


def _point(point: Sequence[float], dimensions: int) -> str:
    return " ".join(repr(float(number)).removesuffix(".0") for number in point[:dimensions])


def _enclosed(point: Sequence[float], dimensions: int) -> str:
    return f"({_point(point, dimensions)})"


def _of(inner: _Writer) -> _Writer:
    return lambda parts, dimensions: f"({', '.join(inner(part, dimensions) for part in parts)})"


_line = _of(_point)
_WRITERS: dict[str, _Writer] = {
    "Point": _enclosed,
    "MultiPoint": _of(_enclosed),
    "LineString": _line,
    "MultiLineString": _of(_line),
    "Polygon": _of(_line),
    "MultiPolygon": _of(_of(_line)),
}
