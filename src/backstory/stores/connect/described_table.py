"""An Iceberg table as its metadata JSON describes it, with the method names of Iceberg's Java.

Readers of a table call the same methods, whether Java or its metadata answers. A method that only Java has is
refused by name.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backstory.spark.connect import needs_java


@dataclass(frozen=True, slots=True)
class _Described:
    """A part of a table's metadata, with some of the methods of its Java class."""

    json: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Its JSON."""
        return json.dumps(self.json)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise needs_java()


@dataclass(frozen=True, slots=True)
class DescribedField(_Described):
    """A column of a schema."""

    def fieldId(self) -> int:  # noqa: N802 - Java's name
        """Its id, which it keeps under another name."""
        return int(self.json["id"])

    def name(self) -> str:
        """Its name."""
        return str(self.json["name"])


@dataclass(frozen=True, slots=True)
class DescribedSchema(_Described):
    """The columns of a table in one of their states."""

    def schemaId(self) -> int:  # noqa: N802 - Java's name
        """The id of this state."""
        return int(self.json.get("schema-id", 0))

    def columns(self) -> list[DescribedField]:
        """The columns, in their order."""
        return [DescribedField(field) for field in self.json["fields"]]

    def findField(self, name: str) -> DescribedField | None:  # noqa: N802 - Java's name
        """The column of this name; None if there is none."""
        return next((field for field in self.columns() if field.name() == name), None)

    def findColumnName(self, number: int) -> str | None:  # noqa: N802 - Java's name
        """The name of the column with this id; None if there is none."""
        return next((field.name() for field in self.columns() if field.fieldId() == number), None)


@dataclass(frozen=True, slots=True)
class DescribedSnapshot(_Described):
    """A commit."""

    def snapshotId(self) -> int:  # noqa: N802 - Java's name
        """Its id."""
        return int(self.json["snapshot-id"])

    def parentId(self) -> int | None:  # noqa: N802 - Java's name
        """The id of the commit before it."""
        number = self.json.get("parent-snapshot-id")
        return None if number is None else int(number)

    def sequenceNumber(self) -> int:  # noqa: N802 - Java's name
        """Its number among the commits of the table."""
        return int(self.json.get("sequence-number", 0))

    def timestampMillis(self) -> int:  # noqa: N802 - Java's name
        """The time of the commit."""
        return int(self.json["timestamp-ms"])

    def schemaId(self) -> int | None:  # noqa: N802 - Java's name
        """The id of the schema that the commit was written with."""
        number = self.json.get("schema-id")
        return None if number is None else int(number)

    def operation(self) -> str:
        """Its kind of change to files."""
        return str(self.json["summary"]["operation"])

    def summary(self) -> dict[str, str]:
        """The table's properties."""
        return {name: value for name, value in self.json["summary"].items() if name != "operation"}


@dataclass(frozen=True, slots=True)
class DescribedReference(_Described):
    """A branch or a tag."""

    def snapshotId(self) -> int:  # noqa: N802 - Java's name
        """The snapshot that it names."""
        return int(self.json["snapshot-id"])

    def isTag(self) -> bool:  # noqa: N802 - Java's name
        """Whether it is a tag."""
        return bool(self.json["type"] == "tag")

    def isBranch(self) -> bool:  # noqa: N802 - Java's name
        """Whether it is a branch."""
        return not self.isTag()

    def maxRefAgeMs(self) -> int | None:  # noqa: N802 - Java's name
        """The age at which it expires."""
        age = self.json.get("max-ref-age-ms")
        return None if age is None else int(age)


@dataclass(frozen=True, slots=True)
class DescribedPart(_Described):
    """A field of a table's partitions."""

    def name(self) -> str:
        """Its name."""
        return str(self.json["name"])

    def sourceId(self) -> int:  # noqa: N802 - Java's name
        """The id of the column that it is computed from."""
        return int(self.json["source-id"])


@dataclass(frozen=True, slots=True)
class DescribedSpec(_Described):
    """The partitions of a table."""

    def fields(self) -> Sequence[DescribedPart]:
        """Their fields."""
        return [DescribedPart(field) for field in self.json["fields"]]


@dataclass(frozen=True, slots=True)
class DescribedState(_Described):
    """The metadata of a table, and its file."""

    file: str

    def formatVersion(self) -> int:  # noqa: N802 - Java's name
        """Iceberg's format version."""
        return int(self.json["format-version"])

    def lastColumnId(self) -> int:  # noqa: N802 - Java's name
        """The highest id that a column has had."""
        return int(self.json["last-column-id"])

    def metadataFileLocation(self) -> str:  # noqa: N802 - Java's name
        """The file of the metadata."""
        return self.file

    def current(self) -> "DescribedState":
        """The metadata, as it was read."""
        return self


@dataclass(frozen=True, slots=True)
class DescribedTable(_Described):
    """A table in one of its states."""

    file: str

    def operations(self) -> DescribedState:
        """Its metadata."""
        return DescribedState(self.json, self.file)

    def uuid(self) -> str:
        """Its id, which no other table has."""
        return str(self.json["table-uuid"])

    def location(self) -> str:
        """Its folder."""
        return str(self.json["location"])

    def properties(self) -> dict[str, str]:
        """The table's properties, including Iceberg's own."""
        return self.json.get("properties") or {}

    def schemas(self) -> Mapping[int, DescribedSchema]:
        """Every state of its columns, by id."""
        known = (DescribedSchema(schema) for schema in self.json["schemas"])
        return {schema.schemaId(): schema for schema in known}

    def schema(self) -> DescribedSchema:
        """Its columns."""
        return self.schemas()[self.json["current-schema-id"]]

    def spec(self) -> DescribedSpec:
        """Its partitions."""
        number = self.json["default-spec-id"]
        return DescribedSpec(next(spec for spec in self.json["partition-specs"] if spec["spec-id"] == number))

    def snapshots(self) -> list[DescribedSnapshot]:
        """Every commit that has not expired, oldest first."""
        return [DescribedSnapshot(snapshot) for snapshot in self.json.get("snapshots") or ()]

    def snapshot(self, number: int) -> DescribedSnapshot | None:
        """The commit with this id; None if it has expired."""
        return next((one for one in self.snapshots() if one.snapshotId() == number), None)

    def currentSnapshot(self) -> DescribedSnapshot | None:  # noqa: N802 - Java's name
        """The newest commit; None without commits."""
        number = self.json.get("current-snapshot-id")
        return None if number in {None, -1} else self.snapshot(number)

    def refs(self) -> Mapping[str, DescribedReference]:
        """Its branches and tags."""
        return {name: DescribedReference(ref) for name, ref in (self.json.get("refs") or {}).items()}
