"""Spark skips plain lives of a feed, and finds the rule's violations in the others."""

import random
from datetime import timedelta

import pytest
from committing import append_past, make
from spoilt_histories import checked_twice, recorded
from tables_as_text import DAY

from backstory.model import versions_layout
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import KIND, OWN_COLUMNS, ROLE, SCOPE, FactKind
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import existing
from backstory.upkeep.laws.checks import find_suspects, terms_in_table
from backstory.upkeep.laws.queries import query_of_rows

COLUMNS = (
    Column("k", ColumnType(Kind.LONG)),
    Column("v", ColumnType(Kind.STRING)),
    Column("w", ColumnType(Kind.DOUBLE)),
    *OWN_COLUMNS,
)
V, W = 2, 3  # the ids of their fields
VALUES = {"v": ["a", "b", None], "w": [0.0, -0.0, 1.5, float("nan"), None]}


def second(number):
    return DAY + timedelta(seconds=number)


def version(key, start, end, values, kind=FactKind.UPSERT, columns=None):
    memory = {KIND: kind, versions_layout.COLUMNS: columns} if kind else None
    return {
        "k": key,
        **values,
        "valid_from": second(start),
        "valid_to": None if end is None else second(end),
        "is_current": end is None,
        "recorded_at": second(1),
        "_memory": memory,
    }


def mark(at, kind=FactKind.COPY):
    return version(None, at, at, {"v": None, "w": None}, kind) | {
        "is_current": False,
        "_memory": {ROLE: "fact", KIND: kind, SCOPE: None},
    }


def plain_life(chance, key, copies):
    """A life of whole and partial changes and of copies, as feeds store it."""
    state, rows, at = None, [], 10
    for _ in range(chance.randint(1, 5)):
        at += chance.randint(1, 4)
        copied = at in copies
        if copied and state is not None and chance.random() < 0.5:  # the copy lacks the record
            rows[-1] |= {"valid_to": second(at), "is_current": False}
            state = None
            continue
        few = None if copied or chance.random() < 0.5 else sorted(chance.sample([V, W], chance.randint(1, 2)))
        new = {name: chance.choice(VALUES[name]) for name in VALUES}
        if few is not None:
            new |= {
                name: (state or {}).get(name) for name, number in (("v", V), ("w", W)) if number not in few
            }
        if state is not None and (new == state or repr(new) == repr(state)):
            continue
        if state is not None:
            rows[-1] |= {"valid_to": second(at), "is_current": False}
        rows.append(version(key, at, None, new, None if copied else FactKind.UPSERT, few))
        state = new
    return rows


def spoil(chance, rows, copies):
    """Damage one part of a life, perhaps without breaking a law."""
    row = chance.choice(rows)
    spoilt = chance.randint(0, 6)
    if spoilt == 0:
        name = chance.choice([*VALUES])
        row[name] = chance.choice(VALUES[name])
    elif spoilt == 1 and row["valid_to"]:
        row["valid_to"] -= timedelta(microseconds=chance.choice([1, 500_000]))
    elif spoilt == 2:
        row["valid_to"], row["is_current"] = second(40), False
    elif spoilt == 3 and row["_memory"]:
        row["_memory"] = chance.choice(
            [None, {KIND: FactKind.UPSERT, versions_layout.COLUMNS: [V]}, {KIND: "other"}]
        )
    elif spoilt == 4:
        row["valid_from"] = second(min(copies, default=11))
    elif spoilt == 5:
        rows.append(dict(row))
    elif spoilt == 6:
        gone = {ROLE: "fact", KIND: FactKind.DELETE}
        rows.append(
            row | {"valid_from": second(50), "valid_to": second(50), "is_current": False, "_memory": gone}
        )


@pytest.mark.parametrize(
    ("copies", "settled"), [((), "[]"), ((14, 15, 40), "[]"), ((14,), f'[null, "{second(13).isoformat()}"]')]
)
def test_spark_finds_the_same_violations_as_the_rule(store, copies, settled):
    chance, table = random.Random(len(copies)), TableName("folded", "lives")
    drop(store, table)
    make(store, Shape(table, COLUMNS, ("k",), Layout.VERSIONS))
    good = [plain_life(chance, key, copies) for key in range(150)]
    bad = [plain_life(chance, key, copies) for key in range(150, 400)]
    for rows in bad:
        spoil(chance, rows, copies)
    append_past(store, table, [row for rows in [*good, *bad, [mark(at) for at in copies]] for row in rows])
    properties = f"'backstory.settled' = '{settled}', 'backstory.memory-since' = '{second(1).isoformat()}'"
    store.spark.sql(f"ALTER TABLE {store.sql_name(table)} SET TBLPROPERTIES ({properties})")
    recorded(store, table, second(60).isoformat())

    results = checked_twice(store, table)

    assert {each["law"] for each in results if each["violations"]} >= {"fold", "memory", "unique-start"}
    rows = store.spark.table(store.sql_name(table))
    laws = query_of_rows(terms_in_table(store, existing(store, table)))
    keys = {row.k for row in find_suspects(rows, laws).collect()}
    assert not keys & set(range(150))
    assert len(keys) > 100
