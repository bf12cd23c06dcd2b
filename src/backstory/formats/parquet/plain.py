"""Which Parquet files an engine can read as they are, with the same rows as `rows_of` gives."""

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.formats.expected import is_narrow
from backstory.formats.parquet.calendars import legacy_columns
from backstory.formats.parquet.rows import opened
from backstory.formats.produced import UNTOLD, Told
from backstory.formats.values.exactly import plain_type

_EPOCH = date(1970, 1, 1)
_FIRST, _END = (date.min - _EPOCH).days, (date.max - _EPOCH).days + 1
_DAYS = {"DATE": 1, "TIMESTAMP": timedelta(days=1) // timedelta(microseconds=1)}


def plain_parquet(path: Path, schema: pa.Schema | None, told: Told = UNTOLD) -> bool:
    """Whether no value of the file needs a look.

    None does if all columns are of types of ours already and have names of their own, if the file's
    statistics tell that all days and instants are of the years 0001 to 9999, and, with a schema, if they
    are the declared ones in their order and need no look at NULLs, ranges and lengths; columns of the types
    that are `told` need none either.
    """
    try:
        with opened(path) as file:
            stored, metadata, legacy = file.schema_arrow, file.metadata, legacy_columns(file)
    except (pa.ArrowException, OSError):
        return False
    if len(set(stored.names)) != len(stored.names) or not all(_as_it_is(field.type) for field in stored):
        return False
    if legacy or not _within_years(metadata):
        return False
    if schema is None:
        return all(_is(told.get(theirs.name, theirs), theirs) for theirs in stored)
    return stored.names == schema.names and all(map(_is, schema, stored))


def _is(ours: pa.Field, theirs: pa.Field) -> bool:
    """Whether each value of their column is one of ours."""
    return ours is theirs or (ours.nullable and not is_narrow(ours) and bool(ours.type == theirs.type))


def _as_it_is(type_: pa.DataType) -> bool:
    """Whether a type is one of ours with all that is in it."""
    if pa.types.is_null(type_) or plain_type(type_) is None:
        return False
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        return len(set(names)) == len(names) and all(_as_it_is(field.type) for field in type_)
    if pa.types.is_map(type_):
        return _as_it_is(type_.key_type) and _as_it_is(type_.item_type)
    if pa.types.is_list(type_):
        return _as_it_is(type_.value_type)
    if pa.types.is_timestamp(type_):
        return type_.unit == "us" and type_.tz is not None
    return bool(type_ == plain_type(type_))


def _within_years(metadata: pq.FileMetaData) -> bool:
    """Whether statistics tell it, for the days and instants in lists and structs too."""
    for place in range(metadata.num_columns):
        leaf = metadata.schema.column(place)
        if leaf.physical_type == "INT96":
            return False  # an engine reads them in its own way
        day = _DAYS.get(leaf.logical_type.type)
        groups = (metadata.row_group(group).column(place) for group in range(metadata.num_row_groups))
        if day and not all(_bounded(group.statistics, day) for group in groups):
            return False
    return True


def _bounded(statistics: Any, day: int) -> bool:
    """Whether values are between the first and the last day; `day` is how many units a day has."""
    if statistics is None or not statistics.has_min_max:
        return statistics is not None and statistics.num_values == 0
    return _FIRST * day <= statistics.min_raw and statistics.max_raw < _END * day
