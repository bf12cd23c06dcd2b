"""The plan of a rewind gives the rule's table, in one Iceberg commit."""

import random
from dataclasses import replace

import pytest
from specification.rewind import live_rows_at, rewound
from stored_versions import life, make_table, plain, random_life, rows_in, shown, t
from tables_as_text import in_order

from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory
from backstory.model.instant import parse_instant
from backstory.upkeep.rewinding import rewind

LIVES = 40


# The bytes of clear text that the driver may hold.
WAYS = {"whole": 1 << 30, "in parts": 100_000, "in tasks": 0}


@pytest.mark.parametrize("way", WAYS)
def test_a_planned_rewind_gives_the_rules_table(store, way):
    """Many lives in one table are rewound repeatedly. Unchanged and moved rows keep their ids."""
    chance = random.Random(7)
    lives = [random_life(chance) for _ in range(LIVES)]
    folds = [
        [row for number, life in enumerate(lives) for row in _apart(number, life[place])]
        for place in range(5)
    ]
    table = make_table(store, way.replace(" ", "_"), rows := life(*folds))
    store = replace(store, memory=Memory(CLEAR_TEXT_SHARE * WAYS[way]))
    ids = _rows_by_id(store, table)
    for back in (1, 4):
        done = rewind(store, table, t(back), apply=True)
        then = rewound(rows, t(back), parse_instant(done.recorded_at), ("id",))
        stored_rows = rows_in(store, table)
        assert in_order(stored_rows) == in_order(map(plain, then))
        assert shown(live_rows_at(stored_rows, parse_instant(done.recorded_at))) == shown(
            live_rows_at(rows, t(back))
        )
        former, ids, rows = ids, _rows_by_id(store, table), then
        assert former.items() <= ids.items()


def _rows_by_id(store, table):
    """The key, value and start of each row by its row id."""
    return {
        row["_row_id"]: (row["id"], row["v"], row["valid_from"]) for row in rows_in(store, table, "_row_id")
    }


def _apart(number, fold):
    """The rows of one of many lives, with the first life's marks."""
    marks = [row for row in fold if row["id"] is None and not number]
    return [*marks, *(row | {"id": row["id"] + 10 * number} for row in fold if row["id"] is not None)]
