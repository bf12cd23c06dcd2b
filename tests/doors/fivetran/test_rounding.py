"""Decimals with more digits than their column are rounded half-even and reported: decision F18."""

import json
from decimal import Decimal

import pytest
from depth import DEPTH
from destination import PLAIN, Place, gives, refusal, serving
from structlog.testing import capture_logs

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.formats.batch_file import Compression, Encoding, Format
from backstory.formats.memory import Memory
from backstory.stores.iceberg.store import IcebergStore
from backstory.testing.sender import Sender

COLUMNS = "id:LONG* n:DECIMAL(38,10) m:DECIMAL(5,2) b:BINARY"
ENCODINGS = [PLAIN, Encoding(Format.PARQUET, Compression.OFF, False, "null-marker", "unmodified-marker")]
SMALL, SPREAD = Memory(1 << 28), Memory(0)
# Both formats, one on the driver and one in tasks; before a release, each format in both ways.
WAYS = list(zip(ENCODINGS, (SMALL, SPREAD), strict=True))
if DEPTH == "laws":
    WAYS += zip(ENCODINGS, (SPREAD, SMALL), strict=True)


@pytest.mark.tables_on("iceberg")
@pytest.mark.parametrize(("encoding", "memory"), WAYS)
def test_rounded_decimals_are_counted_and_logged(spark, store, schema, tmp_path, encoding, memory):
    """F18, F11: The commit counts `rounded` values, and one warning per file and column contains the number
    but no value."""
    stores = {"backstory": IcebergStore(spark, memory=memory)}
    with serving(stores, batch_format=encoding.format) as address, capture_logs() as logged:
        place = Place.made(Sender.to(address, tmp_path, encoding=encoding), store, schema, COLUMNS)
        first = place.files(
            "id n m b \n 1 12345.123456789011 1.005 [B@7 \n 2 1E-11 0.01 QQ== \n 3 7 -1.015 %"
        )
        (second,) = place.files("id m \n 1 9.999 \n 9 1.234")
        place.send(replace=first, update=[second])
        place.send(replace=first, update=[second])

    warned = [
        (line["file"], line.get("column"), line.get("values", line.get("cells")))
        for line in logged
        if line["log_level"] == "warning"
    ]
    assert sorted(warned, key=str) == sorted(
        [(first[0].name, None, 2), (first[0].name, "m", 2), (first[0].name, "n", 2), (second.name, "m", 2)],
        key=str,
    )
    assert "12345.1234" not in str(logged)
    rows = [(1, "12345.1234567890", "10.00"), (2, "0", "0.01"), (3, "7", "-1.02")]
    assert place.rows("id n m") == gives(
        [{"id": id_, "n": Decimal(n), "m": Decimal(m)} for id_, n, m in rows]
    )
    (snapshot,) = place.snapshots()
    counts = json.loads(snapshot["backstory.counts"])
    assert (counts["inserted"], counts["rounded"]) == (3, 6)


@pytest.mark.parametrize("value", ["999.995", "-1000", "99999.1"])
def test_excess_digits_before_the_point_are_refused(sender, store, schema, value):
    """F18: A value with too many digits before the point, even after rounding, is answered with a task with
    file and line."""
    place = Place.made(sender, store, schema, COLUMNS, "id n m \n 1 1 1")
    text = refusal(place.reply(replace=place.files(f"id n m \n 1 1 2 \n 2 1 {value}")))
    assert "line 3, column m: the value is not of type DECIMAL(5,2)" in text
    assert value not in text
    assert len(place.snapshots()) == 1


def test_stored_values_and_migration_values_are_not_rounded(sender, store, schema):
    """F18: A type change that would lose a stored digit, and a migration's value with too many digits, are
    answered with tasks."""
    place = Place.made(sender, store, schema, COLUMNS, "id n m \n 1 1.005 1")
    request = place.having(COLUMNS.replace("38,10", "5,2"))
    assert "a stored value does not fit" in refusal(
        sender.stub.AlterTable(sdk.AlterTableRequest(schema_name=schema, table=request.table))
    )
    refusal(place.migrate("update_column_value", column="m", value="1.005"))
    assert place.rows("id n m") == gives([{"id": 1, "n": Decimal("1.005"), "m": Decimal(1)}])
