"""Debezium's messages for tests: strings with and without schemas, and a value of each type."""

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

DAY = datetime(2026, 1, 1, tzinfo=UTC)
MICROS = int(DAY.timestamp()) * 1_000_000
ADA, BOB = {"id": 1, "name": "Ada"}, {"id": 1, "name": "Bob"}
INT, LONG, TEXT, BYTES = ({"type": each} for each in ("int32", "int64", "string", "bytes"))
CONNECT = "org.apache.kafka.connect.data."


def message(op, before=None, after=None, source=None, **more):
    """A message without a schema. `source` overrides fields of a PostgreSQL source."""
    fields = {"connector": "postgresql", "ts_us": MICROS, "ts_ms": MICROS // 1000, "lsn": 7} | (source or {})
    return {"op": op, "before": before, "after": after, "source": fields, "ts_ms": MICROS // 1000 + 5} | more


def field(type_, name=None, /, **parameters):
    """A schema with a wire type and a logical name."""
    named = {"name": name, "version": 1} if name else {}
    return {"type": type_, "optional": True, **named, **({"parameters": parameters} if parameters else {})}


def decimal(scale, precision=None):
    more = {} if precision is None else {"connect.decimal.precision": str(precision)}
    return field("bytes", f"{CONNECT}Decimal", scale=str(scale), **more)


def struct(**fields):
    return {"type": "struct", "fields": [{**schema, "field": name} for name, schema in fields.items()]}


def b64(number, size=None):
    size = size or max(1, (number.bit_length() + 8) // 8)
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def sent(after, schema=None, **more):
    """The string of a message, with a schema if `after` has one."""
    payload = {"op": "c", "after": after, **more}
    whole = None if schema is None else struct(op=TEXT, after=schema)
    return json.dumps({"schema": whole, "payload": payload} if schema else payload)


NAIVE, ZONED = "timestamp[us]", "timestamp[us, tz=UTC]"
LEAP = datetime(2024, 2, 29, 12)
TYPES = {
    "int8": (field("int8"), [-128], "int32", [-128]),
    "int16": (field("int16"), [32767], "int32", [32767]),
    "int64": (LONG, [-(2**63), 2**63 - 1], "int64", [-(2**63), 2**63 - 1]),
    "float": (field("float"), [1.5, "NaN"], "float", [1.5, pytest.approx(float("nan"), nan_ok=True)]),
    "double": (field("double"), [0.1, 1, "-Infinity"], "double", [0.1, 1.0, float("-inf")]),
    "boolean": (field("boolean"), [True, False], "bool", [True, False]),
    "string": (TEXT, ["", "é"], "string", ["", "é"]),
    "bytes": (BYTES, ["", "AP8Q"], "binary", [b"", b"\x00\xff\x10"]),
    "Date": (field("int32", "io.debezium.time.Date"), [19782, -719162], "date32[day]", [date(2024, 2, 29), date.min]),
    "Connect's Date": (field("int32", f"{CONNECT}Date"), [2932896], "date32[day]", [date.max]),
    "IsoDate": (field("string", "io.debezium.time.IsoDate"), ["2024-02-29Z"], "date32[day]", [date(2024, 2, 29)]),
    "Time": (field("int32", "io.debezium.time.Time"), [0, 45000500], "string", ["00:00:00", "12:30:00.5"]),
    "Connect's Time": (field("int32", f"{CONNECT}Time"), [86399999], "string", ["23:59:59.999"]),
    "MicroTime": (
        field("int64", "io.debezium.time.MicroTime"),
        [1, 86400000000, -3020399000000],
        "string",
        ["00:00:00.000001", "24:00:00", "-838:59:59"],
    ),
    "NanoTime": (field("int64", "io.debezium.time.NanoTime"), [1999, 86399999999999], "string", ["00:00:00.000001", "23:59:59.999999"]),
    "IsoTime": (field("string", "io.debezium.time.IsoTime"), ["12:30:00.500Z", "01:02:03Z"], "string", ["12:30:00.5", "01:02:03"]),
    "ZonedTime": (field("string", "io.debezium.time.ZonedTime"), ["12:30:00.5Z"], "string", ["12:30:00.5Z"]),
    "Timestamp": (field("int64", "io.debezium.time.Timestamp"), [1709208000123, -1], NAIVE, [LEAP.replace(microsecond=123000), datetime(1969, 12, 31, 23, 59, 59, 999000)]),
    "Connect's Timestamp": (field("int64", f"{CONNECT}Timestamp"), [1709208000000], NAIVE, [LEAP]),
    "MicroTimestamp": (field("int64", "io.debezium.time.MicroTimestamp"), [1709208000000001], NAIVE, [LEAP.replace(microsecond=1)]),
    "NanoTimestamp": (field("int64", "io.debezium.time.NanoTimestamp"), [1709208000000001999, -1], NAIVE, [LEAP.replace(microsecond=1), datetime(1969, 12, 31, 23, 59, 59, 999999)]),
    "IsoTimestamp": (field("string", "io.debezium.time.IsoTimestamp"), ["2024-02-29T12:00:00.5Z"], NAIVE, [LEAP.replace(microsecond=500000)]),
    "ZonedTimestamp": (
        field("string", "io.debezium.time.ZonedTimestamp"),
        ["2024-02-29T13:00:00.1234567+01:00", "2024-02-29T12:00:00Z"],
        ZONED,
        [LEAP.replace(microsecond=123456, tzinfo=UTC), LEAP.replace(tzinfo=UTC)],
    ),
    "Year": (field("int32", "io.debezium.time.Year"), [2024], "int32", [2024]),
    "MicroDuration": (field("int64", "io.debezium.time.MicroDuration"), [37091106789000], "int64", [37091106789000]),
    "Interval": (field("string", "io.debezium.time.Interval"), ["P1Y2M3DT4H5M6.78S"], "string", ["P1Y2M3DT4H5M6.78S"]),
    "Decimal": (decimal(2, 12), [b64(-1), b64(999999999999), "AAAAAAE="], "decimal128(12, 2)", [Decimal("-0.01"), Decimal("9999999999.99"), Decimal("0.01")]),
    "Decimal without precision": (decimal(2), [b64(1234)], "decimal128(38, 2)", [Decimal("12.34")]),
    "Decimal of 38 digits": (decimal(0, 38), [b64(10**38 - 1), b64(1 - 10**38)], "decimal128(38, 0)", [Decimal(10**38 - 1), Decimal(str(1 - 10**38))]),
    "Decimal of small numbers": (decimal(5, 3), [b64(123)], "decimal128(5, 5)", [Decimal("0.00123")]),
    "Decimal of hundreds": (decimal(-2, 5), [b64(123), None], "decimal128(7, 0)", [Decimal(12300), None]),
    "Decimal as a number": (decimal(2, 6), [1234.5, 0, 1e2], "decimal128(6, 2)", [Decimal("1234.50"), Decimal(0), Decimal(100)]),
    "VariableScaleDecimal": (
        {**struct(scale=INT, value=BYTES), "name": "io.debezium.data.VariableScaleDecimal"},
        [{"scale": 3, "value": b64(-5)}, None, {"scale": -2, "value": b64(7)}, {"scale": 1, "value": b64(10**60)}],
        "string",
        ["-0.005", None, "700", f"1{'0' * 59}.0"],
    ),
    "Json": (field("string", "io.debezium.data.Json"), ['{"a": 1.10}'], "string", ['{"a": 1.10}']),
    "Uuid": (field("string", "io.debezium.data.Uuid"), ["0-1"], "string", ["0-1"]),
    "Xml": (field("string", "io.debezium.data.Xml"), ["<a/>"], "string", ["<a/>"]),
    "Enum": (field("string", "io.debezium.data.Enum", allowed="a,b"), ["a"], "string", ["a"]),
    "EnumSet": (field("string", "io.debezium.data.EnumSet", allowed="a,b"), ["a,b"], "string", ["a,b"]),
    "Bits": (field("bytes", "io.debezium.data.Bits", length="12"), ["AwA="], "binary", [b"\x03\x00"]),
    "list": ({"type": "array", "items": TEXT}, [["a", None], [], None], "list<item: string>", [["a", None], [], None]),
    "list of dates": ({"type": "array", "items": field("int32", "io.debezium.time.Date")}, [None, [0, None], [], [1]], "list<item: date32[day]>", [None, [date(1970, 1, 1), None], [], [date(1970, 1, 2)]]),
    "list of decimals": ({"type": "array", "items": decimal(1, 4)}, [[b64(15)], [None]], "list<item: decimal128(4, 1)>", [[Decimal("1.5")], [None]]),
    "list of lists": ({"type": "array", "items": {"type": "array", "items": BYTES}}, [[["AA=="], []]], "list<item: list<item: binary>>", [[[b"\0"], []]]),
    "map": ({"type": "map", "keys": TEXT, "values": TEXT}, [{"a": "b"}, None], "map<string, string>", [[("a", "b")], None]),
    "Point": ({**struct(x=field("double"), wkb=BYTES), "name": "io.debezium.data.geometry.Point"}, [{"x": 1, "wkb": "AQ=="}, None], "struct<x: double, wkb: binary>", [{"x": 1.0, "wkb": b"\1"}, None]),
    "struct of dates": (struct(d=field("int32", "io.debezium.time.Date")), [{"d": 0}, {"d": None}, None], "struct<d: date32[day]>", [{"d": date(1970, 1, 1)}, {"d": None}, None]),
    "a type that is not known": (field("string", "io.debezium.data.Ltree"), ["a.b"], "string", ["a.b"]),
}  # fmt: skip
