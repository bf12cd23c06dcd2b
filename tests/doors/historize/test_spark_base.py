"""Base tables on Spark: from stage to base, keys and hashes, and schema changes in both tables."""

import io
import random
from contextlib import redirect_stdout
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from committing import make
from depth import deep
from historizing import column, dataset, document, second, versions
from historizing_on_spark import SparkPlace
from structlog.testing import capture_logs

from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import prepare_load
from backstory.doors.historize.load_sides import stage_frame
from backstory.doors.historize.runs import LoadRun
from backstory.doors.historize.spark_tables import SparkWork
from backstory.doors.historize.stage import Stage
from backstory.doors.native.door import snapshot
from backstory.doors.native.options import SnapshotRequest
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType
from backstory.reading.frames import table_in_session
from backstory.stores.iceberg.store import load
from backstory.stores.sql.columns import Datatype

EVERY = "k:BIGINT* t i:INTEGER l:BIGINT d:DECIMAL(10,3) b:BOOLEAN day:DATE at:TIMESTAMP tm:TIME raw:BINARY u:UUID j:JSON"
ROWS = [
    {
        "k": 1, "t": "Müller|^~'\\", "i": -5, "l": 2**40, "d": Decimal("0.010"), "b": True, "day": date(1, 1, 1),
        "at": datetime(2025, 1, 2, 3, 4, 5, 600000, UTC), "tm": "03:04:05.5", "raw": b"\x00\xff", "u": "a0b1", "j": "{}",
    },
    {
        "k": 2, "t": "", "i": 0, "l": 0, "d": Decimal("-1234567.891"), "b": False, "day": date(9999, 12, 31),
        "at": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), "tm": "00:00:00", "raw": b"", "u": None, "j": None,
    },
    {"k": 3},
]  # fmt: skip


@pytest.fixture
def place(store, tmp_path):
    place = SparkPlace(store, tmp_path)
    yield place
    place.close()


def staged(place, rows, columns=EVERY, name="stage.parquet", **more):
    """A Parquet file with these columns, as the stage of a dataset."""
    place.use(document(dataset(columns, input=name, **more), **place_schema(place)))
    kinds = {
        "BIGINT": pa.int64(), "INTEGER": pa.int32(), "BOOLEAN": pa.bool_(), "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"), "BINARY": pa.binary(),
    }  # fmt: skip
    fields = []
    for word in columns.split():
        made = column(word)
        kind = kinds.get(made["datatype"], pa.string())
        if made["datatype"] == "DECIMAL":
            kind = pa.decimal128(made["decimal_precision"], made["decimal_scale"])
        fields.append((made["target_column_name"], kind))
    table = pa.Table.from_pylist([{n: row.get(n) for n, _ in fields} for row in rows], pa.schema(fields))
    pq.write_table(table, place.folder / name)


def place_schema(place):
    return getattr(place, "layer", {})


def base_rows(place, *names):
    listed = ", ".join(names)
    return sorted(place.rows(f"SELECT {listed} FROM rawcore.{place.dataset.name}"))


@pytest.mark.parametrize(
    ("profile", "zone"), [("elevata_v1", "America/New_York"), ("strict_v2", "Asia/Kathmandu")]
)
def test_keys_and_hashes_equal_the_reference(place, store, zone, profile):
    """R4, R6: Keys and row hashes of every type equal Python's, in any session time zone."""
    place.layer = {"hash_profile": profile}
    staged(place, ROWS)
    store.spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        assert place.load("r1", 1, skip_base=False).error is None
    finally:
        store.spark.conf.set("spark.sql.session.timeZone", "UTC")
    stored = base_rows(place, "k", "rc_c_key", "row_hash")
    full = [dict.fromkeys(EVERY.replace("*", "").split()) | row for row in ROWS]
    expected = []
    for row in full:
        values = {name.partition(":")[0]: value for name, value in row.items()}
        values["tm"] = (
            values["tm"] and values["tm"].ljust(9, ".").ljust(15, "0")
            if "." not in (values["tm"] or "")
            else values["tm"].ljust(15, "0")
        )
        expected.append(
            (
                row["k"],
                place.hashes.base_key(place.dataset, values),
                place.hashes.row_hash(place.dataset, values),
            )
        )
    assert stored == expected
    hist = place.rows("SELECT rc_c_hist_key, rc_c_key FROM rawcore.rc_c_hist")
    assert {made for made, _ in hist} == {
        place.hashes.hist_key(place.dataset, key, second(1)) for _, key in hist
    }


def test_the_pepper_is_in_no_plan(place, store):
    """R10: Neither the logical nor the physical plan of a load contains the pepper."""
    staged(place, ROWS)
    place.pepper = "Pfeffer-7f3a"
    hist = sync_hist(place.dataset, None, second(1))
    load_ = prepare_load(place.model, place.dataset, hist, place.dialect)
    path = place.folder / "stage.parquet"
    run = LoadRun(place.dataset, "rawcore", "r1", second(1), second(1), stage=Stage("stage.parquet", path))
    rows = stage_frame(SparkWork(store, load_, run, place.pepper))
    output = io.StringIO()
    with redirect_stdout(output):
        rows.explain("extended")
        rows.explain("formatted")
    assert "sha2" in output.getvalue()
    assert "Pfeffer" not in output.getvalue()
    key = rows.where("k = 1").select("rc_c_key").collect()[0][0]
    assert key == place.hashes.base_key(place.dataset, {"k": 1})


def test_a_full_load_mirrors_its_stage(place, store):
    """3.7: Missing rows are deleted, changed rows are replaced, and others keep their row and run. A small
    load runs no job."""

    def jobs():
        return max(store.spark.sparkContext.statusTracker().getJobIdsForGroup(), default=-1)

    def loaded(number, rows):
        staged(place, [dict(zip(("k", "a"), word.split(":"), strict=True)) for word in rows.split()], "k* a")
        before = jobs()
        receipt = place.load(f"r{number}", number, skip_base=False)
        assert jobs() == before
        return receipt

    before = jobs()
    store.spark.range(1).count()
    assert jobs() > before  # jobs are counted
    loaded(1, "a:1 b:1 c:1")
    receipt = loaded(2, "a:2 c:1 d:1")
    assert base_rows(place, "k", "a", "load_run_id") == [("a", "2", "r2"), ("c", "1", "r1"), ("d", "1", "r2")]
    assert receipt.counts == {"new": 1, "changed": 1, "deleted": 1, "reappeared": 0, "unchanged": 1}
    commits = place.snapshots("rc_c")
    assert loaded(3, "a:2 c:1 d:1").status == "unchanged"
    assert place.snapshots("rc_c") == commits


def test_a_merge_deletes_only_inside_its_filter(place):
    """3.7: Rows inside the filter that the stage lacks are deleted, and others are kept."""
    source = {
        "name": "crm.c",
        "incremental": True,
        "increment_filter": "Day >= {{DELTA_CUTOFF}}",
        "increment_policies": [
            {"environment": "dev", "increment_interval_length": 10, "increment_interval_unit": "day"}
        ],
    }
    more = {"incremental_strategy": "merge", "incremental_source": "crm.c"}
    rows = [
        {"k": "old", "day": date(2024, 1, 1)},
        {"k": "new", "day": date(2025, 1, 1)},
        {"k": "gone", "day": date(2024, 12, 31)},
    ]
    place.layer = {"source_datasets": [source]}
    staged(place, rows, "k* day:DATE", **more)
    place.load("r1", 1, skip_base=False)
    staged(place, [{"k": "new", "day": date(2025, 1, 1)}], "k* day:DATE", **more)
    place.in_tasks(always=True)
    receipt = place.load("r2", 2, skip_base=False)
    assert base_rows(place, "k") == [("new",), ("old",)]
    assert receipt.counts["deleted"] == 1


def test_a_foreign_key_equals_the_key_of_its_parent(place):
    """R7: Equal values give equal keys, and the history copies the column."""
    parent = dataset("k* a", "rc_p", input="p.csv")
    child = dataset("c* pk", "rc_k", input="c.csv") | {
        "references": [
            {
                "id": 1,
                "referenced_dataset": "rc_p",
                "reference_prefix": "home",
                "key_components": [{"from": "pk", "to": "k"}],
            }
        ]
    }
    (place.folder / "p.csv").write_text("k,a\nx,1\n")
    (place.folder / "c.csv").write_text("c,pk\n1,x\n2,\n")
    place.use(document(parent, child))
    assert [receipt.error for receipt in place.loads("r1", 1)] == [None, None]
    (parent_key,) = place.rows("SELECT rc_p_key FROM rawcore.rc_p")
    keys = dict(place.rows("SELECT c, home_rc_p_key FROM rawcore.rc_k_hist"))
    assert keys["1"] == parent_key[0]
    assert keys["2"] is not None


NO_BASES = [
    ("k,a\n1,x\n1,y\n", "DUPLICATE_KEY", "1"),
    ("k,a\n,x\n", "NULL_KEY", "NULL"),
    ("k,b\n1,x\n", "missing-column", "a"),
    ("k,a\n1,x,y\n", "broken-csv", "line 2"),
]


def test_two_records_with_one_key_do_not_collapse(place):
    """E1, R24: The default profile's keys may collide. Rows with different business keys are not identical."""
    rules = {"duplicate_keys": "collapse_identical"}
    place.use(document(dataset("a* b* v", input="c.csv", historization=rules)))
    (place.folder / "c.csv").write_text("a,b,v\n1|b~2,3,x\n1,2|b~3,x\n")
    for always in (True, False):
        place.in_tasks(always=always)
        refused = place.load("r1", 1, skip_base=False).error
        assert (refused["code"], len(refused["keys"])) == ("DUPLICATE_KEY", 2)


@pytest.mark.parametrize("always", [True, False], ids=["tasks", "driver"])
def test_a_live_row_is_preferred_over_a_flagged_row(place, always):
    """7.3, P3: As on databases, the flagged row of an existing record is not a duplicate."""
    place.in_tasks(always=always)
    rules = {"duplicate_keys": "collapse_identical"}
    rules |= {"soft_delete": {"column": "gone", "deleted_values": ["X"]}}
    columns = [column("k*"), column("a"), column("gone") | {"hash": False}]
    place.use(document(dataset(input="c.csv", historization=rules) | {"target_columns": columns}))
    (place.folder / "c.csv").write_text("k,a,gone\nx,1,X\nx,1,\nx,2,X\n")
    receipt = place.load("r1", 1, skip_base=False)
    assert (receipt.error, receipt.counts["new"]) == (None, 1)
    assert place.history() == versions("x 1 [1,-) new r1")


@pytest.mark.parametrize("always", [True, False][: deep(2, 1)])
def test_a_base_can_flag_missing_rows(place, always):
    """R54: With on_delete flag, a row missing from the stage is flagged at T and keeps its row id."""
    place.in_tasks(always=always)
    soft = {"column": "gone", "deleted_values": ["X"], "deleted_at": "went", "on_delete": "flag"}
    rules = {"soft_delete": soft, "allow_empty_snapshot": True}
    place.use(document(dataset("k* a gone went:TIMESTAMP", input="c.csv", historization=rules)))

    def load(number, *keys):
        lines = ["k,a,gone,went", *(f"{key},1,," for key in keys)]
        (place.folder / "c.csv").write_text("\n".join([*lines, ""]))
        return place.load(f"r{number}", number, skip_base=False)

    load(1, "x", "y")
    ids = _ids(place, "rc_c", "k")
    assert load(2, "y").counts["deleted"] == 1
    assert base_rows(place, "k", "gone", "unix_micros(went)") == [
        ("x", "X", int(second(2).timestamp() * 1e6)), ("y", None, None),
    ]  # fmt: skip
    assert _ids(place, "rc_c", "k")["x"][0] == ids["x"][0]
    assert load(3, "y").status == "unchanged"
    assert load(4, "x", "y").counts["reappeared"] == 1
    assert place.history() == versions("x 1 [1,2) deleted r2\nx 1 [4,-) new r4\ny 1 [1,-) new r1")


# `test_guards_every_way` covers this guard, and the guards of keys below, in every way.
@pytest.mark.parametrize("always", [False, True][: deep(2, 1)])
def test_keys_computed_with_another_pepper_are_refused(place, always):
    """KEYS_CHANGED: All records would end and begin again. A new base may have another pepper."""
    place.in_tasks(always=always)
    place.use(document(dataset("k* a", input="c.csv")))
    (place.folder / "c.csv").write_text("k,a\nx,1\ny,1\n")
    assert place.load("r1", 1, skip_base=False).counts["new"] == 2
    before = place.dump()
    place.pepper = "another"
    place.in_tasks(always=always)
    error = place.load("r2", 2, skip_base=False).error
    assert (error["code"], error["keys"]) == ("KEYS_CHANGED", ["x", "y"])
    assert place.dump() == before
    for table in ("rawcore.rc_c_hist", "rawcore.rc_c"):
        place.drop(table)
    assert place.load("r3", 3, skip_base=False).counts["new"] == 2


def test_a_stage_with_invalid_keys_or_no_rows_is_refused(place):
    """P6, R24: A stage with NULL, repeated or missing keys is refused, as is an empty one without
    --allow-empty. Identical rows may collapse."""
    place.use(
        document(dataset("k* a", input="c.csv", historization={"duplicate_keys": "collapse_identical"}))
    )
    (place.folder / "c.csv").write_text("k,a\n1,x\n1,x\n2,y\n")
    assert place.load("r1", 1, skip_base=False).counts["new"] == 2
    before = place.dump()
    for always in (True, False)[deep(0, 1) :]:
        place.in_tasks(always=always)
        for text, code, words in NO_BASES:
            (place.folder / "c.csv").write_text(text)
            receipt = place.load("r2", 2, skip_base=False)
            assert receipt.error["code"] == code
            assert words in f"{receipt.error['message']} {receipt.error['keys']}"
        (place.folder / "c.csv").write_text("k,a\n")
        assert place.load("r2", 2, skip_base=False).error["code"] == "EMPTY_SNAPSHOT"
    assert place.dump() == before
    assert place.load("r2", 2, skip_base=False, allow_empty=True).counts["deleted"] == 2


def test_a_stage_table_whose_values_do_not_fit_is_refused(place):
    """A stage column with more digits than the base's is refused by name, so no cast loses a digit. H9: Rows
    without the run that the stage records are refused with their keys."""
    place.sql("CREATE TABLE stage.c (k STRING, d DECIMAL(10,4)) USING iceberg")
    place.use(document(dataset("k* d:DECIMAL(10,2)", input="stage.c")))
    error = place.load("r1", 1, skip_base=False).error
    assert (error["code"], error["keys"]) == ("STAGE_TYPE", ["d"])
    place.use(document(dataset("k* d:DECIMAL(12,4)", input="stage.c")))
    place.insert("stage.c", [{"k": "a", "d": Decimal("1.2345")}])
    assert place.load("r1", 1, skip_base=False).error is None
    assert base_rows(place, "k", "d") == [("a", Decimal("1.2345"))]
    place.sql("ALTER TABLE stage.c ADD COLUMN load_run_id STRING")
    error = place.load("r2", 2, skip_base=False).error
    assert (error["code"], error["keys"]) == ("NULL_VALUE", ["a"])


def evolved(place, columns, text, run, at, former=None, **more):
    """A load with other columns. `former` contains the former names of some."""
    written = dataset(columns, input="c.csv", **more)
    for each in written["target_columns"]:
        name = each["target_column_name"]
        if former and name in former:
            each["former_names"] = [former[name]]
            each["input"] = former[name]
    place.use(document(written))
    (place.folder / "c.csv").write_text(text)
    return place.load(run, at, skip_base=False)


def test_a_history_continues_through_schema_changes(place, store):
    """R34, R35, R37, R39, R40, R42, Interface 1: Renames and wider types open no version, narrower types are
    refused, and dropped columns stay."""
    first, wider = "n:INTEGER d:DECIMAL(5,2)", "n:BIGINT d:DECIMAL(9,2)"
    evolved(place, f"k* a b {first}", "k,a,b,n,d\n1,x,y,7,1.25\n", "r1", 1)
    _assert_told(load(store, TableName("rawcore", "rc_c_hist")))
    receipt = evolved(place, f"k* z b {wider}", "k,a,b,n,d\n1,x,y,7,1.25\n", "r2", 2, {"z": "a"})
    renamed = {"RENAME_COLUMN a to z (rc_c)", "RENAME_COLUMN a to z (rc_c_hist)"}
    assert renamed == {each for each in receipt.schema_changes if each.startswith("RENAME")}
    assert receipt.counts["unchanged"] == 1
    assert place.target.columns("rawcore", "rc_c_hist")["n"] == "bigint"
    assert place.history("z") == ["1 x [1,-) new r1"]
    before = place.dump()
    narrow = evolved(place, "k* z b n:INTEGER d:DECIMAL(9,2)", "k,z,b,n,d\n1,x,y,8,1.25\n", "r3", 3)
    assert narrow.status == "rejected"
    finer = evolved(place, "k* z b n:BIGINT d:DECIMAL(12,4)", "k,z,b,n,d\n1,x,y,7,1.25\n", "r3", 3)
    assert finer.error["code"] == "UNSUPPORTED_TYPE_EVOLUTION"
    assert place.dump() == before
    evolved(place, f"k* z {wider}", "k,z,n,d\n1,x,7,1.25\n", "r3", 3)
    lock = place.lock()
    lock.unlink()
    assert evolved(place, f"k* z {wider}", "k,z,n,d\n1,w,7,1.25\n", "r4", 4).error is None
    assert "active: false" in lock.read_text()
    evolved(place, f"k* z b {wider}", "k,z,b,n,d\n1,w,v,7,1.25\n", "r5", 5)
    assert place.history("b") == versions("""
        1 y [1,3) changed r3
        1 - [3,4) changed r4
        1 - [4,5) changed r5
        1 v [5,-) changed r5
    """)
    moved = {"name": "rc_new", "former_names": ["rc_c"], "lineage_key": "rawcore:rc_c"}
    receipt = evolved(place, f"k* z b {wider}", "k,z,b,n,d\n1,w,v,7,1.25\n", "r6", 6, **moved)
    assert "RENAME_DATASET rc_c to rc_new" in receipt.schema_changes
    assert "RENAME_DATASET rc_c_hist to rc_new_hist" in receipt.schema_changes
    assert receipt.counts["unchanged"] == 1
    assert {"rc_new_hist_key", "rc_new_key"} <= set(place.target.columns("rawcore", "rc_new_hist"))
    assert not place.has("rawcore", "rc_c_hist")
    assert not place.lock().exists()


def _assert_told(hist):
    """Check the metadata of a history after the run r1."""
    properties = hist.iceberg.properties()
    values = [properties.get(f"backstory.{name}") for name in ("layout", "key", "layout-version")]
    assert values == ["hist", '["k"]', "1"]
    summary = hist.iceberg.currentSnapshot().summary()
    assert summary.get("backstory.door") == "historize"
    assert summary.get("backstory.token") == "rawcore.rawcore:rc_c r1"
    parted_by = [field.name() for field in hist.iceberg.spec().fields()]
    assert parted_by == ["version_ended_at_year", "version_state"]


def test_a_dataset_with_a_failed_input_is_not_loaded(place):
    """R28: A dataset whose input failed in this batch is blocked, and others still run."""
    first = dataset("k* a", "rc_a", input="a.csv")
    second_ = dataset("k* a", "rc_b", input="rawcore.rc_a")
    third = dataset("k* a", "rc_d", input="d.csv")
    (place.folder / "a.csv").write_text("k,a\n1,x\n1,y\n")
    (place.folder / "d.csv").write_text("k,a\n1,x\n")
    place.use(document(first, second_, third))
    outcomes = [(receipt.status, (receipt.error and receipt.error.code)) for receipt in place.loads("r1", 1)]
    assert outcomes == [("rejected", "DUPLICATE_KEY"), ("rejected", "BASE_NOT_LOADED"), ("success", None)]
    (row,) = place.rows(
        "SELECT status, blocked_by FROM meta.load_run_log WHERE status_reason = 'blocked_by_dependency'"
    )
    assert row == ("skipped", "rawcore.rc_a")


# With these bytes, the driver plans a load in parts, at once, or leaves it to Spark's tasks. PLANNED has the log
# lines.
WAYS = (6_000, None, 0)
PLANNED = (["more rows than driver-memory holds: planned in parts"], [], ["planned in Spark's tasks"])
VERSION = "concat(k, ' ', cast(version_started_at AS STRING))"


def test_random_stages_become_their_base(place, monkeypatch):
    """3.7: After any full load, the base equals the stage, and the counts add up. Changed rows and closed
    versions keep their row ids, with the commit's number. New rows get new ids."""
    monkeypatch.setattr("backstory.engine.tasks.SIFTED_FROM", 1)
    chance = random.Random(3)
    before, base, hist = {}, {}, {}
    for number in range(1, deep(9, 4)):
        place.with_memory(WAYS[number % len(WAYS)])
        monkeypatch.setattr("backstory.engine.tasks.FEW", 0 if number % 2 == 0 else 1 << 25)
        now = {f"k{n}": chance.choice("xyz") for n in range(60) if chance.random() < 0.7}
        staged(place, [{"k": k, "a": a} for k, a in now.items()], "k* a")
        with capture_logs() as logs:
            counts = place.load(f"r{number}", number, skip_base=False).counts
        planned = [each["event"] for each in logs if "planned in" in each["event"]]
        assert planned == PLANNED[number % len(WAYS)]
        assert dict(base_rows(place, "k", "a")) == now
        assert counts["deleted"] == len(before.keys() - now.keys())
        both = before.keys() & now.keys()
        changed = {k for k in both if before[k] != now[k]}
        assert counts["changed"] == len(changed)
        rows, versions_ = _ids(place, "rc_c", "k"), _ids(place, "rc_c_hist", VERSION)
        for k in both:
            assert rows[k][0] == base[k][0]
            assert rows[k][1] > base[k][1] if k in changed else rows[k] == base[k]
        begun = [rows[k][0] for k in now.keys() - before.keys()]
        assert not {row_id for row_id, _ in base.values()} & set(begun)
        assert {each: versions_[each][0] for each in hist} == {each: row[0] for each, row in hist.items()}
        assert len({row_id for row_id, _ in versions_.values()}) == len(versions_)
        before, base, hist = now, rows, versions_


AS_THEY_COME = "more rows than a step: planned in their order"
SIFTED = "more rows than a step: planned where fingerprints differ"


def test_a_large_stage_becomes_its_base(place, monkeypatch):
    """3.7: A first load is planned row by row. Later ones plan only rows that the sift does not exclude."""
    monkeypatch.setattr("backstory.stores.iceberg.data_files.ROWS_IN_GROUP", 50)
    monkeypatch.setattr("backstory.stores.iceberg.slice.BY_PLACE", 50)
    place.with_memory(1_200_000)
    now, sizes = {f"k{n:04}": f"x{n:030}" for n in range(2_000)}, []
    for number, (few, value) in enumerate([(slice(0), "x"), (slice(100, 110), "y"), (slice(0, 5), None)], 1):
        changes = dict.fromkeys(list(now)[few], value)
        now = {k: a for k, a in (now | changes).items() if a is not None}
        staged(place, [{"k": k, "a": a} for k, a in now.items()], "k* a")
        with capture_logs() as logs:
            counts = place.load(f"r{number}", number, skip_base=False).counts
        assert [each["event"] for each in logs if "planned" in each["event"]] == [
            AS_THEY_COME if number == 1 else SIFTED
        ]
        assert dict(base_rows(place, "k", "a")) == now
        sizes.append((counts["new"], counts["changed"], counts["deleted"], counts["unchanged"]))
    assert sizes == [(2_000, 0, 0, 0), (0, 10, 0, 1_990), (0, 0, 5, 1_995)]
    assert place.rows("SELECT count(*) FROM rawcore.rc_c_hist") == [(2_010,)]


@pytest.mark.parametrize("always", [True, False], ids=["tasks", "driver"])
def test_columns_may_have_internal_names(place, always):
    """E4: The names of a model can be any words."""
    place.in_tasks(always=always)
    words = "action count keys pairs appeared vanished r v"
    for number, text in enumerate("pq", 1):
        rows = [{"rows": "x"} | dict.fromkeys(words.split(), text), {"rows": text}]
        staged(place, rows, f"rows* {words}")
        assert place.load(f"r{number}", number, skip_base=False).error is None
    history = place.rows("SELECT `rows`, action, v, version_state FROM rawcore.rc_c_hist")
    assert sorted(history, key=str) == [
        ("p", None, None, "deleted"),
        ("q", None, None, "new"),
        ("x", "p", "p", "changed"),
        ("x", "q", "q", "changed"),
    ]


@pytest.mark.parametrize("always", [True, False], ids=["tasks", "driver"])
def test_column_names_of_a_file_may_differ_only_by_case(place, monkeypatch, always):
    """E4: Each column gets the values under its exact name, including in Spark's tasks."""
    place.in_tasks(always=always)
    monkeypatch.setattr("backstory.doors.historize.spark_tables.ON_DRIVER", 0 if always else 1 << 20)
    written = dataset("k* order upper again", input="stage.csv")
    written["target_columns"][2]["input"], written["target_columns"][3]["input"] = "Order", "order"
    place.use(document(written))
    (place.folder / "stage.csv").write_text("k,Order,order\nx,1,2\n")
    assert place.load("r1", 1, skip_base=False).error is None
    assert place.rows("SELECT `order`, upper, again FROM rawcore.rc_c_hist") == [("2", "1", "2")]


def _ids(place, table, key):
    """The id of each row, and the number of the commit that last changed it."""
    listed = f"{key}, _row_id, _last_updated_sequence_number"
    return {row[0]: row[1:] for row in place.rows(f"SELECT {listed} FROM rawcore.{table}")}


@pytest.fixture
def strange(store):
    """A session with daylight saving time and without ANSI mode, as on platforms."""
    strange = {"spark.sql.session.timeZone": "America/New_York", "spark.sql.ansi.enabled": "false"}
    before = {name: store.spark.conf.get(name) for name in strange}
    for name, value in strange.items():
        store.spark.conf.set(name, value)
    yield store.spark
    after = {name: store.spark.conf.get(name) for name in strange}
    for name, value in before.items():
        store.spark.conf.set(name, value)
    assert after == strange  # the owner's settings are unchanged


def test_summer_time_changes_nothing(place, strange):
    """E3, R6: Two instants in the hour that the session's zone skips are different, and naive times are
    unchanged."""
    place.use(document(dataset("k* t:TIMESTAMP", input="s.csv")))
    for run, hour in enumerate(("02", "03"), start=1):
        (place.folder / "s.csv").write_text(f"k,t\n1,2024-03-10T{hour}:30:00Z\n")
        (receipt,) = place.loads(f"r{run}", run)
    assert receipt.counts["changed"] == 1
    hours = [datetime(2024, 3, 10, hour, 30, 0, micro, UTC) for hour in range(8) for micro in (0, 500000)]
    expected = [place.hashes.row_hash(place.dataset, {"t": hour}) for hour in hours]
    expression = place.dialect.canonical_text("t", Datatype.TIMESTAMP)
    rows = strange.createDataFrame(pa.table({"t": hours})).selectExpr(f"sha2({expression}, 256) h")
    assert [row["h"] for row in rows.collect()] == expected
    naive = ["2024-11-03 05:30:00", "2024-11-03 06:30:00", "2024-03-10 02:30:00"]
    listed = ", ".join(f"('{k}', TIMESTAMP_NTZ'{time}')" for k, time in enumerate(naive))
    place.sql("CREATE TABLE stage.naive (k STRING, t TIMESTAMP_NTZ) USING iceberg")
    place.sql(f"INSERT INTO stage.naive VALUES {listed}")
    place.use(document(dataset("k* t:TIMESTAMP", name="rc_naive", input="stage.naive")))
    assert place.loads("n1", 9)[0].error is None
    stored = place.rows("SELECT k, unix_micros(t) FROM rawcore.rc_naive ORDER BY k")
    assert [datetime.fromtimestamp(t / 1e6, UTC).strftime("%F %T") for _, t in stored] == naive


def test_a_value_that_does_not_fit_its_hash_is_refused(place, strange):
    """E1, R6: Without ANSI mode the value would be NULL, and its change undetected."""
    written = dataset("k* x:FLOAT", input="s.csv")
    written["target_columns"][-1]["hash_as"] = "DECIMAL(10,2)"
    place.use(document(written))
    for value in ("123456789012.5", "NaN", "Infinity"):
        (place.folder / "s.csv").write_text(f"k,x\n1,{value}\n")
        (receipt,) = place.loads("r1", 1)
        assert receipt.status in {"rejected", "failed"}
        assert receipt.error["code"] != "bug"
    assert place.target.columns("rawcore", "rc_c_hist") is None or place.history("x") == []


def sent(place, store, name, layout, words, *rows):
    """A stage table in Fivetran's form."""
    made = [Column(*_typed(word)) for word in ("id:LONG", "v:STRING", *words.split())]
    make(store, Shape(TableName("stage", name), tuple(made), ("id",), layout))
    place.insert(f"stage.{name}", [dict(zip((each.name for each in made), row, strict=True)) for row in rows])


def _typed(word):
    name, _, kind = word.partition(":")
    return name, ColumnType.parse(kind)


def test_only_current_rows_of_a_fivetran_table_are_read(place, store):
    """E1, 7.3: Deleted records and ended versions are not read. If the model uses the mark of deletion
    itself, flagged rows are read, and close their versions."""
    january, february, june = (datetime(2024, month, 1, tzinfo=UTC) for month in (1, 2, 6))
    ever = datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)
    spans = "_fivetran_start:UTC_DATETIME _fivetran_end:UTC_DATETIME _fivetran_active:BOOLEAN"
    versions_ = [
        (1, "old", january, february, False),
        (1, "now", february, ever, True),
        (2, "gone", january, june, False),
    ]
    sent(place, store, "history", Layout.FIVETRAN_HISTORY, spans, *versions_)
    rows = [(1, "now", False), (2, "gone", True), (3, "unmarked", None)]
    sent(place, store, "live", Layout.FIVETRAN_LIVE, "_fivetran_deleted:BOOLEAN", *rows)
    rules = {"soft_delete": {"column": "gone", "deleted_values": ["true"]}}
    flagged = dataset("id:BIGINT* v gone:BOOLEAN", "rc_flag", input="stage.live", historization=rules)
    flagged["target_columns"][-1]["input"] = "_fivetran_deleted"
    plain = [dataset("id:BIGINT* v", f"rc_{name}", input=f"stage.{name}") for name in ("history", "live")]
    place.use(document(*plain, flagged))
    receipts = place.loads("r1", 1)
    assert [(each.error, each.counts["new"]) for each in receipts] == [(None, 1), (None, 2), (None, 2)]
    for name in ("history", "live"):
        stored = place.rows(f"SELECT id, v FROM rawcore.rc_{name}_hist ORDER BY id")
        read = table_in_session(store, TableName("stage", name)).rows_at().orderBy("id").toArrow().to_pylist()
        assert stored == [tuple(row.values())[:2] for row in read]
        assert stored[0] == (1, "now")
        assert "gone" not in {v for _, v in stored}
    assert place.rows("SELECT count(*) FROM rawcore.rc_flag") == [(3,)]


def test_only_current_rows_of_a_history_are_read(place, store):
    """E1: Closed records in a stage are not read, whichever door keeps its history."""
    ours = dataset("id:BIGINT* v", "rc_copies", input="stage.copies")
    for number, rows in enumerate(({1: "old", 2: "gone"}, {1: "now"}), 1):
        copy = pa.table({"id": list(rows), "v": list(rows.values())})
        request = SnapshotRequest(into="stage.copies", key="id", at=f"2024-0{number}-01", max_delete_ratio=1)
        snapshot(store, copy, request)
        place.use(document(ours))
        assert place.loads(f"r{number}", number)[0].error is None
        assert place.rows("SELECT v FROM rawcore.rc_copies ORDER BY id") == [(v,) for v in rows.values()]
    place.use(document(dataset("id:BIGINT* v", "rc_again", input="rawcore.rc_copies_hist")))
    assert place.loads("r3", 3)[0].error is None
    assert place.rows("SELECT id, v FROM rawcore.rc_again") == [(1, "now")]


COLLIDING = ["k,a,b,c", "1,x|y,z,s", "2,,z,s", "3,p,q,s"]
COLLIDED = ["k,a,b,c", "1,x,y|z,s", "2,null_replaced,z,s", "3,p,r,s"]


# The other profile is tested on databases, and here only before a release.
@pytest.mark.parametrize(("profile", "warnings"), [("elevata_v1", 1), ("strict_v2", 0)][: deep(2, 1)])
def test_a_change_hidden_by_a_hash_collision_is_logged(place, profile, warnings):
    """Section 2.4: If changed columns may collide under the default profile, the load names them."""
    place.use(document(dataset("k* a b c", input="s.csv"), hash_profile=profile))
    for number, lines in enumerate((COLLIDING, COLLIDED), start=1):
        (place.folder / "s.csv").write_text("\n".join(lines) + "\n")
        with capture_logs() as logs:
            (receipt,) = place.loads(f"r{number}", number)
        assert receipt.error is None
        warned = [each for each in logs if "same hash as before" in each["event"]]
        assert len(warned) == (warnings if number == 2 else 0)
    assert receipt.counts["changed"] == 3 - 2 * warnings
    assert [each["columns"] for each in warned] == [["a", "b"]] * warnings


@pytest.mark.parametrize("always", [False, True], ids=["driver", "tasks"])
def test_a_stage_float_widened_to_double_is_unchanged(place, always):
    """A FLOAT 72.1 is the DOUBLE 72.1, in the base and in its hash."""
    written = dataset("k* x:FLOAT", name="rc_widens", input="stage.widens")
    written["target_columns"][-1]["hash_as"] = "DECIMAL(20,9)"
    place.use(document(written))
    place.in_tasks(always=always)
    place.sql("CREATE TABLE stage.widens (k STRING, x FLOAT) USING iceberg")
    place.sql("INSERT INTO stage.widens VALUES ('a', 72.1), ('b', 0.1), ('c', 66.0), ('d', NULL)")
    assert place.loads("r1", 1)[0].counts["new"] == 4
    place.sql("DROP TABLE stage.widens")
    place.sql("CREATE TABLE stage.widens (k STRING, x DOUBLE) USING iceberg")
    place.sql("INSERT INTO stage.widens VALUES ('a', 72.1), ('b', 0.1), ('c', 66.0), ('d', NULL)")
    (receipt,) = place.loads("r2", 2)
    assert (receipt.error, receipt.status) == (None, "unchanged")
    values = place.rows("SELECT x FROM rawcore.rc_widens_hist ORDER BY k")
    assert values == [(72.1,), (0.1,), (66.0,), (None,)]


@pytest.mark.parametrize("held", [None, 240_000, 0])
def test_columns_that_no_hash_shows_begin_versions(place, held, monkeypatch):
    """4.4, R42: A fork with the same text, and an added reference, begin versions that have their values."""
    monkeypatch.setattr("backstory.engine.tasks.SIFTED_FROM", 1)
    (place.folder / "stage.csv").write_text("k,a,b\n1,x,10\n2,y,\n")
    parent = dataset("r*", "rc_r", historize=False)
    parts = [{"from": "a", "to": "r"}]
    reference = {"references": [{"id": 1, "referenced_dataset": "rc_r", "key_components": parts}]}
    rules, counts = {"on_incompatible_type": "fork"}, []
    place.with_memory(held)
    for columns, more in (("k* a b", {}), *[("k* a b:BIGINT", {})] * 2, *[("k* a b:BIGINT", reference)] * 2):
        place.use(document(dataset(columns, input="stage.csv", historization=rules, **more), parent))
        receipt = place.loads(None)[0]
        assert receipt.error is None
        counts.append({name: count for name, count in receipt.counts.items() if count})

    assert counts == [
        {"new": 2},
        {"changed": 1, "unchanged": 1},
        {"unchanged": 2},
        {"changed": 2},
        {"unchanged": 2},
    ]
    base = base_rows(place, "k", "b", "rc_r_key")
    open_ = place.rows("SELECT k, b, rc_r_key FROM rawcore.rc_c_hist WHERE version_ended_at IS NULL")
    assert sorted(open_) == base
    assert [b for _, b, _ in base] == [10, None]
