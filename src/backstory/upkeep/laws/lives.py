"""The rows of a table as lives of records, one after another, in Spark's tasks."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from backstory.errors import MAX_KEYS
from backstory.model.keys import key_text
from backstory.stores.iceberg.literals import column, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SUSPECT: Final = "law suspect"
FOUND: Final = "law string, violations bigint, keys array<string>"
_FOUND: Final = pa.schema({"law": pa.string(), "violations": pa.int64(), "keys": pa.list_(pa.string())})
# What is wrong with the rows of one record, by the columns that they were selected with.
Judge = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, int]]


def suspects(rows: "DataFrame", identity: Sequence[str], order: str, healthy: "Column") -> "DataFrame":
    """Every row of the records that have one that is not surely healthy, record by record."""
    from pyspark.sql import Window
    from pyspark.sql.functions import coalesce, lit
    from pyspark.sql.functions import max as greatest

    key = [quoted(name) for name in identity]
    marked = rows.withColumn(SUSPECT, ~coalesce(healthy, lit(False)))
    marked = marked.withColumn(SUSPECT, greatest(SUSPECT).over(Window.partitionBy(*key)))
    return marked.where(column(SUSPECT)).drop(SUSPECT).sortWithinPartitions(*key, quoted(order))


def lives(batches: Iterable[pa.RecordBatch], identity: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of each record; those of one stand side by side."""
    pending: pa.Table | None = None
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        rows = rows if pending is None else pa.concat_tables([pending, rows])
        keys = [repr(row) for row in rows.select(list(identity)).to_pylist()]
        begin = 0
        for place in range(1, rows.num_rows):
            if keys[place] != keys[begin]:
                yield rows.slice(begin, place - begin)
                begin = place
        pending = rows.slice(begin)
    if pending is not None and pending.num_rows:
        yield pending


def examine(
    judge: Judge, identity: Sequence[str], shown: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: how often each law is broken, and up to ten keys that break it."""
    found = broken_by(judge, shown, (life.to_pylist() for life in lives(batches, identity)))
    yield pa.RecordBatch.from_pylist(found, _FOUND)


def broken_by(
    judge: Judge, shown: Sequence[str], records: Iterable[Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """How often the rows of records break each law, and up to ten keys that break it."""
    counts: Counter[str] = Counter()
    keys: dict[str, list[str]] = {}
    for rows in records:
        for law, times in judge(rows).items():
            counts[law] += times
            told = keys.setdefault(law, [])
            if len(told) < MAX_KEYS:
                told.append(key_text(shown, [rows[0][name] for name in shown]))
    return [{"law": law, "violations": times, "keys": keys[law]} for law, times in counts.items()]


Broken = dict[str, tuple[int, list[str]]]


def added_up(found: Iterable[Mapping[str, Any]]) -> Broken:
    """The counts of all tasks, and the first ten keys of each law."""
    totals: Broken = {}
    for row in found:
        count, keys = totals.get(row["law"], (0, []))
        both = sorted({*keys, *row["keys"]})[:MAX_KEYS]
        totals[row["law"]] = (count + row["violations"], both)
    return totals
