"""The columns that files have between them, as the files are written, and what they are refused for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa

from backstory.errors import Refused, UsageError, option
from backstory.formats.csv.rows import csv_columns
from backstory.formats.csv.source import file_source
from backstory.formats.csv.table import refuse_whole_header
from backstory.formats.file_options import AS_EXPECTED, FileOptions
from backstory.formats.json.rows import json_columns
from backstory.formats.options import CsvOptions, JsonOptions, ParquetOptions
from backstory.formats.produced import UNTOLD, missing
from backstory.formats.reading import Options, rows_of
from backstory.formats.rows import arrow_type, column_of_kept
from backstory.formats.source_files import SourceFile, SourceFiles
from backstory.formats.values.exactly import wider_type
from backstory.model.types import ColumnType

MEND: Final = "Nothing was written; fix the file, or load its rows in Python."
ENCODED: Final = (
    f"Nothing was written; name the encoding, such as {option('encoding', 'cp1252')}, or fix the file."
)
Known = Mapping[str, pa.Field]


@contextmanager
def as_files_of_a_user() -> Iterator[None]:
    """Refusals of readers advise what a manifest could say; here is none."""
    try:
        yield
    except Refused as refused:
        if "`encoding`" in refused.remedy:
            raise Refused(refused.code, refused.message, ENCODED, refused.keys) from None
        if "`read`" in refused.remedy or "manifest" in refused.remedy or "preprocess" in refused.remedy:
            raise Refused(refused.code, refused.message, MEND, refused.keys) from None
        raise


def refuse_whole_headers(files: Sequence[SourceFile], options: Options) -> None:
    """Raise Refused for a CSV whose header is one column, where another separator splits header and rows."""
    if not isinstance(options, CsvOptions):
        return

    def remedy(separator: str) -> str:
        kept = option("separator", options.separator)
        return f"use {option('separator', separator)}, or {kept} if it is one"

    for each in files:
        refuse_whole_header(file_source(each.path, each.name, options.encoding), options, remedy)


def declare_types(schema: pa.Schema, types: Mapping[str, ColumnType], name: str) -> pa.Schema:
    """The columns of files, of which some have types that the caller names."""
    if lacking := [column for column in types if column not in schema.names]:
        raise UsageError(
            "bad-option",
            f"{option('type', {each: str(types[each]) for each in lacking})}: {name} has no such column.",
            f"Its columns are {', '.join(name for name in schema.names if column_of_kept(name) is None)}.",
            lacking,
        )
    return pa.schema(
        [pa.field(each.name, arrow_type(types[each.name])) if each.name in types else each for each in schema]
    )


def reader_options(
    source: SourceFiles, files: Sequence[SourceFile], written: FileOptions = AS_EXPECTED
) -> Options:
    if source.format == "csv":
        return written.csv()
    if source.format == "parquet":
        return ParquetOptions(naive=True)
    lines = source.format == "jsonl" or not all(_is_array(file.path) for file in files)
    return JsonOptions(lines=lines, encoding=written.text_encoding)


def _is_array(path: Path) -> bool:
    """Whether JSON is one array of rows, and not a row a line."""
    with path.open("rb") as file:
        return file.read(1 << 12).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["


def columns_as_written(
    files: Sequence[SourceFile], options: Options, written: FileOptions, known: Known = UNTOLD
) -> tuple[pa.Schema, frozenset[str]]:
    """`columns_of` files whose separator and types are as `written` says; Refused where they are not."""
    if written.separator is None:
        refuse_whole_headers(files, options)
    fixed = {name: pa.field(name, arrow_type(type_)) for name, type_ in written.type.items()}
    schema, with_commas = columns_of(files, options, known, fixed)
    return declare_types(schema, written.type, files[0].name), with_commas


def comma_notes(columns: Iterable[str]) -> list[str]:
    """What is said of columns of texts that would be numbers if a comma were the decimal point."""
    return [
        f"column {name} is text with decimal commas; read as numbers with {option('decimal', ',')}"
        for name in sorted(columns)
    ]


def columns_of(
    files: Sequence[SourceFile], options: Options, known: Known, fixed: Known = UNTOLD
) -> tuple[pa.Schema, frozenset[str]]:
    """The columns that files have between them, and those that are numbers with decimal commas.

    Of `fixed` columns, whose types the caller names, JSON need not have a type that all values are of.
    """
    named = [(file.path, file.name) for file in files]
    if isinstance(options, CsvOptions):
        return csv_columns(named, options, known)
    if isinstance(options, JsonOptions):
        columns = json_columns(named, options, known, fixed)
        return pa.schema([pa.field(each.name, _json_type(each, known)) for each in columns]), frozenset()
    schemas = [(file.name, rows_of(file.path, file.name, options, None).schema) for file in files]
    first, whole = schemas[0]
    for name, other in schemas[1:]:
        whole = _wider(whole, other, f"{first} and {name}", name)
    return whole, frozenset()


def _json_type(field: pa.Field, known: Known) -> pa.DataType:
    """The type of a column of JSON: the table's, as far as values of the files may be of it."""
    if field.name not in known or pa.types.is_null(field.type):
        return field.type
    return _of_stored(field.type, known[field.name].type)


def _of_stored(type_: pa.DataType, stored: pa.DataType) -> pa.DataType:
    """The stored type where JSON writes its values so, also of objects without all of its fields."""
    t = pa.types
    if t.is_struct(type_) and t.is_struct(stored):
        own = {each.name: each.type for each in type_}
        both = [(each.name, _inside(own.pop(each.name, pa.null()), each.type)) for each in stored]
        return pa.struct([*both, *own.items()])
    if t.is_list(type_) and t.is_list(stored):
        return pa.list_(_inside(type_.value_type, stored.value_type))
    days = t.is_date(stored) or t.is_timestamp(stored)
    return stored if t.is_string(type_) and days else type_


def _inside(type_: pa.DataType, stored: pa.DataType) -> pa.DataType:
    """The same inside of objects and arrays, where numbers are read as those that are stored, if they fit."""
    number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    wider = pa.types.is_floating(stored) or pa.types.is_decimal(stored)
    return stored if pa.types.is_null(type_) or (number and wider) else _of_stored(type_, stored)


def _wider(one: pa.Schema, other: pa.Schema, names: str, name: str) -> pa.Schema:
    """The columns of two files in types that hold both; Refused by name where there is none."""
    for here, there in ((one, other), (other, one)):
        if lacking := [column for column in here.names if column not in there.names]:
            raise missing(name, lacking[0], list(there.names))
    fields = []
    for field in one:
        theirs = other.field(field.name).type
        type_ = wider_type(field.type, theirs)
        if type_ is None:
            raise Refused(
                "type-changed",
                f"{field.name} is of type {field.type} and {theirs} in {names}.",
                "Nothing was written; write the column in one type.",
                [field.name],
            )
        fields.append(pa.field(field.name, type_))
    return pa.schema(fields)
