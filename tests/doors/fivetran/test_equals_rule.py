"""Law: batches through the server and the real store give what the rule in plain Python says."""

from itertools import groupby

import pytest
from destination import PLAIN, Place
from histories import COLUMNS, KEY, LEFT_OVER, LIVE_COLUMNS, batches, live_batches, wild_batches
from hypothesis import HealthCheck, given, settings
from tables_as_text import in_order

from backstory import spread
from backstory.doors.fivetran.sender.client import Sender
from backstory.model.column import END
from backstory.strategies.intervals.rule import apply as history_rule
from backstory.strategies.live_rows.rule import apply as live_rule
from backstory.strategies.unmodified import UNMODIFIED

FEW = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LIVE = "id:LONG* part* a b:LONG synced"
HISTORY = f"{LIVE} start* end active"


@pytest.fixture(params=["address", "spreading"])
def table(request, store, schema, tmp_path, monkeypatch):
    """A new table with these rows, in which one column is left over from an older definition; batches
    are planned on the driver, or where Spark runs, a few rows at a time."""
    monkeypatch.setattr(spread, "ROWS_IN_BUCKET", 2)
    plain = Sender.to(request.getfixturevalue(request.param), tmp_path, encoding=PLAIN)

    def of(columns, stored):
        place = Place.made(plain, store, schema, f"{columns} {LEFT_OVER}", stored)
        return place.having(columns)

    return of


def write(place, batch):
    """The batch; rows that name other columns go into files of their own. An update file always has
    the end (3.5): a row of the batch that lacks it leaves it unmodified."""
    if place.history:
        updates = [{END: UNMODIFIED} | row for row in batch["update"]]
        batch = batch | {"update": updates}
    place.send(
        **{
            kind: [
                file
                for _, part in groupby(rows, key=lambda row: sorted(row))
                for file in place.files([{c: row[c] for c in sorted(row)} for row in part])
            ]
            for kind, rows in batch.items()
        }
    )


def whole(rows):
    """The rows with every column of the table, as Spark gives them."""
    return in_order({c: row.get(c) for c in sorted([*COLUMNS, LEFT_OVER])} for row in rows)


def live(rows):
    return in_order({c: row.get(c) for c in sorted([*LIVE_COLUMNS, LEFT_OVER])} for row in rows)


@FEW
@given(live_batches())
def test_live_rows(table, history):
    """64 to 78: any batch of live rows."""
    place = table(LIVE, history.stored)
    (batch,) = history.batches
    write(place, batch)
    expected = live_rule(history.stored, KEY, LIVE_COLUMNS, **batch)
    assert live(expected.rows) == live(place.rows())
    place.drop()


@FEW
@given(wild_batches())
def test_histories_of_any_batch(table, history):
    """81 to 91: any history batch of valid types, on a table with gaps."""
    place = table(HISTORY, history.stored)
    (batch,) = history.batches
    write(place, batch)
    expected = history_rule(history.stored, KEY, COLUMNS, **batch)
    assert whole(expected.rows) == whole(place.rows())
    place.drop()


@FEW
@given(batches())
def test_histories_of_a_source(table, history):
    """91, 78: what a well-behaved source sends gives the source's own history after each batch,
    and the last batch again, in new files, changes nothing."""
    place = table(HISTORY, history.stored)
    for batch, expected in zip(history.batches, history.tables, strict=True):
        write(place, batch)
        assert whole(expected) == whole(place.rows())
    commits = len(place.snapshots())
    write(place, history.batches[-1])
    assert whole(history.tables[-1]) == whole(place.rows())
    assert len(place.snapshots()) == commits
    place.drop()
