"""Each batch of a stream is committed once, whatever its checkpoint contains (V66 to V68)."""

import json

import pytest
from remembering import day, lives

from backstory.warehouse import Warehouse

FEED = {"key": "k", "sequence_by": ["at"], "ignore": ["at"]}


@pytest.fixture
def lake(store):
    return Warehouse(store, embedded=False)


def put(folder, number, *rows):
    lines = [json.dumps({"k": k, "v": v, "at": day(at).isoformat()}) for k, v, at in rows]
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")


def run(lake, source, checkpoint, into):
    rows = lake.spark.readStream.schema("k string, v string, at timestamp").json(str(source))
    writer = rows.writeStream.foreachBatch(lake.apply_batch(into=into, **FEED))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def state(lake, into):
    rows = lake.spark.sql(f"SELECT * FROM backstory.{into} WHERE _memory.role IS NULL").toArrow()
    return lives(rows.to_pylist()), len(lake.table(into).log())


def test_a_stream_commits_each_batch_once(lake, tmp_path):
    """Nothing is committed twice after a restart with or without a checkpoint, or by a second query."""
    into, source = "streams.once", tmp_path / "source"
    put(source, 1, ("k", "a", 10), ("m", "x", 10))
    run(lake, source, tmp_path / "one", into)
    put(source, 2, ("k", "b", 20))
    run(lake, source, tmp_path / "one", into)
    expected = (["k: a[10,20) b[20,)", "m: x[10,)"], 2)
    assert state(lake, into) == expected
    run(lake, source, tmp_path / "one", into)
    run(lake, source, tmp_path / "other", into)
    assert state(lake, into) == expected


def test_a_batch_that_is_refused_ends_the_query_and_changes_nothing(lake, tmp_path):
    """V68: The query ends with the error's code."""
    into, source = "streams.refused", tmp_path / "source"
    put(source, 1, ("k", "a", 10))
    run(lake, source, tmp_path / "one", into)
    before = state(lake, into)
    put(source, 2, ("k", "other", 10))
    with pytest.raises(Exception, match="different content"):
        run(lake, source, tmp_path / "one", into)
    assert state(lake, into) == before


def test_an_earlier_batch_is_skipped_without_reading(lake):
    """This holds even if its rows can no longer be read."""
    into = "streams.known"
    write = lake.apply_batch(into=into, **FEED)
    context = lake.spark.sparkContext
    context.setLocalProperty("sql.streaming.queryId", "q")
    try:
        rows = lake.spark.sql("SELECT 'k' AS k, 'a' AS v, TIMESTAMP '2024-03-10 00:00:00Z' AS at")
        write(rows, 3)
        broken = lake.spark.sql("SELECT 'k' AS k, raise_error('read') AS v, current_timestamp() AS at")
        for number in (3, 2):
            write(broken, number)
    finally:
        context.setLocalProperty("sql.streaming.queryId", None)
    assert state(lake, into)[1] == 1
