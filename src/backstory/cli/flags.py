"""Options in texts: errors name them as Python's arguments, the command line as flags."""

import ast
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

# `name=value` in backticks, as `backstory.errors.option` writes it.
_OPTION: Final = re.compile(r"`([a-z][a-z_]*)=([^`]*)`")
_ERROR: Final = {"code", "message", "keys", "remedy"}


def in_flags(text: str) -> str:
    """The text with its options as flags: `` `dry_run=True` `` becomes `` `--dry-run` ``."""
    return _OPTION.sub(lambda option: f"`{_flag(option[1], option[2])}`", text)


def error_in_flags(document: Mapping[str, Any]) -> dict[str, Any]:
    """A record or document whose `error`, if it has one, names flags."""
    error = document.get("error")
    if not isinstance(error, Mapping) or set(error) != _ERROR:
        return dict(document)
    texts = {name: in_flags(error[name]) for name in ("message", "remedy")}
    return {**document, "error": {**error, **texts}}


def _flag(name: str, argument: str) -> str:
    try:
        value = ast.literal_eval(argument)
    except (SyntaxError, ValueError):  # such as `at=TIME`, or nothing
        value = argument
    flag = f"--{name.replace('_', '-')}"
    if value is True or value == "":
        return flag
    if isinstance(value, Mapping):
        value = [shlex.quote(f"{key}={each}") for key, each in value.items()]
    if isinstance(value, str):
        return f"{flag} {shlex.quote(value)}"
    return f"{flag} {','.join(map(str, value)) if isinstance(value, list | tuple) else value}"
