"""DescribeTable and CreateTable: requirements 15, 22 to 29."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from destination import HISTORY, LIVE, Place, add_column, column_types, definition, fresh, gives, refusal
from tables_as_text import instant

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.errors import Refused

EVERY_TYPE = """
    id:LONG* part:STRING* a_boolean:BOOLEAN a_short:SHORT an_int:INT a_long:LONG bare:DECIMAL
    money:DECIMAL(12,2) whole:DECIMAL(38,0) fine:DECIMAL(38,37) a_float:FLOAT a_double:DOUBLE
    a_date:NAIVE_DATE naive:NAIVE_DATETIME utc:UTC_DATETIME a_time:NAIVE_TIME a_binary:BINARY
    an_xml:XML a_string:STRING bounded:STRING(64) a_json:JSON synced deleted
"""


@pytest.mark.tables_on("memory", "iceberg")
def test_every_type_is_described_as_created(sender, store, schema):
    """23, 25, 28: Describe returns the definition from create, in its order and without string lengths. Spark
    reads values of each type."""
    place = Place.made(sender, store, schema, EVERY_TYPE)
    described = sender.describe(schema, place.table.name)
    expected = column_types(place.table) | {"bare": "DECIMAL(38,10)"}
    assert list(column_types(described).items()) == list(expected.items())
    assert described.name == place.table.name
    decimals = {name for name, type_ in expected.items() if type_.startswith("DECIMAL")}
    assert {column.name for column in described.columns if column.HasField("params")} == decimals

    values = {
        "id": -(2**63), "part": "", "a_boolean": False, "a_short": -32768, "an_int": 2**31 - 1,
        "a_long": 2**63 - 1, "bare": Decimal("-1.0000000001"), "money": Decimal("9999999999.99"),
        "whole": Decimal(10**38 - 1), "fine": Decimal("9." + "9" * 37), "a_float": -0.5,
        "a_double": 5e-324, "a_date": date(1, 1, 1), "naive": datetime(9999, 12, 31, 23, 59, 59, 999999),
        "utc": datetime(1, 1, 1, tzinfo=UTC), "a_time": "10:15:30.5", "a_binary": b"\x00\xff",
        "an_xml": "<a>é</a>", "a_string": "NULL", "bounded": "x" * 200, "a_json": '{"a": "\\"b"}',
        "_fivetran_synced": instant("T3+0.25"), "_fivetran_deleted": True,
    }  # fmt: skip
    nothing = dict.fromkeys(values) | {"id": 1, "part": None}
    place.write(replace=[values, nothing])
    assert gives([values, nothing]) == place.rows()


def test_history_tables_describe_their_start_as_a_key(sender, store, schema):
    """24: The start is a key whether the definition marks it or not. Rows are matched by the other keys
    (F15)."""
    marked = Place.made(sender, store, schema, HISTORY)
    assert column_types(sender.describe(schema, marked.table.name)) == column_types(marked.table)
    bare = Place.made(sender, store, schema, HISTORY.replace("start*", "start"))
    assert column_types(sender.describe(schema, bare.table.name)) == column_types(marked.table)


def test_missing_tables_and_schemas_are_not_found(sender, store, schema):
    """22: The answer for an unknown table or schema is `not_found`, whatever its name."""
    Place.made(sender, store, schema)
    for where, name in [(schema, "no"), ("no", "no"), ("a.b.c", "../x"), ("`", "'"), ("no", "x" * 500)]:
        request = sdk.DescribeTableRequest(schema_name=where, table_name=name)
        assert sender.stub.DescribeTable(request) == sdk.DescribeTableResponse(not_found=True)


NAMES = [
    "select", "two words", " blank ", "with.dots", "a.b.c", 'double"quote', "single'quote", "back`tick",
    "Upper", "UPPER", "naïve-Ünïcode", "表", "🦉", "comma,s", "semi;colon", "slash/es", "back\\slash",
    "per%cent", "$dollar{x}", "line\nbreak", "tab\t", "0", "-", "null", "key", "element", "_count",
]  # fmt: skip


@pytest.mark.tables_on("memory", "iceberg")
def test_column_names_are_kept_exactly(sender, store, schema):
    """28, E4: Reserved words, spaces, dots, quotes, case and other letters are kept, including names that
    differ only in case."""
    place = Place(sender, store, schema, common.Table(name="named"))
    for name in NAMES:
        add_column(place.table, name, "STRING", key=name in {"with.dots", "back`tick"})
    add_column(place.table, "_fivetran_synced", "UTC_DATETIME")
    sender.create(schema, place.table)
    assert column_types(sender.describe(schema, "named")) == column_types(place.table)

    row = {name: f"value of {name}" for name in NAMES} | {"_fivetran_synced": instant("T1")}
    place.write(replace=[row])
    place.write(update=[row | dict.fromkeys(set(NAMES) - {"with.dots", "back`tick"}, "new")])
    expected = {n: row[n] if n in {"with.dots", "back`tick"} else "new" for n in row}
    expected["_fivetran_synced"] = row["_fivetran_synced"]
    assert gives([expected]) == place.rows()
    place.write(delete=[{name: row[name] for name in ("back`tick", "with.dots")}])
    assert place.rows() == []


@pytest.mark.parametrize("kind", ["schema", "table"])
@pytest.mark.tables_on("iceberg")
def test_any_table_name_is_kept_and_no_path_leaves_the_warehouse(sender, store, schema, warehouse, kind):
    """26, 28: Any name can be a schema or a table, and no name leads out of the warehouse's folder."""
    outside = _listing(warehouse.parent, but=warehouse)
    names = [
        "../../x", "..", ".", "/etc/x", "a/b", "two words", "with.dots", 'quote"\'`', "Upper", "upper",
        "%2e%2e", "ünï 表🦉", "n" * 300, "ü" * 100, "a%b_c", "metadata", "data", "-", "~", "$HOME", "a:b",
    ]  # fmt: skip
    failed = {}
    for number, name in enumerate(names):
        where, table = (schema + name, "t") if kind == "schema" else (schema, name)
        place = Place(sender, store, where, definition(table, LIVE))
        try:
            sender.create(where, place.table)
            described = sender.describe(where, table)
            assert (described.name, column_types(described)) == (table, column_types(place.table))
            if number < 8:
                place.write(replace=f"id v n synced \n 1 {number} 1 T1")
                assert [row["v"] for row in place.rows()] == [str(number)]
        except Exception as wrong:  # noqa: BLE001 - all names are told that do not work
            failed[name[:20]] = str(wrong)
    assert failed == {}
    assert _listing(warehouse.parent, but=warehouse) == outside


def _listing(folder: Path, but: Path) -> set[str]:
    paths = {str(path) for path in folder.iterdir() if path != but}
    return paths | {str(path) for path in Path("/etc").glob("x*")}


def test_an_existing_table_is_not_created_again(sender, store, schema):
    """27: The answer is a task that names the table, whose definition and rows are unchanged."""
    place = Place.made(sender, store, schema, LIVE, "id v n synced \n 1 a 1 T1")
    commits = place.snapshots()
    for columns in (LIVE, "other*"):
        request = sdk.CreateTableRequest(schema_name=schema, table=place.having(columns).table)
        assert place.table.name in refusal(sender.stub.CreateTable(request))
    assert column_types(sender.describe(schema, place.table.name)) == column_types(place.table)
    assert gives("id v n synced \n 1 a 1 T1") == place.rows()
    assert place.snapshots() == commits


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ("id:LONG* v:UNSPECIFIED synced", "v"),
        ("id:LONG* v v synced", "v"),
        ("id:LONG v synced", "key"),
        ("id:LONG* v synced start:STRING end active", "_fivetran_start"),
        ("id:LONG* v synced start end active:STRING", "_fivetran_active"),
        ("", "key"),
    ],
)
def test_invalid_definitions_are_refused(sender, schema, columns, word):
    """29: The answer to an invalid definition is a task that names the column, and no table is created."""
    request = sdk.CreateTableRequest(schema_name=schema, table=definition(fresh(), columns))
    assert word in refusal(sender.stub.CreateTable(request))
    assert sender.describe(schema, request.table.name) is None


def test_a_column_without_a_name_is_a_task(sender, schema):
    """29, F17: An empty column name is an error of the sender."""
    table = definition("broken", LIVE)
    add_column(table, "")
    assert refusal(sender.stub.CreateTable(sdk.CreateTableRequest(schema_name=schema, table=table)))


def test_a_column_type_of_a_newer_contract_is_a_task(sender, schema):
    """29, 11: A type number that is unknown to this contract is not a bug of the server."""
    table = definition("broken", LIVE)
    table.columns[1].type = 99
    assert "v" in refusal(sender.stub.CreateTable(sdk.CreateTableRequest(schema_name=schema, table=table)))


@pytest.mark.tables_on("memory", laws="iceberg")
def test_decimals_beyond_38_digits_are_capped(sender, store, schema):
    """28, F12: Precision is limited to 38, and the scale is kept."""
    columns = "id:LONG* a:DECIMAL(50,5) b:DECIMAL(76,37) c:DECIMAL(5,9) synced"
    place = Place.made(sender, store, schema, columns)
    types = column_types(sender.describe(schema, place.table.name))
    assert [types[name] for name in "abc"] == ["DECIMAL(38,5)", "DECIMAL(38,37)", "DECIMAL(9,9)"]


@pytest.mark.tables_on("memory", "iceberg")
def test_eight_tables_are_created_at_once_in_a_missing_schema(sender, store, schema):
    """15, 26: Parallel creates make the schema once. If two tables have one name, one fails."""
    places = [Place(sender, store, schema, definition(f"t{i}", LIVE)) for i in range(8)]
    with ThreadPoolExecutor(10) as pool:
        twins = [replace(places[0]), *places, replace(places[1])]
        outcomes = list(pool.map(_created, twins))
    assert outcomes.count("created") == 8
    assert sum("exists" in outcome for outcome in outcomes) == 2
    assert all(sender.describe(schema, place.table.name) for place in places)


def _created(place: Place) -> str:
    try:
        place.sender.create(place.schema, place.table)
    except Refused as refused:
        return str(refused)
    return "created"
