"""Law: Batches through the server and the real store have the same result as the rule in plain Python."""

import pytest
from against_rule import HISTORY, LIVE, check, whole, write
from depth import deep
from destination import PLAIN, Place
from histories import LEFT_OVER, batches, live_batches, wild_batches
from hypothesis import HealthCheck, given, settings

from backstory.stores.iceberg import frames
from backstory.testing.sender import Sender

FEW = settings(
    max_examples=deep(25, 3),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FEWER = settings(FEW, max_examples=deep(10, 1))


@pytest.fixture
def table(address, store, schema, tmp_path):
    """Create a table with these rows and one column from an older definition."""
    return made_at(address, store, schema, tmp_path)


@pytest.fixture
def spread_table(spreading, store, schema, tmp_path, monkeypatch):
    """The same table; Spark's tasks plan batches, two rows at a time."""
    monkeypatch.setattr(frames, "ROWS_IN_BUCKET", 2)
    return made_at(spreading, store, schema, tmp_path)


def made_at(address, store, schema, folder):
    plain = Sender.to(address, folder, encoding=PLAIN)

    def of(columns, stored):
        place = Place.made(plain, store, schema, f"{columns} {LEFT_OVER}", stored)
        return place.having(columns)

    return of


@FEW
@given(live_batches())
@pytest.mark.tables_on("memory", "iceberg")
def test_live_rows(table, history):
    """64 to 78: Any batch of live rows has the rule's result."""
    check(table(LIVE, history.stored), history)


@FEW
@given(wild_batches())
@pytest.mark.tables_on("memory", "iceberg")
def test_histories_of_any_batch(table, history):
    """81 to 91: Any history batch of valid types has the rule's result, on a table with gaps."""
    check(table(HISTORY, history.stored), history)


@FEWER
@given(live_batches())
@pytest.mark.tables_on("iceberg")
def test_live_rows_planned_in_tasks(spread_table, history):
    """64 to 78: The result is the same if the batches count as too large for the driver."""
    check(spread_table(LIVE, history.stored), history)


@FEWER
@given(wild_batches())
@pytest.mark.tables_on("iceberg")
def test_histories_planned_in_tasks(spread_table, history):
    """81 to 91: The result is the same if the batches count as too large for the driver."""
    check(spread_table(HISTORY, history.stored), history)


@FEW
@given(batches())
@pytest.mark.tables_on("memory", "iceberg")
def test_histories_of_a_source(table, history):
    """91, 78: Batches of a correct source produce the source's history. The last batch in new files changes
    nothing."""
    place = table(HISTORY, history.stored)
    for batch, expected in zip(history.batches, history.tables, strict=True):
        write(place, batch)
        assert whole(expected) == whole(place.rows())
    commits = len(place.snapshots())
    write(place, history.batches[-1])
    assert whole(history.tables[-1]) == whole(place.rows())
    assert len(place.snapshots()) == commits
    place.drop()
