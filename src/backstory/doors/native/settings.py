"""The settings stored in a table: the columns that make versions, and the columns that deliveries lack (V13).

A commit lists the columns that its delivery lacked, so that the next delivery reports only new absences (N8).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final, Literal

from backstory.doors.native.evolution import EvolvedShape
from backstory.doors.native.options import DeliveryRequest
from backstory.errors import Refused, bad_option
from backstory.model.table import spelling_hint
from backstory.model.versions_layout import IGNORE, LACKS, ON_SCHEMA_CHANGE, OVERWRITE, TRACK
from backstory.stores.iceberg.store import IcebergTable

_PROPERTIES: Final = {"track": TRACK, "ignore": IGNORE, "overwrite": OVERWRITE}

Kind = Literal["copy", "feed"]
# The table property with the columns that were added by mistake and taken back, as JSON.
MISTAKES: Final = "backstory.taken-back"
_IS_MISSING: Final = " is missing from the "
# The effect on a missing column. A change in a feed sets only the columns that it has (V50).
_BECOMES: Final = {"copy": "kept, NULL in new versions", "feed": "kept as it was"}


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The columns that a table tracks (or None for all others), ignores and overwrites."""

    track: frozenset[str] | None = None
    ignore: frozenset[str] | None = None
    overwrite: frozenset[str] | None = None

    def tracks(self, name: str) -> bool:
        """Whether a new value in a column outside the key makes a version."""
        if name in (self.overwrite or ()):
            return False
        return name in self.track if self.track is not None else name not in (self.ignore or ())

    def overwrites(self, name: str) -> bool:
        """Whether a new value replaces the open version's value in place."""
        return name in (self.overwrite or ())

    def properties(self) -> dict[str, str]:
        """The settings as table properties."""
        lists = asdict(self).items()
        return {_PROPERTIES[name]: _names_json(names) for name, names in lists if names is not None}

    def rename_columns(self, names: Mapping[str, str]) -> "TableSettings":
        """The same settings with new column names."""
        lists = {
            name: columns and frozenset(names.get(column, column) for column in columns)
            for name, columns in asdict(self).items()
        }
        return TableSettings(**lists)


def stored_settings(properties: Mapping[str, str]) -> TableSettings:
    """The settings in a table's properties."""
    texts = {name: properties.get(property_) for name, property_ in _PROPERTIES.items()}
    lists = {name: None if text is None else frozenset(json.loads(text)) for name, text in texts.items()}
    return TableSettings(**lists)


def agree_settings(stored: TableSettings | None, request: DeliveryRequest) -> TableSettings:
    """The table's settings, or else the requested settings.

    Raises Refused (`settings-changed`) if they differ.
    """
    wanted = TableSettings(request.track, request.ignore, request.overwrite)
    if stored is None:
        return wanted
    for field in fields(TableSettings):
        requested, stored_names = getattr(wanted, field.name), getattr(stored, field.name)
        if requested is not None and requested != (stored_names or frozenset()):
            raise Refused(
                "settings-changed",
                f"The table was created with {_option_text(field.name, stored_names)}; "
                f"this delivery asks for {_option_text(field.name, requested)}.",
                f"Nothing was written; omit `{field.name}=`, because the table keeps it, or use "
                "another table.",
                sorted(requested ^ (stored_names or frozenset())),
            )
    return stored


def refuses_absences(properties: Mapping[str, str], request: DeliveryRequest) -> bool:
    """Whether the request, or else the table, refuses a delivery that lacks columns (N8)."""
    return (request.on_schema_change or properties.get(ON_SCHEMA_CHANGE)) == "refuse"


def policy_property(properties: Mapping[str, str], request: DeliveryRequest) -> dict[str, str]:
    """The table property for a new policy on missing columns.

    `accept` applies to one delivery and is not stored.
    """
    is_new = request.on_schema_change == "refuse" and ON_SCHEMA_CHANGE not in properties
    return {ON_SCHEMA_CHANGE: "refuse"} if is_new else {}


def refuse_unknown(settings: TableSettings, names: Iterable[str], key: Iterable[str]) -> None:
    """Raise UsageError for settings of key columns and of unknown columns."""
    named = {name for field in fields(settings) for name in getattr(settings, field.name) or ()}
    if wrong := sorted(named & set(key)):
        raise bad_option(
            f"Key columns cannot be tracked, ignored or overwritten: {', '.join(wrong)}.",
            "Remove them from the option.",
        )
    columns = sorted(names)
    if wrong := sorted(named - set(columns)):
        raise bad_option(
            f"There is no column {', '.join(wrong)}.",
            f"{spelling_hint(wrong, columns)}The columns are {', '.join(columns)}.",
        )


def _names_json(names: Iterable[str]) -> str:
    """Sorted names as JSON."""
    return json.dumps(sorted(names), ensure_ascii=False)


def _option_text(option: str, names: frozenset[str] | None) -> str:
    return f"{option} {', '.join(sorted(names))}" if names else f"no {option}"


@dataclass(frozen=True, slots=True)
class Absences:
    """The columns that a delivery lacks. `new` has the columns that the last delivery of its kind had.

    `lists` are the missing columns by kind of delivery, for the commit. `changed` is true if the newest
    commit with lists has different lists.
    """

    kind: Kind
    lacking: Sequence[str]
    new: Sequence[str]
    lists: Mapping[str, Sequence[str]]
    changed: bool = False

    @property
    def properties(self) -> Mapping[str, str]:
        """The commit's property that lists the missing columns."""
        return {LACKS: json.dumps(self.lists, ensure_ascii=False)}

    def as_lines(self, *, all_of_them: bool) -> list[str]:
        """Lines about the new absences.

        If a column is added, all missing columns are listed, because the added column may be a renamed one.
        """
        names = self.lacking if all_of_them else self.new
        return [f"column {name}{_IS_MISSING}{self.kind}; {_BECOMES[self.kind]}" for name in names]


def find_absences(
    table: IcebergTable | None, evolved: EvolvedShape, kind: Kind, *, sets_columns: bool = True
) -> Absences:
    """The columns that a delivery lacks. If `sets_columns` is false, its rows have no values."""
    before = json.loads((table and table.newest_property(LACKS)) or "{}")
    lists = {
        delivery: [evolved.renamed.get(name, name) for name in names] for delivery, names in before.items()
    }
    if not sets_columns:
        return Absences(kind, (), (), lists)
    mistakes = _mistaken_columns(table, evolved)
    lacking = [column.name for column in evolved.missing if column.name not in mistakes]
    new = [name for name in lacking if name not in lists.get(kind, ())]
    lists = {delivery: names for delivery, names in {**lists, kind: lacking}.items() if names}
    return Absences(kind, lacking, new, lists, lists != before)


def mistakes_property(table: IcebergTable | None, evolved: EvolvedShape) -> Mapping[str, str]:
    """The table property with mistaken columns, if it changes."""
    before = None if table is None else table.properties.get(MISTAKES)
    now = _names_json(_mistaken_columns(table, evolved))
    return {} if now == (before or "[]") else {MISTAKES: now}


def _mistaken_columns(table: IcebergTable | None, evolved: EvolvedShape) -> frozenset[str]:
    """The columns that were added by mistake and that no later delivery had."""
    names = [] if table is None else json.loads(table.properties.get(MISTAKES, "[]"))
    known = evolved.mistakes.union(evolved.renamed.get(name, name) for name in names)
    return known.difference(column.name for column in evolved.delivered)


def changes_table(line: str) -> bool:
    """Whether a line of schema changes reports a change to the table, and not a missing column."""
    return _IS_MISSING not in line
