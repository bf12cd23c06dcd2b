"""Columns that a table has and a delivery lacks: a commit lists them, so that the next reports new ones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from backstory.doors.native.evolution import Evolved
from backstory.model.remembered import LACKS
from backstory.stores.iceberg.snapshots import ancestry
from backstory.stores.iceberg.store import StoredTable

Kind = Literal["copy", "feed"]
# The property of a table: the names of columns that no source has, for they came by mistake, as JSON.
TAKEN_BACK: Final = "backstory.taken-back"
_IS_MISSING: Final = " is missing from the "
# What becomes of such a column; a change of a feed sets the columns that it has (V50).
_BECOMES: Final = {"copy": "kept, NULL in new versions", "feed": "kept as it was"}


@dataclass(frozen=True, slots=True)
class Absences:
    """The columns that a delivery lacks: all of them, and those that the last one of its kind had.

    `lists` are the names of both kinds of deliveries, as the commit has them; `changed` says if they differ
    from those of the newest commit that has some.
    """

    kind: Kind
    lacking: Sequence[str]
    new: Sequence[str]
    lists: Mapping[str, Sequence[str]]
    changed: bool = False

    @property
    def properties(self) -> Mapping[str, str]:
        """What the commit says of them."""
        return {LACKS: json.dumps(self.lists, ensure_ascii=False)}

    def in_words(self, *, all_of_them: bool) -> list[str]:
        """The new ones, or all of them where columns come: one of these may be another's new name."""
        names = self.lacking if all_of_them else self.new
        return [f"column {name}{_IS_MISSING}{self.kind}; {_BECOMES[self.kind]}" for name in names]


def absences(
    table: StoredTable | None, evolved: Evolved, kind: Kind, *, sets_columns: bool = True
) -> Absences:
    """The columns that a delivery lacks; without `sets_columns` it has no rows that could have them."""
    listed = (each.get_property(LACKS) for each in (() if table is None else ancestry(table)))
    before = json.loads(next(filter(None, listed), "{}"))
    lists = {each: [evolved.renamed.get(name, name) for name in names] for each, names in before.items()}
    if not sets_columns:
        return Absences(kind, (), (), lists)
    mistakes = _taken_back(table, evolved)
    lacking = [each.name for each in evolved.missing if each.name not in mistakes]
    new = [name for name in lacking if name not in lists.get(kind, ())]
    lists = {each: names for each, names in {**lists, kind: lacking}.items() if names}
    return Absences(kind, lacking, new, lists, lists != before)


def taken_back(table: StoredTable | None, evolved: Evolved) -> Mapping[str, str]:
    """The table's property that lists the columns that came by mistake, where it changes."""
    before = None if table is None else table.properties.get(TAKEN_BACK)
    now = json.dumps(sorted(_taken_back(table, evolved)), ensure_ascii=False)
    return {} if now == (before or "[]") else {TAKEN_BACK: now}


def _taken_back(table: StoredTable | None, evolved: Evolved) -> frozenset[str]:
    """The columns that came by mistake, and that no delivery has had since."""
    names = [] if table is None else json.loads(table.properties.get(TAKEN_BACK, "[]"))
    known = evolved.taken_back.union(evolved.renamed.get(each, each) for each in names)
    return known.difference(each.name for each in evolved.delivered)


def changes_table(line: str) -> bool:
    """Whether a line of schema changes is of more than a column that the delivery lacks."""
    return _IS_MISSING not in line
