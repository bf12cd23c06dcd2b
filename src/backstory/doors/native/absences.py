"""Columns that a table has and a delivery lacks: a commit lists them, so that the next reports new ones."""

import json
from collections.abc import Mapping
from typing import Final

from backstory.doors.native.evolution import Evolved
from backstory.stores.iceberg.snapshots import IcebergSnapshot, ancestry
from backstory.stores.iceberg.store import StoredTable

# The property of a commit: the names of these columns, as JSON.
LACKS: Final = "backstory.lacks"
# The property of a table: the names of columns that no source has, for they came by mistake, as JSON.
TAKEN_BACK: Final = "backstory.taken-back"
_IS_MISSING: Final = " is missing from the "


def lacks(evolved: Evolved) -> Mapping[str, str]:
    """What the commit of a delivery says of the columns that it lacks; nothing where it lacks none."""
    missing = [each.name for each in evolved.missing]
    return {LACKS: json.dumps(missing)} if missing else {}


def lacked_before(table: StoredTable | None) -> Mapping[str, str]:
    """What the newest commit says of columns that its delivery lacked, for a delivery without records."""
    commit = None if table is None else _newest(table)
    names = commit and commit.get_property(LACKS)
    return {LACKS: names} if names else {}


def new_absences(table: StoredTable | None, evolved: Evolved, delivery: str) -> list[str]:
    """The columns that this delivery lacks, and the one committed before it did not, in words."""
    mistakes = _taken_back(table, evolved)
    missing = [each.name for each in evolved.missing if each.name not in mistakes]
    if table is None or not missing:
        return []
    newest = _newest(table)
    before = json.loads((newest and newest.get_property(LACKS)) or "[]")
    known = {evolved.renamed.get(name, name) for name in before}
    return [
        f"column {name}{_IS_MISSING}{delivery}; kept, NULL in new versions"
        for name in missing
        if name not in known or evolved.added
    ]


def _newest(table: StoredTable) -> IcebergSnapshot | None:
    return next((each for each in ancestry(table) if each.operation != "replace"), None)


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
