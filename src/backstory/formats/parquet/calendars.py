"""Checks of a Parquet file's calendar: Spark before 3.0 and Hive may write Julian days and times.

The footer records this calendar. Its days before 15 October 1582 are other days in the standard calendar. Its
times before 1900 are minutes off, depending on the zone. Such values are refused, because a conversion would
be a guess.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backstory.errors import Refused

_EPOCH: Final = date(1970, 1, 1)
_GREGORIAN: Final = (date(1582, 10, 15) - _EPOCH).days
_STANDARD: Final = (date(1900, 1, 1) - _EPOCH).days  # zones have their present offsets from this day on
_IN_UTC: Final = {b"UTC", b"Etc/UTC", b"GMT", b"Z"}
_VERSION, _ZONE = b"org.apache.spark.version", b"org.apache.spark.timeZone"
_MICROS: Final = 86_400_000_000


def legacy_columns(file: pq.ParquetFile) -> frozenset[str]:
    """The columns that may contain days or times in the legacy calendar, including nested ones."""
    footer = file.metadata.metadata or {}
    days, instants, old_instants = _legacy(footer)
    columns = set()
    for name, leaves in _leaves(file).items():
        for leaf in leaves:
            kind = leaf.logical_type.type
            zoned = kind == "TIMESTAMP" and json.loads(leaf.logical_type.to_json())["isAdjustedToUTC"]
            old = old_instants if leaf.physical_type == "INT96" else instants and zoned
            if old or (days and kind == "DATE"):
                columns.add(name)
    return frozenset(columns)


def _int96_columns(file: pq.ParquetFile) -> frozenset[str]:
    """The columns that contain times of 96 bits, including nested ones."""
    return frozenset(
        name
        for name, leaves in _leaves(file).items()
        if any(leaf.physical_type == "INT96" for leaf in leaves)
    )


def with_instants(file: pq.ParquetFile) -> pa.Schema:
    """The file's columns. Times of 96 bits are in UTC, as Spark, Hive and Impala write them."""
    old = _int96_columns(file)
    return pa.schema(
        [field.with_type(_in_utc(field.type)) if field.name in old else field for field in file.schema_arrow]
    )


def _in_utc(type_: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_timestamp(type_):
        return pa.timestamp(type_.unit, "UTC")
    if t.is_struct(type_):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in type_])
    if t.is_map(type_):
        return pa.map_(_in_utc(type_.key_type), _in_utc(type_.item_type))
    return pa.list_(_in_utc(type_.value_type)) if t.is_list(type_) else type_


def refuse_legacy(values: pa.Array, column: str, name: str, footer: Mapping[bytes, bytes] | None) -> None:
    """Raise Refused if a value means something else in the calendar of the program that wrote it."""
    first = _GREGORIAN if (footer or {}).get(_ZONE) in _IN_UTC else _STANDARD
    if any(_before(part, _GREGORIAN, first) for part in _parts(values)):
        raise Refused(
            "legacy-calendar",
            f"{name}: column `{column}` has days before 15 October 1582, or instants before 1900, in the "
            "calendar of Spark before 3.0 or Hive.",
            "Nothing was written; write the file again with "
            "`spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED` and "
            "`spark.sql.parquet.int96RebaseModeInWrite=CORRECTED`, or pass a DataFrame that Spark reads.",
            [column],
        )


def _legacy(footer: Mapping[bytes, bytes]) -> tuple[bool, bool, bool]:
    """Whether the writer used the legacy calendar: for days, for times, and for times of 96 bits."""
    if _VERSION in footer:
        version = tuple(int(part) for part in footer[_VERSION].split(b".")[:2] if part.isdigit())
        times = version < (3, 0) or b"org.apache.spark.legacyDateTime" in footer
        return times, times, version < (3, 1) or b"org.apache.spark.legacyINT96" in footer
    days = footer.get(b"writer.date.proleptic") == b"false"  # a property that Hive writes
    instants = footer.get(b"writer.zone.conversion.legacy") == b"true"
    return days, days or instants, days or instants


def _leaves(file: pq.ParquetFile) -> dict[str, list[pq.ColumnSchema]]:
    """The Parquet leaf columns of each column, which are in the same order as Arrow's fields."""
    by_column, place = dict[str, list[pq.ColumnSchema]](), 0
    for field in file.schema_arrow:
        count = _count(field.type)
        leaves = [file.metadata.schema.column(number) for number in range(place, place + count)]
        by_column.setdefault(field.name, []).extend(leaves)
        place += count
    return by_column


def _count(type_: pa.DataType) -> int:
    if not pa.types.is_nested(type_):
        return 1
    return sum(_count(type_.field(place).type) for place in range(type_.num_fields))


def _parts(values: pa.Array) -> Iterator[pa.Array]:
    """The values themselves, or the values that are nested in them."""
    t = pa.types
    if t.is_dictionary(values.type):
        yield from _parts(values.dictionary_decode())
    elif t.is_map(values.type):
        for part in (values.keys, values.items):
            yield from _parts(part)
    elif t.is_struct(values.type):
        for part in values.flatten():
            yield from _parts(part)
    elif t.is_nested(values.type):
        yield from _parts(values.flatten())
    else:
        yield values


def _before(values: pa.Array, day: int, instant: int) -> bool:
    """Whether a value is a day before `day`, or a time before the day `instant`."""
    t = pa.types
    if t.is_date(values.type):
        return bool(pc.any(pc.less(values.cast(pa.date32()).cast(pa.int32()), day)).as_py())
    if t.is_timestamp(values.type):
        counts = values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64())
        return bool(pc.any(pc.less(counts, instant * _MICROS)).as_py())
    return False
