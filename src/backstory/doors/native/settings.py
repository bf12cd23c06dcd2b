"""Which columns make versions: what a table was told first, and may not be told otherwise (V13)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

from backstory.doors.native.request import TableRequest, bad_option
from backstory.errors import Refused
from backstory.model.remembered import IGNORE, ON_SCHEMA_CHANGE, OVERWRITE, TRACK
from backstory.model.spelling import spelling_hint

_PROPERTIES: Final = {"track": TRACK, "ignore": IGNORE, "overwrite": OVERWRITE}


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The columns that a table tracks (None: all others), ignores and overwrites."""

    track: frozenset[str] | None = None
    ignore: frozenset[str] | None = None
    overwrite: frozenset[str] | None = None

    def tracks(self, name: str) -> bool:
        """Whether another value in a column makes a version; those of the key are not asked for."""
        if name in (self.overwrite or ()):
            return False
        return name in self.track if self.track is not None else name not in (self.ignore or ())

    def overwrites(self, name: str) -> bool:
        """Whether the open version gets the column's new value in place."""
        return name in (self.overwrite or ())

    def properties(self) -> dict[str, str]:
        """The settings as the table keeps them."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {_PROPERTIES[name]: _names_json(names) for name, names in found.items() if names is not None}

    def renamed(self, names: Mapping[str, str]) -> "TableSettings":
        """The same of columns with other names."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return TableSettings(
            **{
                name: columns and frozenset(names.get(each, each) for each in columns)
                for name, columns in found.items()
            }
        )


def settings_of(properties: Mapping[str, str]) -> TableSettings:
    """The settings that a table keeps."""
    told = {name: properties.get(property_) for name, property_ in _PROPERTIES.items()}
    return TableSettings(
        **{name: None if text is None else frozenset(json.loads(text)) for name, text in told.items()}
    )


def agreed(stored: TableSettings | None, asked: TableRequest) -> TableSettings:
    """The settings that count: the table's own, else those asked for; Refused `settings-changed`."""
    wanted = TableSettings(asked.track, asked.ignore, asked.overwrite)
    if stored is None:
        return wanted
    for each in fields(TableSettings):
        given, kept = getattr(wanted, each.name), getattr(stored, each.name)
        if given is not None and given != (kept or frozenset()):
            raise Refused(
                "settings-changed",
                f"The table was created with {_option_text(each.name, kept)}; "
                f"this delivery asks for {_option_text(each.name, given)}.",
                f"Nothing was written; omit `{each.name}=`, because the table keeps it, or use "
                "another table.",
                sorted(given ^ (kept or frozenset())),
            )
    return stored


def refuses_absences(properties: Mapping[str, str], asked: TableRequest) -> bool:
    """Whether a delivery that lacks columns is refused: as it says itself, else as the table does (N8)."""
    return (asked.on_schema_change or properties.get(ON_SCHEMA_CHANGE)) == "refuse"


def policy_property(properties: Mapping[str, str], asked: TableRequest) -> dict[str, str]:
    """What the table keeps of it from now on, where that is new: `accept` is of one delivery."""
    is_new = asked.on_schema_change == "refuse" and ON_SCHEMA_CHANGE not in properties
    return {ON_SCHEMA_CHANGE: "refuse"} if is_new else {}


def refuse_unknown(settings: TableSettings, names: Iterable[str], key: Iterable[str]) -> None:
    """Raises UsageError for settings of the key, or of columns that there are not."""
    told = {name for each in fields(settings) for name in getattr(settings, each.name) or ()}
    if wrong := sorted(told & set(key)):
        raise bad_option(
            f"Key columns cannot be tracked, ignored or overwritten: {', '.join(wrong)}.",
            "Remove them from the option.",
        )
    columns = sorted(names)
    if wrong := sorted(told - set(columns)):
        raise bad_option(
            f"There is no column {', '.join(wrong)}.",
            f"{spelling_hint(wrong, columns)}The columns are {', '.join(columns)}.",
        )


def _names_json(names: Iterable[str]) -> str:
    """Names as the JSON of a property, sorted."""
    return json.dumps(sorted(names), ensure_ascii=False)


def _option_text(option: str, names: frozenset[str] | None) -> str:
    return f"{option} {', '.join(sorted(names))}" if names else f"no {option}"
