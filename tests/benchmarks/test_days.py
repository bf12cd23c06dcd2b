"""HistoryBench's days: the same for a seed, sparse, with each account version within its customer's."""

from itertools import pairwise

import duckdb
import pyarrow as pa
import pytest
import sqlglot

from benchmarks.history.audits import COLUMNS, audited
from benchmarks.history.days import FIRST_ACTIONS, KEYS, World
from benchmarks.history.run import files, starts_of

SCALE, DAYS = 0.05, 12


def lived(seed=3):
    world = World(SCALE, seed)
    return world, list(world.days(DAYS))


def test_a_seed_determines_the_generated_days():
    assert lived()[1] == lived()[1] != lived(4)[1]


def test_the_scale_factor_determines_the_number_of_actions():
    """The first load has 5,000 actions per scale factor, and each day some 15.7, rounded at random."""
    world = World(1)
    first, *days = world.days(20)
    accounts_and_changes = first.account.new + first.account.changes + first.customer.changes

    cascades = sum("customer_from" in row for row in first.account.changes)
    opened_with_their_customer = len(first.customer.new)
    assert (
        len(accounts_and_changes) + len(first.customer.new) - cascades - opened_with_their_customer
        == FIRST_ACTIONS
    )
    assert 60 <= sum(len(day.customer.new) for day in days) <= 80


def test_changes_are_sparse_and_within_their_day():
    _, days = lived()
    for day in days:
        for table in KEYS:
            for row in getattr(day, table).changes:
                assert 3 <= len(row) <= 5
            for row in [*getattr(day, table).new, *getattr(day, table).changes]:
                assert day.begins <= row["start"] < day.ends


def test_a_record_changes_several_times_on_a_day():
    _, (first, *_) = lived()
    keys = [row["account_id"] for row in first.account.changes]

    assert len(set(keys)) < len(keys)


def test_versions_follow_each_other_without_gaps():
    world, _ = lived()
    for table, key in KEYS.items():
        by_key = {}
        for start, end, row in world.lives(table):
            by_key.setdefault(row[key], []).append((start, end))
        for life in by_key.values():
            assert life[-1][1] is None
            assert all(before[1] == after[0] > before[0] for before, after in pairwise(life))


def test_batch_files_end_a_row_before_the_next_row_of_its_key(tmp_path):
    """As in Fivetran's batches, the row ends a millisecond before, and is no longer active."""
    from backstory.formats.delivered import read_files
    from backstory.model.types import ColumnType, Kind
    from backstory.testing.sender import AS_FIVETRAN

    _, (first, *_) = lived()
    batch_files = files(tmp_path, "customer", first.customer, first)

    names = {
        **{name: ColumnType(Kind.STRING) for name in COLUMNS["customer"]},
        "_fivetran_start": ColumnType(Kind.UTC_DATETIME),
        "_fivetran_end": ColumnType(Kind.UTC_DATETIME),
        "_fivetran_active": ColumnType(Kind.BOOLEAN),
    }
    rows = []
    for kind in ("replace_files", "update_files"):
        [(_, batch)] = read_files(batch_files[kind], AS_FIVETRAN, names, frozenset(names))
        rows += batch.values.to_pylist()
    by_key = {}
    for row in sorted(rows, key=lambda row: row["_fivetran_start"]):
        by_key.setdefault(row["customer_id"], []).append(row)
    assert any(len(life) > 1 for life in by_key.values())
    for life in by_key.values():
        for before, after in pairwise(life):
            assert (after["_fivetran_start"] - before["_fivetran_end"]).total_seconds() == 0.001
        assert [row["_fivetran_active"] for row in life] == [*[False] * (len(life) - 1), True]


class OnDuckdb:
    """Spark's SQL in DuckDB, over views of the lives."""

    def __init__(self, world, spoil=None):
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone = 'UTC'")
        for table in KEYS:
            rows = [{**row, "valid_from": start, "valid_to": end} for start, end, row in world.lives(table)]
            if spoil is not None:
                spoil(table, rows)
            self.connection.register(table, pa.Table.from_pylist(rows))

    def sql(self, query):
        [statement] = sqlglot.transpile(query, read="spark", write="duckdb")
        self.found = self.connection.sql(statement)
        return self

    def collect(self):
        return self.found.fetchall()

    def toArrow(self):
        return self.found.to_arrow_table()


def broken(spoil=None):
    world, days = lived()
    audits = audited(OnDuckdb(world, spoil), world, [starts_of(day) for day in days])
    return {(table, audit) for table, audit, count in audits if count}


def test_generated_data_passes_every_audit():
    assert not broken()


def closed(rows):
    return next(row for row in rows if row["valid_to"] is not None)


SPOILT = {
    "an end is the next start": lambda rows: closed(rows).update(valid_to=closed(rows)["valid_from"]),
    "one open version": lambda rows: rows.append({**closed(rows), "valid_to": None}),
    "starts are distinct": lambda rows: rows.append(dict(rows[0])),
    "nothing of zero length": lambda rows: closed(rows).update(valid_to=closed(rows)["valid_from"]),
    "versions are those generated": lambda rows: rows[0].update(name="another"),
    "no NULL key": lambda rows: rows.append({**rows[0], "account_id": None}),
    "references are valid in their range": lambda rows: rows[0].update(customer_id=-1),
    "starts lie within their batch": lambda rows: rows.pop(),
}


@pytest.mark.parametrize("audit", SPOILT)
def test_every_audit_finds_damaged_data(audit):
    def spoil(table, rows):
        if table == "account":
            SPOILT[audit](rows)

    assert ("account", audit) in broken(spoil)
