"""Rows of an ESRI shapefile in a zip: the fields of its table, the geometry as GeoJSON (section 1.6, O24)."""

import codecs
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import BinaryIO
from zipfile import ZipFile

import pyarrow as pa
import structlog

from backstory.errors import Refused
from backstory.formats.produced import (
    BATCH,
    UNTOLD,
    ProducedRows,
    Told,
    malformed,
    missing,
    refuse_repeated,
    typed_or_refused,
    unknown,
    unreadable,
)
from backstory.formats.shapefile.dbf import Dbf, DbfField, dbf
from backstory.formats.shapefile.geometries import geometries_of
from backstory.formats.shapefile.options import ShapefileOptions
from backstory.formats.values.texts import TextForms, parser
from backstory.formats.wrapping import archives
from backstory.formats.wrapping.room import Bound, bound_of

log = structlog.get_logger()

GEOMETRY = "geometry"
SHP, DBF, CPG = ".shp", ".dbf", ".cpg"
# What .cpg files say that Python has other names for.
_ISO = re.compile(r"^(?:iso[ _-]?)?8859[ _-]?(\d+)$")
_CODE_PAGES = {"65001": "utf-8", "ansi": "cp1252"}


def shapefile_rows(
    path: Path,
    name: str,
    options: ShapefileOptions,
    schema: pa.Schema | None,
    told: Told = UNTOLD,
    bound: Bound | None = None,
) -> ProducedRows:
    """The file's rows: the declared columns by name, or all fields of the table, then `geometry`.

    Blanks are NULL, and rows marked as deleted are left out. Raises Refused unless exactly one `.shp` is
    meant, for a part that is missing or broken, and for a declared column that is not there; what
    is wrong with a value is refused when its batch is asked for.
    """
    with ExitStack() as kept:
        folder = Path(kept.enter_context(TemporaryDirectory(prefix="backstory-shapefile-")))
        with archives.opened(path, name) as archive:
            chosen = _shapefile(archive, name, options.sub_path)
            called = f"{name}/{chosen}"
            _extract(archive, chosen, name, folder, bound or bound_of(path))
        encoding, table = _table(folder, called)
        names = [field.name for field in table.fields] + [GEOMETRY]
        refuse_repeated(called, names)
        if schema is None:
            own = [*map(_own, table.fields), pa.field(GEOMETRY, pa.string())]
            schema = pa.schema([told.get(field.name, field) for field in own])
        _refuse_others(schema, names, called, strict=options.strict)
        columns = {field.name: field for field in table.fields}
        for field in schema:
            parser(field, TextForms())
            if field.name in columns and columns[field.name].type is None:
                letter = columns[field.name].letter
                raise malformed(
                    called, "", f"column `{field.name}` is of the type `{letter}`, which is not read"
                )
        return ProducedRows(schema, _batches(kept.pop_all(), folder, table, encoding, schema))


def _shapefile(archive: ZipFile, name: str, sub_path: str | None) -> str:
    """The one `.shp` of the zip, or the one that `subPath` fits."""
    entries = [entry for entry in archives.files(archive) if entry.lower().endswith(SHP)]
    found = entries if sub_path is None else archives.matching(entries, sub_path)
    if len(found) != 1:
        wanted = "`*.shp`" if sub_path is None else f"subPath `{sub_path}`"
        raise archives.ambiguous(name, wanted, found, entries or archives.files(archive))
    return found[0]


def _extract(archive: ZipFile, chosen: str, name: str, folder: Path, bound: Bound) -> None:
    """The parts under names of ours; an archive's paths are never paths on disk."""
    stem = str(PurePosixPath(chosen).with_suffix(""))
    parts = {
        PurePosixPath(entry).suffix.lower(): entry
        for entry in archives.files(archive)
        if str(PurePosixPath(entry).with_suffix("")).lower() == stem.lower()
    } | {SHP: chosen}
    if DBF not in parts:
        raise malformed(f"{name}/{chosen}", "", f"its {DBF} is missing beside it in the zip")
    for suffix in (SHP, DBF, CPG):
        if suffix in parts:
            archives.extract(archive, parts[suffix], folder / f"shape{suffix}", name, bound)


def _table(folder: Path, told: str) -> tuple[str, Dbf]:
    """The table and the encoding of its texts: that of the .cpg, else UTF-8 if it is, else Latin-1."""
    page, path = folder / f"shape{CPG}", folder / f"shape{DBF}"
    if page.is_file() and (written := page.read_bytes().decode("latin-1").strip(" \0\r\n\t")):
        encoding = _encoding(written, told)
        return encoding, dbf(path, told, encoding)
    table = dbf(path, told, "latin-1")
    try:
        names_too = dbf(path, told, "utf-8")
    except Refused:
        names_too = None
    if names_too is not None and table.is_utf8():
        return "utf-8", names_too
    log.warning("the shapefile names no encoding and is not UTF-8; it is read as Latin-1", file=told)
    return "latin-1", table


def _encoding(written: str, told: str) -> str:
    """Python's name of what a .cpg says, such as `UTF-8`, `1252`, `ANSI 1252` or `ISO 88591`."""
    last = re.sub(r"^(ansi|ibm|windows|cp)[ _-]?(?=\d)", "", written.lower())
    for guess in (_CODE_PAGES.get(last) or _ISO.sub(r"iso8859-\1", last), f"cp{last}"):
        try:
            return codecs.lookup(guess).name
        except LookupError:
            continue
    raise malformed(told, "", f"its {CPG} names the encoding `{written[:40]}`, which is not known")


def _own(field: DbfField) -> pa.Field:
    return pa.field(field.name, pa.string() if field.type is None else field.type)


def _refuse_others(schema: pa.Schema, names: list[str], told: str, *, strict: bool) -> None:
    for column in schema.names:
        if column not in names:
            raise missing(told, column, names)
    extra = [column for column in names if column not in schema.names]
    if extra and strict:
        raise unknown(told, extra)


def _batches(
    kept: ExitStack, folder: Path, table: Dbf, encoding: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    fields = {field.name: field for field in table.fields}
    with kept, (folder / f"shape{SHP}").open("rb") as shapes:
        rows = _rows(table, shapes)
        while part := list(islice(rows, BATCH)):

            def place(row: int, part: list[_Row] = part) -> str:
                return f"row {part[row][0]}"

            columns = []
            for field in schema:
                if field.name == GEOMETRY:
                    texts = [geometry for _, _, geometry in part]
                else:
                    texts = _texts(part, fields[field.name], encoding, table.name)
                values = pa.array(texts, pa.string())
                parse = parser(field, TextForms())
                columns.append(typed_or_refused(values, field, parse, table.name, place))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


# Its number from 1, its record and its geometry.
_Row = tuple[int, bytes, str | None]


def _rows(table: Dbf, shapes: BinaryIO) -> Iterator[_Row]:
    """Record and geometry of each row that is not deleted."""
    geometries = geometries_of(shapes, table.name, table.count)
    for number, (record, geometry) in enumerate(zip(table.records(), geometries, strict=True), 1):
        if record is not None:
            yield number, record, geometry


def _texts(part: Sequence[_Row], field: DbfField, encoding: str, name: str) -> list[str | None]:
    built = []
    for number, record, _ in part:
        cell = field.cell(record)
        try:
            built.append(field.text(cell.decode(encoding)))
        except UnicodeDecodeError:
            raise unreadable(name, f"row {number}", field.name, cell, f"String in {encoding}") from None
    return built
