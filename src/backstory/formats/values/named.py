"""The value that a string or a Python object denotes in a column type, without rounding or defaults."""

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DecimalException
from typing import Any, Final
from uuid import UUID

from backstory.model.instant import EPOCH
from backstory.model.types import NESTED_KINDS, TEXT_KINDS, ColumnType, Kind

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"(?i)[+-]?(nan|inf|infinity)")
_LOCAL: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6}0*)?)?"
_TIMES: Final = {
    Kind.NAIVE_DATETIME: re.compile(_LOCAL),
    Kind.UTC_DATETIME: re.compile(rf"{_LOCAL}(?:Z|[+-]\d\d(?::?\d\d)?)?"),
}
_CLOCK: Final = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?")
_BYTES: Final = re.compile(r"(?:[0-9a-fA-F]{2})*")

_BITS: Final = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}
_FLOATS: Final = {Kind.FLOAT, Kind.DOUBLE}
# Beyond these, a double is ambiguous between neighbouring numbers.
_SURE_DIGITS, _SURE_WHOLE = 15, 1 << 53
_REMEDIES: Final = {
    Kind.BOOLEAN: "Write true or false.",
    **dict.fromkeys(_BITS, "Write a whole number in digits, such as 42."),
    Kind.DECIMAL: "Write a number that has no more digits than the column.",
    **dict.fromkeys(_FLOATS, "Write the number with the digits that `current` shows."),
    Kind.NAIVE_DATE: "Write a day, such as 2026-01-31.",
    Kind.NAIVE_DATETIME: "Write a time without an offset, such as 2026-01-31T12:00:00.",
    Kind.UTC_DATETIME: "Write a time, such as 2026-01-31T12:00:00Z; a datetime needs a zone.",
    Kind.BINARY: "Write bytes as two hexadecimal digits each.",
}


class Unnamed(ValueError):
    """The input is not a value of the type. `remedy` describes how to write values of the type."""

    def __init__(self, type_: ColumnType) -> None:
        super().__init__(str(type_))
        self.remedy = _REMEDIES.get(type_.kind, "Give it as text.")
        if type_.kind in NESTED_KINDS:
            self.remedy = "Values of this type cannot be looked up by a key."


def named_value(value: object, type_: ColumnType) -> Any:
    """The input as a Python value of the type. Raises Unnamed if the input is not a value of the type."""
    value = _python_number(value)
    try:
        if isinstance(value, str):
            return _of_text(value, type_)
        return _of_value(value, type_)
    except (ValueError, OverflowError, DecimalException):
        raise Unnamed(type_) from None


def _python_number(value: object) -> object:
    """Convert a NumPy number to a Python number. Other values are unchanged."""
    if type(value).__module__ != "numpy" or getattr(getattr(value, "dtype", None), "kind", "") not in "biuf":
        return value
    return value.item()  # type: ignore[attr-defined]


def _of_text(text: str, type_: ColumnType) -> Any:
    if type_.foreign == "uuid":
        return str(UUID(_matching(re.compile("[0-9a-fA-F-]{36}"), text)))
    if type_.foreign == "time":
        return _matching(_CLOCK, text)
    if type_.foreign.startswith("fixed"):
        return bytes.fromhex(_matching(_BYTES, text))
    if type_.kind in TEXT_KINDS:
        return text
    return _of_cell(text.strip(" \t"), type_)


def _of_cell(text: str, type_: ColumnType) -> Any:
    """The value of a string as in a cell of a file, except that bytes are hexadecimal and no digit is lost.

    Raises ValueError for any other string.
    """
    kind = type_.kind
    if kind is Kind.BINARY:
        return bytes.fromhex(_matching(_BYTES, text))
    if kind in _FLOATS:
        spelled = _NOT_FINITE.fullmatch(text)
        return float(text) if spelled else _floating(Decimal(_matching(_NUMBER, text)), type_)
    if kind in NESTED_KINDS:
        return _none()
    import pyarrow as pa

    from backstory.formats.values.cells import parse

    if kind not in _TIMES:
        return parse(pa.array([text]), type_)[0].as_py()
    micros = parse(pa.array([_matching(_TIMES[kind], text.upper())]), type_)[0].value
    time = EPOCH + timedelta(microseconds=micros)
    return time if kind is Kind.UTC_DATETIME else time.replace(tzinfo=None)


def _of_value(value: Any, type_: ColumnType) -> Any:
    """The value for a Python object, whose class must fit the type. For example, True is not a number."""
    kind = Kind.BINARY if type_.foreign.startswith("fixed") else type_.kind
    if isinstance(value, bool):
        return value if kind is Kind.BOOLEAN else _none()
    if isinstance(value, int | float | Decimal):
        return _of_number(value, type_)
    if isinstance(value, datetime):
        return _of_time(value, kind)
    if isinstance(value, date):
        return value if kind is Kind.NAIVE_DATE else _none()
    if isinstance(value, bytes | bytearray):
        return bytes(value) if kind is Kind.BINARY else _none()
    return _none()


def _of_number(value: float | Decimal, type_: ColumnType) -> Any:
    kind = type_.kind
    if kind in _FLOATS and isinstance(value, float) and (kind is Kind.DOUBLE or not math.isfinite(value)):
        return value
    if kind in TEXT_KINDS and isinstance(value, int) and not type_.foreign:
        return str(value)
    number = _sure(value, kind) if isinstance(value, float) else Decimal(value)
    if kind in _BITS:
        return _bounded_integer(int(number), type_) if number == number.to_integral_value() else _none()
    if kind is Kind.DECIMAL:
        return _decimal(number, type_)
    return _floating(number, type_) if kind in _FLOATS else _none()


def _sure(value: float, kind: Kind) -> Decimal:
    """The number that is printed for a float. Raises ValueError if the number is ambiguous for the kind."""
    number = Decimal(repr(value))
    if kind in _BITS and abs(value) > _SURE_WHOLE:
        return _none()
    return _none() if kind is Kind.DECIMAL and len(number.as_tuple().digits) > _SURE_DIGITS else number


def _of_time(value: datetime, kind: Kind) -> datetime:
    if getattr(value, "nanosecond", 0):
        return _none()
    if kind is Kind.UTC_DATETIME and value.tzinfo is not None:
        return datetime.fromisoformat(value.astimezone(UTC).isoformat())
    if kind is Kind.NAIVE_DATETIME and value.tzinfo is None:
        return datetime.fromisoformat(value.isoformat())
    return _none()


def _none() -> Any:
    raise ValueError


def _matching(pattern: re.Pattern[str], text: str) -> str:
    return text if pattern.fullmatch(text) else _none()


def _bounded_integer(number: int, type_: ColumnType) -> int:
    bound = 1 << (_BITS[type_.kind] - 1)
    return number if -bound <= number < bound else _none()


def _decimal(number: Decimal, type_: ColumnType) -> Decimal:
    context = Context(type_.precision, Emin=MIN_EMIN, Emax=MAX_EMAX)
    near = number.quantize(Decimal((0, (1,), -type_.scale)), context=context)
    return near if near == number else _none()


def _floating(number: Decimal, type_: ColumnType) -> float:
    """The float for a number, if the number is the float's exact value or its shortest printed form.

    Raises ValueError for any other number.
    """
    value = float(number)
    spellings = {repr(value)}
    if type_.kind is Kind.FLOAT:
        import numpy as np

        with np.errstate(over="ignore"):
            short = np.float32(value)
        value = float(short)
        spellings = {str(short), repr(value)}
    exact = math.isfinite(value) and number in {Decimal(value), *map(Decimal, spellings)}
    return value if exact else _none()
