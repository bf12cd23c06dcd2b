"""The base load: full, or merged with deletes within the increment's filter (section 3.7, H7, H9)."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from historizing import DAY, aware, dataset, document, second, versions
from structlog.testing import capture_logs

COLUMNS = "k* a changed:TIMESTAMP"
SOURCE = {
    "name": "crm.customer",
    "incremental": True,
    "increment_filter": "ChangedAt >= {{DELTA_CUTOFF}}",
    "increment_policies": [
        {"environment": "dev", "increment_interval_length": 10, "increment_interval_unit": "day"}
    ],
}


@pytest.fixture
def full(place, engine):
    """A base that is loaded in full from stage.s."""
    place.use(document(dataset(input="stage.s", historization={"engine": engine})))
    place.stage("s", "k* a")
    return place


@pytest.fixture
def merged(place, engine):
    """A base with merged deltas of the last ten days."""
    return merging(place, engine)


def merging(place, engine, source=SOURCE, **more):
    made = dataset(
        COLUMNS, input="stage.s", incremental_source="crm.customer", historization={"engine": engine}, **more
    )
    made["target_columns"][2]["input"] = "changed_at"
    place.use(document(made, source_datasets=[source]))
    return place


def stage(place, text):
    """Fill the stage with these rows: `key:attribute`, and after a comma the days since the change."""
    rows = []
    for word in text.split():
        pair, _, days = word.partition(",")
        key, value = (None if part == "-" else part for part in pair.split(":"))
        rows.append(
            {"k": key, "a": value, "changed_at": DAY - timedelta(days=float(days))}
            if days
            else {"k": key, "a": value}
        )
    place.stage("s", "k* a changed_at:TIMESTAMP" if "," in text else "k* a", rows)


def load(place, number, **options):
    (receipt,) = place.loads(f"r{number}", number, **options)
    return receipt


def base(place):
    """The base as text: `key:attribute run`."""
    rows = place.rows("SELECT k, a, load_run_id FROM rawcore.rc_c ORDER BY k")
    return " ".join(f"{k}:{'-' if a is None else a}@{run}" for k, a, run in rows)


def test_a_full_load(full):
    """H9, R20: Missing rows are deleted, changed rows get this run, and unchanged rows are not written."""
    stage(full, "a:1 b:1 c:1")
    load(full, 1)
    stage(full, "a:1 b:2 d:-")
    receipt = load(full, 2)

    assert base(full) == "a:1@r1 b:2@r2 d:-@r2"
    assert full.history() == versions("""
        a 1 [1,-) new r1
        b 1 [1,2) changed r2
        b 2 [2,-) changed r2
        c 1 [1,2) deleted r2
        d - [2,-) new r2
    """)
    assert receipt.status == "success"
    before = full.dump()
    assert load(full, 3).status == "unchanged"
    assert full.dump() == before


def test_keys_and_hashes_of_the_base(full):
    """R4, R20: The base has the reference's keys and hashes, and the run and instant of its history."""
    stage(full, "a:1")
    load(full, 1)
    ((key, row_hash, loaded),) = full.rows("SELECT rc_c_key, row_hash, loaded_at FROM rawcore.rc_c")

    row = {"k": "a", "a": "1"}
    assert (key, row_hash) == (
        full.hashes.base_key(full.dataset, row),
        full.hashes.row_hash(full.dataset, row),
    )
    assert aware(loaded) == second(1)


def test_load_columns_of_the_stage_stay_in_the_base(full):
    """H9: Load columns of the stage are stored in the base, but never in the history."""
    full.stage(
        "s",
        "k* a load_run_id loaded_at:TIMESTAMP",
        [{"k": "a", "a": "1", "load_run_id": "ingest", "loaded_at": DAY}],
    )
    load(full, 1)

    assert base(full) == "a:1@ingest"
    assert full.history() == ["a 1 [1,-) new r1"]


@pytest.mark.parametrize(
    ("text", "code", "keys"),
    [
        ("a:1 -:1", "NULL_KEY", ["NULL"]),
        ("a:1 a:2", "DUPLICATE_KEY", ["a"]),
        ("a:1 a:1", "DUPLICATE_KEY", ["a"]),
    ],
)
def test_a_refused_stage_changes_nothing(full, text, code, keys):
    """R19, R23: If the stage is refused, base and history are unchanged."""
    stage(full, "a:1 b:1")
    load(full, 1)
    before = full.dump()
    stage(full, text)
    receipt = load(full, 2)

    assert (receipt.error["code"], receipt.error["keys"]) == (code, keys)
    assert full.dump() == before


def test_null_in_a_required_column_is_refused(place, engine):
    """R19: NULL in a column that is not nullable is refused with the row's key."""
    made = dataset(input="stage.s", historization={"engine": engine})
    made["target_columns"][1]["nullable"] = False
    place.use(document(made))
    stage(place, "a:1 b:-")
    receipt = load(place, 1)

    assert (receipt.error["code"], receipt.error["keys"]) == ("NULL_VALUE", ["b"])
    assert not place.has("rawcore", "rc_c")


def test_identical_rows_of_the_stage_collapse(place, engine):
    """R24: collapse_identical also applies to the stage, and different rows are refused."""
    rules = {"engine": engine, "duplicate_keys": "collapse_identical"}
    place.use(document(dataset(input="stage.s", historization=rules)))
    stage(place, "a:1 a:1 b:1")
    assert load(place, 1).counts["new"] == 2
    before = place.dump()
    stage(place, "a:1 b:1 b:2")

    assert load(place, 2).error["code"] == "DUPLICATE_KEY"
    assert place.dump() == before


RECORDS = [{"a": "1|b~2", "b": "3", "v": "x"}, {"a": "1", "b": "2|b~3", "v": "x"}]


def test_two_records_with_one_key_do_not_collapse(place, engine):
    """E1, R24: The default profile's keys may collide. Rows with different business keys are not identical."""
    rules = {"engine": engine, "duplicate_keys": "collapse_identical"}
    place.use(document(dataset("a* b* v", input="stage.s", historization=rules)))
    place.stage("s", "a* b* v", RECORDS)
    refused = load(place, 1).error

    assert (refused["code"], len(refused["keys"])) == ("DUPLICATE_KEY", 2)
    assert not place.has("rawcore", "rc_c")


def test_a_key_collision_is_logged(place, engine):
    """Section 2.4: Colliding keys are reported in the same way as colliding hashes."""
    place.use(document(dataset("a* b* v", input="stage.s", historization={"engine": engine})))
    for number, row in enumerate(RECORDS, 1):
        place.stage("s", "a* b* v", [row])
        with capture_logs() as logs:
            assert load(place, number).error is None
    assert [each["columns"] for each in logs if "same hash as before" in each["event"]] == [["a", "b"]]


def test_an_empty_stage(full):
    """P6, R27: An empty stage deletes nothing, unless this run allows it."""
    stage(full, "a:1")
    load(full, 1)
    before = full.dump()
    stage(full, "")
    assert load(full, 2).error["code"] == "EMPTY_SNAPSHOT"
    assert full.dump() == before

    assert load(full, 3, allow_empty=True).counts["deleted"] == 1
    assert full.history() == ["a 1 [1,3) deleted r3"]


def test_a_refused_history_rolls_back_its_base(full):
    """R19: Base and history are one transaction, so a refused history undoes the base."""
    stage(full, "a:1")
    load(full, 5)
    before = full.dump()
    stage(full, "a:2 b:1")

    assert load(full, 4).error["code"] == "NON_MONOTONIC_TIMESTAMP"
    assert full.dump() == before


def test_a_value_that_the_database_refuses_changes_nothing(place, engine):
    """R19: A value that is too large for its column is refused while the load runs, and nothing is written."""
    place.use(document(dataset("k* n:INTEGER", input="stage.s", historization={"engine": engine})))
    place.stage("s", "k* n:BIGINT", [{"k": "a", "n": 1}])
    load(place, 1)
    before = place.dump()
    place.sql("UPDATE stage.s SET n = 3000000000")
    receipt = load(place, 2)

    assert (receipt.status, receipt.error["code"]) == ("rejected", "STAGE_TYPE")
    assert place.dump() == before


def test_a_delta_is_merged(merged):
    """3.7: Rows missing from the delta are kept outside its filter, and deleted inside."""
    stage(merged, "old:1,30 young:1,5 gone:1,5 edge:1,9")
    load(merged, 1)
    stage(merged, "young:2,1 fresh:1,0")
    receipt = load(merged, 2)

    assert base(merged) == "fresh:1@r2 old:1@r1 young:2@r2"
    assert merged.history() == versions("""
        edge 1 [1,2) deleted r2
        fresh 1 [2,-) new r2
        gone 1 [1,2) deleted r2
        old 1 [1,-) new r1
        young 1 [1,2) changed r2
        young 2 [2,-) changed r2
    """)
    assert receipt.counts == {"new": 1, "changed": 1, "deleted": 2, "reappeared": 0, "unchanged": 1}


def test_the_cutoff_is_computed_from_the_load_time(merged):
    """3.7: The cutoff is T minus the interval, to the microsecond. NULL is out of scope."""
    stage(merged, "a:1,10 b:1,10 n:1,10 young:1,0")
    load(merged, 1)
    cut = second(2) - timedelta(days=10)
    for key, at in (("a", cut), ("b", cut - timedelta(microseconds=1))):
        merged.sql(f"UPDATE rawcore.rc_c SET changed = {merged.literal(at)} WHERE k = '{key}'")
    merged.sql("UPDATE rawcore.rc_c SET changed = NULL WHERE k = 'n'")
    stage(merged, "young:1,0")
    load(merged, 2)

    assert base(merged) == "b:1@r1 n:1@r1 young:1@r1"


@pytest.mark.parametrize(("unit", "length", "cut"), [
    ("month", 3, datetime(2024, 11, 30, tzinfo=UTC)),
    ("year", 1, datetime(2024, 2, 28, tzinfo=UTC)),
])  # fmt: skip
def test_the_cutoff_of_months_and_years(place, engine, unit, length, cut):
    """1.1: An interval of months or years is subtracted on the calendar, up to the last day of the month."""
    begun = datetime(2025, 2, 28, tzinfo=UTC) if unit == "year" else datetime(2025, 2, 28, 12, tzinfo=UTC)
    cut = begun.replace(year=cut.year, month=cut.month, day=28)
    policy = {"environment": "dev", "increment_interval_length": length, "increment_interval_unit": unit}
    merging(place, engine, {**SOURCE, "increment_policies": [policy]})
    stage(place, "a:1,1 b:1,1 young:1,0")
    place.loads("r1", 1)
    for key, at in (("a", cut), ("b", cut - timedelta(microseconds=1))):
        place.sql(f"UPDATE rawcore.rc_c SET changed = {place.literal(at)} WHERE k = '{key}'")
    stage(place, "young:1,0")
    place.loads("r2", (begun - DAY).total_seconds())

    assert base(place) == "b:1@r1 young:1@r1"


def test_a_merge_without_handle_deletes_keeps_missing_rows(place, engine):
    """3.7: Without delete handling, no row is deleted."""
    merging(place, engine, handle_deletes=False)
    stage(place, "a:1,1 b:1,1")
    load(place, 1)
    stage(place, "a:2,1")
    load(place, 2)

    assert base(place) == "a:2@r2 b:1@r1"


def test_a_merge_without_a_filter_keeps_missing_rows(place, engine):
    """3.7: Without a filter, no row is deleted."""
    merging(place, engine, {"name": "crm.customer", "incremental": True})
    stage(place, "a:1,1 b:1,1")
    load(place, 1)
    stage(place, "a:2,1")
    load(place, 2)

    assert base(place) == "a:2@r2 b:1@r1"


def test_an_empty_delta(merged):
    """3.7, P6: After an empty delta, rows in the window are deleted, and older rows are kept."""
    stage(merged, "old:1,30 young:1,5")
    load(merged, 1)
    merged.sql("DELETE FROM stage.s")
    receipt = load(merged, 2)

    assert receipt.status == "success"
    assert base(merged) == "old:1@r1"


@pytest.mark.parametrize(
    "condition",
    [
        "CHANGEDAT >= {{ DELTA_CUTOFF }} AND a <> 'x'",
        "col(\"Changed At\") >= {{DELTA_CUTOFF}} AND NOT A = 'x'",
    ],
)
def test_a_filter_matches_column_names_in_any_spelling(place, engine, condition):
    """3.7, A20: Names are matched by letters and digits, in any case, and by col()."""
    merging(place, engine, {**SOURCE, "increment_filter": condition})
    stage(place, "a:1,1 b:x,1 c:1,1")
    load(place, 1)
    stage(place, "a:1,1")
    load(place, 2)

    assert base(place) == "a:1@r1 b:x@r1"


CSV_TYPES = (
    "k* t n:INTEGER b:BIGINT d:DECIMAL(10,2) w:BOOLEAN day:DATE clock:TIME at:TIMESTAMP id:UUID j:JSON"
)
CSV = """k,t,n,b,d,w,day,clock,at,id,j,spare
1,"",-5,9000000000,1.5,true,2025-01-02,10:11:12,2025-01-02T03:04:05.6Z,A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11,"{""a"":  1}",x
2,,,,,,,,,,,
"3
x","it's | ""q"" \\ {{ load_timestamp }}",0,0,-0.25,false,0001-01-01,23:59:59.999999,2025-01-02 03:04:05+02:00,00000000-0000-0000-0000-000000000000,[],x
"""
PARSED = {
    "1": {
        "t": "", "n": -5, "b": 9_000_000_000, "d": Decimal("1.50"), "w": True, "day": date(2025, 1, 2), "clock": time(10, 11, 12),
        "at": datetime(2025, 1, 2, 3, 4, 5, 600_000, UTC), "id": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "j": '{"a":  1}',
    },
    "2": dict.fromkeys(["t", "n", "b", "d", "w", "day", "clock", "at", "id", "j"]),
    "3\nx": {
        "t": "it's | \"q\" \\ {{ load_timestamp }}", "n": 0, "b": 0, "d": Decimal("-0.25"), "w": False, "day": date(1, 1, 1),
        "clock": time(23, 59, 59, 999_999), "at": datetime(2025, 1, 2, 1, 4, 5, tzinfo=UTC),
        "id": "00000000-0000-0000-0000-000000000000", "j": "[]",
    },
}  # fmt: skip


def filed(place, engine, columns="k* a", name="s.csv"):
    place.use(document(dataset(columns, input=name, historization={"engine": engine})))
    return place


def assert_parsed(place):
    """Check that keys and hashes are the reference's, so that every value is the file's."""
    stored = {
        k: (key, made) for k, key, made in place.rows("SELECT k, rc_c_key, row_hash FROM rawcore.rc_c_hist")
    }
    assert stored == {
        k: (
            place.hashes.base_key(place.dataset, {"k": k, **row}),
            place.hashes.row_hash(place.dataset, {"k": k, **row}),
        )
        for k, row in PARSED.items()
    }


def test_a_csv_file(place, engine):
    """H7: CSV has every type. Empty is NULL, quoted empty is text, and other columns are ignored."""
    filed(place, engine, CSV_TYPES)
    (place.folder / "s.csv").write_text(CSV)

    assert load(place, 1).counts["new"] == 3
    assert_parsed(place)
    assert load(place, 2).status == "unchanged"


def test_a_parquet_file(place, engine):
    """H7: Parquet gives the same rows."""
    filed(place, engine, CSV_TYPES, "s.parquet")
    rows = [{"k": k, **row} for k, row in PARSED.items()]
    rows = [row | {"clock": row["clock"] and row["clock"].isoformat()} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), place.folder / "s.parquet")

    assert load(place, 1).counts["new"] == 3
    assert_parsed(place)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("k,a,n\na,1,1\nb,2,x\n", ["s.csv", "line 3", "column n"]),
        ('k,a,n\n"a\nb",1,1\nb,2,1.5\n', ["s.csv", "line 4", "column n"]),
        ("k,a,n\na,1\n", ["s.csv", "line 2"]),
        ("k,n\na,1\n", ["s.csv", "no column a"]),
    ],
)
def test_a_malformed_file_is_refused(place, engine, text, parts):
    """R19: An error in a file is reported with its line but without the value, and nothing is written."""
    filed(place, engine, "k* a n:INTEGER")
    (place.folder / "s.csv").write_text(text)
    receipt = load(place, 1)

    assert (receipt.status, receipt.exit_code) == ("rejected", 3)
    assert all(part in receipt.error["message"] for part in parts)
    assert not place.has("rawcore", "rc_c")


def test_a_missing_file_is_wrong_usage(place):
    """H7: A missing file is an error of the caller."""
    filed(place, "auto")

    assert (load(place, 1).error["code"], load(place, 1).exit_code) == ("no-stage", 3)


@pytest.mark.parametrize(
    ("stored", "wanted", "fits"),
    [
        ("INTEGER", "BIGINT", True),
        ("BIGINT", "INTEGER", True),
        ("DECIMAL(8,2)", "DECIMAL(10,2)", True),
        ("DECIMAL(10,4)", "DECIMAL(10,2)", False),
        ("STRING", "INTEGER", False),
        ("STRING", "TIMESTAMP", False),
        ("TIMESTAMP", "DATE", False),
        ("FLOAT", "DECIMAL(10,2)", False),
        ("DATE", "TIMESTAMP", True),
        ("BIGINT", "STRING", False),
        ("BOOLEAN", "INTEGER", False),
    ],
)
def test_stage_types_must_fit_the_base(place, stored, wanted, fits):
    """E1: A stage column whose values may not fit the base's type is refused by name, not cast."""
    place.use(document(dataset(f"k* v:{wanted}", input="stage.s")))
    plain = stored if stored != "FLOAT" else "BIGINT"
    place.stage("s", f"k* v:{plain}")
    if stored == "FLOAT":
        place.sql("ALTER TABLE stage.s DROP COLUMN v")
        place.sql("ALTER TABLE stage.s ADD COLUMN v DOUBLE PRECISION")
    receipt = load(place, 1)

    if fits:
        assert receipt.status == "success"
    else:
        assert (receipt.error["code"], receipt.error["keys"]) == ("STAGE_TYPE", ["v"])
        assert not place.has("rawcore", "rc_c")


def test_a_missing_stage_table_or_column_is_refused(full):
    """E1: A missing table or column of the stage is refused by name."""
    full.stage("s", "k*")
    receipt = load(full, 1)
    assert (receipt.error["code"], receipt.error["keys"]) == ("missing-column", ["a"])

    full.sql("DROP TABLE stage.s")
    assert load(full, 2).error["code"] == "no-stage"


COLLIDING = ["k,a,b,c", "1,x|y,z,s", "2,,z,s", "3,p,q,s"]
COLLIDED = ["k,a,b,c", "1,x,y|z,s", "2,null_replaced,z,s", "3,p,r,s"]


@pytest.mark.parametrize(("profile", "warnings"), [("elevata_v1", 1), ("strict_v2", 0)])
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


@pytest.mark.parametrize(
    ("datatype", "staged", "value"),
    [("UUID", "STRING", "x"), ("TIME", "STRING", "x"), ("JSON", "STRING", "{"), ("INTEGER", "BIGINT", 2**40)],
)
def test_a_stage_value_that_its_column_cannot_hold_is_refused(place, datatype, staged, value):
    """E1: The error names the column and is an error of the data, not of the database."""
    place.use(document(dataset(f"k* v:{datatype}", input="stage.s")))
    place.stage("s", f"k* v:{staged}", [{"k": "a", "v": value}])
    (receipt,) = place.loads("r1", 1)
    if (place.name, datatype) == ("duckdb", "JSON"):  # stored as a string
        assert receipt.error is None
    else:
        assert (receipt.error["code"], receipt.error["keys"]) == ("STAGE_TYPE", ["v"])
        assert receipt.status == "rejected"
        assert not place.has("rawcore", "rc_c")
