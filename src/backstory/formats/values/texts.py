"""Exact parsers that convert strings to values, with date and time formats (section 1.6, B14, D23, D27).

A format is `rfc3339`, strftime (`%d.%m.%Y`) or Java's letters (`dd.MM.yyyy`). A format becomes a regular
expression that splits a whole column into parts. The parts are then joined and parsed as RFC 3339.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import UsageError
from backstory.formats.expected import TIME, kind_of, unit
from backstory.formats.rows import type_of_arrow
from backstory.formats.values.cells import (
    UnreadableCell,
    all_kept,
    all_kept_single,
    clock_times,
    parse,
    with_points,
)
from backstory.model.types import ColumnType, Kind

RFC3339 = "rfc3339"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAME = "(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_LONG = (
    "(?i:january|february|march|april|may|june|july|august|september|october|november|december|"
    "jan|feb|mar|apr|jun|jul|aug|sep|oct|nov|dec)"
)
_DAYS = r"(?i:(?:mon|tues|wednes|thurs|fri|satur|sun)day|mon|tue|wed|thu|fri|sat|sun)"
_ZONE = r"(?P<zone>[Zz]|[+-]\d{2}:?\d{2}|[+-]\d{2})"
_FRACTION = r"(?P<fraction>\d{1,9})"
_PIVOT = "69"  # years of two digits: 69 to 99 are 19.., 00 to 68 are 20..

_STRFTIME = {
    "Y": r"(?P<year>\d{4})",
    "y": r"(?P<short>\d{2})",
    "m": r"(?P<month>\d{1,2})",
    "d": r"(?P<day>\d{1,2})",
    "e": r" ?(?P<day>\d{1,2})",
    "H": r"(?P<hour>\d{1,2})",
    "I": r"(?P<half>\d{1,2})",
    "M": r"(?P<minute>\d{1,2})",
    "S": r"(?P<second>\d{1,2})",
    "f": _FRACTION,
    ".f": r"(?:\.(?P<fraction>\d{1,9}))?",
    "p": r"(?P<noon>(?i:am|pm))",
    "b": f"(?P<name>{_NAME})",
    "h": f"(?P<name>{_NAME})",
    "B": f"(?P<name>{_LONG})",
    "a": _DAYS,
    "A": _DAYS,
    "z": _ZONE,
    ":z": _ZONE,
    "%": "%",
}
_SHORT_FOR = {"T": "%H:%M:%S", "D": "%m/%d/%y", "F": "%Y-%m-%d", "R": "%H:%M"}

_JAVA = {
    "y": {1: r"(?P<year>\d{4})", 2: r"(?P<short>\d{2})", 4: r"(?P<year>\d{4})"},
    "M": {1: r"(?P<month>\d{1,2})", 2: r"(?P<month>\d{2})", 3: f"(?P<name>{_NAME})", 4: f"(?P<name>{_LONG})"},
    "d": {1: r"(?P<day>\d{1,2})", 2: r"(?P<day>\d{2})"},
    "H": {1: r"(?P<hour>\d{1,2})", 2: r"(?P<hour>\d{2})"},
    "h": {1: r"(?P<half>\d{1,2})", 2: r"(?P<half>\d{2})"},
    "m": {1: r"(?P<minute>\d{1,2})", 2: r"(?P<minute>\d{2})"},
    "s": {1: r"(?P<second>\d{1,2})", 2: r"(?P<second>\d{2})"},
    "S": {count: rf"(?P<fraction>\d{{{count}}})" for count in range(1, 10)},
    "a": {1: r"(?P<noon>(?i:am|pm))"},
    "E": dict.fromkeys(range(1, 5), _DAYS),
    "X": dict.fromkeys(range(1, 4), _ZONE),
    "x": dict.fromkeys(range(1, 4), _ZONE),
    "Z": dict.fromkeys(range(1, 4), _ZONE),
}
_JAVA["u"] = _JAVA["y"]
_JAVA_TOKENS = re.compile(r"(?P<quoted>'(?:[^']|'')*')|(?P<letters>([A-Za-z])\3*)|(?P<plain>[^A-Za-z'])")
_STRFTIME_TOKENS = re.compile(r"%-?(?P<letter>\.f|:z|.)|(?P<plain>[^%])", re.DOTALL)
_JAVA_RESERVED = "[]{}#"


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A date or time format as a regular expression, and the parts that it contains."""

    expression: str
    parts: frozenset[str]

    def rfc3339(self, text: pa.Array) -> pa.Array:
        """The cells as RFC 3339, without a time if the format has none.

        A cell that does not match the format becomes an invalid string.
        """
        cells = pc.extract_regex(text, self.expression)
        parts = {part: cells.field(part) for part in self.parts}
        # A cell that does not match must not be parsed as RFC 3339 later.
        failed = pc.binary_join_element_wise("not ", text, "")
        fitting = pc.if_else(cells.is_valid(), _join_parts(parts), failed)
        return pc.if_else(text.is_valid(), fitting, pa.scalar(None, pa.string()))


@lru_cache(maxsize=64)
def time_pattern(option: str, pattern: str) -> TimePattern | None:
    """The format in an option, or None for `rfc3339`. Raises UsageError for an invalid format."""
    if pattern == RFC3339:
        return None
    pieces = _strftime(option, pattern) if "%" in pattern else _java(option, pattern)
    expression = f"^{''.join(pieces)}$"
    groups = re.findall(r"\(\?P<(\w+)>", expression)
    parts = frozenset(groups)
    if len(parts) != len(groups):
        raise _unreadable(option, pattern, "a part of it occurs twice")
    if "day" not in parts or not parts & {"month", "name"} or not parts & {"year", "short"}:
        raise _unreadable(option, pattern, "it needs a year, a month and a day")
    if {"half", "noon"} & parts and not {"half", "noon"} <= parts:
        raise _unreadable(option, pattern, "twelve-hour hours and AM or PM need each other")
    return TimePattern(expression, parts)


def _strftime(option: str, pattern: str) -> Iterator[str]:
    for letter, short in _SHORT_FOR.items():
        pattern = pattern.replace(f"%{letter}", short)
    end = 0
    for token in _STRFTIME_TOKENS.finditer(pattern):
        end = token.end()
        letter = token["letter"]
        if letter is None:
            yield re.escape(token["plain"])
        elif letter in _STRFTIME:
            yield _STRFTIME[letter]
        else:
            raise _unreadable(option, pattern, f"`%{letter}` is not known")
    if end != len(pattern):
        raise _unreadable(option, pattern, "it ends with `%`")


def _java(option: str, pattern: str) -> Iterator[str]:
    for token in _JAVA_TOKENS.finditer(pattern):
        if quoted := token["quoted"]:
            yield re.escape(quoted[1:-1].replace("''", "'") or "'")
        elif (letters := token["letters"]) is None:
            if token["plain"] in _JAVA_RESERVED:
                raise _unreadable(option, pattern, f"`{token['plain']}` is not known")
            yield re.escape(token["plain"])
        elif (piece := _JAVA.get(letters[0], {}).get(len(letters))) is None:
            raise _unreadable(option, pattern, f"`{letters}` is not known")
        else:
            yield piece
    if _JAVA_TOKENS.sub("", pattern):
        raise _unreadable(option, pattern, "a quote is not closed")


def _unreadable(option: str, pattern: str, why: str) -> UsageError:
    return UsageError(
        "unsupported-option",
        f"The option `{option}` of the reader, `{pattern}`: {why}.",
        "Write `rfc3339`, a strftime format like `%d.%m.%Y`, or Java's letters like `dd.MM.yyyy`.",
    )


def _join_parts(parts: dict[str, pa.Array]) -> pa.Array:
    year = parts["year"] if "year" in parts else _full_year(parts["short"])
    month = _two(parts["month"]) if "month" in parts else _month_of(parts["name"])
    day = pc.binary_join_element_wise(year, month, _two(parts["day"]), "-")
    if not parts.keys() & {"hour", "half", "zone"}:
        return day
    hour = _two(parts["hour"]) if "hour" in parts else _hour_of(parts)
    times = [_two(parts[part]) if part in parts else "00" for part in ("minute", "second")]
    time = pc.binary_join_element_wise(hour, *times, ":")
    if "fraction" in parts:
        fraction = parts["fraction"]
        some = pc.binary_join_element_wise("", pc.if_else(pc.equal(fraction, ""), "0", fraction), ".")
        time = pc.binary_join_element_wise(time, some, "")
    zone = pc.utf8_upper(parts["zone"]) if "zone" in parts else "Z"
    return pc.binary_join_element_wise(day, pc.binary_join_element_wise("T", time, zone, ""), "")


def _two(digits: pa.Array) -> pa.Array:
    return pc.utf8_lpad(digits, 2, "0")


def _full_year(short: pa.Array) -> pa.Array:
    century = pc.if_else(pc.greater_equal(short, _PIVOT), "19", "20")
    return pc.binary_join_element_wise(century, short, "")


def _month_of(name: pa.Array) -> pa.Array:
    start = pc.utf8_lower(pc.utf8_slice_codeunits(name, 0, 3))
    number = pc.index_in(start, pa.array(_MONTHS))
    return _two(pc.add(number, 1).cast(pa.string()))


def _hour_of(parts: dict[str, pa.Array]) -> pa.Array:
    """Convert an hour from 1 to 12 with AM or PM to 00 to 23. Any other hour becomes the invalid `99`."""
    if "half" not in parts:
        return "00"
    twelve = parts["half"]
    number = pc.if_else(pc.equal(twelve, ""), "0", twelve).cast(pa.int32())
    past = pc.if_else(pc.equal(pc.utf8_lower(parts["noon"]), "pm"), 12, 0)
    hour = pc.add(pc.if_else(pc.equal(number, 12), 0, number), past)
    good = pc.and_(pc.greater_equal(number, 1), pc.less_equal(number, 12))
    return pc.if_else(good, _two(hour.cast(pa.string())), "99")


WITH_POINT = {Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL}
# Times outside these bounds take the slow path. Scalars are made on use, because pyarrow then loads pandas.
_FAST_BOUNDS = ("0001-01-02T00:00:00Z", "9999-12-31T23:59:59.999999Z")
_ZONED = r"[Zz]$"
_DATE_ONLY = r"^(\d{4}-\d{2}-\d{2})$"


@dataclass(frozen=True, slots=True)
class TextForms:
    """A file's decimal separator, and its date and time formats, by default RFC 3339."""

    date: TimePattern | None = None
    timestamp: TimePattern | None = None
    decimal: str = "."


def text_forms(date_format: str = RFC3339, timestamp_format: str = RFC3339) -> TextForms:
    """The formats in a file's options. Raises UsageError if one is invalid."""
    return TextForms(
        time_pattern("dateFormat", date_format), time_pattern("timestampFormat", timestamp_format)
    )


def parser(field: pa.Field, forms: TextForms) -> Callable[[pa.Array], pa.Array]:
    """A function that parses strings as values of the field's type.

    The function raises UnreadableCell for the first cell that does not match the type. Raises UsageError for
    a type that no text can represent.
    """
    type_ = field.type
    if type_ == pa.string():
        return lambda text: text
    if pa.types.is_null(type_):
        return _nothing
    if kind_of(field) == TIME:
        return lambda text: clock_times(text, unit(field))
    column = type_of_arrow(type_)
    if not column.flat or column.kind is Kind.BINARY:
        raise UsageError(
            "no-text-form",
            f"Column `{field.name}`: values of type {type_} have no text form.",
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
    """Parse strings as timestamps. A time without a zone is in UTC, and a date is its midnight."""
    if pattern is not None:
        text = pattern.rfc3339(text)
    built = _at_once(text)
    if built is not None:
        return built
    # RFC 3339 allows small letters.
    text = pc.replace_substring_regex(pc.ascii_upper(text), _DATE_ONLY, r"\1T00:00:00Z")
    return parse(text, column)


def _with_comma(text: pa.Array, column: ColumnType) -> pa.Array:
    """Parse strings with a decimal comma and no point as numbers."""
    return parse(with_points(text), column)


def _naive(text: pa.Array, column: ColumnType) -> pa.Array:
    """Parse strings as times without a zone. Raises UnreadableCell for a time with `Z`."""
    zoned = pc.match_substring_regex(text, _ZONED)
    if pc.any(zoned).as_py():
        raise UnreadableCell(pc.index(zoned, True).as_py())
    return parse(text, column)


def _at_once(text: pa.Array) -> pa.Array | None:
    """The times if Arrow can cast all cells, as in nearly every file, or else None.

    Either all cells or no cells may have a zone. No time may be outside the bounds in `_FAST_BOUNDS`.
    """
    for type_ in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        try:
            built = text.cast(type_).cast(pa.timestamp("us", "UTC"))
        except pa.ArrowInvalid:
            continue
        first, last = (pa.scalar(bound).cast(pa.timestamp("us", "UTC")) for bound in _FAST_BOUNDS)
        if not pc.any(pc.or_(pc.less(built, first), pc.greater(built, last))).as_py():
            return built
    return None


INT, FLOAT, BOOL, DATE = pa.int64(), pa.float64(), pa.bool_(), pa.date32()
INSTANT = pa.timestamp("us", "UTC")
_SMALL, _SINGLE, _NAIVE = pa.int32(), pa.float32(), pa.timestamp("us")
_INTEGER = r"^-?(0|[1-9]\d*)$"
# An exponent needs a dot before it or a sign: 12E3 is more likely a code than a number.
_NUMBER = r"-?(0|[1-9]\d*)(\.\d+([eE][+-]?\d+)?|[eE][+-]\d+)?|-?\.\d+"
_FINITE = rf"^({_NUMBER})$"
_ANY_FLOAT = rf"^({_NUMBER}|NaN|[+-]?Inf(inity)?)$"
# More digits than every float can keep.
_LONG_INTEGER = r"^-?\d{16,}$"
_BOOLEAN = r"^(true|True|TRUE|false|False|FALSE)$"
_FORMS = {INT: _INTEGER, FLOAT: _ANY_FLOAT, BOOL: _BOOLEAN, _SMALL: _INTEGER, _SINGLE: _ANY_FLOAT}


def needs_typed_column(type_: pa.DataType) -> bool:
    """Whether strings are checked for the type only if their column is known to have that type."""
    return type_ in {_SMALL, _SINGLE, _NAIVE} or bool(pa.types.is_decimal(type_))


def all_are(cells: pa.Array, type_: pa.DataType, forms: TextForms) -> bool:
    """Whether all cells are values of the type. No cell may be NULL."""
    if forms.decimal == "," and (type_ in {FLOAT, _SINGLE} or pa.types.is_decimal(type_)):
        cells, forms = with_points(cells), replace(forms, decimal=".")
    form = _FINITE if pa.types.is_decimal(type_) else _FORMS.get(type_)
    if form is not None and not pc.all(pc.match_substring_regex(cells, form)).as_py():
        return False
    if type_ == FLOAT and not (exact_as_float(cells) and all_kept(cells)):
        return False
    if type_ == _SINGLE and not all_kept_single(cells):
        return False
    try:
        parser(pa.field("", type_), forms)(cells)
    except (UnreadableCell, pa.ArrowInvalid):
        return False
    return True


def exact_as_float(cells: pa.Array) -> bool:
    """Whether no integer has more digits than every float can keep.

    A column that mixes longer integers with other numbers stays text.
    """
    return not pc.any(pc.match_substring_regex(cells, _LONG_INTEGER)).as_py()
