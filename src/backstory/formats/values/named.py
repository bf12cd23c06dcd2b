"""The one value of a type that a text or a value of Python names: nothing is rounded, cut or filled in."""

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DecimalException
from typing import Any, Final
from uuid import UUID

from backstory.model.types import TEXT_KINDS, ColumnType, Kind

_INTEGER: Final = re.compile(r"-?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"(?i)[+-]?(nan|inf|infinity)")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d(?:\.\d{1,6}0*)?)?)([Zz]|[+-]\d\d(?::?\d\d)?)?"
)
_CLOCK: Final = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?")
_BYTES: Final = re.compile(r"(?:[0-9a-fA-F]{2})*")

_BITS: Final = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}
_FLOATS: Final = {Kind.FLOAT, Kind.DOUBLE}
# Of more a double does not tell which of its neighbours was meant.
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
    """No value of the type is given; `remedy` says how its values are written."""

    def __init__(self, type_: ColumnType) -> None:
        super().__init__(str(type_))
        self.remedy = _REMEDIES.get(type_.kind, "Give it as text.")
        if type_.kind in {Kind.LIST, Kind.MAP, Kind.STRUCT}:
            self.remedy = "Values of this type cannot be asked for by a key."


def named_value(given: object, type_: ColumnType) -> Any:
    """The value that is given, as Python has values of the type; Unnamed if it is none of them."""
    given = _python_number(given)
    try:
        if isinstance(given, str):
            return _of_text(given, type_)
        return _of_value(given, type_)
    except (ValueError, OverflowError, DecimalException):
        raise Unnamed(type_) from None


def _python_number(given: object) -> object:
    """A number of NumPy as Python has it."""
    if type(given).__module__ != "numpy" or getattr(getattr(given, "dtype", None), "kind", "") not in "biuf":
        return given
    return given.item()  # type: ignore[attr-defined]


def _of_text(text: str, type_: ColumnType) -> Any:
    if type_.foreign == "uuid":
        return str(UUID(_matching(re.compile("[0-9a-fA-F-]{36}"), text)))
    if type_.foreign == "time":
        return _matching(_CLOCK, text)
    if type_.foreign.startswith("fixed"):
        return bytes.fromhex(_matching(_BYTES, text))
    if type_.kind in TEXT_KINDS:
        return text
    return _TEXTS[type_.kind](text.strip(" \t"), type_) if type_.kind in _TEXTS else _none()


def _of_value(given: Any, type_: ColumnType) -> Any:
    """Each class of Python names values of the types that hold them, and of no others: True is no number."""
    kind = Kind.BINARY if type_.foreign.startswith("fixed") else type_.kind
    if isinstance(given, bool):
        return given if kind is Kind.BOOLEAN else _none()
    if isinstance(given, int | float | Decimal):
        return _of_number(given, type_)
    if isinstance(given, datetime):
        return _of_time(given, kind)
    if isinstance(given, date):
        return given if kind is Kind.NAIVE_DATE else _none()
    if isinstance(given, bytes | bytearray):
        return bytes(given) if kind is Kind.BINARY else _none()
    return _none()


def _of_number(given: float | Decimal, type_: ColumnType) -> Any:
    kind = type_.kind
    if kind in _FLOATS and isinstance(given, float) and (kind is Kind.DOUBLE or not math.isfinite(given)):
        return given
    if kind in TEXT_KINDS and isinstance(given, int) and not type_.foreign:
        return str(given)
    number = _sure(given, kind) if isinstance(given, float) else Decimal(given)
    if kind in _BITS:
        return _bounded_integer(int(number), type_) if number == number.to_integral_value() else _none()
    if kind is Kind.DECIMAL:
        return _decimal(number, type_)
    return _floating(number, type_) if kind in _FLOATS else _none()


def _sure(given: float, kind: Kind) -> Decimal:
    """The number that a float is written as, where it tells that one from its neighbours of the kind."""
    number = Decimal(repr(given))
    if kind in _BITS and abs(given) > _SURE_WHOLE:
        return _none()
    return _none() if kind is Kind.DECIMAL and len(number.as_tuple().digits) > _SURE_DIGITS else number


def _of_time(given: datetime, kind: Kind) -> datetime:
    if getattr(given, "nanosecond", 0):
        return _none()
    if kind is Kind.UTC_DATETIME and given.tzinfo is not None:
        return datetime.fromisoformat(given.astimezone(UTC).isoformat())
    if kind is Kind.NAIVE_DATETIME and given.tzinfo is None:
        return datetime.fromisoformat(given.isoformat())
    return _none()


def _none() -> Any:
    raise ValueError


def _matching(pattern: re.Pattern[str], text: str) -> str:
    return text if pattern.fullmatch(text) else _none()


def _boolean(text: str, _type: ColumnType) -> bool:
    return _matching(re.compile("true|false"), text.lower()) == "true"


def _integer(text: str, type_: ColumnType) -> int:
    return _bounded_integer(int(_matching(_INTEGER, text)), type_)


def _bounded_integer(number: int, type_: ColumnType) -> int:
    bound = 1 << (_BITS[type_.kind] - 1)
    return number if -bound <= number < bound else _none()


def _decimal_text(text: str, type_: ColumnType) -> Decimal:
    return _decimal(Decimal(_matching(_NUMBER, text)), type_)


def _decimal(number: Decimal, type_: ColumnType) -> Decimal:
    context = Context(type_.precision, Emin=MIN_EMIN, Emax=MAX_EMAX)
    near = number.quantize(Decimal((0, (1,), -type_.scale)), context=context)
    return near if near == number else _none()


def _floating_text(text: str, type_: ColumnType) -> float:
    if _NOT_FINITE.fullmatch(text):
        return float(text)
    return _floating(Decimal(_matching(_NUMBER, text)), type_)


def _floating(number: Decimal, type_: ColumnType) -> float:
    """The float that is written so: with all its digits, or with those that tell it from its neighbours."""
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


def _day(text: str, _type: ColumnType) -> date:
    return date.fromisoformat(_matching(_DAY, text))


def _instant(text: str, _type: ColumnType) -> datetime:
    """Without an offset it is UTC, as every time that is asked for; a day alone is no instant."""
    time, offset = _time(text)
    return datetime.fromisoformat(f"{time}{offset or '+00:00'}").astimezone(UTC)


def _naive(text: str, _type: ColumnType) -> datetime:
    time, offset = _time(text)
    return _none() if offset else datetime.fromisoformat(time)


def _time(text: str) -> tuple[str, str]:
    """The time to the microsecond, and its offset; digits beyond that may only be zeros."""
    found = _TIME.fullmatch(text) or _none()
    clock = re.sub(r"(\.\d{6})0+$", r"\1", found[2])
    return f"{found[1]}T{clock}", (found[3] or "").upper()


def _bytes(text: str, _type: ColumnType) -> bytes:
    return bytes.fromhex(_matching(_BYTES, text))


_TEXTS: Final[dict[Kind, Callable[[str, ColumnType], Any]]] = {
    Kind.BOOLEAN: _boolean,
    Kind.SHORT: _integer,
    Kind.INT: _integer,
    Kind.LONG: _integer,
    Kind.DECIMAL: _decimal_text,
    Kind.FLOAT: _floating_text,
    Kind.DOUBLE: _floating_text,
    Kind.NAIVE_DATE: _day,
    Kind.NAIVE_DATETIME: _naive,
    Kind.UTC_DATETIME: _instant,
    Kind.BINARY: _bytes,
}
