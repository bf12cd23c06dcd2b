"""R88, O2: a log read in the other encoding."""

import json

import pytest
from datasets import add_datasets

from backstory.doors.odf.manifest.events import SetVocab
from backstory.doors.odf.registry import LogColumns
from backstory.doors.odf.sides import encode_log
from backstory.strategies.events.terms import EventEncoding

OBSERVED = LogColumns(SetVocab(), EventEncoding.OBSERVED)
OPERATIONS = LogColumns(SetVocab(), EventEncoding.OP)
# The old table of section 2.9, and the events that it represents.
OLD = """
    I e1 Vancouver 2581000
    I e1 Seattle 3433000
    U e2 Vancouver 2606000
    D e3 Seattle 3433000
"""
NEW = """
    0 e1 Vancouver 2581000
    0 e1 Seattle 3433000
    2 e1 Vancouver 2581000
    3 e2 Vancouver 2606000
    1 e1 Seattle 3433000
"""


def rows(text):
    cells = [line.split() for line in text.strip().splitlines()]
    return [(head, f"2024-01-0{time[1]}", city, int(count)) for head, time, city, count in cells]


def rows_of(frame, head):
    records = frame.select(head, "event_time", "city", "population").toArrow().to_pylist()
    return sorted(
        (str(row[head]), row["event_time"].strftime("%Y-%m-%d"), row["city"], row["population"])
        for row in records
    )


@pytest.fixture
def old(spark):
    frame = spark.createDataFrame(
        rows(OLD), "observed string, event_time string, city string, population long"
    )
    return frame.selectExpr("CAST(event_time AS TIMESTAMP) AS event_time", "observed", "city", "population")


def test_an_old_table_is_converted_to_operations(old):  # R88, section 2.9
    encoded = encode_log(old, OBSERVED, ["city"], EventEncoding.OP)
    assert encoded.columns == ["op", "event_time", "city", "population"]
    assert rows_of(encoded, "op") == sorted(rows(NEW))


def test_operations_convert_to_letters_and_back(spark):  # O2
    numbered = [(place, *row, "2024-02-01") for place, row in enumerate(rows(NEW))]
    schema = "offset long, op string, event_time string, city string, population long, system_time string"
    log = spark.createDataFrame(numbered, schema).selectExpr(
        "offset",
        "CAST(op AS INT) AS op",
        "CAST(system_time AS TIMESTAMP) AS system_time",
        "CAST(event_time AS TIMESTAMP) AS event_time",
        "city",
        "population",
    )
    letters = encode_log(log, OPERATIONS, ["city"], EventEncoding.OBSERVED)
    assert letters.columns == ["offset", "system_time", "event_time", "observed", "city", "population"]
    # The time of the observation is the commit's time, because operations store no other.
    expected = [row if row[0] != "D" else ("D", "2024-02-01", *row[2:]) for row in rows(OLD)]
    assert rows_of(letters, "observed") == sorted(expected)
    again = encode_log(letters, OBSERVED, ["city"], EventEncoding.OP)
    assert again.columns == log.columns
    assert rows_of(again, "op") == sorted(rows(NEW))


def test_an_old_table_is_ingested_as_a_changelog(store, old, tmp_path):  # R88
    from backstory.doors.odf import door

    events = encode_log(old, OBSERVED, ["city"], EventEncoding.OP).toArrow().to_pylist()
    ranks = {city: number for number, (_, _, city, _) in enumerate(rows(OLD)[:2])}
    order = {
        (0, "Vancouver"): 0,
        (0, "Seattle"): 1,
        (2, "Vancouver"): 2,
        (3, "Vancouver"): 3,
        (1, "Seattle"): 4,
    }
    events.sort(key=lambda row: (order[row["op"], row["city"]], ranks[row["city"]]))
    lines = [json.dumps({**row, "event_time": row["event_time"].isoformat()}) for row in events]
    (tmp_path / "old.ndjson").write_text("\n".join(lines))
    (tmp_path / "new.yaml").write_text("""
kind: DatasetSnapshot
version: 1
content:
  name: imported
  kind: Root
  metadata:
    - kind: AddPushSource
      read:
        kind: NdJson
        schema:
          fields:
            - {name: op, type: Int32}
            - {name: event_time, type: Timestamp}
            - {name: city, type: String}
            - {name: population, type: Int64}
      merge: {kind: ChangelogStream, primaryKey: [city]}
""")
    add_datasets(store, "imports", tmp_path / "new.yaml")
    receipt = door.ingest(
        store,
        "imported",
        door.PushedFiles([tmp_path / "old.ndjson"]),
        door.IngestRequest(),
        namespace="imports",
    )
    assert receipt.error is None
    assert receipt.offsets == (0, 4)
    stored = store.spark.table("backstory.imports.imported").orderBy("offset")
    assert [
        (str(r["op"]), r["event_time"].strftime("%Y-%m-%d"), r["city"], r["population"])
        for r in stored.collect()
    ] == rows(NEW)
