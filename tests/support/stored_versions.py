"""Rows of layout `versions` for tests. Small numbers represent instants and recorded times."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from committing import commit, make
from specification.rewind import recorded

from backstory.model.change import Change, Note
from backstory.model.instant import iso
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import OWN_COLUMNS, RECORDED
from backstory.stores.tables import existing

ZERO = datetime(2024, 1, 1, tzinfo=UTC)


def t(number):
    """The instant of a number, or None for None."""
    return None if number is None else ZERO + timedelta(days=number)


def n(instant):
    """The number of an instant."""
    return None if instant is None else (instant - ZERO).days


def version(key, value, start, end=None, **memory):
    """A live row as a fold returns it. A fact or a mark has no length."""
    role = memory.get("role")
    stop = t(start) if role else t(end)
    return {
        "id": key,
        "v": value,
        "valid_from": t(start),
        "valid_to": stop,
        "is_current": stop is None,
        "recorded_at": None,
        "_memory": memory or None,
    }


def life(*folds, since=1):
    """The stored rows after commits at the recorded times 1, 2, …, each with the content at that time."""
    rows = []
    for number, fold in enumerate(folds, since):
        rows = recorded(rows, fold, t(number), ("id",), ())
    return rows


def shown(rows):
    """Versions and facts as sorted strings: `1 a [10,20)`."""
    lines = []
    for row in rows:
        memory = row["_memory"] or {}
        role, end = memory.get("role"), n(row["valid_to"])
        span = f"{n(row['valid_from'])}" if role else f"[{n(row['valid_from'])},{'' if end is None else end})"
        lines.append(" ".join(filter(None, [str(row["id"]), str(row["v"]), span, role, memory.get("kind")])))
    return sorted(lines)


def random_life(chance, keys=3, commits=5):
    """Commits of random lives of a few keys, with facts and marks, and the life at each recorded time."""
    folds = []
    for _ in range(commits):
        fold = []
        for key in range(keys):
            starts = sorted(chance.sample(range(1, 9), chance.randint(0, 3)))
            ends = [*starts[1:], chance.choice([None, 9])] if starts else []
            fold += [version(key, chance.choice("ab"), a, b) for a, b in zip(starts, ends, strict=True)]
            if chance.random() < 0.3:
                fold.append(version(key, None, chance.randint(1, 8), role="fact", kind="delete"))
        if chance.random() < 0.3:
            fold.append(version(None, None, 9, role="fact", kind="copy"))
        folds.append(fold)
    return folds


COLUMNS = (Column("id", ColumnType(Kind.LONG)), Column("v", ColumnType(Kind.STRING)), *OWN_COLUMNS)


def make_table(store, name, rows=None, keyed=COLUMNS[0].type):
    """A table of layout `versions` with these rows."""
    table = TableName("lifecycle", name)
    make(store, Shape(table, (Column("id", keyed), *COLUMNS[1:]), ("id",), Layout.VERSIONS))
    if rows:
        put(store, table, rows)
    return table


def put(store, table, rows, gone=None, properties=None, **options):
    """Commit rows unchanged. `gone` is a condition for the rows that they replace."""
    from pyspark.sql.pandas.types import to_arrow_schema

    stored = existing(store, table)
    frame = store.spark.table(store.sql_name(table))
    come = pa.Table.from_pylist([dict(row) for row in rows], to_arrow_schema(frame.schema)) if rows else None
    places = frame.where(gone).select("_file", "_pos") if gone else None
    newest = max((row["recorded_at"] for row in rows), default=None)
    note = Note("native", f"token {newest}", {**({RECORDED: iso(newest)} if newest else {}), **options})
    return commit(store, stored, Change(added=come, removed=places, properties=properties or {}), note)


def rows_in(store, table, *more):
    """All stored rows, including memory."""
    frame = store.spark.table(store.sql_name(table))
    return [plain(row) for row in frame.select("*", *more).toArrow().to_pylist()]


def plain(row):
    """A stored row in the form of the rule: instants in UTC, without fields that are NULL."""
    memory = {name: utc(each) for name, each in sorted((row["_memory"] or {}).items()) if each is not None}
    return {name: utc(each) for name, each in row.items()} | {"_memory": memory or None}


def utc(value):
    """The value as it is stored: an instant in UTC, or an enum's string."""
    if isinstance(value, str):
        return str(value)
    return value.astimezone(UTC) if isinstance(value, datetime) else value
