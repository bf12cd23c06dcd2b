"""Which shapefile of a zip is read (section 1.6)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShapefileOptions:
    """A zip with one shapefile, or one that `sub_path` chooses; `strict` is as for other formats."""

    sub_path: str | None = None
    strict: bool = False
