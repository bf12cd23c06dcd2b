"""Comparisons of a batch through the server and the real store with the rule in plain Python."""

from itertools import groupby

from histories import COLUMNS, KEY, LEFT_OVER, LIVE_COLUMNS
from specification.live_rows import apply as live_rule
from specification.versions import apply as history_rule
from tables_as_text import in_order

from backstory.model.layout import END
from backstory.model.values import UNMODIFIED

LIVE = "id:LONG* part* a b:LONG synced"
HISTORY = f"{LIVE} start* end active"


def write(place, batch):
    """Write the batch. Rows with other columns go into separate files.

    An update file always has the end (3.5). A row of the batch without an end leaves it unmodified.
    """
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
    """The rows with every column of the table, as Spark returns them."""
    return in_order({c: row.get(c) for c in sorted([*COLUMNS, LEFT_OVER])} for row in rows)


def live(rows):
    return in_order({c: row.get(c) for c in sorted([*LIVE_COLUMNS, LEFT_OVER])} for row in rows)


def check(place, history):
    """Check that one batch leads to the rule's table, with or without history."""
    rule, columns, all_of = (
        (history_rule, COLUMNS, whole) if place.history else (live_rule, LIVE_COLUMNS, live)
    )
    (batch,) = history.batches
    write(place, batch)
    expected = rule(history.stored, KEY, columns, **batch)
    assert all_of(expected.rows) == all_of(place.rows())
    place.drop()
