"""How the events of one commit are sorted, as names of columns, for Spark's rows and for arrays."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from backstory.strategies.events.sides import LEAD, OP, PLACE, TIME, data_names
from backstory.strategies.events.terms import EventTerms, Strategy
from backstory.strategies.values import ranks, sorted_by


def sort_columns(terms: EventTerms, data: Sequence[str]) -> list[str]:
    """The columns that events are sorted by, ascending, NULL first (section 2.1, step 7).

    `data` are the data columns that can be sorted by. They leave no tie open where events have no key;
    elsewhere no two events have one key and one operation.
    """
    if terms.strategy is Strategy.CHANGELOG:
        return [PLACE]
    if terms.strategy is Strategy.APPEND:
        return [LEAD, *data]
    key = list(terms.key)
    if terms.strategy is Strategy.LEDGER:
        key.insert(0, LEAD)
    elif terms.time_at is not None:
        key.insert(terms.time_at, LEAD)
    return [*key, OP, TIME]


def sorted_places(events: pa.Table, terms: EventTerms) -> np.ndarray:
    """The places of events in their order."""
    data = [name for name in data_names(events) if not holds_map(events[name].type)]
    return sorted_by([ranks(events[name]) for name in sort_columns(terms, data)], len(events))


def holds_map(type_: pa.DataType) -> bool:
    """Whether values of a type hold maps, which have no order."""
    inner = (type_.field(place).type for place in range(type_.num_fields))
    return pa.types.is_map(type_) or any(map(holds_map, inner))
