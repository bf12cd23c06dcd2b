"""What Iceberg's metadata of a table tells, whoever read it, and what every catalog of it answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from backstory.model.change import DOOR
from backstory.model.foreign_writes import COLUMNS_STATE, foreign_writes
from backstory.model.schema import Shape
from backstory.model.table import TableName
from backstory.stores.iceberg.schema import columns_of_fields, names_of_property
from backstory.stores.iceberg.store import SOURCE_NAMES, shape_of_properties
from backstory.stores.refusals import no_table
from backstory.stores.table_files import TableFiles


@dataclass(frozen=True, slots=True)
class DescribedCommit:
    """One commit that has not expired: what it did, and what its writer said of it."""

    id: int
    committed_at: datetime
    operation: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Described:
    """A table as its metadata, in the JSON of Iceberg's specification, tells."""

    shape: Shape
    told: Mapping[str, Any]
    location: str

    @property
    def properties(self) -> Mapping[str, str]:
        """Its properties."""
        return self.told.get("properties") or {}

    @property
    def tags(self) -> Mapping[str, int]:
        """Names for snapshots."""
        refs = (self.told.get("refs") or {}).items()
        return {name: each["snapshot-id"] for name, each in refs if each["type"] == "tag"}

    @property
    def fields(self) -> Sequence[Mapping[str, Any]]:
        """The fields of its columns as they are now."""
        return _fields(self.told)

    def fields_then(self, schema_id: int | None) -> Sequence[Mapping[str, Any]]:
        """The fields of its columns in the state of this number; None for the present one."""
        return self.fields if schema_id is None else _fields({**self.told, "current-schema-id": schema_id})

    def snapshot_by_id(self, snapshot_id: int | None) -> Mapping[str, Any] | None:
        """The snapshot with this id; None if it has expired."""
        return next(
            (each for each in self.told.get("snapshots") or [] if each["snapshot-id"] == snapshot_id), None
        )

    @property
    def commits(self) -> list[DescribedCommit]:
        """Every commit that has not expired, oldest first, also those that were rolled back."""
        return [_commit(each) for each in self.told.get("snapshots") or []]

    @property
    def newest(self) -> DescribedCommit | None:
        """The commit whose rows the table has; None for a table that has no commits."""
        return None if self.snapshot is None else _commit(self.snapshot)

    @property
    def snapshot(self) -> Mapping[str, Any] | None:
        """The snapshot of the newest commit."""
        return self.snapshot_by_id(self.told.get("current-snapshot-id"))

    @property
    def ancestry(self) -> Iterator[Mapping[str, Any]]:
        """The snapshots that made the table what it is, newest first; one that expired ends the walk."""
        found = self.snapshot
        while found is not None:
            yield found
            found = self.snapshot_by_id(found.get("parent-snapshot-id"))

    @property
    def foreign_writes(self) -> Sequence[str]:
        """What other programs did to it since its door last wrote, in words."""
        left, now = self.properties.get(COLUMNS_STATE), self.told.get("current-schema-id")
        known = left is not None and str(now) != left
        numbers = [each.get("schema-id") for each in self.told.get("schemas") or ()]
        then = self.fields_then(int(left or 0)) if known and int(left or 0) in numbers else None
        names = [
            None if each is None else {field["id"]: field["name"] for field in each}
            for each in (then, self.fields)
        ]
        commits = (
            (each.id, each.operation, each.properties.get(DOOR)) for each in map(_commit, self.ancestry)
        )
        return foreign_writes(self.shape.layout, commits, names[0], names[1] or {})

    @property
    def rows(self) -> int:
        """The number of rows that data files hold, deleted ones included; 0 when there are none."""
        return 0 if self.newest is None else int(self.newest.properties.get("total-records") or 0)

    @property
    def commit_properties(self) -> Iterator[Callable[[str], str | None]]:
        """A getter of the commit's properties for each commit of the ancestry, newest first."""
        return ((each.get("summary") or {}).get for each in self.ancestry)

    def newest_property(self, name: str) -> str | None:
        """The property of this name of the newest commit that has it."""
        return next(filter(None, (property_of(name) for property_of in self.commit_properties)), None)


@dataclass(frozen=True, slots=True)
class Counts:
    """The rows of a table; `open` are versions that nothing ended, `memory` rows that are no versions.

    What cannot be counted is None.
    """

    rows: int | None
    open: int | None
    memory: int = 0


def deletes_by_value(told: Callable[[str], str | None]) -> bool:
    """Whether another writer deleted rows of a snapshot by value, by what its summary has under a name."""
    return (told("total-equality-deletes") or "0") != "0"


class Catalog(Protocol):
    """Where tables are described; `searched` names it, and who named it."""

    @property
    def searched(self) -> str: ...

    def tables(self) -> list[TableName]:
        """Every table, sorted."""

    def describe(self, table: TableName) -> Described | None:
        """A table as it stands now, or None if there is none."""

    def count(self, table: Described) -> Counts:
        """The rows of a table."""


class Opening(Catalog, Protocol):
    """A catalog whose files are read here."""

    def opener(self, table: Described) -> TableFiles:
        """How the files of a table are opened."""


def described(table: TableName, told: Mapping[str, Any], location: str) -> Described:
    """The table that metadata at a location tells of."""
    properties = told.get("properties") or {}
    columns = columns_of_fields(_fields(told), names_of_property(table, properties, SOURCE_NAMES, {}))
    return Described(shape_of_properties(table, columns, properties), told, location)


def existing(catalog: Catalog, table: TableName) -> Described:
    """The table as it stands now; UsageError if there is none."""
    found = catalog.describe(table)
    if found is None:
        raise no_table(table, searched=catalog.searched)
    return found


def _fields(told: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    schemas = told.get("schemas") or [told["schema"]]
    current = told.get("current-schema-id", schemas[-1].get("schema-id"))
    found: Sequence[Mapping[str, Any]] = next(
        each["fields"] for each in schemas if each.get("schema-id") == current
    )
    return found


def _commit(snapshot: Mapping[str, Any]) -> DescribedCommit:
    summary = dict(snapshot.get("summary") or {})
    operation = summary.pop("operation", "")
    committed_at = datetime.fromtimestamp(snapshot["timestamp-ms"] / 1000, UTC)
    return DescribedCommit(snapshot["snapshot-id"], committed_at, operation, summary)
