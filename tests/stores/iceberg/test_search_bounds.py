"""Files and row groups without any wanted value are skipped, and no matching row is lost."""

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from backstory.stores.metadata import searches as bounds_module
from backstory.stores.metadata.parquet_files import matching_groups, positions_in, read_fields
from backstory.stores.metadata.searches import OneOf

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
KINDS = {
    "long": (pa.int64(), int),
    "int": (pa.int32(), int),
    "string": (pa.string(), lambda n: f"é{n:03}"),
    "date": (pa.date32(), lambda n: date(2024, 1, 1) + timedelta(days=n)),
    "timestamptz": (pa.timestamp("us", "UTC"), lambda n: EPOCH + timedelta(seconds=n)),
    "decimal(9, 2)": (pa.decimal128(9, 2), lambda n: Decimal(n) / 4),
}


def written(path, values):
    """A file of one column, with seven rows in each group."""
    field = pa.field("v", values.type, metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table([values], pa.schema([field])), path, row_group_size=7)
    return pq.ParquetFile(path)


def groups_of(file, field, values):
    """The row groups that may contain one of the values."""
    wanted = OneOf(values)
    return matching_groups(file, [field], lambda statistics: wanted.may_match(statistics(field["name"])))


@pytest.mark.parametrize("many", [1, 10_000], ids=["bounds alone", "each value"])
@pytest.mark.parametrize("type_", KINDS)
def test_no_row_with_a_wanted_value_is_lost(tmp_path, monkeypatch, type_, many):
    """This includes NULLs. The rows of the remaining groups are read, with their positions."""
    monkeypatch.setattr(bounds_module, "MANY", many)
    kind, of_number = KINDS[type_]
    chance, left_out = random.Random(type_), 0
    field = {"id": 1, "name": "v", "type": type_}

    def values(numbers):
        return pa.array([None if n is None else of_number(n) for n in numbers], kind)

    numbers = [chance.choice([*range(place, place + 9), *[None] * (place > 40)]) for place in range(60)]
    with written(tmp_path / "f.parquet", values(numbers)) as file:
        for first in range(0, 70, 5):
            wanted = values([first, first + 3, *[None] * (first == 0)])
            groups = groups_of(file, field, wanted)
            positions = positions_in(file.metadata, groups)
            read = read_fields(file, [field], (), lambda _: None, groups)
            assert read["v"].to_pylist() == [values(numbers)[int(place)].as_py() for place in positions]
            rows = np.flatnonzero(pc.is_in(values(numbers), value_set=wanted))
            assert set(rows.tolist()) <= set(positions.tolist())
            left_out += file.metadata.num_row_groups - len(groups)
    assert left_out > 50


def test_row_groups_without_usable_statistics_are_read(tmp_path):
    """NaN is in no bounds. A file without the column, or with another type, is read whole."""
    field = {"id": 1, "name": "v", "type": "int"}
    with written(tmp_path / "n.parquet", pa.array([*[1.0] * 19, float("nan")])) as file:
        assert groups_of(file, field | {"type": "double"}, pa.array([float("nan"), 2.0])) == [0, 1, 2]
    with written(tmp_path / "f.parquet", pa.array(range(20), pa.int32())) as file:
        assert groups_of(file, field | {"id": 2}, pa.array([99])) == [0, 1, 2]
        assert groups_of(file, field, pa.array([Decimal(99)])) == [0, 1, 2]
        assert groups_of(file, field, pa.array([], pa.int32())) == []
        assert groups_of(file, field, pa.array([None], pa.int32())) == []


def test_values_may_have_a_wider_type_than_the_column():
    """A key that a delivery widens may have values that the stored type lacks."""
    mask = OneOf(pa.array([1, 1 << 40, None])).rows(pa.array([1, 2, None], pa.int32()))
    assert mask.to_pylist() == [True, False, True]
