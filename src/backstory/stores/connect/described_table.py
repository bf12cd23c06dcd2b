"""An Iceberg table as its metadata JSON describes it, with the method names of Iceberg's Java.

Readers of a table call the same methods on Java's objects and on the objects of this module. An error names
any method that only Java has.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from backstory.spark.connect import needs_java


@dataclass(frozen=True)
class _Described:
    """A part of a table's metadata. `members` maps methods of its Java class to names in its JSON."""

    json: Mapping[str, Any]
    members: ClassVar[Mapping[str, str]] = {}

    @property
    def text(self) -> str:
        """The part's JSON."""
        return json.dumps(self.json)

    def __getattr__(self, name: str) -> Callable[[], Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self.members:
            raise needs_java()
        return lambda: self.json.get(self.members[name])


class DescribedField(_Described):
    """A column of a schema."""

    members: ClassVar = {"fieldId": "id", "name": "name"}


class DescribedSchema(_Described):
    """The columns of a table in one of its states."""

    members: ClassVar = {"schemaId": "schema-id"}

    def columns(self) -> list[DescribedField]:
        """The columns, in their order."""
        return [DescribedField(field) for field in self.json["fields"]]

    def findField(self, name: str) -> DescribedField | None:  # noqa: N802 - Java's name
        """The column with this name, or None."""
        return next((field for field in self.columns() if field.name() == name), None)

    def findColumnName(self, number: int) -> str | None:  # noqa: N802 - Java's name
        """The name of the column with this id, or None."""
        return next((field.name() for field in self.columns() if field.fieldId() == number), None)


class DescribedSnapshot(_Described):
    """A commit."""

    members: ClassVar = {
        "snapshotId": "snapshot-id",
        "parentId": "parent-snapshot-id",
        "timestampMillis": "timestamp-ms",
        "schemaId": "schema-id",
    }

    def sequenceNumber(self) -> int:  # noqa: N802 - Java's name
        """The number of the commit among the table's commits."""
        return int(self.json.get("sequence-number", 0))

    def operation(self) -> str:
        """The kind of change to files."""
        return str(self.json["summary"]["operation"])

    def summary(self) -> dict[str, str]:
        """The commit's properties."""
        return {name: value for name, value in self.json["summary"].items() if name != "operation"}


class DescribedReference(_Described):
    """A branch or a tag."""

    members: ClassVar = {"snapshotId": "snapshot-id", "maxRefAgeMs": "max-ref-age-ms"}

    def isTag(self) -> bool:  # noqa: N802 - Java's name
        """Whether the reference is a tag."""
        return bool(self.json["type"] == "tag")

    def isBranch(self) -> bool:  # noqa: N802 - Java's name
        """Whether the reference is a branch."""
        return not self.isTag()


class DescribedPart(_Described):
    """A field of a table's partitions."""

    members: ClassVar = {"name": "name", "sourceId": "source-id"}


class DescribedSpec(_Described):
    """The partitions of a table."""

    def fields(self) -> list[DescribedPart]:
        """The fields of the partitions."""
        return [DescribedPart(field) for field in self.json["fields"]]


@dataclass(frozen=True)
class DescribedState(_Described):
    """The metadata of a table, and its file."""

    file: str
    members: ClassVar = {"formatVersion": "format-version", "lastColumnId": "last-column-id"}

    def metadataFileLocation(self) -> str:  # noqa: N802 - Java's name
        """The file of the metadata."""
        return self.file

    def current(self) -> "DescribedState":
        """The metadata, as it was read."""
        return self


@dataclass(frozen=True)
class DescribedTable(_Described):
    """A table in one of its states, and the file of its metadata."""

    file: str
    members: ClassVar = {"uuid": "table-uuid", "location": "location"}

    def operations(self) -> DescribedState:
        """The table's metadata."""
        return DescribedState(self.json, self.file)

    def properties(self) -> dict[str, str]:
        """The table's properties, including Iceberg's own."""
        return self.json.get("properties") or {}

    def schemas(self) -> Mapping[int, DescribedSchema]:
        """Every schema of the table, by id."""
        return {schema["schema-id"]: DescribedSchema(schema) for schema in self.json["schemas"]}

    def schema(self) -> DescribedSchema:
        """The current columns."""
        return self.schemas()[self.json["current-schema-id"]]

    def spec(self) -> DescribedSpec:
        """The current partitions."""
        number = self.json["default-spec-id"]
        return DescribedSpec(next(spec for spec in self.json["partition-specs"] if spec["spec-id"] == number))

    def snapshots(self) -> list[DescribedSnapshot]:
        """Every commit that has not expired, oldest first."""
        return [DescribedSnapshot(snapshot) for snapshot in self.json.get("snapshots") or ()]

    def snapshot(self, number: int) -> DescribedSnapshot | None:
        """The commit with this id, or None if it has expired."""
        return next((one for one in self.snapshots() if one.snapshotId() == number), None)

    def currentSnapshot(self) -> DescribedSnapshot | None:  # noqa: N802 - Java's name
        """The newest commit, or None if there are no commits."""
        number = self.json.get("current-snapshot-id")
        return None if number in {None, -1} else self.snapshot(number)

    def refs(self) -> Mapping[str, DescribedReference]:
        """The branches and tags, by name."""
        return {name: DescribedReference(ref) for name, ref in (self.json.get("refs") or {}).items()}
