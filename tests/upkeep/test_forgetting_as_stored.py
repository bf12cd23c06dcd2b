"""Forget a record wherever Iceberg finds it, and delete no file of another owner (native.md V87 to V89)."""

import json
import os
import shutil
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from committing import hide_by_value
from depth import deep
from stored_bytes import holding

from backstory.errors import Refused
from backstory.model.table import TableName
from backstory.stores.iceberg import maintenance
from backstory.stores.iceberg.create import drop
from backstory.stores.tables import existing
from backstory.table import Table
from backstory.warehouse import Warehouse

ANNA, BERT = "anna-smith", "bert-jones"
LIVE = """'backstory.layout' = 'fivetran-live', 'backstory.key' = '["id"]'"""


class Place:
    """A table of another program, in a separate schema."""

    def __init__(self, store, name, columns="id STRING, v STRING", more="", schema=None):
        self.store, self.name = store, TableName(schema or f"stored_{uuid4().hex[:8]}", name)
        self.sql(f"CREATE NAMESPACE IF NOT EXISTS backstory.{self.name.schema}")
        self.sql(f"CREATE TABLE {{0}} ({columns}) USING iceberg {more} TBLPROPERTIES ({LIVE})")

    def sql(self, text):
        return self.store.spark.sql(text.replace("{0}", f"backstory.{self.name}")).collect()

    def insert(self, *rows):
        self.sql(f"INSERT INTO {{0}} VALUES {', '.join(map(str, rows))}")
        return self

    def add_files(self, source):
        self.sql(
            f"CALL backstory.system.add_files(table => '{self.name}', source_table => '`parquet`.`{source}`')"
        )

    @property
    def folder(self):
        return Path(existing(self.store, self.name).iceberg.location())

    @property
    def ids(self):
        return sorted(row[0] for row in self.sql("SELECT id FROM {0}"))

    @property
    def metadata(self):
        return existing(self.store, self.name).location

    def forget(self, key=ANNA, **how):
        return Table(self.store, self.name).forget(key, apply=True, **how)

    def age(self):
        """Make everything in the folder old."""
        for file in self.folder.rglob("*"):
            os.utime(file, (0, 0))


def refused(place, code):
    """Check that it is refused with this code at once, without writing, including without apply."""
    before = place.metadata
    for apply in (False, True):
        with pytest.raises(Refused) as caught:
            Table(place.store, place.name).forget(ANNA, apply=apply)
        assert caught.value.code == code
    assert place.metadata == before
    return caught.value


def test_files_without_field_ids_are_read_by_name_mapping(store, tmp_path):
    """Columns were renamed and widened. An owner's file is kept, and listed as left.

    Every erasure of a record in it lists it, as long as it exists.
    """
    pq.write_table(
        pa.table({"k": pa.array([1, 2, 3], pa.int32()), "v": ["a", "b", "c"]}), tmp_path / "f.parquet"
    )
    place = Place(store, "mapped", "k INT, v STRING")
    place.add_files(tmp_path)
    place.sql("ALTER TABLE {0} RENAME COLUMN k TO id")
    place.sql("ALTER TABLE {0} ALTER COLUMN id TYPE BIGINT")
    place.insert((2, "new"), (4, "new"))
    report = place.forget(2)
    assert (report.applied, report.rows, place.ids) == (True, {"row": 2}, [1, 3, 4])
    assert (tmp_path / "f.parquet").exists()
    assert [f"{tmp_path}/f.parquet" in each for each in report.left] == [True]
    again, other = place.forget(2), place.forget(3)
    assert (again.status, other.status, place.ids) == ("no-record", "forgotten", [1, 4])
    for each in (again, other):
        assert [f"{tmp_path}/f.parquet" in one for one in each.left] == [True]
    assert place.forget(4).left == 0
    (tmp_path / "f.parquet").unlink()
    assert [place.forget(key).left for key in (2, 1)] == [0, 0]
    assert "backstory.left" not in existing(store, place.name).properties


def test_a_key_that_exists_only_in_a_path_is_found(store, tmp_path):
    """The key is the partition constant of files without the column. The certificate does not contain it."""
    (tmp_path / f"id={ANNA}").mkdir()
    pq.write_table(pa.table({"v": ["a"]}), tmp_path / f"id={ANNA}" / "f.parquet")
    place = Place(store, "constants", more="PARTITIONED BY (id)")
    place.add_files(tmp_path)
    place.insert((BERT, "b"))
    report = place.forget()
    assert (report.applied, report.rows, place.ids) == (True, {"row": 1}, [BERT])
    assert len(report.left) == 1
    again = place.forget()
    assert (again.status, len(again.left)) == ("no-record", 1)
    assert ANNA not in json.dumps([report.to_dict(), again.to_dict()])
    assert holding(place.folder, ANNA) == {}


def test_a_default_value_of_a_key_column_is_found(store):
    """Files from before the column was added have its default."""
    place = Place(store, "defaults", more="")
    place.sql("ALTER TABLE {0} SET TBLPROPERTIES ('format-version' = '3')")
    place.insert((ANNA, "a"), (BERT, "b"))
    jvm, iceberg = store.jvm, existing(store, place.name).iceberg
    text = jvm.org.apache.iceberg.types.Types.StringType.get()
    value = jvm.org.apache.iceberg.expressions.Expressions.lit("europe")
    iceberg.updateSchema().addColumn("region", text, "", value).commit()
    place.sql("""ALTER TABLE {0} SET TBLPROPERTIES ('backstory.key' = '["id", "region"]')""")
    report = place.forget({"id": ANNA, "region": "europe"})
    assert (report.applied, report.rows, report.left, place.ids) == (True, {"row": 1}, 0, [BERT])
    assert holding(place.folder, ANNA) == {}


def test_folders_named_after_the_key_are_deleted(store):
    """The table is partitioned by the key, including in deletes for several files."""
    place = Place(store, "parted", more="PARTITIONED BY (id)")
    place.sql(
        "ALTER TABLE {0} SET TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')"
    )
    place.insert(*((name, str(number)) for name in (ANNA, BERT) for number in range(9)))
    place.sql("DELETE FROM {0} WHERE v = '3'")
    assert holding(place.folder / "data", ANNA)
    report = place.forget()
    assert (report.applied, report.left, place.ids) == (True, 0, [BERT] * 8)
    assert ANNA not in json.dumps(report.to_dict())
    assert [each.name for each in (place.folder / "data").iterdir()] == [f"id={BERT}"]
    assert holding(place.folder, ANNA) == {}


def test_erasures_are_refused_for_tables_with_overlapping_folders(store):
    """Nested namespaces, a folder within, and a name in another's folder after a rename in Spark are refused."""
    outer = Place(store, "customer").insert((ANNA, "a"))
    inner = Place(store, "notes", schema=outer.name.schema, more=f"LOCATION '{outer.folder}/notes'")
    inner.insert((ANNA, "n"))
    for place, other in ((outer, inner), (inner, outer)):
        place.age()
        assert refused(place, "shared-folder").keys == [str(other.name)]
    drop(store, inner.name)
    store.spark.sql(f"CREATE NAMESPACE backstory.{outer.name}")
    store.spark.sql(f"CREATE TABLE backstory.{outer.name}.notes (id INT) USING iceberg")
    assert refused(outer, "shared-folder").keys == [f"{outer.name}.notes"]
    store.spark.sql(f"DROP TABLE backstory.{outer.name}.notes")
    assert outer.forget().applied

    renamed = Place(store, "snap").insert((ANNA, "old"))
    folder = renamed.folder
    renamed.sql(f"ALTER TABLE {{0}} RENAME TO {renamed.name}_backup")
    anew = Place(store, "snap", schema=renamed.name.schema, more=f"LOCATION '{folder}'")
    assert refused(anew.insert((ANNA, "new")), "shared-folder").keys == [f"{renamed.name}_backup"]


def test_table_names_with_line_breaks_and_tabs_do_not_block_erasures(store, tmp_path):
    """Neither a table with such a name nor its neighbours stop an erasure."""
    warehouse, schema = Warehouse(store, embedded=False), f"stored_{uuid4().hex[:8]}"
    (tmp_path / "a.csv").write_text(f"id,v\n{ANNA},a\n2,b\n")
    for name in (f"{schema}.plain", f"{schema}.a\nb\tc"):
        warehouse.snapshot(tmp_path / "a.csv", into=name, key="id", at="2026-01-01")
    for name in (f"{schema}.plain", f"{schema}.a\nb\tc"):
        assert warehouse.table(name).forget(ANNA, apply=True).applied
        assert warehouse.table(name).current().count() == 1


def test_a_table_whose_files_another_table_reads_cannot_forget(store):
    """The files were added to a table elsewhere."""
    place = Place(store, "source").insert((ANNA, "a"))
    reader = Place(store, "reader", schema=place.name.schema)
    reader.add_files(place.folder / "data")
    assert refused(place, "shared-folder").keys == [str(reader.name)]
    assert reader.ids == [ANNA]


def test_owner_files_are_kept_and_listed_if_they_may_contain_the_record(store):
    """They may be in any folder below the table's, including in a schema called metadata, and from another
    table's past."""
    place = Place(store, "t", schema="metadata").insert((ANNA, "a"), (BERT, "b"))
    export = place.folder / "export" / "metadata"
    export.mkdir(parents=True)
    pq.write_table(pa.table({"id": [ANNA]}), export / "copy.parquet")
    pq.write_table(pa.table({"id": [BERT]}), export / "other.parquet")
    pq.write_table(pa.table({"k": [5]}), export / "mine.parquet")
    (export / "notes.txt").write_text("of mine")
    name = f"{uuid4()}-m0.avro"
    (place.folder / "metadata" / name).write_text("of another table")
    (place.folder / "metadata" / f"00000-{uuid4()}.metadata.json").write_text('{"table-uuid": "another"}')
    place.age()
    files = {each: each.read_bytes() for each in export.iterdir()}
    report = place.forget()
    assert (report.applied, place.ids) == (True, [BERT])
    assert {each: each.read_bytes() for each in export.iterdir()} == files
    named = "\n".join(report.left)
    assert [each in named for each in ("copy.parquet", "mine.parquet", "notes.txt", name)] == [True] * 4
    assert "other.parquet" not in named
    drop(store, place.name)


def test_files_in_other_locations_are_searched_and_listed(store, tmp_path):
    """Files in other locations by property or former location are never deleted, even if the table wrote
    them."""
    place = Place(store, "elsewhere").insert((ANNA, "a"), (BERT, "b"))
    former = place.folder
    place.sql(f"ALTER TABLE {{0}} SET LOCATION '{tmp_path}/now'")
    place.sql(f"ALTER TABLE {{0}} SET TBLPROPERTIES ('write.data.path' = '{tmp_path}/rows')")
    place.insert((ANNA, "a"))
    (written,) = (tmp_path / "rows").rglob("*.parquet")
    stray = shutil.copy(written, written.with_name(f"{uuid4()}.parquet"))
    report = place.forget()
    assert (report.applied, place.ids) == (True, [BERT])
    files = [each for each in former.rglob("*") if each.is_file() and each.suffix in {".parquet", ".avro"}]
    assert files
    for each in (report, again := place.forget()):
        named = "\n".join(each.left)
        assert [str(file) in named for file in [written, stray, *files]] == [True] * (2 + len(files))
    assert (again.status, written.exists(), stray.exists()) == ("no-record", True, True)


def test_unsearchable_or_undeletable_tables_are_refused_at_once(store):
    place = Place(store, "refused", "id BIGINT, v STRING", more="").insert((1, "a"))
    for name, value, code in (
        ("gc.enabled", "false", "gc-disabled"),
        ("encryption.key-id", "k", "encrypted-table"),
        ("write.format.default", "orc", "other-format"),
    ):
        place.sql(f"ALTER TABLE {{0}} SET TBLPROPERTIES ('{name}' = '{value}')")
        before = place.metadata
        with pytest.raises(Refused) as caught:
            place.forget(1)
        assert (caught.value.code, place.metadata) == (code, before)
        if name == "write.format.default":
            place.insert((2, "orc"))
        place.sql(f"ALTER TABLE {{0}} UNSET TBLPROPERTIES ('{name}')")
    with pytest.raises(Refused) as caught:
        place.forget(1)
    assert caught.value.code == "other-format"
    assert "rewrite_data_files" in caught.value.remedy
    by_value = Place(store, "by_value", "id BIGINT, v STRING").insert((1, "a"), (2, "b"))
    hide_by_value(store, by_value.name, "id", 1)
    with pytest.raises(Refused) as caught:
        by_value.forget(2)
    assert caught.value.code == "equality-deletes"


class Killed(BaseException):
    """An exception that ends the process."""


def test_an_interrupted_erasure_is_finished_by_the_next_erasure(store, monkeypatch, tmp_path):
    """This holds at any file, and for another record's erasure. Until then, a search reports it, without a
    certificate."""
    place, delete = Place(store, "killed", more="PARTITIONED BY (id)"), maintenance.delete_files
    elsewhere = tmp_path / f"id={ANNA}"
    elsewhere.mkdir()
    pq.write_table(pa.table({"v": ["a"]}), elsewhere / "f.parquet")
    place.add_files(tmp_path)
    for most in (1, 2, 5, 8, 0)[: deep(5, 2)]:
        place.insert((ANNA, f"a{most}"), (BERT, f"b{most}"))

        def some(io, files, left=iter(range(most))):
            for each in files:
                if next(left, None) is None:
                    raise Killed
                delete(io, [each])
            return []

        monkeypatch.setattr(maintenance, "delete_files", some)
        with pytest.raises(Killed):
            place.forget()
        monkeypatch.setattr(maintenance, "delete_files", delete)
        assert set(place.ids) == {BERT}
        assert "interrupted" in str(Table(store, place.name).forget(ANNA).left)
        other = place.forget("nobody") if most % 2 else None
        assert other is None or not other.applied
        report = place.forget()
        assert report.applied is (not most % 2)
        assert "outside" in str(report.left)  # the file elsewhere still exists
        assert holding(place.folder, ANNA) == {}
        assert not [each for each in place.folder.rglob("*") if ANNA in str(each)]
    assert not place.forget().applied


def test_drop_and_maintain_keep_files_outside_the_table_folder(store, tmp_path):
    """Only files in the table's own folder are deleted, and the others are listed."""
    pq.write_table(pa.table({"id": [ANNA], "v": ["a"]}), tmp_path / "f.parquet")
    place = Place(store, "dropped")
    place.add_files(tmp_path)
    place.insert((BERT, "b"))
    place.sql("DELETE FROM {0} WHERE id = 'anna-smith'")
    place.sql("ALTER TABLE {0} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '1')")
    place.insert((BERT, "c"))
    receipt = Table(store, place.name).maintain()
    assert receipt.snapshots_expired >= 2
    assert list(receipt.left) == [f"{tmp_path}/f.parquet"]
    assert (tmp_path / "f.parquet").exists()
    place.add_files(tmp_path)
    folder = place.folder
    assert drop(store, place.name)
    assert (tmp_path / "f.parquet").exists()
    assert not [each for each in folder.rglob("*") if each.is_file()]
