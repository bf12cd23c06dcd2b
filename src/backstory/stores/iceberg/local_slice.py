"""The stored rows of some keys, read on this machine: of few files, of few of their row groups."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.memory import TooLarge
from backstory.model.instant import EPOCH, MILLISECOND
from backstory.model.layout import ACTIVE, END, START
from backstory.stores.iceberg.local_rows import LocalRows
from backstory.stores.iceberg.search_bounds import either
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.row_groups import Statistics

INT64: Final = "INT64"
FIRST: Final = datetime.min.replace(tzinfo=EPOCH.tzinfo)
# The columns that tell whether a version had ended.
TELLING: Final = (ACTIVE, END, START)
_MICROSECOND: Final = timedelta(microseconds=1)


def slice_here(
    store: Store, table: StoredTable, names: Sequence[str], keys: pa.Table, since: int | None
) -> pa.Table | None:
    """These columns of the rows of distinct keys, as `read_slice` tells; None where Spark must read them."""
    # Of numbers that are not exact it is Spark's to say which are equal.
    if any(pa.types.is_floating(values.type) for values in keys.columns):
        return None
    among = {name: keys[name].combine_chunks() for name in keys.column_names}
    conditions = [partial(_paired, keys)] if len(among) > 1 else []
    needed = [*(among if conditions else ()), *(TELLING if since is not None else ())]
    if since is not None:
        conditions.append(partial(_touched, since))

    def chosen(rows: pa.Table) -> pa.ChunkedArray:
        return reduce(pc.and_, (condition(rows) for condition in conditions))

    with store.memory.lease() as lease:
        try:
            return LocalRows(store, table, lease).read(
                names,
                needed,
                chosen if conditions else None,
                among=among,
                where=None if since is None else _files(since),
                may_have=None if since is None else partial(_may_be_touched, since),
            )
        except (TooLarge, Unreadable):
            return None


def _paired(keys: pa.Table, rows: pa.Table) -> pa.ChunkedArray:
    """Which rows have all columns of one key."""
    first, *others = keys.column_names
    places, key_places = _places_among(rows[first], keys[first])
    for name in others:
        pairs = zip((places, key_places), _places_among(rows[name], keys[name]), strict=True)
        places, key_places = _places_among(*(pc.add(pc.multiply(a, keys.num_rows), b) for a, b in pairs))
    return pc.is_valid(places)


def _places_among(values: pa.ChunkedArray, among: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """The places of `values`, and of `among` itself, in the distinct values of `among`; NULL is one too."""
    distinct = pc.unique(among)
    return (pc.index_in(each, value_set=distinct).cast(pa.int64()) for each in (values, among))


def _touched(since: int, rows: pa.Table) -> pa.ChunkedArray:
    """Which versions were not closed before an instant."""
    ends, starts = (rows[name].cast(pa.int64()) for name in (END, START))
    late = pc.or_kleene(pc.greater_equal(ends, since - MILLISECOND), pc.greater_equal(starts, since))
    return pc.fill_null(pc.or_kleene(rows[ACTIVE], late), False)


def _may_be_touched(since: int, statistics: Statistics) -> bool:
    """Whether a row group may have such versions."""
    active, *times = (statistics(name) for name in TELLING)
    if active is None or active.max or any(each is None or each.physical_type != INT64 for each in times):
        return True
    end, start = (each.max_raw for each in times)
    return bool(end >= since - MILLISECOND or start >= since)


def _files(since: int) -> Any:
    """The same of files, as Iceberg's JSON has it."""
    return either(
        {"type": "eq", "term": ACTIVE, "value": True},
        {
            "type": "gt-eq",
            "term": END,
            "value": _instant(max((FIRST - EPOCH) // _MICROSECOND, since - MILLISECOND)),
        },
        {"type": "gt-eq", "term": START, "value": _instant(since)},
    )


def _instant(micros: int) -> str:
    return (EPOCH + timedelta(microseconds=micros)).isoformat()
