"""Law: A batch too large for the driver has the same result, planned in Spark's tasks."""

import json

import pytest
from committing import commit
from depth import DEPTH
from destination import HISTORY, LIVE, PLAIN, VERSIONS, Place, as_rows, gives, refusal, serving

from backstory.formats.batch_file import Compression, Encoding, Format
from backstory.formats.delivered import rows_as
from backstory.formats.memory import Memory
from backstory.model.change import Change
from backstory.stores.iceberg import frames
from backstory.stores.iceberg.store import IcebergStore
from backstory.stores.tables import existing
from backstory.testing.sender import Sender

STORED = "id v n synced \n 1 a 1 T1 \n 2 b 2 T1"
# The other tests here use Fivetran's encoding, and random tests use plain files.
ENCODINGS = [Encoding(Format.PARQUET, Compression.GZIP, True, "(null)", "(same)")]
if DEPTH == "laws":
    ENCODINGS += [Encoding(Format.CSV, Compression.ZSTD, True, "(null)", "(same)"), PLAIN]


@pytest.fixture
def sender(spreading, tmp_path):
    return Sender.to(spreading, tmp_path)


@pytest.fixture(autouse=True)
def many_buckets(monkeypatch):
    """Each bucket has a row or two."""
    monkeypatch.setattr(frames, "ROWS_IN_BUCKET", 2)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_batch_files_of_every_encoding_are_planned_by_tasks(spark, store, schema, tmp_path, encoding):
    """50: Several files of a kind in order make one commit with the counts of all buckets."""
    stores = {"backstory": IcebergStore(spark, memory=Memory(0))}
    with serving(stores, batch_format=encoding.format) as address:
        place = Place.made(Sender.to(address, tmp_path, encoding=encoding), store, schema, LIVE, STORED)
        place.send(
            replace=[
                *place.files("id v n synced \n 3 c 3 T2"),
                *place.files("id v n synced \n 3 C 3 T2 \n 4 d 4 T2"),
            ],
            update=place.files("id v n synced \n 1 . 9 T2 \n 8 x 8 T2"),
            delete=place.files("id \n 2"),
        )
    assert gives("id v n synced \n 1 a 9 T2 \n 3 C 3 T2 \n 4 d 4 T2") == place.rows()
    assert len(place.snapshots()) == 2
    counts = {"inserted": 2, "updated": 1, "deleted": 1, "unchanged": 0, "ignored": 1}
    assert json.loads(place.snapshots()[-1]["backstory.counts"]) == counts


def test_a_batch_without_changes_makes_no_commit(sender, store, schema):
    """74, 78: The same rows, and the same files, make no commit."""
    place = Place.made(sender, store, schema, LIVE, STORED)
    metadata = place.metadata()
    files = place.files(STORED)
    place.send(replace=files)
    place.send(replace=files)
    assert place.metadata() == metadata


@pytest.mark.parametrize(
    ("kind", "rows", "where"),
    [
        ("replace", [{"id": n, "n": "seven" if n == 4 else n} for n in range(1, 6)], "line 5, column n"),
        ("update", [{"id": n, "w": n} for n in range(3)], "no column w"),
    ],
)
def test_an_error_of_a_task_has_its_place_and_no_value(sender, store, schema, kind, rows, where):
    """63: The task has file and line but no value, and nothing is written."""
    place = Place.made(sender, store, schema, LIVE, STORED)
    metadata = place.metadata()
    text = refusal(place.reply(**{kind: place.files(rows)}))
    assert where in text
    assert "seven" not in text
    assert place.metadata() == metadata


def test_versions_at_the_least_instant_are_read(sender, store, schema):
    """F10: 1970-01-01T00:00:00Z is an ordinary instant."""
    at = {"_fivetran_start": "1970-01-01T00:00:00Z", "_fivetran_end": "1970-01-01T00:00:00Z"}
    closed = {"id": 1, "v": "a", "_fivetran_synced": "2024-01-01T00:00:00Z", "_fivetran_active": False}
    place = Place.made(sender, store, schema, HISTORY, [closed | at])
    place.write(
        earliest=[{"id": 1, "_fivetran_start": at["_fivetran_start"]}],
        delete=[{"id": 2, "_fivetran_end": "2024-01-01T00:00:00Z"}],
    )
    assert place.rows() == []


def test_a_damaged_record_is_refused_by_tasks(sender, store, schema):
    """V119: Nothing of a batch with the damaged record is written. A later batch of other records is."""
    place = Place.made(sender, store, schema, HISTORY, VERSIONS)
    table = existing(store, place.name)
    twice = "id v n start end active synced \n 7 a 1 T1 T9 false T1 \n 7 b 1 T2 TMAX true T1"
    commit(store, table, Change(added=rows_as(table.shape.columns, as_rows(twice))))
    rows = place.rows()
    text = refusal(
        place.reply(
            replace=place.files(
                "id v n start end active synced \n 1 c 3 T8 TMAX true T8 \n 7 c 3 T8 TMAX true T8"
            )
        )
    )
    assert ("something other than backstory wrote" in text, "backstory repair" in text) == (True, True)
    assert place.rows() == rows
    place.write(replace="id v n start end active synced \n 3 d 9 T3 TMAX true T3")
    assert gives([row | ({"n": 9} if row["id"] == 3 else {}) for row in rows]) == place.rows()


def test_a_slice_too_large_for_the_driver_is_planned_by_tasks(spark, store, schema, tmp_path):
    """One key has more versions than the driver may collect."""
    with serving({"backstory": store}) as address:
        place = Place.made(Sender.to(address, tmp_path), store, schema, HISTORY)
        rows = [
            {
                "id": 1,
                "v": f"{n:06}" * 100,
                "n": n,
                "_fivetran_synced": "2024-01-01T00:00:00Z",
                "_fivetran_start": f"2024-01-01T00:00:00.{n:06}Z",
                "_fivetran_end": f"2024-01-01T00:00:00.{n:06}Z",
                "_fivetran_active": False,
            }
            for n in range(2000)
        ]
        place.write(replace=rows)
        conf = spark.sparkContext._jsc.sc().conf()
        before = conf.get("spark.driver.maxResultSize")
        conf.set("spark.driver.maxResultSize", "4k")
        try:
            place.write(earliest=[{"id": 1, "_fivetran_start": "2024-01-01T00:00:00Z"}])
        finally:
            conf.set("spark.driver.maxResultSize", before)
    assert place.rows() == []
