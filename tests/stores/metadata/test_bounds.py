"""Bounds in manifests are read as exact values, or not at all."""

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from backstory.stores.metadata.searches import EqualTo, bounds_of, may_be_in_partition, partitions_of

ZERO = datetime(2024, 1, 1)
# By the name of a type in JSON: Iceberg's type, and the value for a number.
KINDS = {
    "long": (LongType(), lambda n: n - 5),
    "int": (IntegerType(), lambda n: n - 5),
    "string": (StringType(), lambda n: f"é{n:03}"),
    "binary": (BinaryType(), lambda n: bytes([n, 255])),
    "boolean": (BooleanType(), lambda n: n > 9),
    "date": (DateType(), lambda n: date(1969, 12, 25) + timedelta(days=n)),
    "timestamp": (TimestampType(), lambda n: ZERO + timedelta(microseconds=n)),
    "timestamptz": (TimestamptzType(), lambda n: ZERO.replace(tzinfo=UTC) + timedelta(hours=n)),
    "decimal(38, 2)": (DecimalType(38, 2), lambda n: Decimal(f"{'-' * (n % 2)}{'1' * 33}{n:03}.25")),
}


def file(least, greatest, nulls=0):
    """A file whose column 1 has these bounds."""
    metrics = {"lower_bounds": {1: least}, "upper_bounds": {1: greatest}, "null_value_counts": {1: nulls}}
    data_file = DataFile.from_args(3)
    data_file._data = [metrics.get(each.name) for each in DATA_FILE_TYPE[3].fields]
    return data_file


@pytest.mark.parametrize("type_name", KINDS)
def test_a_file_that_contains_the_value_is_never_skipped(type_name):
    """This includes values at a bound. Other files are skipped."""
    type_, of_number = KINDS[type_name]
    chance, passed = random.Random(type_name), 0
    for _ in range(60):
        values = sorted(of_number(chance.randrange(20)) for _ in range(3))
        bounds = bounds_of(
            file(*(to_bytes(type_, each) for each in (values[0], values[-1]))), {"id": 1, "type": type_name}
        )
        assert (bounds.min, bounds.max) == (values[0], values[-1])
        assert all(EqualTo(each).may_match(bounds) for each in values)
        passed += not EqualTo(of_number(chance.randrange(20))).may_match(bounds)
    assert passed > 5


def test_files_without_usable_bounds_are_read():
    """For other types, missing or truncated bounds, and values of former types, the file is read."""
    assert bounds_of(file(b"\0" * 8, b"\0" * 8), {"id": 1, "type": "double"}) is None
    assert bounds_of(file(b"a", b"b"), {"id": 2, "type": "string"}) is None
    assert bounds_of(file(b"\xff", b"\xff"), {"id": 1, "type": "string"}) is None
    cut_off = bounds_of(file(b"abc", b"abd"), {"id": 1, "type": "string"})
    assert EqualTo("abcdef").may_match(cut_off)
    assert bounds_of(file(b"\xff\xff\xff\xff", b"\1\0\0\0"), {"id": 1, "type": "long"}).min == -1
    assert bounds_of(file(b"\1\0\0\0", b"\2\0\0\0"), {"id": 1, "type": "timestamp"}) is None
    assert EqualTo(1.0).may_match(bounds_of(file(b"a", b"b"), {"id": 1, "type": "string"}))


def test_only_partitions_that_may_contain_the_key_are_read():
    """A key's partition is by hash, prefix or value. Other columns, types and transforms exclude nothing."""
    fields = [{"id": 1, "name": "k", "type": "string"}, {"id": 2, "name": "n", "type": "decimal(9, 2)"}]
    parts = [(1, "bucket[8]"), (3, "identity"), (1, "truncate[2]"), (1, "void"), (2, "identity")]
    specs = [
        {"spec-id": 0, "fields": []},
        {"spec-id": 1, "fields": [{"source-id": id_, "transform": each} for id_, each in parts]},
    ]
    partitions = partitions_of(specs, fields, {"k": ["abc"], "n": [Decimal(1)]})
    bucket = parse_transform("bucket[8]").transform(StringType())("abc")
    assert may_be_in_partition(partitions, (1, (bucket, "any", "ab", None, Decimal(2))))
    assert not may_be_in_partition(partitions, (1, ((bucket + 1) % 8, "any", "ab", None, Decimal(1))))
    assert not may_be_in_partition(partitions, (1, (bucket, "any", "zz", None, Decimal(1))))
    assert may_be_in_partition(partitions, (0, ()))
    assert may_be_in_partition(partitions, (7, ("of a spec that is not told",)))
