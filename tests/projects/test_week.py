"""A database that changes every night, declared by one pattern: each night can be read again."""

import random
from collections import Counter
from datetime import UTC, datetime

import psycopg
import pytest
from depth import DEPTH

pytestmark = [pytest.mark.spark, pytest.mark.database]

TABLES, NIGHTS, RECORDS = (30, 7, 40) if DEPTH == "laws" else (4, 4, 8)
# The nights on which a table is new, gets a column, is dropped or gets another key. These are four tables.
NEW, WIDER, GONE, REKEYED = (2, 3, 4, 5) if DEPTH == "laws" else (1, 1, 2, 2)
LIST = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'erp'::regnamespace"


class Erp:
    """A database with tables of several kinds and random changes."""

    def __init__(self, url):
        self.connection, self.chance = psycopg.connect(url, autocommit=True), random.Random(4711)
        self.execute(
            "CREATE SCHEMA erp; CREATE TABLE erp.tmp_1 (id int); CREATE TABLE erp.log (day int, name text)"
        )
        for number in range(1, TABLES):
            self.create(f"t{number}")

    def execute(self, statement, *values):
        self.connection.execute(statement, values or None)

    def create(self, name):
        """A table whose key has one column, or two if its number is even."""
        key = "id, part" if int(name[1:]) % 2 == 0 else "id"
        self.execute(
            f"CREATE TABLE erp.{name} (name text, id int, part int DEFAULT 0, price numeric(10,2), at timestamptz,"
            f" PRIMARY KEY ({key})); INSERT INTO erp.{name} (id) VALUES (0)"
        )

    def change(self):
        """Insert, update and delete some records of most tables."""
        self.execute("INSERT INTO erp.log VALUES (%s, %s)", self.chance.randint(1, 2), "in")
        for name in self.tables() - {"log"}:
            for _ in range(self.chance.randint(0, RECORDS)):
                id_, price = self.chance.randint(1, RECORDS), self.chance.randint(0, 5) / 4
                if self.chance.random() < 0.2:
                    self.execute(f"DELETE FROM erp.{name} WHERE id = %s", id_)
                else:
                    self.execute(
                        f"INSERT INTO erp.{name} (id, name, price, at) VALUES (%s, %s, %s, '2026-03-29 01:30+00')"
                        f" ON CONFLICT ON CONSTRAINT {name}_pkey DO UPDATE SET price = excluded.price",
                        id_,
                        f"n{id_}",
                        price,
                    )

    def tables(self):
        return {name for (name,) in self.connection.execute(LIST)} - {"tmp_1"}

    def rows(self, name):
        """The rows of a table, each with its count."""
        cursor = self.connection.execute(f"SELECT * FROM erp.{name}")
        columns = [column.name for column in cursor.description]
        return Counter(row_of(dict(zip(columns, row, strict=True))) for row in cursor)


def row_of(values):
    """A row as pairs of column and value; times are seconds, which have no zone."""
    return frozenset(
        (name, value.timestamp() if isinstance(value, datetime) else value) for name, value in values.items()
    )


@pytest.fixture
def erp(postgres_url):
    erp = Erp(postgres_url)
    yield erp
    erp.connection.close()


def rows_at(team, table, at, columns):
    """The rows of a history at a time, each with its count."""
    rows = Counter()
    for row in team.warehouse.table(f"{team.schema}.{table}").as_of(at).collect():
        values = row.asDict()
        rows[row_of({name: values[name] for name in columns})] += values.get("copies", 1)
    return rows


def test_each_night_of_a_week_can_be_read_again(team, erp, postgres_url):
    source = f"'{postgres_url}?table=erp.{{table}}'"
    team.declare(f"tables:\n  s.*: {{source: {source}, except: tmp_*, key: row, restart: true}}\n")
    nights, failures, archives = [], [], []
    for night in range(NIGHTS):
        erp.change()
        if night == NEW:
            erp.create(f"t{TABLES}")
        if night == WIDER:
            erp.execute("ALTER TABLE erp.t1 ADD COLUMN note text DEFAULT 'new'")
        if night == GONE:
            erp.execute("DROP TABLE erp.t3")
        if night == REKEYED:
            erp.execute(
                "ALTER TABLE erp.t2 DROP COLUMN part; DELETE FROM erp.t2 WHERE id > 1; ALTER TABLE erp.t2 ADD PRIMARY KEY (id)"
            )
        receipts = team.run()
        failures.append({name: each.error.code for name, each in receipts.items() if each.error is not None})
        archives += receipts["t2"].archives
        nights.append((datetime.now(UTC), {name: erp.rows(name) for name in erp.tables()}))
    assert failures == [{}] * GONE + [{"t3": "no-table"}] * (NIGHTS - GONE)
    assert len(archives) == 1
    for night, (time, tables) in enumerate(nights):
        for name, rows in tables.items():
            table = archives[0].partition(".")[2] if name == "t2" and night < REKEYED else name
            columns = {column for row in rows for column, _ in row}
            assert rows_at(team, table, time, columns) == rows, (night, name)
