"""The partitions that rows belong to, for writers on the driver."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.instant import EPOCH

NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"
# Other values would have to be written in another way in a path.
PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
IDENTITY, YEAR = "identity", "year"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition by its folder, and as Iceberg's objects for files are told of it; both empty for none."""

    folder: str = ""
    told: str = ""


def parted_ids(table: Any) -> set[int]:
    """The ids of the columns that a table's partitions are of, or once were."""
    return {int(field.sourceId()) for spec in table.specs().values() for field in spec.fields()}


def rows_by_partition(table: Any, rows: pa.Table) -> list[tuple[Partition, pa.Table]] | None:
    """The rows by partition of an Iceberg table; None where the driver cannot name it.

    It can for the years of instants, for truth values, and for texts of plain letters.
    """
    if table.spec().isUnpartitioned():
        return [(Partition(), rows)]
    parted_by = list(table.spec().fields())
    fields = [(str(each.name()), str(each.transform().toString())) for each in parted_by]
    sources = [str(table.schema().findColumnName(each.sourceId())) for each in parted_by]
    values = [_values(rows, source, how) for source, (_, how) in zip(sources, fields, strict=True)]
    known = [each for each in values if each is not None]
    if len(known) < len(values):
        return None
    names = [name for name, _ in fields]
    combined = pa.table(known, names=names)
    found = []
    combinations = combined.group_by(names).aggregate([]).to_pylist()
    if len(combinations) == 1:
        return [(_partition(fields, list(combinations[0].values())), rows)]
    for combination in combinations:
        here = None
        for name, value in combination.items():
            same = combined[name].is_null() if value is None else pc.equal(combined[name], value)
            here = same if here is None else pc.and_(here, same)
        partition = _partition(fields, list(combination.values()))
        found.append((partition, rows.filter(pc.fill_null(here, False))))
    return found


def _values(rows: pa.Table, source: str, transform: str) -> pa.ChunkedArray | None:
    """The value of a field for each row, as Iceberg reads it from text; None for what is not known here."""
    if source not in rows.column_names:
        return None
    values = rows[source]
    if transform == YEAR and pa.types.is_timestamp(values.type):
        return pc.subtract(pc.year(values), EPOCH.year)
    if transform == IDENTITY and pa.types.is_boolean(values.type):
        return values
    if transform == IDENTITY and pa.types.is_string(values.type):
        plain = all(PLAIN.fullmatch(each) for each in pc.unique(values).drop_null().to_pylist())
        return values if plain else None
    return None


def _partition(fields: Sequence[tuple[str, str]], values: Sequence[object]) -> Partition:
    told = [_text(value) for value in values]
    folders = [
        str(int(text) + EPOCH.year) if transform == YEAR and text != NOTHING else text
        for text, (_, transform) in zip(told, fields, strict=True)
    ]
    return Partition(_path(fields, folders), _path(fields, told))


def _text(value: object) -> str:
    if value is None:
        return NOTHING
    return str(value).lower() if isinstance(value, bool) else str(value)


def _path(fields: Sequence[tuple[str, str]], texts: Sequence[str]) -> str:
    return "/".join(f"{name}={text}" for (name, _), text in zip(fields, texts, strict=True))
