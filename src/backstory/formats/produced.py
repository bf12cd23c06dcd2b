"""Rows that a reader produces, and the errors for values that it cannot read exactly (R69)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import Refused
from backstory.formats.expected import first_unfit, type_name
from backstory.formats.values.cells import UnreadableCell, convert_cells

BATCH = 1 << 16
SHOWN = 40
SHOWN_NAMES = 20
FIX_FILE = "Nothing was written; fix the file"
# The dataset's columns by name; their types apply to a file without a read schema (O25).
DeclaredFields = Mapping[str, pa.Field]
UNDECLARED: Final[DeclaredFields] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ProducedRows:
    """Rows in the order of their file. Iterating raises Refused at the batch with an unreadable row."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def malformed_row(
    name: str, place: str, why: str, remedy: str = f"{FIX_FILE}.", columns: Sequence[str] = ()
) -> Refused:
    """The error for a row or a file that violates its format. `place` is its line or row."""
    return Refused("malformed-row", f"{name}{place and f', {place}'}: {why}.", remedy, columns)


def refuse_where(
    wrong: pa.Array, name: str, place: Callable[[int], str], why: str, remedy: str = f"{FIX_FILE}."
) -> None:
    """Raise the error of `malformed_row` for the first row where the mask is true."""
    if wrong.true_count:
        raise malformed_row(name, place(pc.index(wrong, True).as_py()), why, remedy)


def unreadable(name: str, place: str, column: str, value: object, expected: str) -> Refused:
    """The error for a value that does not match its column's type."""
    return Refused(
        "unreadable-value",
        f"{name}, {place}, column `{column}`: `{excerpt(value)}` is not of type {expected}.",
        f"{FIX_FILE}, or declare the column as String and convert it in `preprocess`.",
    )


def excerpt(value: object) -> str:
    """The value on one line, at most 40 characters, with invalid Unicode escaped."""
    text = str(value).encode(errors="backslashreplace").decode()
    text = " ".join(text.split()) or text
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def unknown_columns(name: str, columns: list[str], place: str = "") -> Refused:
    """The error for undeclared columns if `unknownFields` is `error`."""
    names = ", ".join(f"`{column}`" for column in columns[:SHOWN_NAMES])
    return Refused(
        "unknown-fields",
        f"{name}{place and f', {place}'}: the schema does not declare {names}.",
        "Declare them, or set `unknownFields: ignore` in `read`.",
        columns,
    )


def require_columns(name: str, declared: Sequence[str], present: list[str], *, strict: bool) -> None:
    """Raise Refused for the first declared column that a file lacks. If `strict`, refuse other columns."""
    for column in declared:
        if column not in present:
            shown = ", ".join(f"`{other}`" for other in present[:SHOWN_NAMES])
            columns = f"its columns are {shown}" if present else "it has no columns"
            raise Refused(
                "missing-column",
                f"{name} has no column `{column}`; {columns}.",
                f"{FIX_FILE}, or `schema` in the manifest; names compare exactly.",
                [column],
            )
    if strict and (extra := [column for column in present if column not in declared]):
        raise unknown_columns(name, extra)


def repeated_names(names: list[str]) -> list[str]:
    """The names that occur more than once."""
    seen: set[str] = set()
    return list(dict.fromkeys(name for name in names if name in seen or seen.add(name)))  # type: ignore[func-returns-value]


def refuse_repeated(name: str, names: list[str], place: str = "") -> None:
    """Raise Refused if two columns have the same name. `place` is the header's line, if there is a header."""
    if twice := repeated_names(names):
        shown = ", ".join(f"`{column}`" for column in twice[:SHOWN_NAMES])
        message = (
            f"{name}, {place}: the header names {shown} more than once."
            if place
            else f"{name} has {shown} twice."
        )
        raise Refused("repeated-column", message, "Nothing was written; name each column once.", twice)


def typed_or_refused(
    values: pa.Array,
    field: pa.Field,
    convert: Callable[[pa.Array], pa.Array],
    name: str,
    place: Callable[[int], str],
) -> pa.Array:
    """Return `convert(values)`, checked for the bounds of the type and for NULL in a required field.

    Raises Refused for the first invalid value. `place` returns a row's place for error messages.
    """
    try:
        built = convert_cells(values, convert)
    except UnreadableCell as cell:
        value, expected = _text_of(values[cell.row]), type_name(field)
        raise unreadable(name, place(cell.row), field.name, value, expected) from None
    if unfit := first_unfit(built, field):
        if unfit.is_bad_text:
            raise malformed_row(name, place(unfit.row), f"column `{unfit.field.name}` is not UTF-8")
        value = values[unfit.row] if unfit.field is field else unfit.value
        raise unreadable(name, place(unfit.row), unfit.field.name, _text_of(value), type_name(unfit.field))
    if not field.nullable:
        refuse_nulls(built, field.name, name, place)
    return built


def _text_of(value: pa.Scalar) -> str:
    try:
        return str(value.as_py()) if value.is_valid else "NULL"
    except (ValueError, OverflowError):  # Python supports no nanoseconds and no year 10000
        return str(pa.array([value], value.type).to_string())[1:-1]


def refuse_nulls(values: pa.Array, column: str, name: str, place: Callable[[int], str]) -> None:
    """Raise Refused if a value is NULL, with the wording of the reference implementation (section 2.8)."""
    if values.null_count:
        first = pc.index(values.is_null(), True).as_py()
        raise Refused(
            "unreadable-value",
            f"{name}, {place(first)}: Column `{column}` contains {values.null_count} null values "
            "while none were expected.",
            f"{FIX_FILE}, or wrap the column's type in Option.",
        )
