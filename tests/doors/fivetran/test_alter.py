"""AlterTable: requirements 30 to 40."""

from datetime import date, datetime
from decimal import Decimal

import pytest
from destination import HISTORY, LIVE, Place, column_types, definition, gives, refusal
from tables_as_text import instant, table

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk

STORED = "id v n synced \n 1 a 1 T1 \n 2 b 2 T1"


@pytest.fixture
def place(sender, store, schema):
    return Place.made(sender, store, schema, LIVE, STORED)


def request(place, columns, *, drop_columns=False):
    table = definition(place.table.name, columns)
    return sdk.AlterTableRequest(schema_name=place.schema, table=table, drop_columns=drop_columns)


@pytest.mark.tables_on("memory", "iceberg")
def test_columns_are_added(place):
    """30, 39, 40: One or several columns are added, in any position. Old rows read NULL, and a repeated alter
    changes nothing."""
    one = place.alter(f"w {LIVE}")
    place.alter(f"w {LIVE}")
    metadata = place.metadata()
    place.alter("synced n:LONG v id:LONG* w")
    assert place.metadata() == metadata
    more = one.alter(f"{LIVE} w x.y:DECIMAL(9,3) z:BINARY deleted Ünï:NAIVE_TIME v.v V")
    assert column_types(more.table) == place.described()
    more.write(
        replace="id v V n w synced \n 3 c C 3 w T2",
        update='id v.v _fivetran_deleted Ünï x.y \n 1 vv true 10:15 "1.5"',
    )
    blank = dict.fromkeys(column_types(more.table))
    expected = [
        {**blank, "id": 1, "v": "a", "n": 1, "_fivetran_synced": instant("T1"), "v.v": "vv"}
        | {"_fivetran_deleted": True, "Ünï": "10:15:00", "x.y": Decimal("1.5")},
        {**blank, "id": 2, "v": "b", "n": 2, "_fivetran_synced": instant("T1")},
        {**blank, "id": 3, "v": "c", "V": "C", "n": 3, "w": "w", "_fivetran_synced": instant("T2")},
    ]
    assert gives([dict(sorted(row.items())) for row in expected]) == gives(
        [dict(sorted(row.items())) for row in place.rows()]
    )


@pytest.mark.tables_on("memory", "iceberg")
def test_types_widen_and_keep_their_values(sender, store, schema):
    """31, 32: Columns and keys are widened, and upserts of old keys still match. A FLOAT becomes the DOUBLE
    that it displays."""
    old = "k:INT* s:SHORT* i:INT f:FLOAT d:DECIMAL(12,2) a b:JSON c:NAIVE_TIME synced"
    new = "k:LONG* s:LONG* i:LONG f:DOUBLE d:DECIMAL(38,2) a:XML b:STRING c:STRING synced"
    row = {"k": 2**31 - 1, "s": -32768, "i": -(2**31), "f": 0.10000000149011612}
    row |= {"d": Decimal("1234567890.12"), "a": "<a/>", "b": "{}", "c": "10:15:30"}
    row |= {"_fivetran_synced": instant("T1")}
    place = Place.made(sender, store, schema, old, [row])
    wide = place.alter(old.replace("s:SHORT*", "s:INT*")).alter(new)
    assert place.described() == column_types(wide.table)
    row |= {"f": 0.1}
    assert gives([row]) == place.rows()
    more = row | {"k": 2**40, "i": 2**63 - 1, "f": 1e300, "d": Decimal("1e30")}
    wide.write(replace=[more], update=[row | {"a": "new"}])
    assert gives([row | {"a": "new"}, more | {"d": Decimal(10**30)}]) == place.rows()


RETYPED = [
    ("LONG", "INT", 7, 7),
    ("INT", "SHORT", -7, -7),
    ("LONG", "STRING", 7, "7"),
    ("DOUBLE", "FLOAT", 150.25, 150.25),
    ("FLOAT", "DOUBLE", 72.1, 72.1),
    ("FLOAT", "LONG", 123456792.0, 123456790),
    ("FLOAT", "STRING", 72.1, "72.1"),
    ("FLOAT", "DECIMAL(12,2)", 72.1, Decimal("72.10")),
    ("DECIMAL(12,2)", "DECIMAL(12,4)", Decimal("1.50"), Decimal("1.5000")),
    ("DECIMAL(12,2)", "DECIMAL(10,2)", Decimal("1.50"), Decimal("1.50")),
    ("DECIMAL(38,10)", "DECIMAL(38,15)", Decimal("1.5"), Decimal("1.500000000000000")),
    ("STRING", "BINARY", "é", "é".encode()),
    ("STRING", "NAIVE_TIME", "10:15", "10:15:00"),
    ("NAIVE_DATE", "NAIVE_DATETIME", date(2020, 1, 2), datetime(2020, 1, 2)),
    ("UTC_DATETIME", "NAIVE_DATETIME", instant("T1"), instant("T1").replace(tzinfo=None)),
]


@pytest.mark.parametrize(("old", "new", "value", "gives_"), RETYPED)
@pytest.mark.parametrize("columns", ["id:LONG* {} synced", "id:LONG* {} synced start* end active"])
def test_a_changed_type_rewrites_the_table_in_one_commit(
    sender, store, schema, columns, old, new, value, gives_
):
    """31: A rewrite keeps values and the column's position, and is one commit."""
    row = {"id": 1, "odd": value, "_fivetran_synced": instant("T1")}
    row |= table("start end active \n T1 TMAX true")[0] if "start" in columns else {}
    bare = row | {"id": 2, "odd": None}
    place = Place.made(sender, store, schema, columns.format(f"odd:{old}"), [row, bare])
    altered = place.alter(columns.format(f"odd:{new} more"))
    assert place.described() == column_types(altered.table)
    assert gives([row | {"odd": gives_, "more": None}, bare | {"more": None}]) == place.rows()
    assert len(place.snapshots()) == 2
    metadata = place.metadata()
    place.alter(columns.format(f"odd:{new} more"))
    assert place.metadata() == metadata
    altered.write(update=[row | {"odd": gives_, "more": "x"}])
    assert gives([row | {"odd": gives_, "more": "x"}, bare | {"more": None}]) == place.rows()


@pytest.mark.tables_on("memory", "iceberg")
def test_many_columns_change_their_types_in_one_commit(sender, store, schema):
    """31: Each value is cast as if only its column were changed."""
    cases = {f"c{place}": case for place, case in enumerate(RETYPED)}
    old, new = (" ".join(f"{name}:{case[side]}" for name, case in cases.items()) for side in (0, 1))
    before, after = ({name: case[side] for name, case in cases.items()} for side in (2, 3))
    system = {"id": 1, "_fivetran_synced": instant("T1")}
    place = Place.made(sender, store, schema, f"id:LONG* {old} synced", [system | before])
    altered = place.alter(f"id:LONG* {new} synced")
    assert place.described() == column_types(altered.table)
    assert gives([system | after]) == place.rows()
    assert len(place.snapshots()) == 2


def test_a_retyped_key_still_matches_its_rows(sender, store, schema):
    """32: If a key column is rewritten, later batches find their rows."""
    place = Place.made(sender, store, schema, "id* v synced", 'id v synced \n "07" a T1 \n 12 b T1')
    number = place.alter("id:LONG* v synced")
    number.write(replace="id v synced \n 7 A T2", delete="id \n 12")
    assert gives("id v synced \n 7 A T2") == place.rows()


def test_a_key_that_would_repeat_in_its_new_type_is_refused(sender, store, schema):
    """37: If two keys become equal in the new type, the answer is a task, and the table is unchanged."""
    place = Place.made(sender, store, schema, "id* v synced", 'id v synced \n "07" a T1 \n 7 b T1')
    metadata = place.metadata()
    text = refusal(sender.stub.AlterTable(request(place, "id:LONG* v synced")))
    assert "2 rows would share 1 keys" in text
    assert place.metadata() == metadata


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("LONG", "INT", 2**40),
        ("STRING", "LONG", "secret"),
        ("DOUBLE", "FLOAT", 1e300),
        ("DECIMAL(12,2)", "DECIMAL(12,1)", Decimal("1.25")),
        ("BOOLEAN", "INT", True),
        ("STRING", "UNSPECIFIED", "secret"),
    ],
)
@pytest.mark.tables_on("memory", laws="iceberg")
def test_a_type_that_a_value_does_not_fit_is_refused(sender, store, schema, old, new, value):
    """37: The task names the column but not the value, and no part of the request is applied."""
    rows = [{"id": 1, "odd": value, "_fivetran_synced": instant("T1")}]
    place = Place.made(sender, store, schema, f"id:LONG* odd:{old} synced", rows)
    metadata = place.metadata()
    files = place.files_below()
    text = refusal(sender.stub.AlterTable(request(place, f"id:LONG* odd:{new} synced more")))
    assert "odd" in text
    assert "secret" not in text
    assert place.metadata() == metadata
    assert place.files_below() == files


def test_an_empty_table_changes_its_types_without_a_snapshot(sender, store, schema):
    """31: A table without rows needs no rewrite and gets no snapshot."""
    place = Place.made(sender, store, schema, "id:LONG* odd synced")
    altered = place.alter("id* odd:BINARY synced")
    assert place.described() == column_types(altered.table)
    assert not place.snapshots()


@pytest.mark.tables_on("iceberg")
def test_an_earlier_snapshot_keeps_its_schema(sender, store, schema):
    """31: Time travel uses the schema of the past time."""
    place = Place.made(sender, store, schema, "id:LONG* v synced", "id v synced \n 1 7 T1")
    place.alter("id:LONG* v:LONG synced")
    name = store.sql_name(place.name)
    first = store.spark.sql(
        f"SELECT snapshot_id FROM {store.sql_name(place.name, 'snapshots')} ORDER BY committed_at LIMIT 1"
    ).first()[0]
    assert store.spark.sql(f"SELECT v FROM {name} VERSION AS OF {first}").collect() == [("7",)]


def test_omitted_parameters_and_string_lengths_change_nothing(sender, store, schema):
    """36, 39: DECIMAL and STRING without parameters, and a string length that tables do not store, change
    nothing."""
    place = Place.made(sender, store, schema, "id:LONG* d:DECIMAL(12,2) s:STRING(64) synced")
    metadata = place.metadata()
    place.alter("id:LONG* d:DECIMAL s synced")
    place.alter("id:LONG* d:DECIMAL(12,2) s:STRING(128) synced")
    assert place.metadata() == metadata


@pytest.mark.tables_on("memory", "iceberg")
def test_keys_gain_lose_and_swap_columns(sender, store, schema):
    """33, 34: A key gains, loses or swaps columns. A former key column is NULL in new rows, and batches use
    the current key."""
    place = Place.made(sender, store, schema, "a* b* c:LONG synced", "a b c synced \n x p 1 T1 \n y q 2 T1")
    wider = place.alter("a* b* c:LONG* synced")
    wider.write(replace="a b c synced \n x p 3 T2", delete="a b c \n x p 1")
    assert gives("a b c synced \n x p 3 T2 \n y q 2 T1") == place.rows()
    swapped = wider.alter("a* b c:LONG new* synced")
    assert place.described() == column_types(swapped.table)
    swapped.write(
        replace="a new synced \n z 7 T3",
        update="a new b \n x - P",
        delete="new a \n - y",
    )
    assert gives('a b c synced new \n x P 3 T2 - \n z - - T3 "7"') == place.rows()
    narrow = swapped.alter("a* synced", drop_columns=False)
    assert place.described() == {"a": "STRING*"} | {
        n: t.rstrip("*") for n, t in place.described().items() if n != "a"
    }
    narrow.write(replace="a synced \n w T4", update="a synced \n x T5")
    assert gives('a b c synced new \n x P 3 T5 - \n z - - T3 "7" \n w - - T4 -') == place.rows()


@pytest.mark.parametrize("name", ["b", "count", "_key_0", "with.dot", "Ünï`"])
@pytest.mark.tables_on("memory", laws="iceberg")
def test_a_key_that_is_not_unique_is_refused(sender, store, schema, name):
    """37, E4: The task names the table and the key. A key that identifies every row is accepted."""
    rows = [
        {"a": a, name: n, "_fivetran_synced": instant("T1")} for a, n in [("x", 1), ("y", 1), ("z", None)]
    ]
    place = Place.made(sender, store, schema, f"a* {name}:LONG* synced", rows)
    metadata = place.metadata()
    text = refusal(sender.stub.AlterTable(request(place, f"a {name}:LONG* synced")))
    assert place.table.name in text
    assert name in text
    assert place.metadata() == metadata
    place.alter(f"a* {name}:LONG synced")
    assert place.described()["a"] == "STRING*"


def test_a_history_is_unique_by_key_and_start(sender, store, schema):
    """37, F15: Versions of one record are not repeated keys, but two records that become one are."""
    place = Place.made(
        sender,
        store,
        schema,
        "a* b* v synced start* end active",
        "a b v start end active synced \n x p 1 T1 T2-1 false T1 \n x p 2 T2 TMAX true T1 \n x q 2 T3 TMAX true T1",
    )
    narrow = place.alter("a* b v synced start* end active w:LONG")
    assert place.described() == column_types(narrow.table)
    twin = Place.made(
        sender,
        store,
        schema,
        "a* b* synced start* end active",
        "a b start end active synced \n x p T1 TMAX true T1 \n x q T1 TMAX true T1",
    )
    metadata = twin.metadata()
    assert refusal(sender.stub.AlterTable(request(twin, "a* b synced start* end active")))
    assert twin.metadata() == metadata


@pytest.mark.tables_on("memory", laws="iceberg")
def test_columns_are_dropped_only_on_request(place):
    """35: Only `drop_columns` drops the columns that a request lacks. A column that returns is new."""
    place.alter("id:LONG* synced")
    assert gives(STORED) == place.rows()
    narrow = place.alter(f"{LIVE} more*").alter("id:LONG* n:LONG synced", drop_columns=True)
    assert place.described() == column_types(narrow.table)
    assert gives("id n synced \n 1 1 T1 \n 2 2 T1") == place.rows()
    again = place.alter("id:LONG* n:LONG v:LONG synced")
    assert gives("id n synced v \n 1 1 T1 - \n 2 2 T1 -") == place.rows()
    again.write(update="id v \n 1 7", delete="id \n 2")
    assert gives("id n synced v \n 1 1 T1 7") == place.rows()
    last = again.alter("n:LONG* synced", drop_columns=True)
    last.write(update="n synced \n 1 T5")
    assert gives("n synced \n 1 T5") == place.rows()


@pytest.mark.parametrize("columns", [LIVE, f"{LIVE} start* end", f"{LIVE} end active"])
def test_a_history_keeps_its_columns(sender, store, schema, columns):
    """35, F17: A column that the layout needs is not dropped. The answer is a task, and nothing changes."""
    place = Place.made(sender, store, schema, HISTORY)
    metadata = place.metadata()
    assert refusal(sender.stub.AlterTable(request(place, columns, drop_columns=True)))
    assert place.metadata() == metadata


def test_a_missing_table_is_not_altered(place, schema):
    """38: The answer is a task, and the table is still missing."""
    missing = Place(place.sender, place.store, schema, definition("missing", LIVE))
    assert "missing" in refusal(place.sender.stub.AlterTable(request(missing, LIVE)))
    assert place.sender.describe(schema, "missing") is None


@pytest.mark.parametrize(
    "columns",
    ["id:LONG v n:LONG synced", f"{LIVE} w w", f"{LIVE} v", f"{LIVE} v:XML"],
)
def test_invalid_definitions_are_refused(place, columns):
    """2.6, F17: For a definition without a key or with a repeated name, the answer is a task. The table is
    unchanged."""
    metadata = place.metadata()
    assert refusal(place.sender.stub.AlterTable(request(place, columns)))
    assert place.metadata() == metadata
