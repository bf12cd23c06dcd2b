"""Forget a record: no byte of it is left, and the report is true (native.md V87 to V89, L18)."""

import gzip
import json
import os
import shutil
from datetime import date
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from committing import commit, make
from datasets import Dataset
from historizing import dataset, document
from historizing_on_spark import SparkPlace
from stored_bytes import holding
from stored_versions import life, make_table, put, rows_in, t, version

from backstory.engine.upkeep import compact
from backstory.errors import Refused, TryAgain, UsageError
from backstory.formats.delivered import rows_as
from backstory.model.change import Change
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.scripts import neighbours_of
from backstory.stores.iceberg.storage import BLIND
from backstory.stores.tables import existing
from backstory.table import Table
from backstory.upkeep.maintaining import carried_properties
from backstory.warehouse import Warehouse

KEY, VALUE = "canary-key-7Qx", "canary-value-Zw3"
TEXT = ColumnType(Kind.STRING)


def old(file):
    """Make the file more than a day old."""
    os.utime(file, (0, 0))
    return file


@pytest.fixture(scope="module", autouse=True)
def neighbours_are_readable(spark):
    """Remove tables that another test damaged, because they would prevent a proof."""
    from backstory.stores.iceberg.store import IcebergStore

    store = IcebergStore(spark)
    names = spark._jvm.org.apache.iceberg.catalog.TableIdentifier
    own = store.identifier(TableName("lifecycle", "forgotten"))
    for each in neighbours_of(store.jvm, store.iceberg(), own, []):
        if each.kind == BLIND and each.name:
            store.iceberg().dropTable(names.parse(each.name), False)


@pytest.fixture(scope="module")
def forgotten(spark, tmp_path_factory):
    """A record in commits, statistics, deletes, a compaction and a stray file, after its erasure, and its
    certificate."""
    from backstory.stores.iceberg.store import IcebergStore

    store = IcebergStore(spark)
    name = make_table(store, "forgotten", keyed=TEXT)
    others = [version(f"k{number}", f"v{number}", 10) for number in range(5)]
    first = [version(KEY, VALUE, 10), *others]
    put(store, name, life(first))
    second = [version(KEY, VALUE, 10, 20), version(KEY, VALUE + "2", 20), *others]
    put(store, name, life(first, second), "true")
    stored = existing(store, name)
    folder = Path(stored.iceberg.location())
    some = next(file for file in holding(folder, VALUE) if file.suffix == ".parquet")
    stray = old(shutil.copy(some, some.with_name(f"{uuid4()}.parquet")))
    spark.sql(f"CALL backstory.system.compute_table_stats(table => '{name}')")
    spark.sql(f"CALL backstory.system.compute_partition_stats(table => '{name}')")
    compact(store, name, carried_properties, dry_run=False)
    scope = json.dumps({"id": KEY})
    mark = version(None, None, 30, role="fact", kind="copy", scope=scope) | {"recorded_at": t(3)}
    put(store, name, [mark], scoped=KEY)
    put(store, name, [version("k9", VALUE[:4], 10) | {"recorded_at": t(4)}])
    put(store, name, [], f"id = '{KEY}' AND is_current", taken=VALUE)
    before = {row["_row_id"]: row for row in rows_in(store, name, "_row_id", "_last_updated_sequence_number")}
    assert holding(folder, KEY, VALUE)
    spark.sql(f"ALTER TABLE backstory.{name} CREATE TAG `backstory-cursor-crm`")
    return store, name, folder, before, stray, Table(store, name).forget(KEY, apply=True)


def test_L18_no_file_below_the_table_holds_the_key_or_its_values(forgotten):
    """This covers data, deletes, orphans, bounds in manifests, statistics, properties and former metadata."""
    _, _, folder, *_, certificate = forgotten
    assert certificate.applied
    assert holding(folder, KEY, VALUE) == {}


def test_a_copy_of_one_record_is_forgotten_for_any_key_type(store):
    """The copy's scope is JSON, which writes `true`, days as strings, and floats in Python's form."""
    key = {"id": KEY, "live": True, "on": date(2026, 1, 1), "part": 1e22}
    rows = pa.table({name: [value] for name, value in key.items()} | {"v": [VALUE]})
    into, lake = f"lifecycle.k{uuid4().hex}", Warehouse(store, embedded=False)
    lake.snapshot(rows, into=into, key=[*key], scope=key)
    others = rows.set_column(0, "id", pa.array(["x"]))
    lake.snapshot(others, into=into, key=[*key], scope=key | {"id": "x"})
    certificate = lake.table(into).forget(key, apply=True)
    assert certificate.to_dict()["rows"] == {"version": 1, "fact": 1}
    name = TableName(*into.split("."))
    assert holding(Path(existing(store, name).iceberg.location()), KEY) == {}
    assert len(rows_in(store, name)) == 2


def test_an_erasure_leaves_other_rows_unchanged(forgotten):
    store, name, _, before, *_ = forgotten
    after = rows_in(store, name, "_row_id", "_last_updated_sequence_number")
    ours = {number for number, row in before.items() if row["id"] in {KEY, None}}
    assert {row["_row_id"]: row for row in after} == {n: row for n, row in before.items() if n not in ours}
    assert len(ours) == 2


def test_V89_the_certificate_lists_deletions_without_the_key(forgotten):
    store, name, folder, _, stray, certificate = forgotten
    report = certificate.to_dict()
    assert KEY not in json.dumps(report)
    assert report["rows"] == {"version": 1, "fact": 1}
    assert report["left"] == 0
    assert report["searched"]["files"] == len([*folder.rglob("*.parquet")])
    assert len(report["snapshots_expired"]) == 6
    assert sha256((report["salt"] + str(stray)).encode()).hexdigest() in {
        f["path"] for f in report["files_deleted"]
    }
    assert str(folder) not in json.dumps(report)
    assert report["consumers"] == ["crm"]
    assert all(len(each["sha256"]) == 64 and each["bytes"] for each in report["files_deleted"])
    assert report["metadata_deleted"]
    assert report["statistics_deleted"]
    assert report["key_digest"] == sha256((report["salt"] + json.dumps([KEY])).encode()).hexdigest()
    sealed = report.pop("sha256")
    text = json.dumps(report, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert sealed == sha256(text.encode()).hexdigest()


def test_a_repeated_erasure_makes_no_commit(forgotten):
    store, name, *_ = forgotten
    before = existing(store, name).location
    again = Table(store, name).forget(KEY, apply=True)
    assert again.status == "no-record"
    assert (again.applied, again.rows, again.files_rewritten, existing(store, name).location) == (
        False,
        {},
        0,
        before,
    )


def test_cursors_and_foreign_references_block_an_erasure(forgotten):
    """A cursor that is behind, and a foreign branch or tag, block it. A cursor that has read everything
    moves."""
    store, name, folder, *_ = forgotten
    sql, table = store.spark.sql, Table(store, name)
    ((tag,),) = sql(f"SELECT snapshot_id FROM backstory.{name}.refs WHERE name LIKE 'backstory-%'").collect()
    assert tag == int(existing(store, name).iceberg.currentSnapshot().snapshotId())
    put(store, name, [version(KEY, VALUE, 10) | {"recorded_at": t(9)}])
    before = existing(store, name).location
    with pytest.raises(Refused) as caught:
        table.forget(KEY, apply=True)
    assert (caught.value.code, caught.value.keys) == ("cursor-behind", ["crm"])
    report = table.forget(KEY, drop_cursors=True)
    assert (report.applied, report.rows, existing(store, name).location) == (False, {"version": 1}, before)
    sql(f"ALTER TABLE backstory.{name} CREATE TAG theirs")
    with pytest.raises(Refused) as caught:
        table.forget(KEY, drop_cursors=True, apply=True)
    assert (caught.value.code, caught.value.keys) == ("foreign-reference", ["theirs"])
    sql(f"ALTER TABLE backstory.{name} DROP TAG theirs")
    assert table.forget(KEY, drop_cursors=True, apply=True).applied
    assert holding(folder, KEY, VALUE) == {}


def test_forgetting_in_an_event_log_is_refused(store, tmp_path):
    cities = Dataset(
        store, tmp_path, "{kind: Ledger, primaryKey: [city]}", columns="city STRING, population INT"
    )
    assert cities.push("A,1").error is None
    with pytest.raises(UsageError) as caught:
        Table(store, cities.table.shape.table).forget("A")
    assert caught.value.code == "append-only"


def written_by_a_writer(folder):
    """A data file, and a manifest that names it, as a writer has before its commit."""
    manifests = [file for file in folder.rglob("*.avro") if not file.name.startswith("snap-")]
    return [next(folder.rglob("*.parquet")), manifests[0]]


def following(metadata):
    """A metadata file as written by a concurrent writer that read this one, before the catalog names it."""
    file = Path(metadata.removeprefix("file:"))
    zipped = ".gz." in file.name
    fields = json.loads(gzip.decompress(file.read_bytes()) if zipped else file.read_bytes())
    fields["metadata-log"] = [{"timestamp-ms": fields["last-updated-ms"], "metadata-file": metadata}]
    written = file.with_name(f"00099-{uuid4()}{'.gz' if zipped else ''}.metadata.json")
    content = json.dumps(fields).encode()
    written.write_bytes(gzip.compress(content) if zipped else content)
    return written


def test_forgetting_the_only_record_leaves_an_empty_table(store):
    """This includes a record of another layout with a composite key.

    New files without a reference may belong to an active writer, except metadata of a writer that lost the
    race.
    """
    columns = tuple(Column(name, TEXT) for name in ("id", "part", "v"))
    name = TableName("lifecycle", "only")
    make(store, Shape(name, columns, ("id", "part"), Layout.FIVETRAN_LIVE))
    row = {"id": KEY, "part": "x", "v": VALUE}
    commit(store, existing(store, name), Change(added=rows_as(columns, [row])))
    with pytest.raises(UsageError) as caught:
        Table(store, name).forget(KEY)
    assert caught.value.code == "other-key"
    report = Table(store, name).forget({"id": KEY, "part": "y"}, apply=True)
    assert (report.applied, report.rows) == (False, {})
    folder, metadata = Path(existing(store, name).iceberg.location()), existing(store, name).location
    names = (f"{uuid4()}.parquet", f"{uuid4()}-m0.avro")
    written = zip(written_by_a_writer(folder), names, strict=True)
    lost = shutil.copy(metadata.removeprefix("file:"), folder / "metadata" / f"00098-{uuid4()}.metadata.json")
    torn = folder / "metadata" / f"00099-{uuid4()}.metadata.json"
    torn.write_text('{"format-version": 2,')
    strays = [torn, following(metadata), *(shutil.copy(file, file.with_name(name)) for file, name in written)]
    with pytest.raises(TryAgain) as caught:
        Table(store, name).forget({"id": KEY, "part": "x"}, apply=True)
    assert (caught.value.code, len(caught.value.keys)) == ("writer-at-work", 4)
    assert (existing(store, name).location, all(map(os.path.exists, strays))) == (metadata, True)
    for each in strays:
        old(each)
    report = Table(store, name).forget({"id": KEY, "part": "x"}, apply=True)
    assert (report.applied, report.rows) == (True, {"row": 1})
    assert not any(map(os.path.exists, [*strays, lost]))
    assert holding(Path(existing(store, name).iceberg.location()), KEY, VALUE) == {}
    commit(store, existing(store, name), Change(added=rows_as(columns, [row | {"id": "other"}])))
    assert store.spark.table(f"backstory.{name}").count() == 1


def test_forgetting_in_a_history_includes_its_base(store, tmp_path):
    """The next load continues without the record, and earlier runs stay known."""
    place = SparkPlace(store, tmp_path)
    place.use(document(dataset(input="stage.csv")))
    try:
        for run, rows in (("r1", f"{KEY},1\nb,2"), ("r2", f"{KEY},9\nb,2")):
            (tmp_path / "stage.csv").write_text(f"k,a\n{rows}\n")
            (loaded,) = place.loads(run)
            assert loaded.status == "success"
        history, base = TableName("rawcore", "rc_c_hist"), TableName("rawcore", "rc_c")
        with pytest.raises(UsageError, match="its base is erased with it"):
            Table(store, base).forget(KEY)
        report = Table(store, history).forget(KEY, apply=True)
        assert (report.rows, [each["table"] for each in report.also]) == ({"version": 2}, [str(base)])
        assert report.also[0]["applied"]
        for each in (history, base):
            assert holding(Path(existing(store, each).iceberg.location()), KEY) == {}
        (tmp_path / "stage.csv").write_text("k,a\nb,2\n")
        assert place.loads("r2")[0].counts == loaded.counts
        assert place.rows("SELECT k, a FROM rawcore.rc_c_hist") == [("b", "2")]
        (load,) = place.loads("r3")
        assert (load.counts["unchanged"], load.counts["deleted"]) == (1, 0)
    finally:
        place.close()
