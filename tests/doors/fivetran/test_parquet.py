"""A server that requests Parquet: decision F2, section 3.4 and the published type table."""

from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from destination import HISTORY, LIVE, Place, gives, refusal, serving
from tables_as_text import instant

from backstory.formats.batch_file import Compression, Format
from backstory.testing.sender import AS_FIVETRAN, Sender, seal

AS_PARQUET = replace(AS_FIVETRAN, format=Format.PARQUET)
NULL, UNMODIFIED = AS_PARQUET.null_string, AS_PARQUET.unmodified_string


@pytest.fixture
def parquet_address(store):
    with serving({"backstory": store}, batch_format=Format.PARQUET) as address:
        yield address


@pytest.fixture
def sender(parquet_address, tmp_path):
    return Sender.to(parquet_address, tmp_path, encoding=AS_PARQUET)


def sealed(place, **columns):
    """A file of typed columns, wrapped as by the sender."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return seal(place.sender.folder, bytes(sink.getvalue()), place.sender.encoding)


TYPES = """
    id:LONG* flag:BOOLEAN short:SHORT int:INT float:FLOAT double:DOUBLE text decimal:DECIMAL(38,10)
    day:NAIVE_DATE bytes:BINARY json:JSON synced
"""


@pytest.mark.tables_on("memory", laws="iceberg")
def test_the_published_mapping(sender, store, schema):
    """3.4: Numbers, strings, decimals and bytes have their native types, and instants and dates are text.
    NULLs and markers work."""
    place = Place.made(sender, store, schema, TYPES)
    file = sealed(
        place,
        id=pa.array([1, 2], pa.int64()),
        flag=pa.array([True, None]),
        short=pa.array([-32768, None], pa.int32()),
        int=pa.array([2**31 - 1, None], pa.int32()),
        float=pa.array([0.5, None], pa.float32()),
        double=pa.array([5e-324, None], pa.float64()),
        text=pa.array(["", NULL]),
        decimal=pa.array([Decimal("1.5"), None], pa.decimal128(20, 4)),
        day=pa.array(["0001-01-01", None]),
        bytes=pa.array([b"\x00\xff", NULL.encode()], pa.binary()),
        json=pa.array(["{}", None]),
        _fivetran_synced=pa.array(["2024-02-29T00:00:03.000250999Z", NULL]),
    )
    place.send(replace=[file])
    first = {
        "id": 1, "flag": True, "short": -32768, "int": 2**31 - 1, "float": 0.5, "double": 5e-324,
        "text": "", "decimal": Decimal("1.5"), "day": date(1, 1, 1), "bytes": b"\x00\xff", "json": "{}",
        "_fivetran_synced": instant("T3+0.25"),
    }  # fmt: skip
    assert gives([first, dict.fromkeys(first) | {"id": 2}]) == place.rows()

    file = sealed(
        place,
        id=pa.array([1, 2], pa.int64()),
        int=pa.array([UNMODIFIED, "7"]),
        decimal=pa.array([UNMODIFIED, "2.25"]),
        text=pa.array(["new", UNMODIFIED]),
        bytes=pa.array([UNMODIFIED.encode(), b"x"], pa.binary()),
        day=pa.array([NULL, UNMODIFIED]),
    )
    place.send(update=[file])
    second = dict.fromkeys(first) | {"id": 2, "int": 7, "decimal": Decimal("2.25"), "bytes": b"x"}
    assert gives([first | {"text": "new", "day": None}, second]) == place.rows()


@pytest.mark.parametrize("compression", list(Compression))
def test_parquet_batches_load_with_any_compression(sender, store, schema, compression):
    """50, 3.1: Parquet batches have the result of CSV batches, with any wrapping. A repeated batch changes
    nothing."""
    encrypted = compression is not Compression.GZIP
    encoding = replace(AS_PARQUET, compression=compression, encrypted=encrypted)
    place = Place.made(replace(sender, encoding=encoding), store, schema, LIVE)
    place.write(replace="id v n synced \n 1 a 1 T1 \n 2 b - T1 \n 3 c 3 T1")
    empty = place.files("id v \n 1 x")
    empty[0].path.write_bytes(b"")
    batch = {"update": place.files("v id n \n . 2 5 \n x 9 .") + empty, "delete": place.files("id \n 3")}
    place.send(**batch)
    place.send(**batch)
    assert gives("id v n synced \n 1 a 1 T1 \n 2 b 5 T1") == place.rows()
    assert len(place.snapshots()) == 2


def test_histories(sender, store, schema):
    """80: Example E gives its table from Parquet files."""
    names = "id v n start end active synced"
    place = Place.made(sender, store, schema, HISTORY, f"{names} \n 1 abc 1 T1 TMAX true T1")
    place.write(
        earliest="id start \n 1 T3",
        replace=f"{names} \n 1 new 2 T3 TMAX true T7",
        delete=f"{names} \n 1 - - - T2 false T7",
    )
    expected = f"{names} \n 1 abc 1 T1 T2 false T1 \n 1 new 2 T3 TMAX true T7"
    assert gives(expected) == place.rows()


def test_unreadable_parquet_files_are_refused(sender, store, schema):
    """52, 63: An unreadable Parquet file is answered with a task that names file, row and column, and nothing
    is written."""
    place = Place.made(sender, store, schema, TYPES.replace("synced", "at:NAIVE_DATETIME synced"))
    key = pa.array([1, 2], pa.int64())
    csv = seal(place.sender.folder, b"id\n1\n", AS_FIVETRAN)
    for file, words in [
        (csv, []),
        (replace(sealed(place, id=key), key=b"k" * 32), []),
        (sealed(place, id=key, int=pa.array(["1", "canary"])), ["row 2", "int"]),
        (sealed(place, id=key, short=pa.array([1, 40000], pa.int32())), ["row 2", "short"]),
        (sealed(place, id=key, day=pa.array(["2024-01-01", "canary"])), ["row 2", "day"]),
        (sealed(place, id=key, decimal=pa.array([1e60, 1.0], pa.float64())), ["row 1", "decimal"]),
        (sealed(place, id=key, other=key), ["other"]),
        (sealed(place, int=pa.array([1], pa.int32())), ["id"]),
        (sealed(place, id=key, text=key), ["text"]),
    ]:
        reply = place.reply(update=[file])
        if words == ["text"] and reply.WhichOneof("response") == "success":
            continue  # numbers may become text
        text = refusal(reply)
        assert all(word in text for word in [file.name, *words]), text
        assert "canary" not in text
    assert place.snapshots() == []
    naive = sealed(place, id=key, at=pa.array(["2024-01-01T10:15:30", NULL]))
    place.send(replace=[naive])
    assert place.rows("at")[0]["at"] in {None, datetime(2024, 1, 1, 10, 15, 30)}
