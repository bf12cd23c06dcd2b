"""Concurrent requests: requirement 15, section 7.6, decision F3."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from destination import HISTORY, LIVE, Place, gives
from tables_as_text import instant


def test_requests_for_different_tables_at_the_same_time(sender, store, schema):
    """15: Creates, batches, alters, describes and truncates of different tables do not affect each other."""

    def life(number):
        history = number % 2
        place = Place.made(sender, store, schema, HISTORY if history else LIVE)
        system = "synced start end active" if history else "synced"
        cells = "T1 T1 TMAX true" if history else "T1"
        place.write(replace=f"id v n {system} \n {number} a 1 {cells} \n 0 b 1 {cells}")
        assert sender.describe(schema, place.table.name)
        place.write(delete="id end \n 0 T2" if history else "id \n 0")
        place.truncate(instant("T1"))
        rows = [row for row in place.rows() if not history or row["_fivetran_active"]]
        assert [(row["id"], row["v"]) for row in rows] == [(number, "a")]
        assert len(place.snapshots()) == 2

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(life, range(1, 7)))


@pytest.mark.tables_on("memory", "iceberg")
def test_batches_for_one_table_at_the_same_time(sender, store, schema):
    """15, F3: All batches succeed one after the other. None is lost or applied twice."""
    place = Place.made(sender, store, schema, LIVE, "id v n synced \n 0 a 1 T1")
    with ThreadPoolExecutor(5) as pool:
        new = [pool.submit(place.write, replace=f"id v n synced \n {i} a 1 T1") for i in (1, 2)]
        same = [pool.submit(place.write, update=f"id n \n 0 {i}") for i in (7, 8)]
        same.append(pool.submit(place.write, update="id v \n 0 b"))
        for sent in (*new, *same):
            sent.result()
    rows = place.rows()
    assert [row["id"] for row in rows] == [0, 1, 2]
    assert rows[0]["v"] == "b"
    assert rows[0]["n"] in {7, 8}
    assert len(place.snapshots()) == 6


@pytest.mark.tables_on("iceberg")
def test_another_writer_of_the_same_table(sender, store, schema):
    """7.7: After a conflict with another writer, the batch is planned again and succeeds. No row is lost."""
    place = Place.made(sender, store, schema, LIVE, "id v n synced \n 0 a 1 T1")

    def insert(number):
        store.spark.sql(
            f"INSERT INTO {store.sql_name(place.name)} VALUES ({number}, 'sql', 1, TIMESTAMP'2024-01-01')"
        )

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(insert, 100 + i) for i in range(4)]
        for i in range(4):
            place.write(update=f"id n \n 0 {i + 2}", replace=f"id v n synced \n {i + 1} b 1 T1")
        for other in others:
            other.result()
    expected = "id v n synced \n 0 a 5 T1 \n 1 b 1 T1 \n 2 b 1 T1 \n 3 b 1 T1 \n 4 b 1 T1"
    rows = place.rows()
    assert gives(expected) == [row for row in rows if row["id"] < 100]
    assert len(rows) == 9
