"""Rows of an ESRI shapefile in a zip: its table's fields, and the geometry as GeoJSON (section 1.6, O24).

Outer rings of polygons run clockwise and holes counterclockwise. A hole belongs to the smallest outer ring
around it; rings may touch but not cross.
"""

import codecs
import json
import os
import re
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import shapefile  # type: ignore[import-untyped]
import structlog

from backstory.errors import Refused
from backstory.formats.memory import Bound, bound_of
from backstory.formats.options import ShapefileOptions
from backstory.formats.produced import (
    BATCH,
    FIX_FILE,
    UNDECLARED,
    DeclaredFields,
    ProducedRows,
    malformed_row,
    refuse_repeated,
    require_columns,
    typed_or_refused,
    unreadable,
)
from backstory.formats.source_files import ambiguous, extract, matching, open_zip, zip_files
from backstory.formats.values.texts import TextForms, parser

_TABLE_HEADER, _FIELD = struct.Struct("<4xIHH17xB2x"), struct.Struct("<11sc4xBB14x")
_END_OF_FIELDS = b"\r"
_DELETED = b"*"
_TYPES = {"C": pa.string(), "L": pa.bool_(), "D": pa.date32(), "F": pa.float64(), "N": pa.float64()}
_YES, _NO, _UNKNOWN = set("YyTt"), set("NnFf"), {"?", ""}


@dataclass(frozen=True, slots=True)
class DbfField:
    """A column of a dBASE table: its type letter, its position in a record, and its decimal digits."""

    name: str
    letter: str
    start: int
    length: int
    decimals: int

    @property
    def type(self) -> pa.DataType | None:
        """The column's Arrow type, or None for an unsupported type letter."""
        return pa.int64() if self.letter == "N" and not self.decimals else _TYPES.get(self.letter)

    def cell(self, record: bytes) -> bytes:
        """The field's bytes in a record."""
        return record[self.start : self.start + self.length]

    def text(self, cell: str) -> str | None:
        """The cell as a string of the column's type. Blanks, and asterisks in a number, are NULL."""
        if self.letter == "C":
            return cell.rstrip(" \0") or None
        cell = cell.strip(" \0")
        if self.letter == "L":
            known = "true" if cell in _YES else "false" if cell in _NO else cell
            return None if known in _UNKNOWN else known
        if self.letter == "D":
            dashed = f"{cell[:4]}-{cell[4:6]}-{cell[6:]}"
            return None if not cell.strip("0") else dashed
        return cell if cell.strip("*") else None


@dataclass(frozen=True, slots=True)
class Dbf:
    """A dBASE table: its fields, and the start, number and length of its records.

    `encoding` is the encoding of its strings, and `language` the header's number for the code page, or 0.
    """

    path: Path
    name: str
    encoding: str
    fields: tuple[DbfField, ...]
    count: int
    start: int
    length: int
    language: int

    def records(self) -> Iterator[bytes | None]:
        """Each record, or None for a deleted record.

        Raises Refused if the file ends before the last record.
        """
        with self.path.open("rb") as file:
            file.seek(self.start)
            for number in range(1, self.count + 1):
                record = file.read(self.length)
                if len(record) < self.length:
                    raise malformed_row(
                        self.name,
                        f"row {number}",
                        f"the table ends here, although its header specifies {self.count} rows",
                    )
                yield None if record[:1] == _DELETED else record

    def is_utf8(self) -> bool:
        """Whether all strings of the table are UTF-8."""
        texts = [field for field in self.fields if field.letter == "C"]
        try:
            for record in self.records():
                if record is not None and not record.isascii():
                    for field in texts:
                        field.cell(record).decode()
        except UnicodeDecodeError:
            return False
        return True


def dbf(path: Path, name: str, encoding: str) -> Dbf:
    """The layout of a dBASE table. Raises Refused if the file is not a dBASE table."""
    with path.open("rb") as file:
        head = file.read(_TABLE_HEADER.size)
        if len(head) < _TABLE_HEADER.size:
            raise _no_table(name)
        count, start, length, language = _TABLE_HEADER.unpack(head)
        header = file.read(max(0, start - _TABLE_HEADER.size))
    fields, position, place = [], 1, 0
    while header[place : place + 1] not in {_END_OF_FIELDS, b""}:
        if len(header) < place + _FIELD.size:
            raise _no_table(name)
        raw, letter, size, decimals = _FIELD.unpack_from(header, place)
        if letter == b"C":
            size, decimals = (
                size + (decimals << 8),
                0,
            )  # for long strings this byte is the upper half of the size
        named = raw.split(b"\0")[0]
        try:
            column = named.decode(encoding).strip()
        except UnicodeDecodeError:
            raise malformed_row(name, "", f"the column name {named!r} is not {encoding}") from None
        fields.append(DbfField(column, letter.decode("latin-1"), position, size, decimals))
        position, place = position + size, place + _FIELD.size
    if not fields or position > length:
        raise _no_table(name)
    return Dbf(path, name, encoding, tuple(fields), count, start, length, language)


def _no_table(name: str) -> Refused:
    return malformed_row(name, "", "its .dbf is not a dBASE table")


Point = tuple[float, ...]
Ring = Sequence[Point]
_Plane = npt.NDArray[np.float64]


def polygons(rings: Sequence[Ring]) -> list[list[Ring]]:
    """Group rings into polygons, in the order of their outer rings.

    Each polygon is a list with the outer ring first, then its holes. A counterclockwise ring outside every
    outer ring has the wrong direction, and counts as an outer ring.
    """
    planes = [np.array([point[:2] for point in ring], np.float64).reshape(-1, 2) for ring in rings]
    areas = [_area(plane) for plane in planes]
    outer = [place for place, area in enumerate(areas) if area < 0]
    lows = np.array([planes[place].min(0) for place in outer]).reshape(-1, 2)
    highs = np.array([planes[place].max(0) for place in outer]).reshape(-1, 2)
    holes: dict[int, list[Ring]] = {}
    assigned = set()
    for hole in sorted(set(range(len(rings))).difference(outer)):
        plane = planes[hole]
        if not len(plane):
            continue
        # Bounding boxes rule out most outer rings; a coast has thousands of them.
        near = np.flatnonzero(((lows <= plane.min(0)) & (plane.max(0) <= highs)).all(1))
        around = [outer[index] for index in near if _within(plane, planes[outer[index]])]
        if around:
            holes.setdefault(min(around, key=lambda place: -areas[place]), []).append(rings[hole])
            assigned.add(hole)
    return [[ring, *holes.get(place, [])] for place, ring in enumerate(rings) if place not in assigned]


def _area(plane: _Plane) -> float:
    """Twice the area of a ring, computed relative to its first point to keep digits.

    The area of a clockwise ring is negative.
    """
    x, y = (plane - plane[:1]).T
    return float(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1]))


def _within(hole: _Plane, outer: _Plane) -> bool:
    """Whether a ring is inside another ring.

    The test uses the first corner or edge midpoint of `hole` that is not on `outer`. Without such a point,
    the ring is inside.
    """
    for x, y in chain(hole, (hole[1:] + hole[:-1]) / 2):
        side = _side(x, y, outer)
        if side:
            return side > 0
    return True


def _side(x: float, y: float, ring: _Plane) -> int:
    """The side of a point: 1 inside the ring, -1 outside, 0 on it."""
    (x0, y0), (x1, y1) = ring[:-1].T, ring[1:].T
    turn = (x1 - x0) * (y - y0) - (x - x0) * (y1 - y0)
    between = (np.minimum(x0, x1) <= x) & (x <= np.maximum(x0, x1))
    between &= (np.minimum(y0, y1) <= y) & (y <= np.maximum(y0, y1))
    if bool((between & (turn == 0)).any()):
        return 0
    # Count the edges that a ray to the right meets; a rising edge has the point at its left.
    up, down = (y0 <= y) & (y < y1), (y1 <= y) & (y < y0)
    met = np.count_nonzero(up & (turn > 0)) + np.count_nonzero(down & (turn < 0))
    return 1 if met % 2 else -1


_FILE_CODE = struct.pack(">i", 9994)
_HEADER = 100
_RECORD = struct.Struct(">ii")
_SHORTEST = 4  # bytes of a record that contains only its kind
_BROKEN = (shapefile.ShapefileException, struct.error, ValueError, LookupError, AssertionError)


def geometries_of(file: BinaryIO, name: str, count: int) -> Iterator[str | None]:
    """`count` geometries as GeoJSON strings, or None for a NULL shape.

    Raises Refused for a broken geometry, or if the file has a different number of geometries.
    """
    _refuse_broken_bounds(file, name, count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the header's length is wrong; the bounds are already checked
        shapes = shapefile.Reader(shp=file).iterShapes()
    for number in range(1, count + 1):
        try:
            built = _geometry_text(next(shapes))
        except _BROKEN as stop:
            raise malformed_row(name, f"row {number}", f"the geometry cannot be read ({stop})") from None
        yield built


def _geometry_text(shape: Any) -> str | None:
    """A shape as GeoJSON with exact numbers. Measures are dropped, because GeoJSON has no place for them."""
    if shape is None or shape.shapeType == shapefile.NULL:
        return None
    points = [(float(x), float(y)) for x, y in (point[:2] for point in shape.points)]
    if shape.shapeTypeName.endswith("Z"):
        heights = zip(points, shape.z, strict=True)
        points = [(*point, float(height)) for point, height in heights]  # type: ignore[misc]
    kind, coordinates = _geojson(shape, points)
    return json.dumps({"type": kind, "coordinates": coordinates}, separators=(",", ":"), allow_nan=False)


def _geojson(shape: Any, points: Sequence[Point]) -> tuple[str, Any]:
    """The GeoJSON type and the coordinates of a shape. Raises ValueError if GeoJSON has no such type."""
    starts = [*getattr(shape, "parts", ()), len(points)]
    parts = [points[start:end] for start, end in pairwise(starts)]
    match shape.shapeTypeName.rstrip("ZM"):
        case "POINT":
            return "Point", points[0]
        case "MULTIPOINT":
            return "MultiPoint", points
        case "POLYLINE":
            return ("MultiLineString", parts) if len(parts) > 1 else ("LineString", parts[0] if parts else [])
        case "POLYGON":
            built = polygons(parts)
            return ("MultiPolygon", built) if len(built) > 1 else ("Polygon", built[0] if built else [])
    raise ValueError(f"GeoJSON has no {shape.shapeTypeName}")


def _refuse_broken_bounds(file: BinaryIO, name: str, count: int) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if file.read(len(_FILE_CODE)) != _FILE_CODE or size < _HEADER:
        raise malformed_row(name, "", "its .shp is not a shapefile")
    place, number = _HEADER, 0
    while place < size:
        number += 1
        file.seek(place)
        head = file.read(_RECORD.size)
        length = _RECORD.unpack(head)[1] * 2 if len(head) == _RECORD.size else 0
        place += _RECORD.size + length
        if length < _SHORTEST or place > size:
            raise malformed_row(name, f"row {number}", "its geometry is incomplete")
    if number != count:
        raise malformed_row(name, "", f"the table has {count} rows, and the .shp {number} geometries")


log = structlog.get_logger()

GEOMETRY = "geometry"
SHP, DBF, CPG = ".shp", ".dbf", ".cpg"
# Encodings in .cpg files for which Python has other names.
_ISO = re.compile(r"^(?:iso[ _-]?)?8859[ _-]?(\d+)$")
_CODE_PAGES = {"65001": "utf-8", "ansi": "cp1252"}
# Language driver ids in the headers of .dbf files, by code page. Programs write 0x57 (ANSI) by default.
_LANGUAGES = {
    437: (0x01, 0x09, 0x0B, 0x0D, 0x0F, 0x11, 0x15, 0x18, 0x19, 0x1B),
    737: (0x6A, 0x86),
    850: (0x02, 0x0A, 0x0E, 0x10, 0x12, 0x14, 0x16, 0x1A, 0x1D, 0x25, 0x37),
    852: (0x1F, 0x22, 0x23, 0x40, 0x64, 0x87),
    857: (0x6B, 0x88),
    860: (0x24,),
    861: (0x67,),
    863: (0x1C, 0x6C),
    865: (0x08, 0x17, 0x66),
    866: (0x26, 0x65),
    874: (0x50, 0x7C),
    932: (0x13, 0x7B),
    936: (0x4D, 0x7A),
    949: (0x4E, 0x79),
    950: (0x4F, 0x78),
    1250: (0xC8,),
    1251: (0xC9,),
    1252: (0x03, 0x58, 0x59),
    1253: (0xCB,),
    1254: (0xCA,),
    1255: (0x7D,),
    1256: (0x7E,),
    1257: (0xCC,),
}
_ENCODINGS = {language: f"cp{page}" for page, languages in _LANGUAGES.items() for language in languages}
_ANSI = 0x57


def shapefile_rows(
    path: Path,
    name: str,
    options: ShapefileOptions,
    schema: pa.Schema | None,
    dataset_types: DeclaredFields = UNDECLARED,
    bound: Bound | None = None,
) -> ProducedRows:
    """The rows, with the declared columns by name, or else with all fields of the table and `geometry`.

    Blanks are NULL, and rows marked as deleted are left out. Raises Refused unless exactly one `.shp`
    matches. Raises Refused for a missing or broken part, and for a missing declared column. Errors in single
    values are raised when their batch is read.
    """
    with ExitStack() as resources:
        folder = Path(resources.enter_context(TemporaryDirectory(prefix="backstory-shapefile-")))
        with open_zip(path, name) as archive:
            chosen = _shapefile(archive, name, options.sub_path)
            called = f"{name}/{chosen}"
            _extract(archive, chosen, name, folder, bound or bound_of(path))
        table = _table(folder, called)
        names = [field.name for field in table.fields] + [GEOMETRY]
        refuse_repeated(called, names)
        if schema is None:
            own = [pa.field(field.name, field.type or pa.string()) for field in table.fields]
            own.append(pa.field(GEOMETRY, pa.string()))
            schema = pa.schema([dataset_types.get(field.name, field) for field in own])
        require_columns(called, schema.names, names, strict=options.strict)
        columns = {field.name: field for field in table.fields}
        for field in schema:
            parser(field, TextForms())
            if field.name in columns and columns[field.name].type is None:
                letter = columns[field.name].letter
                raise malformed_row(
                    called, "", f"column `{field.name}` has the type `{letter}`, which is not supported"
                )
        return ProducedRows(schema, _batches(resources.pop_all(), folder, table, schema))


def _shapefile(archive: ZipFile, name: str, sub_path: str | None) -> str:
    """The path of the zip's only `.shp` file, or of the only `.shp` file that matches `subPath`."""
    entries = [entry for entry in zip_files(archive) if entry.lower().endswith(SHP)]
    matches = entries if sub_path is None else matching(entries, sub_path)
    if len(matches) != 1:
        wanted = "`*.shp`" if sub_path is None else f"subPath `{sub_path}`"
        raise ambiguous(name, wanted, matches, entries or zip_files(archive))
    return matches[0]


def _extract(archive: ZipFile, chosen: str, name: str, folder: Path, bound: Bound) -> None:
    """Extract the parts under fixed names. The archive's own paths are never used on disk."""
    stem = str(PurePosixPath(chosen).with_suffix(""))
    parts = {
        PurePosixPath(entry).suffix.lower(): entry
        for entry in zip_files(archive)
        if str(PurePosixPath(entry).with_suffix("")).lower() == stem.lower()
    } | {SHP: chosen}
    if DBF not in parts:
        raise malformed_row(f"{name}/{chosen}", "", f"its {DBF} is missing in the zip")
    for suffix in (SHP, DBF, CPG):
        if suffix in parts:
            extract(archive, parts[suffix], folder / f"shape{suffix}", name, bound)


def _table(folder: Path, name: str) -> Dbf:
    """The table's layout, with the encoding of its strings.

    The .cpg file names the encoding, or else the table's header. If neither does, or the header only says
    ANSI, the encoding is UTF-8 if all strings are valid UTF-8. Otherwise the encoding is Windows-1252 for
    ANSI, and Latin-1 if no encoding is named. Raises Refused for an unknown name, unless all strings are
    valid UTF-8.
    """
    page, path = folder / f"shape{CPG}", folder / f"shape{DBF}"
    if page.is_file() and (written := page.read_bytes().decode("latin-1").strip(" \0\r\n\t")):
        return dbf(path, name, _encoding(written, name))
    table = dbf(path, name, "latin-1")
    if encoding := _ENCODINGS.get(table.language, ""):
        return dbf(path, name, encoding)
    try:
        names_too = dbf(path, name, "utf-8")
    except Refused:
        names_too = None
    if names_too is not None and table.is_utf8():
        return names_too
    if table.language == _ANSI:
        return dbf(path, name, "cp1252")
    if table.language:
        why = f"it has no {CPG}, and the language id 0x{table.language:02X} of its {DBF} is not known"
        raise malformed_row(name, "", why, f"{FIX_FILE}, or add a {CPG} with the encoding.")
    log.warning("the shapefile names no encoding and is not UTF-8; it is read as Latin-1", file=name)
    return table


def _encoding(written: str, name: str) -> str:
    """Python's name for the encoding in a .cpg, such as `UTF-8`, `1252`, `ANSI 1252` or `ISO 88591`."""
    last = re.sub(r"^(ansi|ibm|windows|cp)[ _-]?(?=\d)", "", written.lower())
    for guess in (_CODE_PAGES.get(last) or _ISO.sub(r"iso8859-\1", last), f"cp{last}"):
        try:
            return codecs.lookup(guess).name
        except LookupError:
            continue
    raise malformed_row(name, "", f"its {CPG} names the encoding `{written[:40]}`, which is not known")


def _batches(resources: ExitStack, folder: Path, table: Dbf, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    fields = {field.name: field for field in table.fields}
    with resources, (folder / f"shape{SHP}").open("rb") as shapes:
        geometries = geometries_of(shapes, table.name, table.count)
        numbered = enumerate(zip(table.records(), geometries, strict=True), 1)
        rows = ((number, *row) for number, row in numbered if row[0] is not None)
        while part := list(islice(rows, BATCH)):
            numbers, records, texts = zip(*part, strict=True)

            def place(row: int, numbers: Sequence[int] = numbers) -> str:
                return f"row {numbers[row]}"

            columns = []
            for field in schema:
                is_geometry = field.name == GEOMETRY
                cells = texts if is_geometry else _texts(table, fields[field.name], records, place)
                values, parse = pa.array(cells, pa.string()), parser(field, TextForms())
                columns.append(typed_or_refused(values, field, parse, table.name, place))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _texts(
    table: Dbf, field: DbfField, records: Sequence[bytes], place: Callable[[int], str]
) -> list[str | None]:
    built = []
    for row, cell in enumerate(map(field.cell, records)):
        try:
            built.append(field.text(cell.decode(table.encoding)))
        except UnicodeDecodeError:
            expected = f"String in {table.encoding}"
            raise unreadable(table.name, place(row), field.name, cell, expected) from None
    return built
