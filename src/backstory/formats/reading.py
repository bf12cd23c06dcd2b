"""Rows and columns of files of any format, and the errors for files that disagree (section 1.6)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from backstory.errors import Refused, UsageError, option
from backstory.formats.batch_file import refuse_changes, stamp_of, while_unchanged
from backstory.formats.csv.rows import csv_columns, csv_rows
from backstory.formats.csv.table import file_source, refuse_whole_header
from backstory.formats.encoded import utf8_blocks
from backstory.formats.expected import inner_fields, type_name
from backstory.formats.file_options import AS_EXPECTED, FileOptions
from backstory.formats.json.rows import json_columns, json_rows
from backstory.formats.memory import Bound
from backstory.formats.options import CsvOptions, JsonOptions, ParquetOptions, ShapefileOptions
from backstory.formats.parquet import parquet_rows
from backstory.formats.produced import UNDECLARED, DeclaredFields, ProducedRows, require_columns
from backstory.formats.rows import KINDS, arrow_type, column_of_kept, type_of_arrow
from backstory.formats.source_files import SourceFile, SourceFiles, unpack
from backstory.formats.values.exactly import wider_type
from backstory.formats.values.texts import TextForms, parser
from backstory.model.types import ColumnType

Options = CsvOptions | JsonOptions | ParquetOptions | ShapefileOptions


def refuse_unwritable(options: Options, schema: pa.Schema) -> None:
    """Raise UsageError for a declared type that the format cannot represent."""
    if isinstance(options, ParquetOptions):
        return  # the conversion is checked against the file's own schema
    forms = TextForms() if isinstance(options, ShapefileOptions) else options.forms
    for field in schema:
        _refuse_unwritable(field, forms, nested=isinstance(options, JsonOptions))


def _refuse_unwritable(field: pa.Field, forms: TextForms, *, nested: bool) -> None:
    if nested and pa.types.is_nested(field.type):
        for inner in inner_fields(field):
            _refuse_unwritable(inner, forms, nested=nested)
    else:
        parser(field, forms)


def rows_of(
    path: Path,
    name: str,
    options: Options,
    schema: pa.Schema | None,
    dataset_types: DeclaredFields = UNDECLARED,
    bound: Bound | None = None,
) -> ProducedRows:
    """The rows of a file in the file's order, with the declared columns or else with the file's own columns.

    `name` is the file's name in messages. Without a schema, a column has its type in `dataset_types`. Every
    other column is optional, and has the type null if it has no values. Without a schema, an empty file has
    no columns. `bound` limits the unpacked bytes, by default to the limit of `bound_of`.

    Raises UsageError for a declared type that the format cannot represent. Raises Refused for a file that
    violates its format or the schema. Errors in single rows are raised when their batch is read.
    """
    stamp = stamp_of(path)
    with refuse_changes(stamp):
        match options:
            case CsvOptions():
                rows = csv_rows(path, name, options, schema, dataset_types)
            case ParquetOptions():
                rows = parquet_rows(path, name, options, schema, dataset_types)
            case JsonOptions():
                rows = json_rows(path, name, options, schema, dataset_types)
            case ShapefileOptions():
                # pyshp is needed for shapefiles only.
                from backstory.formats.shapefile import shapefile_rows

                rows = shapefile_rows(path, name, options, schema, dataset_types, bound)
    return replace(rows, batches=while_unchanged(rows.batches, stamp))


FIX_FILE: Final = "Nothing was written; fix the file, or load its rows in Python."
Known = Mapping[str, pa.Field]


@contextmanager
def as_files_of_a_user() -> Iterator[None]:
    """Replace terms of manifests in errors from the block, because the caller has no manifest."""
    try:
        yield
    except Refused as stop:
        raise stop.reword(_with_sql_type(stop.message), _remedy_for_users(stop)) from None


def _remedy_for_users(refused: Refused) -> str:
    """The remedy of an error, without terms of manifests."""
    if "`encoding`" in refused.remedy:
        return _encoding_remedy(refused.message)
    if "as String" in refused.remedy and refused.keys:
        text = option("type", {str(refused.keys[0]): "STRING"})
        return f"Nothing was written; use {text}, which stores each value's JSON text."
    words = ("`read`", "manifest", "preprocess")
    return FIX_FILE if any(word in refused.remedy for word in words) else refused.remedy


_NOT_OF_TYPE: Final = " is not of type "
_SQL: Final = {type_name(pa.field("", type_)): str(ColumnType(kind)) for type_, kind in KINDS.items()}


def _with_sql_type(message: str) -> str:
    """The message of an unreadable value, with the name of its type in SQL."""
    what, is_not, name = message.rpartition(_NOT_OF_TYPE)
    name = name.removesuffix(".")
    return f"{what}{is_not}{_SQL.get(name, name.upper().replace(', ', ','))}." if is_not else message


def _encoding_remedy(message: str) -> str:
    """The remedy for a file in an encoding other than UTF-8."""
    if "packed" in message:
        return "Nothing was written; give the file its ending."
    name = "utf-16" if "UTF-16" in message else "cp1252"
    return f"Nothing was written; name the encoding, such as {option('encoding', name)}, or fix the file."


def refuse_whole_headers(files: Sequence[SourceFile], options: Options) -> None:
    """Raise Refused for a CSV with a one-column header that another separator would split."""
    if not isinstance(options, CsvOptions):
        return

    def remedy(separator: str) -> str:
        current = option("separator", options.separator)
        return f"use {option('separator', separator)}, or {current} if it is one column"

    for file in files:
        refuse_whole_header(file_source(file.path, file.name, options.encoding), options, remedy)


def declare_types(schema: pa.Schema, types: Mapping[str, ColumnType], name: str) -> pa.Schema:
    """The columns of files, with the types that the caller declared for some columns."""
    if lacking := [column for column in types if column not in schema.names]:
        declared = {column: str(types[column]) for column in lacking}
        raise UsageError(
            "bad-option",
            f"{option('type', declared)}: {name} has no such column.",
            f"Its columns are {', '.join(name for name in schema.names if column_of_kept(name) is None)}.",
            lacking,
        )
    return pa.schema(
        [
            pa.field(field.name, arrow_type(types[field.name])) if field.name in types else field
            for field in schema
        ]
    )


@dataclass(frozen=True, slots=True)
class ReadableFiles:
    """The unpacked files of a source, with the options of their reader and the caller's own options."""

    files: Sequence[SourceFile]
    options: Options
    written: FileOptions

    def columns(self, known: Known = UNDECLARED) -> tuple[pa.Schema, frozenset[str]]:
        """The columns that `columns_of` finds, with the caller's types.

        Raises Refused for a wrong separator.
        """
        if self.written.separator is None:
            refuse_whole_headers(self.files, self.options)
        types = self.written.type
        fixed = {name: pa.field(name, arrow_type(type_)) for name, type_ in types.items()}
        schema, with_commas = columns_of(self.files, self.options, known, fixed)
        return declare_types(schema, types, self.files[0].name), with_commas

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of all files, with these columns. Raises the errors of `rows_of`."""
        for file in self.files:
            yield from rows_of(file.path, file.name, self.options, schema).batches


def open_files(source: SourceFiles, folder: Path, written: FileOptions = AS_EXPECTED) -> ReadableFiles:
    """The files of a source, unpacked into the folder.

    JSON has one row per line, unless all files are arrays.
    """
    files = [unpack(file, folder) for file in source.files]
    options: Options
    if source.format == "csv":
        options = written.csv()
    elif source.format == "parquet":
        options = ParquetOptions(naive=True)
    else:
        lines = source.format == "jsonl" or not all(_is_array(file, written.text_encoding) for file in files)
        options = JsonOptions(lines=lines, encoding=written.text_encoding)
    return ReadableFiles(files, options, written)


def _is_array(file: SourceFile, encoding: str) -> bool:
    """Whether a JSON file is one array of rows, instead of one row per line."""
    for block in utf8_blocks(file.path, file.name, encoding):
        if text := block.lstrip(b" \t\r\n"):
            return text.startswith(b"[")
    return False


def comma_notes(columns: Iterable[str]) -> list[str]:
    """Notes for text columns that would be numbers if commas were decimal separators."""
    return [
        f"column {name} is text with decimal commas; read as numbers with {option('decimal', ',')}"
        for name in sorted(columns)
    ]


def columns_of(
    files: Sequence[SourceFile], options: Options, known: Known, fixed: Known = UNDECLARED
) -> tuple[pa.Schema, frozenset[str]]:
    """The common columns of the files, and the names of columns whose values are numbers with decimal commas.

    The caller declares the types of `fixed` columns, so their JSON values need no common type.
    """
    named = [(file.path, file.name) for file in files]
    if isinstance(options, CsvOptions):
        return csv_columns(named, options, known)
    if isinstance(options, JsonOptions):
        return json_columns(named, options, known, fixed), frozenset()
    schemas = [(file.name, rows_of(file.path, file.name, options, None).schema) for file in files]
    first, whole = schemas[0]
    for name, other in schemas[1:]:
        whole = _wider(whole, other, f"{first} and {name}", name)
    return whole, frozenset()


def _wider(one: pa.Schema, other: pa.Schema, names: str, name: str) -> pa.Schema:
    """The columns of two files, in types that hold the values of both.

    Raises Refused if a column is missing, or if no type can hold its values from both files.
    """
    require_columns(name, one.names, other.names, strict=False)
    require_columns(name, other.names, one.names, strict=False)
    fields = []
    for field in one:
        theirs = other.field(field.name).type
        type_ = wider_type(field.type, theirs)
        if type_ is None:
            raise Refused(
                "type-changed",
                f"{field.name} is of type {type_of_arrow(field.type)} "
                f"and {type_of_arrow(theirs)} in {names}.",
                "Nothing was written; write the column in one type.",
                [field.name],
            )
        fields.append(pa.field(field.name, type_))
    return pa.schema(fields)
