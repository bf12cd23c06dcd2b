"""The columns of events in the types of tables: the record's own, and what the strategy asks beside them."""

from typing import Final

import pyarrow as pa

from backstory.doors.native.feeds.events import EventTerms
from backstory.formats.delivered import arrow_schema
from backstory.model.types import ColumnType, Kind
from backstory.strategies.feeds.terms import ASSERTED, AT, BEFORE, FURTHER, KIND

_LIST: Final = ColumnType(Kind.LIST, parts=(("element", ColumnType(Kind.INT)),))


def event_columns(terms: EventTerms) -> dict[str, ColumnType]:
    """The type of each column, in their order."""
    own = {AT: ColumnType(Kind.UTC_DATETIME), KIND: ColumnType(Kind.STRING), ASSERTED: _LIST}
    if terms.ordering.types:
        ((_, own[FURTHER]),) = terms.ordering.memory_part
    if terms.before:
        parts = tuple((each.name, each.type) for each in terms.before)
        own[BEFORE] = ColumnType(Kind.STRUCT, parts=parts)
    return {**{each.name: each.type for each in terms.delivered}, **own}


def typed_events(terms: EventTerms, events: pa.Table) -> pa.Table:
    """Events that come from Spark, in the types that they have here."""
    schema = arrow_schema(event_columns(terms))
    return events.select(schema.names).cast(schema)
