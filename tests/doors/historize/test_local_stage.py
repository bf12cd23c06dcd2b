"""A stage computed by the driver equals Spark's, including keys and hashes."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from historizing import dataset, document, second
from historizing_on_spark import SparkPlace

from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import prepare_load
from backstory.doors.historize.load_sides import local_stage_side, stage_frame
from backstory.doors.historize.runs import LoadRun
from backstory.doors.historize.spark_tables import SparkWork, base_shape
from backstory.doors.historize.stage import stage_of
from backstory.formats.delivered import arrow_schema
from backstory.strategies.scd2.plan import LIVE

COLUMNS = "k:BIGINT* select i:INTEGER d:DECIMAL(38,10) b:BOOLEAN day:DATE at:TIMESTAMP raw:BINARY j:JSON gone:BOOLEAN"
FLOAT = {"target_column_name": "f", "datatype": "FLOAT", "hash_as": "DECIMAL(20,4)"}
SOFT = {"column": "gone", "deleted_values": ["true"]}
ROWS = {
    "k": pa.array([2**62, -1, 0, 7], pa.int64()),
    "select": ["Müller|^~'\\", "", "a\0\N{GRINNING FACE}", None],
    "i": pa.array([-5, 0, 2**31 - 1, None], pa.int32()),
    "d": pa.array(
        [Decimal("0.0100000000"), Decimal("-9999999999999999999999999999.9999999999"), Decimal(0), None],
        pa.decimal128(38, 10),
    ),
    "b": [True, False, None, None],
    "day": [date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10), None],
    "at": pa.array(
        [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
            None,
        ],
        pa.timestamp("us", "UTC"),
    ),
    "raw": [b"\x00\xff", b"", b"|", None],
    "j": ['{"a": 1}', " {} ", "null", None],
    "gone": [True, False, None, False],
}


@pytest.fixture
def place(store, tmp_path):
    place = SparkPlace(store, tmp_path)
    yield place
    place.close()


def work_of(place, columns, rows, schema=None, **more):
    """A load whose stage is a file with these rows."""
    place.use(document(dataset(columns, input="stage.parquet", **more), schema=schema))
    pq.write_table(pa.table(rows), place.folder / "stage.parquet")
    load = prepare_load(place.model, place.dataset, sync_hist(place.dataset, None, second(1)), place.dialect)
    stage = stage_of(place.dataset, place.folder)
    run = LoadRun(place.dataset, "rawcore", "r'1", second(1), second(1), stage=stage)
    return SparkWork(place.store, load, run, "pepper|")


def here(work):
    """The rows of the stage, with the same keys."""
    types = arrow_schema({each.name: each.type for each in base_shape(work.load).columns})
    staged = local_stage_side(work, types.append(pa.field(LIVE, pa.bool_())))
    if staged is None:
        return None
    sides = (staged.rows, staged.columns([work.load.dataset.key]))
    rows, keys = (pa.concat_tables([each.schema.empty_table(), *each.tables()]) for each in sides)
    assert keys == rows.select(keys.column_names)
    return rows


@pytest.mark.parametrize("profile", ["elevata_v1", "strict_v2"])
def test_a_local_stage_has_the_keys_hashes_and_values_of_spark(place, profile):
    more = {"historization": {"soft_delete": SOFT}}
    work = work_of(place, COLUMNS, ROWS, {"hash_profile": profile}, **more)
    made, wanted = here(work), stage_frame(work)
    assert made.drop_columns([LIVE]).to_pylist() == wanted.toArrow().to_pylist()
    assert made[LIVE].to_pylist() == [False, True, True, True]


@pytest.mark.parametrize(
    ("columns", "rows", "more"),
    [
        ("k*", {"f": [0.1]}, {"target_columns": [*dataset("k*")["target_columns"], FLOAT]}),
        ("k* f:TIME", {"f": ["01:02:03"]}, {}),
        ("k* f:UUID", {"f": ["A"]}, {}),
    ],
    ids=["float", "time", "id"],
)
def test_types_with_another_text_in_spark_are_left_to_spark(place, columns, rows, more):
    assert here(work_of(place, columns, {"k": ["a"], **rows}, **more)) is None
