"""Values are the same after a batch file and the table: requirements 54, 59 and 62."""

import math
import os
import struct
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from destination import LIVE, PLAIN, Place, gives
from tables_as_text import in_order, instant

from backstory.testing.sender import NULL_STRING, UNMODIFIED_STRING, seal

MEBIBYTE = 1 << 20
NASTY = [
    "a,b", 'a"b', '""', "a\\", '\\"', "\\", "\r", "a\nb", "a\r\nb", "\t", "\0", "a\0b", "😀", " a", "a ", " ", "",
    "NULL", "null", NULL_STRING[:-1], NULL_STRING + "x", UNMODIFIED_STRING[:-1], "'", "`", "--", "${x}", "%s",
    "\u2028", "\x85", "\x0b", "\x1c", "\x7f", "\ufeffx", "é", "e\u0301", "\ue000", "\uffff", "\U0010ffff",
    "ab" * 8 + "😀", "ab" * 8 + "\uffff", "\uffff" * 40, "😀" * 40, "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("more", [0, 300], ids=["few", "many"])
@pytest.mark.tables_on("memory", "iceberg")
def test_unusual_text_is_stored_exactly(sender, store, schema, more):
    """54, 70: Unusual text is kept as value and as key, and updates and deletes find it."""
    texts = [*NASTY, *(f"plain {number}" for number in range(more))]
    rows = [{"k": text, "v": text, "n": 1, "_fivetran_synced": instant("T1")} for text in texts]
    place = Place.made(sender, store, schema, "k* v n:LONG synced")
    apart = [row for row in rows if row["k"] in {"\uffff", "😀", "ab" * 8 + "😀"}]
    for row in apart:
        place.write(replace=[row])
    place.write(replace=rows)
    assert gives(rows) == place.rows()
    place.write(update=[{"v": row["v"] + "\\", "k": row["k"]} for row in rows])
    assert gives([row | {"v": row["v"] + "\\"} for row in rows]) == place.rows()
    place.write(delete=[{"k": row["k"]} for row in rows[1:]])
    assert [row["k"] for row in place.rows()] == texts[:1]


def single(bits):
    """The 32-bit float with these bits."""
    return struct.unpack(">f", struct.pack(">I", bits))[0]


FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
TMAX = LAST.replace(microsecond=999_000)
SECOND = datetime(2007, 12, 3, 10, 15, 30, tzinfo=UTC)
EXTREMES = {
    "SHORT": {"-32768": -(2**15), "32767": 2**15 - 1},
    "INT": {"-2147483648": -(2**31), "2147483647": 2**31 - 1},
    "LONG": {"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1},
    "FLOAT": {
        "3.4028237E+38": single(0x7F7FFFFF),
        "-3.4028235E+38": -single(0x7F7FFFFF),
        "1.17549435E-38": single(0x00800000),
        "1.4E-45": single(1),
        "-0.0": -0.0,
        "Infinity": math.inf,
    },
    "DOUBLE": {
        "1.7976931348623157E308": 1.7976931348623157e308,
        "-1.7976931348623157E308": -1.7976931348623157e308,
        "-2.2250738585072014E-308": -2.2250738585072014e-308,
        "4.9E-324": 5e-324,
        "200": 200.0,
        "-Infinity": -math.inf,
    },
    "DECIMAL(38,37)": {
        "9." + "9" * 37: Decimal("9." + "9" * 37),
        "-9." + "9" * 37: Decimal("-9." + "9" * 37),
        "1E-37": Decimal("1E-37"),
    },
    "DECIMAL(38,0)": {"9" * 38: Decimal("9" * 38), "-1E37": Decimal(-(10**37))},
    "DECIMAL": {"-1.0000000001": Decimal("-1.0000000001")},
    "NAIVE_DATE": {"0001-01-01": date.min, "1582-10-10": date(1582, 10, 10), "9999-12-31": date.max},
    "NAIVE_DATETIME": {
        "0001-01-01T00:00:00": FIRST.replace(tzinfo=None),
        "9999-12-31T23:59:59.999999999": LAST.replace(tzinfo=None),
        "2007-12-03T10:15:30": SECOND.replace(tzinfo=None),
    },
    "UTC_DATETIME": {
        "0001-01-01T00:00:00Z": FIRST,
        "9999-12-31T23:59:59.999Z": TMAX,
        "9999-12-31T23:59:59.999999999Z": LAST,
        "2007-12-03T10:15:30Z": SECOND,
        "2007-12-03T10:15:30.123Z": SECOND.replace(microsecond=123_000),
        "2007-12-03T10:15:30.123456Z": SECOND.replace(microsecond=123_456),
        "2007-12-03T10:15:30.123456789Z": SECOND.replace(microsecond=123_456),
        "1969-12-31T23:59:59.999999999Z": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    },
    "NAIVE_TIME": {"23:59:59.999999": "23:59:59.999999", "00:00": "00:00:00"},
    "BINARY": {"AP8=": b"\x00\xff", "": b""},
    "BOOLEAN": {"true": True, "FALSE": False},
}


@pytest.mark.tables_on("memory", "iceberg")
def test_the_extremes_of_every_type_are_stored(sender, store, schema):
    """59: The extremes of every type are replaced, read for an update and written again, without losing a
    digit."""
    columns = {type_: f"c{place}" for place, type_ in enumerate(EXTREMES)}
    typed_columns = " ".join(f"{column}:{type_}" for type_, column in columns.items())
    place = Place.made(replace(sender, encoding=PLAIN), store, schema, f"id:LONG* {typed_columns} v synced")
    sent, expected = [], []
    for type_, column in columns.items():
        for text, value in EXTREMES[type_].items():
            system = {"id": len(sent), "v": "new", "_fivetran_synced": instant("T1")}
            sent.append(dict.fromkeys(columns.values()) | {column: text} | system)
            expected.append(dict.fromkeys(columns.values()) | {column: value} | system)
    place.write(replace=[row | {"v": "old"} for row in sent])
    assert gives([row | {"v": "old"} for row in expected]) == place.rows()
    place.write(update=[{"id": row["id"], "v": "new"} for row in sent])
    assert gives(expected) == place.rows()


@pytest.mark.tables_on("iceberg")
def test_a_cell_of_24_mebibytes_is_stored_and_kept(sender, store, schema):
    """62: A cell with quotes and line breaks is kept by an update that does not change it."""
    big = 'x\n"é' * (24 * MEBIBYTE // 5)
    rows = [{"id": i, "v": v, "n": 1, "_fivetran_synced": instant("T1")} for i, v in enumerate(["a", big])]
    place = Place.made(sender, store, schema, LIVE, rows)
    place.write(update="id n \n 0 2 \n 1 2")
    assert len(big.encode()) > 23.9 * MEBIBYTE
    assert in_order([row | {"n": 2} for row in rows]) == place.rows()


@pytest.mark.tables_on("iceberg")
def test_a_file_of_100_megabytes_is_loaded_in_bounded_memory(sender, store, schema):
    """62: An encrypted CSV file of 100 MB loads with 1 GB of Java heap and 500 MiB in Python."""
    letters = np.random.default_rng(7).integers(97, 123, (200_000, 476), np.uint8)
    lines = (b"%d,%d,%b,T\n" % (i, -i, text.tobytes()) for i, text in enumerate(letters))
    header = b"id,n,v,_fivetran_synced\n"
    content = header + b"".join(lines).replace(b",T\n", b",2024-01-01T00:00:00Z\n")
    assert len(content) > 100_000_000
    place = Place.made(replace(sender, encoding=replace(PLAIN, encrypted=True)), store, schema, LIVE)
    file = seal(place.sender.folder, content, place.sender.encoding)
    del content, letters
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    place.send(replace=[file])
    assert memory("VmHWM") - before < 500 * MEBIBYTE
    frame = store.spark.table(store.sql_name(place.name))
    assert frame.selectExpr("count(*)", "sum(id)", "sum(length(v))").first()[:] == (
        200_000,
        199_999 * 100_000,
        200_000 * 476,
    )


def memory(name):
    """The memory of this process in bytes, by kind."""
    text = Path(f"/proc/{os.getpid()}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(name))
