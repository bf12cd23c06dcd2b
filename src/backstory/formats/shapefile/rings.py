"""Which rings of a shapefile's polygon are holes, and the outer ring of each (decision O24).

Outer rings run clockwise, holes the other way; a hole is of the smallest outer ring around it.
Rings may touch, and they do not cross.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

Point = tuple[float, ...]
Ring = Sequence[Point]
_Plane = npt.NDArray[np.float64]


def polygons(rings: Sequence[Ring]) -> list[list[Ring]]:
    """Polygons in the order of their outer rings, each that ring and then its holes.

    A ring that runs as a hole and lies in no outer ring runs the wrong way: it is one itself.
    """
    planes = [np.array([point[:2] for point in ring], np.float64).reshape(-1, 2) for ring in rings]
    areas = [_area(plane) for plane in planes]
    outer = [place for place, area in enumerate(areas) if area < 0]
    lows = np.array([planes[each].min(0) for each in outer]).reshape(-1, 2)
    highs = np.array([planes[each].max(0) for each in outer]).reshape(-1, 2)
    holes: dict[int, list[Ring]] = {}
    gone = set()
    for hole in sorted(set(range(len(rings))).difference(outer)):
        plane = planes[hole]
        if not len(plane):
            continue
        # Bounds tell most outer rings out: a coast has thousands of them.
        near = np.flatnonzero(((lows <= plane.min(0)) & (plane.max(0) <= highs)).all(1))
        found = [outer[each] for each in near if _within(plane, planes[outer[each]])]
        if found:
            holes.setdefault(min(found, key=lambda each: -areas[each]), []).append(rings[hole])
            gone.add(hole)
    return [[ring, *holes.get(place, [])] for place, ring in enumerate(rings) if place not in gone]


def _area(plane: _Plane) -> float:
    """Twice the area, negative if the ring runs clockwise; measured from its first point, to keep digits."""
    x, y = (plane - plane[:1]).T
    return float(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1]))


def _within(hole: _Plane, outer: _Plane) -> bool:
    """Whether a ring lies in another: its first point, or middle of an edge, that is not on it tells."""
    for x, y in chain(hole, (hole[1:] + hole[:-1]) / 2):
        side = _side(x, y, outer)
        if side:
            return side > 0
    return True


def _side(x: float, y: float, ring: _Plane) -> int:
    """1 for a point in the ring, -1 for one outside, 0 for one on it."""
    (x0, y0), (x1, y1) = ring[:-1].T, ring[1:].T
    turn = (x1 - x0) * (y - y0) - (x - x0) * (y1 - y0)
    between = (np.minimum(x0, x1) <= x) & (x <= np.maximum(x0, x1))
    between &= (np.minimum(y0, y1) <= y) & (y <= np.maximum(y0, y1))
    if bool((between & (turn == 0)).any()):
        return 0
    # How many edges does a ray to the right meet? One that goes up has the point at its left then.
    up, down = (y0 <= y) & (y < y1), (y1 <= y) & (y < y0)
    met = np.count_nonzero(up & (turn > 0)) + np.count_nonzero(down & (turn < 0))
    return 1 if met % 2 else -1
