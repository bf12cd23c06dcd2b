"""The row groups of a Parquet file that rows may lie in, and the places of these."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backstory.model.instant import EPOCH
from backstory.stores.iceberg.schema import FIELD_ID
from backstory.stores.metadata.values import booleans

Field = Mapping[str, Any]
# Statistics of a row group by a field's name; None where they tell no least and greatest.
Statistics = Callable[[str], Any]
MayHave = Callable[[Statistics], bool]
OF_INSTANTS: Final = ("timestamp", "timestamptz")


def id_of(field: pa.Field) -> int | None:
    """The id of a file's field; None for one that has none."""
    told = (field.metadata or {}).get(FIELD_ID)
    return None if told is None else int(told)


def groups_that(file: pq.ParquetFile, fields: Iterable[Field], may_have: MayHave) -> list[int]:
    """The row groups of which `may_have` says yes; it may ask for the statistics of these fields."""
    names, metadata = {id_of(each): each.name for each in file.schema_arrow}, file.metadata
    paths = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    places = {each["name"]: paths.get(names.get(each["id"], "")) for each in fields}

    def statistics(group: int, name: str) -> Any:
        if (place := places[name]) is None:
            return None
        told = metadata.row_group(group).column(place).statistics
        return told if told is not None and told.has_min_max else None

    return [group for group in range(metadata.num_row_groups) if may_have(partial(statistics, group))]


@dataclass(frozen=True, slots=True)
class InstantBounds:
    """The least and the greatest instant of a row group."""

    min: datetime
    max: datetime
    null_count: int


def bounds_of_instants(told: Any, type_: str) -> InstantBounds | None:
    """What statistics tell of a column of `timestamp` or `timestamptz`; to ask Arrow would load pandas.

    None for another unit than Iceberg's.
    """
    if "microseconds" not in str(told.logical_type):
        return None
    zero = EPOCH if type_ == "timestamptz" else EPOCH.replace(tzinfo=None)
    least, greatest = (zero + timedelta(microseconds=each) for each in (told.min_raw, told.max_raw))
    return InstantBounds(least, greatest, told.null_count)


def greatest_in_groups(file: pq.ParquetFile, field: Field, greatest: Any) -> list[tuple[Any, int]]:
    """For each row group the greatest value of a field, or that of the file, and the number of its rows."""
    told: list[Any] = []

    def note(statistics: Statistics) -> bool:
        found = statistics(field["name"])
        told.append(found.max if found is not None and type(found.max) is type(greatest) else greatest)
        return False

    groups_that(file, [field], note)
    return [(most, file.metadata.row_group(number).num_rows) for number, most in enumerate(told)]


def positions_in(metadata: pq.FileMetaData, groups: Sequence[int]) -> np.ndarray:
    """The positions in a file of the rows of these groups of it."""
    ends = np.cumsum([0, *(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))])
    parts = [np.arange(ends[number], ends[number + 1], dtype=np.int64) for number in groups]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def groups_at(metadata: pq.FileMetaData, positions: np.ndarray) -> list[int]:
    """The row groups of a file that the rows at these positions lie in."""
    ends = np.cumsum([metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)])
    return np.unique(np.searchsorted(ends, positions, side="right")).tolist()


def groups_with(
    metadata: pq.FileMetaData, groups: Sequence[int], rows: np.ndarray
) -> tuple[list[int], pa.Array]:
    """Those of the groups that have one of the rows, and which of theirs are; `rows` tells of all."""
    ends = np.cumsum([metadata.row_group(number).num_rows for number in groups])
    parts = np.split(rows, ends[:-1])
    kept = [place for place, part in enumerate(parts) if part.any()]
    these = np.concatenate([rows[:0], *(parts[place] for place in kept)])
    return [groups[place] for place in kept], booleans(these)
