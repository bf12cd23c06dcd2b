"""A door writes the tables of its own layouts, and refuses all others before it reads anything."""

from datetime import UTC, datetime

import pytest
from datasets import Dataset
from destination import Place, definition, migration, refusal, serving
from historizing import dataset, document
from historizing_on_spark import SparkPlace
from serving import Request, alter, create, describe

from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.errors import Refused, UsageError
from backstory.journal.chain import bring_up_to_date
from backstory.model.layout import VERSIONS_OWN, Layout, layout_of
from backstory.model.table import TableName
from backstory.reading.frames import table_in_session
from backstory.stores.iceberg.store import IcebergStore, existing, existing_as_is, load
from backstory.testing.sender import Sender
from backstory.warehouse import Warehouse

pytestmark = pytest.mark.spark

SNAPSHOT = "{kind: snapshot, primaryKey: [city]}"
LAYOUTS = {
    "rawcore.rc_c": Layout.BASE,
    "rawcore.rc_c_hist": Layout.HIST,
    "meta.load_run_log": Layout.RUN_LOG,
    "datasets.whose": Layout.ODF,
    "datasets.whose__log": Layout.ODF_LOG,
}


def name_of(table: str) -> TableName:
    schema, _, name = table.partition(".")
    return TableName(schema, name)


def metadata(store: IcebergStore, table: str) -> str:
    return existing(store, name_of(table)).location


@pytest.fixture(scope="module")
def ground(spark, tmp_path_factory):
    """A table of each layout, and a Fivetran table next to them."""
    store, folder = IcebergStore(spark), tmp_path_factory.mktemp("whose")
    histories = SparkPlace(store, folder)
    histories.base("a:1 b:2").load("r1", 1)
    cities = Dataset(store, folder / "odf", SNAPSHOT, "city STRING, n INT", name="whose")
    cities.add()
    cities.push("A,1 B,2")
    with serving({"backstory": store}) as address:
        place = Place.made(Sender.to(address, folder), store, "datasets", "id:LONG* v synced", "id v\n1 a")
        yield store, place, folder, histories
    histories.close()


def requests(table: str):
    """Every Fivetran request that concerns a table."""
    schema, _, name = table.partition(".")
    target = definition(name, "id:LONG* v")
    before = sdk.TruncateRequest(schema_name=schema, table_name=name, synced_column="loaded_at")
    before.utc_delete_before.FromDatetime(datetime(2999, 1, 1, tzinfo=UTC))
    yield describe(schema, name)
    yield create(schema, target)
    yield alter(schema, target, drop_columns=True)
    yield Request("Truncate", before)
    yield Request("WriteBatch", sdk.WriteBatchRequest(schema_name=schema, table=target))
    yield Request("WriteHistoryBatch", sdk.WriteHistoryBatchRequest(schema_name=schema, table=target))
    for entity, arguments in {
        "drop_table": {},
        "rename_table": {"from_table": name, "to_table": "elsewhere"},
        "copy_table": {"from_table": name, "to_table": "elsewhere"},
        "rename_column": {"from_column": "id", "to_column": "x"},
        "add_column_with_default_value": {"column": "x", "column_type": 13, "default_value": "1"},
    }.items():
        yield Request("Migrate", migration(schema, name, entity, **arguments))


@pytest.mark.parametrize("table", LAYOUTS)
def test_fivetran_requests_for_a_table_of_another_door_are_refused(ground, table):
    store, place, *_ = ground
    assert existing(store, name_of(table)).shape.layout is LAYOUTS[table]
    stood = metadata(store, table)
    for request in requests(table):
        outcome, words = request.outcome(place.sender.stub)
        assert (outcome, table in words) == ("task", True), (request.rpc, outcome, words)
        assert (request.rpc == "CreateTable") or str(LAYOUTS[table]) in words
    assert metadata(store, table) == stood


GONE = [
    ("rawcore.rc_c_hist", "version_state"),
    ("datasets.whose", "offset"),
    ("datasets.whose", "city"),
    ("datasets.live", "id"),
    ("datasets.native", "k"),
    *(("datasets.native", name) for name in VERSIONS_OWN),
]


@pytest.mark.parametrize(("table", "column"), GONE)
def test_a_table_without_a_column_of_its_layout_is_refused(ground, spark, table, column):
    """For every layout, the error names the column, nothing is written, and `check` reports it."""
    store, place, folder, histories = ground
    warehouse, copy = Warehouse(store, embedded=False), spark.createDataFrame([("a", 2)], "k string, v int")
    if table == "datasets.native":
        warehouse.snapshot(copy, into=table, key="k")
    live = f"datasets.{place.table.name}"
    table = live if table == "datasets.live" else table
    cities = Dataset(store, folder / "odf", SNAPSHOT, "city STRING, n INT", name="whose")
    writes = {
        "rawcore.rc_c": lambda: histories.load("r2", 2),
        "rawcore.rc_c_hist": lambda: histories.load("r2", 2),
        "datasets.whose": lambda: cities.push("A,9"),
        "datasets.native": lambda: warehouse.snapshot(copy, into=table),
    }
    spark.sql(f"ALTER TABLE {store.sql_name(name_of(table))} RENAME COLUMN `{column}` TO elsewhere")
    stood = existing_as_is(store, name_of(table)).location
    try:
        if table in writes:
            assert code_of(writes[table]) == "column-gone"
        else:
            outcome, words = describe(*table.split(".")).outcome(place.sender.stub)
            assert (outcome, column in words) == ("task", True), words
        assert code_of(lambda: warehouse.table(table).current()) == "column-gone"
        assert existing_as_is(store, name_of(table)).location == stood
        if table != live:
            wrong = {each["law"] for each in warehouse.table(table).check() if each["violations"]}
            assert "properties" in wrong
    finally:
        spark.sql(f"ALTER TABLE {store.sql_name(name_of(table))} RENAME COLUMN elsewhere TO `{column}`")


def code_of(act):
    """The code of the raised error, or of the error in the receipt."""
    try:
        receipt = act()
    except Refused as stop:
        return stop.code
    error = getattr(receipt, "error", None)
    return error["code"] if isinstance(error, dict) else getattr(error, "code", None)


def test_a_table_copy_does_not_replace_an_event_log(ground):
    """`copy_table` replaces its target, unless it is an event log."""
    store, place, *_ = ground
    stood = metadata(store, "datasets.whose")
    arguments = {"from_table": place.table.name, "to_table": "whose"}
    words = refusal(place.migrate("copy_table", **arguments))
    assert "datasets.whose" in words
    assert metadata(store, "datasets.whose") == stood


@pytest.mark.parametrize("name", ["rc_taken", "rc_taken_hist"])
def test_a_model_cannot_load_into_a_fivetran_table(ground, name):
    """Neither the base nor the history may be a Fivetran table, and neither is written."""
    store, place, folder, histories = ground
    create("rawcore", definition(name, "k* a synced")).done_by(place.sender.stub)
    stood = metadata(store, f"rawcore.{name}")
    (folder / "taken.csv").write_text("k,a\nx,1\n")
    histories.use(document(dataset("k* a", "rc_taken", input="taken.csv")))
    try:
        (receipt,) = histories.loads("r1", 1)
    finally:
        histories.use(document(dataset()))
    assert (receipt.status, receipt.error["code"]) == ("rejected", "other-layout")
    assert metadata(store, f"rawcore.{name}") == stood
    others = {"rc_taken", "rc_taken_hist"} - {name}
    assert not any(load(store, TableName("rawcore", each)) for each in others)
    place.sender.stub.Migrate(migration("rawcore", name, "drop_table"))


def test_a_dataset_whose_table_or_log_name_is_taken_is_refused(ground):
    """Names are compared without case (O18). A log's name is not a dataset's."""
    store, place, folder, _ = ground
    taken = place.table.name
    create("datasets", definition("whose2__log", "id:LONG* v")).done_by(place.sender.stub)
    for name in (taken, taken.upper(), "whose2", "WHOSE2"):
        wanted = Dataset(store, folder / name, SNAPSHOT, "city STRING, n INT", name=name)
        with pytest.raises(UsageError, match="A dataset cannot be called") as stop:
            wanted.add()
        assert stop.value.code == "name-taken"
        stored = load(store, TableName("datasets", name))
        assert stored is None or stored.shape.layout is not Layout.ODF


def test_current_of_a_base_has_the_columns_of_its_source(ground):
    store, *_ = ground
    assert table_in_session(store, name_of("rawcore.rc_c")).rows_at().columns == ["k", "a"]


def test_an_unrecorded_layout_is_derived_from_the_columns():
    """Bases and logs of earlier versions are named `fivetran-live`. Fivetran's own tables keep their layout."""

    def shown(recorded, *names):
        return layout_of(recorded, "t", frozenset(names))

    base, version = ("t_key", "row_hash"), ("version_started_at", "version_ended_at", "version_state")
    assert shown(None, "id", *base) is Layout.BASE
    assert shown(None, "id", *base, *version) is Layout.HIST
    assert shown(None, "id", "row_hash") is Layout.FOREIGN
    assert shown(None, "id", *base, "_fivetran_synced") is Layout.FIVETRAN_LIVE
    history = ("_fivetran_start", "_fivetran_end", "_fivetran_active", "_fivetran_synced")
    assert shown(None, *history) is Layout.FIVETRAN_HISTORY
    assert shown("fivetran-live", "id", *base, *version) is Layout.FIVETRAN_LIVE
    assert shown("odf", *base) is Layout.ODF


def test_a_log_is_not_written_into_another_table(ground):
    """If another table has the log's name, its rows are kept, and the dataset's own commit counts."""
    store, place, folder, _ = ground
    cities = Dataset(store, folder / "late", SNAPSHOT, "city STRING, n INT", name="late")
    cities.add()
    create("datasets", definition("late__log", "id:LONG* v")).done_by(place.sender.stub)
    stood = metadata(store, "datasets.late__log")
    assert cities.push("A,1").status == "updated"
    assert metadata(store, "datasets.late__log") == stood
    with pytest.raises(Refused, match="fivetran-live"):
        bring_up_to_date(store, existing(store, TableName("datasets", "late")))
