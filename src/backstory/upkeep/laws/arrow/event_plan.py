"""The laws of a small event log: every record is judged, where Spark would find those to look at."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from backstory.errors import MAX_KEYS
from backstory.journal.chain import WATERMARK
from backstory.journal.small_log import log_rows_here, snapshots_here
from backstory.reading.arrow.knowledge import micros
from backstory.reading.arrow.versions import ops
from backstory.reading.frames.event_logs import identity_names, system_columns
from backstory.stores.metadata.ordered import rows_in_order
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import values_of
from backstory.upkeep.laws.arrow.rows import records
from backstory.upkeep.laws.event_plan import KEYED, OP, TIME, ByEvents, facts_of, wrong_offsets
from backstory.upkeep.laws.lives import Broken, added_up, broken_by
from backstory.upkeep.laws.terms import Law


def broken_log(files: Files) -> Broken:
    """The laws that a dataset's rows break, as `broken_log` of Spark tells them."""
    table = files.table
    names, shape = system_columns(table), table.shape
    log = facts_of(table, names, table.newest_property(WATERMARK))
    identity = (list(shape.key) if log.corrects else identity_names(names, shape)) or [names["offset"]]
    shown = shape.key or (names["offset"],)
    asked = [names[each] for each in ("offset", "op", "event_time", "observed") if names[each] is not None]
    rows = rows_in_order(files, [*asked, *shown], [*identity, names["offset"]])
    keyed = [rows[name].is_valid().to_pylist() for name in shape.key]
    told: dict[str, Sequence[Any]] = {name: values_of(rows[name]) for name in shown}
    told |= {OP: ops(rows, names).to_pylist(), TIME: micros(rows, names["event_time"])}
    told[KEYED] = [all(row) for row in zip(*keyed, strict=True)] if keyed else [True] * len(rows)
    broken = added_up(broken_by(ByEvents(log), shown, records(rows, identity, told)))
    missed = _offsets(files, rows[names["offset"]])
    return broken | ({Law.OFFSETS.value: missed} if missed[0] else {})


def _offsets(files: Files, offsets: pa.ChunkedArray) -> tuple[int, list[str]]:
    """How many offsets are missing, too many or of no block, and the first ten of them."""
    told, wanted = wrong_offsets(log_rows_here(files), snapshots_here(files.table), len(offsets))
    there = Counter(offsets.to_pylist())
    wrong = {each: off for each, times in there.items() if (off := abs(times - _due(each, wanted)))}
    missing = wanted - sum(_due(each, wanted) for each in there)
    if not wrong and not missing:
        return len(told), told[:MAX_KEYS]
    gaps = islice((number for number in range(wanted) if number not in there), MAX_KEYS)
    found = sorted(chain(wrong, gaps), key=lambda each: (each is not None, each))
    return sum(wrong.values()) + missing + len(told), list(map(str, found[:MAX_KEYS]))


def _due(offset: int | None, wanted: int) -> int:
    """How many rows an offset should have."""
    return int(offset is not None and 0 <= offset < wanted)
