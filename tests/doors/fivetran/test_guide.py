"""History batches compared with the guide's own statements in another database: requirements 89 and 92."""

import random
import sqlite3
from datetime import datetime, timedelta
from itertools import combinations

import pytest
from destination import HISTORY, Place, gives
from specification import versions as rule
from tables_as_text import DAY, table

from backstory.model.values import UNMODIFIED

MILLISECOND = timedelta(milliseconds=1)
OPEN = "9999-12-31T23:59:59.999Z"
COLUMNS = ["id", "v", "n", "_fivetran_synced", "_fivetran_start", "_fivetran_end", "_fivetran_active"]


def at(milliseconds):
    """An instant as text of fixed length, in sortable form."""
    return (DAY + milliseconds * MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def before(text):
    return at(round((instant(text) - DAY) / MILLISECOND) - 1)


def instant(text):
    return datetime.fromisoformat(text)


def version(number, v, n, start, end=None):
    ends = OPEN if end is None else at(end)
    cells = [number, v, n, at(start + 50_000), at(start), ends, end is None]
    return dict(zip(COLUMNS, cells, strict=True))


def source(seed, count):
    """Records with one or two versions, and a batch with at most one later change of each. New records are
    complete."""
    luck = random.Random(seed)
    stored, batch = [], {"earliest": [], "replace": [], "update": [], "delete": []}
    for number in range(count):
        kind = luck.choice(["replace", "update", "delete", None, "new"])
        start, now = luck.randrange(0, 20), luck.randrange(30, 60)
        if kind != "new" and luck.random() < 0.5:
            stored.append(version(number, "older", 0, start - 9, start - 1))
        if kind != "new":
            stored.append(version(number, "old", number, start))
        key = {"id": number}
        if kind == "delete":
            batch["delete"].append(key | {"_fivetran_end": at(now)})
        elif kind:
            batch["earliest"].append(key | {"_fivetran_start": at(now)})
            changed = {"v": luck.choice([UNMODIFIED, None, "new"])} if kind == "update" else {}
            whole = version(number, "new", None, now)
            batch["update" if kind == "update" else "replace"].append(whole | changed)
    return stored, batch


def by_the_guide(stored, batch):
    """The guide's rules (section 5.1), statement by statement."""
    base = sqlite3.connect(":memory:", isolation_level=None)
    base.execute("CREATE TABLE t (id, v, n, synced, start, end_, active)")
    base.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)", [tuple(row.values()) for row in stored])
    base.execute("CREATE TABLE last AS SELECT * FROM t WHERE active")
    for row in batch["earliest"]:
        number, start = row["id"], row["_fivetran_start"]
        base.execute("DELETE FROM t WHERE id = ? AND start >= ?", (number, start))
        base.execute("UPDATE t SET active = 0, end_ = ? WHERE id = ? AND active", (before(start), number))
    for row in batch["update"]:
        names = [name for name in ("v", "n") if row[name] is not UNMODIFIED]
        [latest] = base.execute("SELECT v, n FROM last WHERE id = ?", (row["id"],)).fetchall()
        values = dict(zip(("v", "n"), latest, strict=True)) | {name: row[name] for name in names}
        base.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)", tuple((row | values).values()))
    for row in batch["replace"]:
        base.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)", tuple(row.values()))
    for row in batch["delete"]:
        parameters = (row["_fivetran_end"], row["id"])
        base.execute("UPDATE t SET active = 0, end_ = ? WHERE id = ? AND active", parameters)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in base.execute("SELECT * FROM t").fetchall()]
    base.close()
    instants = COLUMNS[3:6]
    return [
        row | {n: instant(row[n]) for n in instants} | {"_fivetran_active": bool(row["_fivetran_active"])}
        for row in rows
    ]


@pytest.mark.parametrize(("seed", "count"), [(1, 60), (2, 300)])
def test_simple_batches_match_the_statements_of_the_guide(sender, store, schema, seed, count):
    """92: If each key has one kind of change, and its current version is active and older than s0, both
    results are equal."""
    stored, batch = source(seed, count)
    assert all(batch.values())
    place = Place.made(sender, store, schema, HISTORY, stored)
    expected = by_the_guide(stored, batch)
    place.write(**batch)
    assert gives(expected) == place.rows()


PARTS = {
    "earliest": "id start \n {0} T3 \n {1} T3",
    "replace": "id v n synced start end active \n {0} new 7 T9 T3 TMAX true",
    "update": "id v n synced start end active \n {1} . 8 T9 T3 T4-1 false \n {1} up . T9 T4 TMAX true",
    "delete": "id end \n {2} T4 \n {1} T8",
}
SUBSETS = [kinds for size in (1, 3) for kinds in combinations(PARTS, size)]


def test_any_of_the_four_lists_may_be_empty(sender, store, schema):
    """89: Each list by itself, and the others without it, have the rule's result."""
    numbers = range(3 * len(SUBSETS))
    text = "\n".join(f"{number} old {number} T1 T1 TMAX true" for number in numbers)
    place = Place.made(sender, store, schema, HISTORY, f"id v n synced start end active \n {text}")
    rows = table(f"id v n synced start end active \n {text}")
    for place_, kinds in enumerate(SUBSETS):
        batch = {kind: PARTS[kind].format(*range(3 * place_, 3 * place_ + 3)) for kind in kinds}
        place.write(**batch)
        parts = {kind: table(part) for kind, part in batch.items()}
        rows = rule.apply(rows, ["id"], COLUMNS, **parts).rows
    assert gives(rows) == place.rows()
