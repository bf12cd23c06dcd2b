"""Options in texts: errors name them as Python's arguments, the command line as flags, a file as fields."""

import ast
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

from backstory.model.json_text import as_yaml

# `name=value` in backticks, as `backstory.errors.option` writes it.
_OPTION: Final = re.compile(r"`([a-z][a-z_]*)=([^`]*)`")
_ERROR: Final = {"code", "message", "keys", "remedy"}


def in_flags(text: str) -> str:
    """The text with its options as flags: `` `dry_run=True` `` becomes `` `--dry-run` ``."""
    return _OPTION.sub(lambda option: f"`{_flag(option[1], option[2])}`", text)


def in_fields(text: str, fields: Collection[str]) -> str:
    """The text with these options as a file has them: `` `at='2026'` `` becomes `` `at: "2026"` ``."""
    return _OPTION.sub(
        lambda option: f"`{_field(option[1], option[2])}`" if option[1] in fields else option[0], text
    )


def error_in_flags(document: Mapping[str, Any]) -> dict[str, Any]:
    """A record or document whose `error`, if it has one, names flags."""
    return _with_error(document, in_flags)


def error_in_fields(document: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """The same with these options as fields of a file."""
    return _with_error(document, partial(in_fields, fields=fields))


def _with_error(document: Mapping[str, Any], texts: Callable[[str], str]) -> dict[str, Any]:
    error = document.get("error")
    if not isinstance(error, Mapping) or set(error) != _ERROR:
        return dict(document)
    changed = {name: texts(error[name]) for name in ("message", "remedy")}
    return {**document, "error": {**error, **changed}}


def _value(argument: str) -> Any:
    try:
        return ast.literal_eval(argument)
    except (SyntaxError, ValueError):  # such as `at=TIME`, or nothing
        return argument


def _flag(name: str, argument: str) -> str:
    value = _value(argument)
    flag = f"--{name.replace('_', '-')}"
    if value is True or value == "":
        return flag
    if isinstance(value, Mapping):
        value = [shlex.quote(f"{key}={each}") for key, each in value.items()]
    if isinstance(value, str):
        return f"{flag} {shlex.quote(value)}"
    return f"{flag} {','.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def _field(name: str, argument: str) -> str:
    return f"{name}: {as_yaml(_value(argument))}" if argument else f"{name}:"
