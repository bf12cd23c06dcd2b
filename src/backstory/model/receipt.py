"""What was done, or would be: what every receipt and its exit code have in common."""

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

# Of a field that only people are shown.
NOT_IN_JSON: Final[Mapping[str, bool]] = {"untold": True}


@dataclass(frozen=True, slots=True, repr=False)
class Receipt:
    """What was done, or would be; of one that can fail `error` is the BackstoryError, None if all is well."""

    @property
    def exit_code(self) -> int:
        """That of the error; 0 without one."""
        error = getattr(self, "error", None)
        return 0 if error is None else int(error.exit_code)

    def __repr__(self) -> str:
        """One line: the fields that say something, counts of nothing left out."""
        parts = (f"{name}={value!r}" for name, value in self._nonempty_fields().items())
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """The same as a small table, for a notebook."""
        rows = (
            f"<tr><th>{escape(name)}</th><td>{escape(_in_words(value))}</td></tr>"
            for name, value in self._nonempty_fields().items()
        )
        return f"<table><caption>{type(self).__name__}</caption>{''.join(rows)}</table>"

    def _nonempty_fields(self) -> dict[str, Any]:
        """The fields that are not empty; of counts those that are not 0."""
        rows = {name: _without_nothing(value) for name, value in self.to_dict().items()}
        return {name: value for name, value in rows.items() if value not in (None, [], {}, "")}

    def to_dict(self) -> dict[str, Any]:
        """The fields, as `--output json` prints them."""
        told = {each.name: getattr(self, each.name) for each in fields(self) if "untold" not in each.metadata}
        return {
            name: iso(value) if isinstance(value, datetime) else _plain(value) for name, value in told.items()
        }


class HasExitCode(Protocol):
    """What has an exit code: a receipt, or an error."""

    @property
    def exit_code(self) -> int:
        """That with which a command ends that did no more."""


def exit_code(ended: Iterable[HasExitCode]) -> int:
    """That of a batch: its highest-ranking failure's, 3 before 75 before 1; 0 if all are well."""
    codes = {each.exit_code for each in ended}
    return next((code for code in (2, 3, 75, 1) if code in codes), 0)


def attempt_each(
    names: Iterable[Named], act: Callable[[Named], Done], *, every: bool = False, alone: bool = False
) -> "dict[Named, Done | BackstoryError]":
    """What `act` gives of each; an error of one keeps the others not back, and stands in its place.

    Wrong usage is raised, where not `every` one is meant; of one that is `alone` any error is.
    """
    found: dict[Named, Done | BackstoryError] = {}
    for name in names:
        try:
            found[name] = act(name)
        except BackstoryError as error:
            if alone or (isinstance(error, UsageError) and not every):
                raise
            found[name] = error
    return found


def _without_nothing(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: each for name, each in value.items() if each not in (None, 0, "", [], {})}


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(each)}" for name, each in value.items())
    return ", ".join(map(_in_words, value)) if isinstance(value, list) else str(value)


def _plain(value: Any) -> Any:
    """A value in what JSON is made of; what rows hold stays as it is."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, PurePath):
        return str(value)
    return value.to_dict() if hasattr(value, "to_dict") else value
