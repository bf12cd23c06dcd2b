"""Copies of a part of the source, and copies among events: what they meet in their table (V41, V69)."""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from backstory.doors.native.evolution import Evolved
from backstory.doors.native.feeds.logs import stored_log
from backstory.doors.native.feeds.stored import stored_marks, stored_truncates
from backstory.doors.native.field_ids import ids_of_columns
from backstory.doors.native.instants import Placing
from backstory.doors.native.request import bad_option
from backstory.doors.native.settings import TableSettings
from backstory.formats.delivered import shaped
from backstory.model.layout import MEMORY, VALID_FROM
from backstory.model.remembered import SEQUENCE
from backstory.model.schema import Shape
from backstory.model.spelling import spelling_hint
from backstory.reading.keys import exact
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.strategies.copies.rows import mark, micros
from backstory.strategies.copies.terms import CopyTerms
from backstory.strategies.feeds.copy_plan import Among
from backstory.strategies.feeds.terms import FeedTerms, Scope


def typed_scope(given: Mapping[str, Any], shape: Shape, settings: TableSettings) -> Scope | None:
    """The scope with values of the columns' types, by name.

    UsageError for columns that there are not, and for those that make no versions: from their values nobody
    knows later which records were in the scope.
    """
    if not given:
        return None
    users = {each.name: each.type for each in shape.user_columns}
    if lacking := [name for name in given if name not in users or not users[name].flat]:
        raise bad_option(
            f"`scope=` names no flat column of the copy: {', '.join(lacking)}.",
            f"{spelling_hint(lacking, users)}Its columns are {', '.join(users)}.",
        )
    if untracked := [name for name in given if name not in shape.key and not settings.tracks(name)]:
        raise bad_option(
            f"`scope=` names columns without history: {', '.join(untracked)}.",
            "Use key columns, or columns whose changes make versions.",
        )
    return tuple((name, exact(name, given[name], users[name])) for name in sorted(given))


def scope_text(scope: Scope | None) -> str | None:
    """The scope as marks keep it: JSON, keys sorted, values that JSON has not as their texts (V2)."""
    if scope is None:
        return None
    return json.dumps({name: _plain(value) for name, value in scope}, ensure_ascii=False, sort_keys=True)


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str) else str(value)


def among_events(
    store: Store, table: StoredTable | None, evolved: Evolved, place: Placing, terms: CopyTerms
) -> Among:
    """What the copy meets: the marks from its instant on, and its own."""
    assert table is not None
    shape, at = evolved.shape, micros_of(place.at)
    data = [each.name for each in shape.user_columns if each.name not in shape.key]
    ids = ids_of_columns(store, table, evolved)
    sequence = dict(terms.memory.parts).get(SEQUENCE)
    settled = tuple(None if each is None else micros_of(each) for each in place.settled or ())
    feed = FeedTerms(
        columns=shape.columns,
        key=shape.key,
        tracked=terms.tracked,
        recorded=terms.recorded,
        numbers={name: ids[name] for name in data},
        overwritten=terms.overwritten,
        sequence=() if sequence is None else tuple(name for name, _ in sequence.parts),
        settled=settled,  # type: ignore[arg-type]  # no or two
        ids=terms.ids,
        log=(known := stored_log(table.properties)) is not None,
    )
    marks = stored_marks(store, table, shape.columns, at)
    if known is not None and known.truncate is not None:
        # Each record has its own instant of the truncates of a log.
        before = stored_truncates(store, table, shape.columns)
        marks = pa.concat_tables([marks, before.filter(pa.array(micros(before[VALID_FROM]) < at))])
    memory = marks[MEMORY].combine_chunks()
    same = pa.array(
        [
            (each["kind"], each["scope"]) == ("copy", place.scope) and instant == place.at
            for each, instant in zip(memory.to_pylist(), marks[VALID_FROM].to_pylist(), strict=True)
        ],
        pa.bool_(),
    )
    delivered = {each.name for each in evolved.delivered}
    whole = all(name in delivered for name in data)
    columns = None if whole else sorted(ids[name] for name in delivered)
    own = mark(at, terms.recorded, terms.memory, columns, place.scope)
    others = marks.filter(pa.compute.invert(same))
    own_marks = pa.concat_tables(
        [shaped(each, shape.columns, ids=terms.ids) for each in (others.drop_columns(["_file", "_pos"]), own)]
    )
    return Among(feed, at, own_marks, (*terms.compared, *terms.renewed), place.mark is not None)
