"""Text becomes values of a declared column, exactly, a column at a time (B14, D23)."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import UsageError
from backstory.formats.expected import TIME, kind, unit
from backstory.formats.values.cells import UnreadableCell, parse
from backstory.formats.values.clock import clock_times
from backstory.formats.values.decimal_commas import with_points
from backstory.formats.values.time_patterns import RFC3339, TimePattern, time_pattern
from backstory.model.types import ColumnType, Kind

_KINDS = {
    pa.bool_(): Kind.BOOLEAN,
    pa.int32(): Kind.INT,
    pa.int64(): Kind.LONG,
    pa.float32(): Kind.FLOAT,
    pa.float64(): Kind.DOUBLE,
    pa.date32(): Kind.NAIVE_DATE,
    pa.timestamp("us", "UTC"): Kind.UTC_DATETIME,
    pa.timestamp("us"): Kind.NAIVE_DATETIME,
    pa.string(): Kind.STRING,
}
WITH_POINT = {Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL}
# Before and after these, the slow way looks. A scalar is made once it is needed: pyarrow loads pandas for it.
_SURE = ("0001-01-02T00:00:00Z", "9999-12-31T23:59:59.999999Z")
_ZONED = r"[Zz]$"
_DATE_ALONE = r"^(\d{4}-\d{2}-\d{2})$"


@dataclass(frozen=True, slots=True)
class TextForms:
    """How a file writes dates and times, None for RFC 3339, and the decimal point of its numbers."""

    date: TimePattern | None = None
    timestamp: TimePattern | None = None
    decimal: str = "."


def text_forms(date_format: str = RFC3339, timestamp_format: str = RFC3339) -> TextForms:
    """The formats of a file's options; UsageError for one that cannot be read."""
    return TextForms(
        time_pattern("dateFormat", date_format), time_pattern("timestampFormat", timestamp_format)
    )


def parser(field: pa.Field, forms: TextForms) -> Callable[[pa.Array], pa.Array]:
    """What makes values of the field's type out of text.

    It raises UnreadableCell for the first cell that is not of the type. UsageError for a type that
    text has no form for.
    """
    type_ = field.type
    if type_ == pa.string():
        return lambda text: text
    if pa.types.is_null(type_):
        return _nothing
    if kind(field) == TIME:
        return lambda text: clock_times(text, unit(field))
    if pa.types.is_decimal128(type_):
        column = ColumnType(Kind.DECIMAL, type_.precision, type_.scale)
    elif type_ in _KINDS:
        column = ColumnType(_KINDS[type_])
    else:
        raise UsageError(
            "no-text-form",
            f"Column `{field.name}`: text has no form for values of type {type_}.",
            "Declare it as String and convert it in `preprocess`.",
        )
    if column.kind is Kind.NAIVE_DATE and (pattern := forms.date):
        return lambda text: parse(pattern.rfc3339(text), column)
    if column.kind is Kind.UTC_DATETIME:
        return lambda text: _instants(text, forms.timestamp, column)
    with_comma = forms.decimal == "," and column.kind in WITH_POINT
    values = _naive if column.kind is Kind.NAIVE_DATETIME else _with_comma if with_comma else parse
    return lambda text: values(text, column)


def _nothing(text: pa.Array) -> pa.Array:
    row = pc.index(text.is_valid(), True).as_py()
    if row >= 0:
        raise UnreadableCell(row)
    return pa.nulls(len(text))


def _instants(text: pa.Array, pattern: TimePattern | None, column: ColumnType) -> pa.Array:
    """Instants; what has no zone is UTC, and a date alone its midnight."""
    if pattern is not None:
        text = pattern.rfc3339(text)
    built = _at_once(text)
    if built is not None:
        return built
    # RFC 3339 allows small letters.
    text = pc.replace_substring_regex(pc.ascii_upper(text), _DATE_ALONE, r"\1T00:00:00Z")
    return parse(text, column)


def _with_comma(text: pa.Array, column: ColumnType) -> pa.Array:
    """Numbers that have a decimal comma, and no point."""
    return parse(with_points(text), column)


def _naive(text: pa.Array, column: ColumnType) -> pa.Array:
    """Times that have no zone."""
    zoned = pc.match_substring_regex(text, _ZONED)
    if pc.any(zoned).as_py():
        raise UnreadableCell(pc.index(zoned, True).as_py())
    return parse(text, column)


def _at_once(text: pa.Array) -> pa.Array | None:
    """The instants if all cells have a zone or none has one, as in nearly every file."""
    for type_ in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        try:
            built = text.cast(type_).cast(pa.timestamp("us", "UTC"))
        except pa.ArrowInvalid:
            continue
        first, last = (pa.scalar(each).cast(pa.timestamp("us", "UTC")) for each in _SURE)
        if not pc.any(pc.or_(pc.less(built, first), pc.greater(built, last))).as_py():
            return built
    return None
