"""A column derived from statistics equals the column as read."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.stores.metadata.parquet_files import LONGEST, decode

VALUES = {
    pa.int64(): [7, -1],
    pa.int32(): [7, 0],
    pa.bool_(): [True, False],
    pa.string(): ["a", "", "ü" * LONGEST],
    pa.binary(): [b"a", b"b"],
    pa.float64(): [0.0, -0.0, float("nan")],
    pa.date32(): [date(2026, 1, 2), date(1969, 1, 2)],
    pa.timestamp("us", "UTC"): [datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(1, 1, 1, tzinfo=UTC)],
    pa.timestamp("us"): [datetime(9999, 12, 31, 23, 59, 59, 999999)],
    pa.decimal128(9, 2): [Decimal("1.20"), Decimal("-3.00")],
    pa.list_(pa.int32()): [[], [1], [None]],
}
INNER = pa.struct([pa.field("n", pa.int64()), pa.field("s", pa.string())])
OUTER = pa.struct(
    [
        pa.field("inner", INNER),
        pa.field("ids", pa.list_(pa.int32())),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)


def values_of(type_):
    """A value of a type or NULL, usually the same one."""
    if pa.types.is_struct(type_):
        whole = st.fixed_dictionaries({each.name: values_of(each.type) for each in type_})
        return st.none() | whole
    return st.one_of(*[st.just(VALUES[type_][0])] * 3, st.none(), st.sampled_from(VALUES[type_]))


@st.composite
def columns(draw, type_):
    """A column with one repeated value, or with several."""
    few = draw(st.lists(values_of(type_), min_size=1, max_size=2))
    return pa.array(draw(st.lists(st.sampled_from(few), min_size=6, max_size=6)), type_)


@st.composite
def tables(draw):
    return pa.table(
        {f"c{place}": draw(columns(type_)) for place, type_ in enumerate([*VALUES, INNER, OUTER])}
    )


def written(rows, path):
    pq.write_table(rows, path, row_group_size=2, store_decimal_as_integer=True, store_schema=False)
    return pq.ParquetFile(path)


def read_columns(file, paths, groups):
    return decode(file, paths, groups)


def alike(one, other):
    """Whether two tables have equal types, field metadata and values. NaN equals NaN."""
    return one.schema.equals(other.schema, check_metadata=True) and repr(one.to_pylist()) == repr(
        other.to_pylist()
    )


@given(tables(), st.lists(st.integers(0, 2), min_size=1, unique=True).map(sorted), st.data())
def test_columns_equal_the_columns_read_by_arrow(tmp_path_factory, rows, groups, data):
    file = written(rows, tmp_path_factory.mktemp("repeated") / "a.parquet")
    paths = [*rows.column_names, f"c{len(VALUES)}.s", f"c{len(VALUES) + 1}.inner", f"c{len(VALUES) + 1}.at"]
    few = st.lists(st.sampled_from(paths), unique=True)
    order = [
        path.partition(".")[0] for path in paths
    ].index  # Arrow returns columns in the order of their paths
    selection = sorted(
        data.draw(few | st.just(rows.column_names)), key=lambda path: order(path.partition(".")[0])
    )
    plain = file.read_row_groups(groups, columns=selection)
    assert alike(read_columns(file, selection, groups), plain)
    if selection:
        mask = pa.array([data.draw(st.booleans()) for _ in range(len(plain))], pa.bool_())
        assert alike(decode(file, selection, groups, mask), plain.filter(mask))


@pytest.mark.parametrize(
    "values",
    [
        [None, None],
        [{"n": None, "s": None}, None],
        [{"n": 1, "s": None}, {"n": 1, "s": None}],
        [{"n": 1, "s": "a"}, None],
        [{"n": None, "s": "a"}, {"n": 2, "s": "a"}],
    ],
)
def test_a_struct_stays_null_in_the_same_rows(tmp_path, values):
    inner = pa.array(values, INNER)
    whole = pa.array([{"inner": each, "ids": [], "at": None} for each in values], OUTER)
    file = written(pa.table({"c": inner, "d": whole}), tmp_path / "a.parquet")
    assert alike(read_columns(file, ["c", "d"], [0]), file.read_row_groups([0], columns=["c", "d"]))
    assert read_columns(file, ["d.inner"], [0])["d"].to_pylist() == [{"inner": each} for each in values]


def test_the_bytes_of_a_constant_column_are_not_read(tmp_path):
    path = tmp_path / "a.parquet"
    rows = pa.table({"one": ["a"] * 6, "none": pa.nulls(6, pa.string()), "more": list("abbbbb")})
    file = written(rows, path)
    bytes_ = bytearray(path.read_bytes())
    for name in (0, 1):
        chunk = file.metadata.row_group(0).column(name)
        first = chunk.dictionary_page_offset or chunk.data_page_offset
        bytes_[first : first + chunk.total_compressed_size] = b"x" * chunk.total_compressed_size
    path.write_bytes(bytes_)
    broken = pq.ParquetFile(path)
    assert read_columns(broken, ["one", "none", "more"], [0]).equals(rows.slice(0, 2))
    with pytest.raises(OSError, match=r"."):
        broken.read_row_groups([0], columns=["one"])
