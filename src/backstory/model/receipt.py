"""What was done, or would be: what every receipt and its exit code have in common."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import PurePath
from typing import Any, Final

from backstory.model.instant import iso

# Of a field that only people are shown.
UNTOLD: Final[Mapping[str, bool]] = {"untold": True}


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was done, or would be; of one that can fail `error` is the BackstoryError, None if all is well."""

    @property
    def exit_code(self) -> int:
        """That of the error; 0 without one."""
        error = getattr(self, "error", None)
        return 0 if error is None else int(error.exit_code)

    def to_dict(self) -> dict[str, Any]:
        """The fields, as `--output json` prints them."""
        told = {each.name: getattr(self, each.name) for each in fields(self) if "untold" not in each.metadata}
        return {
            name: iso(value) if isinstance(value, datetime) else _plain(value) for name, value in told.items()
        }


def exit_code(receipts: Iterable[Receipt]) -> int:
    """That of a batch: its highest-ranking failure's, 3 before 75 before 1; 0 if all are well."""
    codes = {each.exit_code for each in receipts}
    return next((code for code in (2, 3, 75, 1) if code in codes), 0)


def _plain(value: Any) -> Any:
    """A value in what JSON is made of; what rows hold stays as it is."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, PurePath):
        return str(value)
    return value.to_dict() if hasattr(value, "to_dict") else value
