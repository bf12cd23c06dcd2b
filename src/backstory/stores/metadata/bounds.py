"""What a manifest tells of the values in a data file: which files cannot have a value that is looked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from backstory.model.instant import EPOCH
from backstory.stores.metadata.row_groups import Field

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

# Where a hash or a prefix of a value is partitioned by, only the same value's own partition may have it.
_OF_VALUES: Final = ("bucket", "truncate", "identity")


@dataclass(frozen=True, slots=True)
class ValueBounds:
    """The least and the greatest value of a column of a file, as statistics of a row group name them."""

    min: Any
    max: Any
    null_count: int | None


def bounds_of(file: "DataFile", field: Field) -> ValueBounds | None:
    """The bounds of a column; None where the manifest tells none that are read here.

    Those of texts and bytes may be cut off: the least is then a beginning, the greatest a beginning that is
    greater than all values.
    """
    read, number = _reader(str(field["type"])), field["id"]
    lower, upper = file.lower_bounds, file.upper_bounds
    if lower is None or upper is None:
        return None
    least, most = lower.get(number), upper.get(number)
    if read is None or least is None or most is None:
        return None
    try:
        return ValueBounds(read(least), read(most), (file.null_value_counts or {}).get(field["id"]))
    except (ValueError, OverflowError):
        return None


def _whole(bound: bytes) -> int:
    """A whole number; one that was an int before it was a long has four bytes."""
    return int.from_bytes(bound, "little", signed=True)


_READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "int": _whole,
    "long": _whole,
    "string": bytes.decode,
    "binary": bytes,
    "boolean": lambda bound: bound != b"\x00",
    "date": lambda bound: date.fromordinal(EPOCH.toordinal() + _whole(bound)),
    "timestamptz": lambda bound: EPOCH + timedelta(microseconds=_whole(bound)),
    "timestamp": lambda bound: EPOCH.replace(tzinfo=None) + timedelta(microseconds=_whole(bound)),
}


@cache
def _reader(told: str) -> Callable[[bytes], Any] | None:
    """How a bound of a type of Iceberg's is read; None where that is not known."""
    if not told.startswith("decimal("):
        return _READERS.get(told)
    scale = int(told.rstrip(")").rpartition(",")[2])
    return lambda bound: Decimal(f"{int.from_bytes(bound, 'big', signed=True)}E-{scale}")


@dataclass(frozen=True, slots=True)
class PartitionsOfValue:
    """The partitions, by the number of their spec and their values, in which a record's rows lie.

    `wanted` has for each spec the places of values in a partition, and the values that they must have.
    """

    wanted: Mapping[int, Sequence[tuple[int, Any]]]

    def may_be_in(self, partition: tuple[int, Sequence[Any]]) -> bool:
        """Whether rows of the record may lie in a partition."""
        spec, values = partition
        return all(values[place] == value for place, value in self.wanted.get(spec, ()))


def partitions_of(
    specs: Sequence[Mapping[str, Any]], fields: Sequence[Field], values: Mapping[str, Any]
) -> PartitionsOfValue:
    """Where the rows lie that have these values, by the specs of a table's metadata."""
    known = {each["id"]: (each["type"], values[each["name"]]) for each in fields if each["name"] in values}
    return PartitionsOfValue(
        {
            spec["spec-id"]: [
                (place, _transformed(each["transform"], *known[each["source-id"]]))
                for place, each in enumerate(spec["fields"])
                if each["source-id"] in known
                and _is_transformable(each["transform"], known[each["source-id"]][0])
            ]
            for spec in specs
        }
    )


def _is_transformable(transform: str, type_: Any) -> bool:
    """Whether values of this type of Iceberg can be transformed here as the partitions' are."""
    return type_ in {"int", "long", "string"} and transform.partition("[")[0] in _OF_VALUES


def _transformed(transform: str, type_: str, value: Any) -> Any:
    from pyiceberg.transforms import parse_transform
    from pyiceberg.types import LongType, StringType

    return parse_transform(transform).transform(StringType() if type_ == "string" else LongType())(value)
