"""Receipts, which report completed or planned operations, and exit codes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from html import escape
from pathlib import PurePath
from typing import Any, Final, Protocol, TypeVar

from backstory.errors import BackstoryError, UsageError
from backstory.model.instant import iso

Named = TypeVar("Named")
Done = TypeVar("Done")

# The metadata of a field that `to_dict` omits, always or if it is None or an empty list.
NOT_IN_JSON: Final[Mapping[str, str]] = {"in JSON": "never"}
IF_ANY: Final[Mapping[str, str]] = {"in JSON": "if any"}


@dataclass(frozen=True, slots=True, repr=False)
class Receipt:
    """A report of a completed or planned operation. After a failure, `error` contains the cause."""

    @property
    def exit_code(self) -> int:
        """The exit code of the error, or 0 after a success."""
        error = getattr(self, "error", None)
        return 0 if error is None else int(error.exit_code)

    def __repr__(self) -> str:
        """One line with the nonempty fields and the nonzero counts."""
        parts = (f"{name}={value!r}" for name, value in self._nonempty_fields().items())
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """The receipt as a small HTML table, for notebooks."""
        rows = (
            f"<tr><th>{escape(name)}</th><td>{escape(_in_words(value))}</td></tr>"
            for name, value in self._nonempty_fields().items()
        )
        return f"<table><caption>{type(self).__name__}</caption>{''.join(rows)}</table>"

    def _nonempty_fields(self) -> dict[str, Any]:
        """The nonempty fields, with only the nonzero values of counts."""
        rows = {name: _without_nothing(value) for name, value in self.to_dict().items()}
        return {name: value for name, value in rows.items() if value not in (None, [], {}, "")}

    def to_dict(self) -> dict[str, Any]:
        """The fields, as `--output json` prints them."""
        values = {
            field: iso(value) if isinstance(value, datetime) else _plain(value)
            for field in fields(self)
            if field.metadata != NOT_IN_JSON
            for value in [getattr(self, field.name)]
        }
        return {
            field.name: value
            for field, value in values.items()
            if field.metadata != IF_ANY or value not in (None, [])
        }


class HasExitCode(Protocol):
    """An object with an exit code: a receipt or an error."""

    @property
    def exit_code(self) -> int:
        """The exit code of a command with this result."""


def exit_code(outcomes: Iterable[HasExitCode]) -> int:
    """The exit code of a batch: the first of 2, 3, 75 and 1 that occurs, or 0 if all succeeded."""
    codes = {outcome.exit_code for outcome in outcomes}
    return next((code for code in (2, 3, 75, 1) if code in codes), 0)


def attempt_each(
    names: Iterable[Named], act: Callable[[Named], Done], *, every: bool = False, alone: bool = False
) -> "dict[Named, Done | BackstoryError]":
    """The results of `act` by name. If `act` fails for a name, the error is the result for that name.

    UsageError is raised, unless `every` is true. If `alone` is true, every error is raised.
    """
    results: dict[Named, Done | BackstoryError] = {}
    for name in names:
        try:
            results[name] = act(name)
        except BackstoryError as error:
            if alone or (isinstance(error, UsageError) and not every):
                raise
            results[name] = error
    return results


def _without_nothing(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: part for name, part in value.items() if part not in (None, 0, "", [], {})}


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(part)}" for name, part in value.items())
    return ", ".join(map(_in_words, value)) if isinstance(value, list) else str(value)


def _plain(value: Any) -> Any:
    """The value in types that JSON supports. Values from rows are unchanged."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, PurePath):
        return str(value)
    return value.to_dict() if hasattr(value, "to_dict") else value
