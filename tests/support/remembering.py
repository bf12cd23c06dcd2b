"""Tables of layout `versions` as text, for tests: rows with both axes as native.md draws them.

`k v from to recorded role ended before kind`, separated by blanks. Instants and recorded times are numbers,
and `~` is NULL. `day(10)` is the instant of a number. `lives` writes versions as `k: a[10,20) b[20,)`.
"""

from collections import defaultdict
from datetime import UTC, datetime, timedelta

from committing import append_past, make

from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import OWN_COLUMNS
from backstory.stores.iceberg.create import drop
from backstory.table import Table

ZERO = datetime(2024, 2, 29, tzinfo=UTC)

E13 = """
k a 10 15 2 ~    3 20 ~
k c 15 20 3 ~    ~ ~  ~
k b 20 ~  2 ~    ~ ~  ~
k a 10 10 1 past 2 ~  ~
"""
# Two rows of its life are remembered facts: a delete of n, and a mark of a copy, whose key is NULL.
E14 = """
k a 10 20 4 ~    5 ~  ~
k b 20 ~  5 ~    ~ ~  ~
k a 10 10 1 past 2 ~  ~
k a 10 10 2 past 4 20 ~
k x 20 20 2 past 4 ~  ~
m y 20 20 3 past 4 ~  ~
n z 30 30 3 fact ~ ~  delete
~ ~ 30 30 3 fact ~ ~  copy
"""


def day(number):
    """The instant, or recorded time, of a number."""
    return ZERO + timedelta(days=float(number))


def number(instant):
    return "" if instant is None else f"{(instant - ZERO) / timedelta(days=1):g}"


def remembered(store, name, text, value="v"):
    """A table `reading.<name>` of these rows, which are not checked."""
    table = TableName("reading", name)
    drop(store, table)
    columns = (Column("k", ColumnType(Kind.STRING)), Column(value, ColumnType(Kind.STRING)), *OWN_COLUMNS)
    make(store, Shape(table, columns, ("k",), Layout.VERSIONS))
    append_past(store, table, [_row(line.split()) for line in text.strip().splitlines()])
    return Table(store, table)


def _row(words):
    key, value, start, end, recorded, role, ended, before, kind = (
        None if word == "~" else word for word in words
    )
    start, end, recorded, ended, before = (
        None if each is None else day(each) for each in (start, end, recorded, ended, before)
    )
    memory = {"role": role, "ended_at": ended, "end_before": before, "kind": kind}
    return key, value, start, end, end is None, recorded, memory if any(memory.values()) else None


def lives(rows):
    """The rows with `k`, `v`, `valid_from` and `valid_to` as lines, one per record, in their order."""
    by_record = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["k"], row["valid_from"])):
        by_record[row["k"]].append(f"{row['v']}[{number(row['valid_from'])},{number(row['valid_to'])})")
    return [f"{key}: {' '.join(spans)}" for key, spans in by_record.items()]
