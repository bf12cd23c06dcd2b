"""Values in another type, exactly equal or refused."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from backstory.formats.rows import arrow_type
from backstory.formats.values.casts import DoesNotFit, exact_cast, misfits
from backstory.model.types import type_named

NEW_YEAR = datetime(2026, 1, 1)


def cast(values, old, new):
    types = [type_named(each) for each in (old, new)]
    return exact_cast(pa.array(values, arrow_type(types[0])), *types).to_pylist()


@pytest.mark.parametrize(
    ("old", "new", "value", "same"),
    [
        ("LONG", "DOUBLE", 2**53, 2.0**53),
        ("LONG", "DECIMAL(21,2)", 2**63 - 1, Decimal(2**63 - 1)),
        ("LONG", "INT", 7, 7),
        ("LONG", "STRING", -7, "-7"),
        ("DOUBLE", "LONG", 3.0, 3),
        ("DOUBLE", "DECIMAL(18,2)", 0.1, Decimal("0.10")),
        ("DOUBLE", "FLOAT", 0.5, 0.5),
        ("DOUBLE", "STRING", 1.5, "1.5"),
        ("DECIMAL(18,2)", "DOUBLE", Decimal("0.10"), 0.1),
        ("DECIMAL(18,2)", "STRING", Decimal("1.50"), "1.5"),
        ("DECIMAL(18,4)", "DECIMAL(9,2)", Decimal("1.5000"), Decimal("1.50")),
        ("STRING", "LONG", "12", 12),
        ("STRING", "DECIMAL(18,2)", "1.5", Decimal("1.50")),
        ("STRING", "DATE", "2026-01-01", date(2026, 1, 1)),
        ("DATE", "TIMESTAMP", date(2026, 1, 1), NEW_YEAR.replace(tzinfo=UTC)),
        ("DATE", "TIMESTAMP_NTZ", date(2026, 1, 1), NEW_YEAR),
        ("TIMESTAMP_NTZ", "DATE", NEW_YEAR, date(2026, 1, 1)),
        ("BOOLEAN", "STRING", True, "true"),
        ("BINARY", "STRING", "ä".encode(), "ä"),
    ],
)
def test_a_value_that_stays_the_same_is_cast(old, new, value, same):
    assert cast([None, value], old, new) == [None, same]


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("LONG", "DOUBLE", 2**53 + 1),
        ("LONG", "INT", 2**31),
        ("LONG", "DECIMAL(3,2)", 10),
        ("LONG", "BOOLEAN", 1),
        ("LONG", "DATE", 1),
        ("DOUBLE", "LONG", 1.5),
        ("DOUBLE", "LONG", float("nan")),
        ("DOUBLE", "FLOAT", 0.1),
        ("DOUBLE", "DECIMAL(18,2)", 0.125),
        ("DECIMAL(18,2)", "LONG", Decimal("1.50")),
        ("DECIMAL(38,0)", "DOUBLE", Decimal(2**60 + 1)),
        ("DECIMAL(18,4)", "DECIMAL(18,2)", Decimal("1.0001")),
        ("STRING", "LONG", "007"),
        ("STRING", "LONG", " 7"),
        ("STRING", "LONG", ""),
        ("STRING", "DOUBLE", "12345678901234567890"),
        ("STRING", "DECIMAL(18,2)", "1.505"),
        ("STRING", "DATE", "soon"),
        ("TIMESTAMP_NTZ", "DATE", NEW_YEAR.replace(hour=1)),
        ("BINARY", "STRING", b"\xff"),
        ("STRING", "BINARY", "YWJj"),
    ],
)
def test_values_that_would_change_are_reported_by_position(old, new, value):
    with pytest.raises(DoesNotFit):
        cast([value], old, new)
    types = [type_named(each) for each in (old, new)]
    values = pa.array([None, value, None, value, value], arrow_type(types[0]))
    assert misfits(values, *types, 2) == [1, 3]
    assert misfits(values.slice(2, 1), *types, 2) == []


@pytest.mark.parametrize(
    "word", ["", "NUMBER", "DECIMAL(39,2)", "DECIMAL(2,3)", "DECIMAL(x)", "LONG(3,1)", "LIST"]
)
def test_an_unknown_type_name_is_an_error(word):
    with pytest.raises(ValueError):
        type_named(word)


def test_type_names_of_tables_and_of_spark_are_accepted():
    words = ["bigint", "Decimal(18,2)", "decimal", "date", "timestamp", "timestamp_ntz", "text", " int "]
    assert [str(type_named(word)) for word in words] == [
        "BIGINT",
        "DECIMAL(18,2)",
        "DECIMAL(38,10)",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
        "STRING",
        "INT",
    ]
