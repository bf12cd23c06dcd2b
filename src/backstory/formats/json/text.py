"""A lossless JSON parser: numbers keep their digits, and repeated keys in an object are refused."""

import json
import re
from collections.abc import Callable
from typing import Any

_ENCODED = json.JSONEncoder(ensure_ascii=False).encode
_BLANKS = re.compile(r"[ \t\r\n]*")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # a surrogate, with or without its pair
_TOO_DEEP = "its values are nested too deeply"


class Number(str):
    """A JSON number as it is written."""

    __slots__ = ()


class NotJson(ValueError):
    """A string that is not JSON. `at` is the index of the error, or -1 if it is unknown."""

    def __init__(self, why: str, place: int = -1) -> None:
        super().__init__(why)
        self.at = place


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise NotJson(f"an object has the key `{twice[:40]}` twice")
    return built


def _unicode_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object as a dictionary.

    Raises NotJson for a key with an unpaired surrogate, which JSON would allow.
    """
    for key, _ in pairs:
        try:
            key.encode()
        except UnicodeEncodeError:
            raise NotJson(
                f"an object has the key `{ascii(key)[1:-1][:40]}`, which is not valid Unicode"
            ) from None
    return _object(pairs)


def _constant(text: str) -> Any:
    raise NotJson(f"`{text}` is not a JSON number")


def _decoder(hook: Callable[[list[tuple[str, Any]]], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=hook, parse_float=Number, parse_int=Number, parse_constant=_constant
    )


_DECODER, _CAREFUL = _decoder(_object), _decoder(_unicode_object)


def loads(text: str) -> Any:
    """The value of a JSON string, with numbers as `Number`. Raises NotJson if it is not strict JSON."""
    try:
        careful = "\\u" in text and _HALF.search(text)
        return (_CAREFUL if careful else _DECODER).decode(text)
    except json.JSONDecodeError as stop:
        raise NotJson(stop.msg[:1].lower() + stop.msg[1:], stop.pos) from None
    except RecursionError:
        raise NotJson(_TOO_DEEP) from None


def dumps(value: Any) -> str:
    """The value as compact JSON, with the original digits of numbers.

    Raises NotJson if the value is nested too deeply.
    """
    try:
        return _default(value)
    except RecursionError:
        raise NotJson(_TOO_DEEP) from None


def _default(value: Any) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, list):
        return f"[{','.join(map(_default, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_ENCODED(key)}:{_default(item)}' for key, item in value.items())}}}"
    return _ENCODED(value)


def line_of_element(text: str, keys: list[str], element: int) -> int:
    """The line of an element of the array under the path `keys`, in a string that `loads` accepts."""
    place = _past_blanks(text, 0)
    for key in keys:
        place = place_of_value(text, place, key)
    place = _past_blanks(text, place + 1)
    for _ in range(element):
        _, place = _DECODER.raw_decode(text, place)
        place = _past_blanks(text, _past_blanks(text, place) + 1)
    return text.count("\n", 0, place) + 1


def place_of_value(text: str, place: int, key: str) -> int:
    """The index of a key's value in the object that begins at `place`, in a string that `loads` accepts."""
    place = _past_blanks(text, place + 1)
    while True:
        name, place = _DECODER.raw_decode(text, place)
        place = _past_blanks(text, _past_blanks(text, place) + 1)
        if name == key:
            return place
        _, place = _DECODER.raw_decode(text, place)
        place = _past_blanks(text, _past_blanks(text, place) + 1)


def _past_blanks(text: str, place: int) -> int:
    blanks = _BLANKS.match(text, place)
    return blanks.end() if blanks else place
