"""How often rows break each law, and the first keys that do: on the driver and in Spark's tasks."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.model.keys import key_text
from backstory.stores.metadata.values import values_of
from backstory.upkeep.laws.queries import LAW_OF, SUSPECT

FOUND: Final = "law string, violations bigint, keys array<string>"
_FOUND: Final = pa.schema({"law": pa.string(), "violations": pa.int64(), "keys": pa.list_(pa.string())})
# How often the rows of one record break the laws that no query judges.
Judge = Callable[[pa.Table], Mapping[str, int]]
Broken = dict[str, tuple[int, list[str]]]


def lives(batches: Iterable[pa.Table], identity: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of each record, which come one after another."""
    pending: pa.Table | None = None
    for batch in batches:
        rows = batch if pending is None else pa.concat_tables([pending, batch])
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
    judge: Judge | None, identity: Sequence[str], shown: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """How often each law is broken by rows in the order of their records, and up to ten keys of each.

    With a judge the records that the query suspects are judged by it, too.
    """
    counts: Counter[str] = Counter()
    keys: dict[str, dict[str, None]] = {}

    def add(law: str, times: int, rows: pa.Table) -> None:
        counts[law] += times
        texts = keys.setdefault(law, {})
        for text in _texts(rows, shown):
            if len(texts) == MAX_KEYS:
                break
            texts[text] = None

    def suspects() -> Iterator[pa.Table]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for name in LAW_OF.keys() & set(rows.column_names):
                if times := pc.sum(rows[name]).as_py():
                    add(LAW_OF[name], times, rows.filter(rows[name]))
            yield rows.filter(rows[SUSPECT]) if judge else rows.slice(0, 0)

    for life in lives(suspects(), identity):
        for law, times in judge(life).items() if judge else ():
            add(law, times, life)
    found = [{"law": law, "violations": times, "keys": [*keys[law]]} for law, times in counts.items()]
    yield pa.RecordBatch.from_pylist(found, _FOUND)


def _texts(rows: pa.Table, shown: Sequence[str]) -> Iterator[str]:
    """The keys of rows as people write them."""
    for begin in range(0, rows.num_rows, MAX_KEYS):
        part = rows.slice(begin, MAX_KEYS)
        for values in zip(*(values_of(part[name]) for name in shown), strict=True):
            yield key_text(shown, values)


def added_up(found: Iterable[Mapping[str, object]]) -> Broken:
    """The counts of all tasks, and the first ten keys of each law."""
    totals: Broken = {}
    for row in found:
        law, times, more = row["law"], row["violations"], row["keys"]
        assert isinstance(law, str)
        assert isinstance(times, int)
        assert isinstance(more, list)
        count, keys = totals.get(law, (0, []))
        totals[law] = (count + times, sorted({*keys, *more})[:MAX_KEYS])
    return totals
