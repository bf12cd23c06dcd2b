"""`check`: the laws of a table's layout, each with how often it is broken and by which keys (V114, V115)."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backstory.errors import MAX_KEYS, BackstoryError, Failed, Refused, TryAgain, UsageError
from backstory.model import versions_layout
from backstory.model.instant import parse_instant
from backstory.model.layout import Layout
from backstory.model.receipt import attempt_each, exit_code
from backstory.model.table import Column, TableName
from backstory.model.types import Kind
from backstory.model.versions_layout import IGNORE, OVERWRITE, SETTLED, TRACK
from backstory.reading.histories import REQUIRED, SYSTEM_COLUMNS
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import (
    KEY,
    LAYOUT,
    LAYOUT_VERSION,
    Store,
    StoredTable,
    existing_as_is,
    tables,
)
from backstory.stores.port import TableLike
from backstory.upkeep.laws.frames import broken_log, broken_rows, broken_spans
from backstory.upkeep.laws.tally import Broken
from backstory.upkeep.laws.terms import LAWS, TIMELY, Law

if TYPE_CHECKING:
    from backstory.stores.metadata.table_rows import TableReader

Known = TypeVar("Known", bound=TableLike)
# The code of the error for a table of no layout that backstory knows.
STRANGE: Final = "unknown-layout"
# How a law stands, or that nobody could look.
OK, VIOLATED, UNCHECKED = "ok", "violated", "unchecked"


# What breaks no law and is worth a look: what other programs did since the last delivery.
# A record that is of no law: it mentions what a reader should know.
NOTED: Final = "noted"
_NOTED: Final = {"table": "", "law": "foreign-writes", "violations": 0, "keys": [], "status": NOTED}


def check(store: Store, table: TableName) -> list[dict[str, Any]]:
    """A record `{"table", "law", "violations", "keys", "status"}` for each law of the layout, in one scan.

    `violations` is 0 and `status` is `ok` where the law holds, else `violated`; `keys` are up to ten, as
    people write them; of `offsets` they are offsets, of `properties` names of properties and columns. What
    other programs did since the last delivery is a record of its own, with status `noted`.
    UsageError for a table that is not there, or of no layout that backstory knows.
    """
    with translate_faults(table):
        stored = require_known_layout(existing_as_is(store, table))
        return _records(stored, _find_broken(store, stored) if stored.rows else {})


def check_files_first(store: Store, table: TableName) -> list[dict[str, Any]]:
    """The same out of the table's files if they can be read without Spark and the memory holds them."""
    from backstory.stores.metadata.catalogs import SessionCatalog
    from backstory.stores.metadata.deletes import Unreadable
    from backstory.stores.metadata.table_rows import TableReader

    catalog = SessionCatalog(store)
    with translate_faults(table):
        described = catalog.describe(table)
    if described is not None:
        with store.memory.lease() as lease, suppress(Unreadable, OSError):
            return check_small(TableReader(described, catalog, lease))
    return check(store, table)


def check_small(files: "TableReader") -> list[dict[str, Any]]:
    """The same of a small table, out of its files; Unreadable for what Spark alone reads."""
    table = require_known_layout(files.table)
    return _records(table, _find_broken_in_files(files) if table.rows else {})


def _records(table: TableLike, broken: Broken) -> list[dict[str, Any]]:
    wrong = sorted(set(misfits(table)))
    if wrong:
        broken = {**broken, Law.PROPERTIES: (len(wrong), wrong[:MAX_KEYS])}
    laws = ((law, *broken.get(law, (0, []))) for law in LAWS[table.shape.layout])
    foreign = table.foreign_writes
    return [
        *([{**_NOTED, "table": str(table.shape.table), "keys": list(foreign)}] if foreign else []),
        *(
            {
                "table": str(table.shape.table),
                "law": law.value,
                "violations": times,
                "keys": keys,
                "status": VIOLATED if times else OK,
            }
            for law, times, keys in laws
        ),
    ]


def check_tables(store: Store, named: Sequence[TableName], *, every: bool = False) -> list[dict[str, Any]]:
    """The records of the tables that are named, or of every one whose layout is known.

    What keeps one from being checked is raised; of several once all were, and `results` of the error are the
    records, with the status `unchecked` of what could not be.
    """
    names = tables(store) if every else named
    found = attempt_each(
        names,
        partial(check_files_first, store),
        every=every,
        alone=len(named) == 1 and not every,
    )
    told = [record for table in names for record in records(table, found[table])]
    _refuse_unchecked(told, found)
    return told


def _refuse_unchecked(told: Sequence[dict[str, Any]], found: Mapping[TableName, object]) -> None:
    failed = {str(table): each for table, each in found.items() if isinstance(each, BackstoryError)}
    left = {table: error for table, error in failed.items() if error.code != STRANGE}
    if not left:
        return
    kinds = {each.exit_code: each for each in (Failed, UsageError, Refused, TryAgain)}
    why = ", ".join(f"{table} ({error.code})" for table, error in list(left.items())[:MAX_KEYS])
    error = kinds[exit_code(left.values())](
        UNCHECKED,
        f"{len(left)} of {len({each['table'] for each in told})} tables could not be checked: {why}.",
        "Read the records, and each table's error, in the `results` of this exception.",
        list(left),
    )
    error.results = told
    raise error


def records(
    table: TableName | str, found: list[dict[str, Any]] | BackstoryError | None
) -> list[dict[str, Any]]:
    """The records of a table: one of status `unchecked`, with the law NULL, for what could not be read.

    None of a table of no layout that backstory knows.
    """
    if not isinstance(found, BackstoryError):
        return found or []
    if found.code == STRANGE:
        return []
    nothing: dict[str, Any] = {"table": str(table), "law": None, "violations": None, "keys": []}
    return [{**nothing, "status": UNCHECKED, "error": found.to_dict()}]


def require_known_layout(table: Known) -> Known:
    """The table, if backstory knows its layout; UsageError if not."""
    if table.shape.layout is Layout.FOREIGN:
        raise UsageError(
            STRANGE,
            f"backstory does not know the layout of {table.shape.table}.",
            "If another tool keeps a history in it, use `backstory adopt`.",
        )
    return table


def _find_broken(store: Store, table: StoredTable) -> Broken:
    return _check_by_layout(
        table, *(partial(ask, store, table) for ask in (broken_log, broken_spans, broken_rows))
    )


def _find_broken_in_files(files: "TableReader") -> Broken:
    from backstory.upkeep.laws import files as of_files

    asks = (of_files.broken_log, of_files.broken_spans, of_files.broken_rows)
    return _check_by_layout(files.table, *(partial(ask, files) for ask in asks))


def _check_by_layout(
    table: TableLike, log: Callable[[], Broken], spans: Callable[[], Broken], rows: Callable[[], Broken]
) -> Broken:
    """The laws that are broken, by the one of the three checks that is for the table's layout."""
    layout = table.shape.layout
    if not readable(table):
        return {}
    if layout is Layout.ODF:
        return log()
    if layout.span is not None:
        return spans()
    return rows() if Law.UNIQUE_KEY in LAWS[layout] else {}


def readable(table: TableLike) -> bool:
    """Whether its key is told, and the columns of key and layout are there, in types that can be read."""
    wrong = set(misfits(table))
    keyless = KEY in wrong and not table.shape.key
    return not keyless and not wrong & {*table.shape.key, *_own_names(table)}


def _own_names(table: TableLike) -> list[str]:
    span = table.shape.layout.span
    names = [] if span is None else [span.start, span.end, span.flag, span.state]
    names += table.shape.layout.required_columns
    if table.shape.layout is Layout.ODF and table.rows:
        told = _parse_object(table.properties.get(SYSTEM_COLUMNS))
        names += [each for each in map(told.get, REQUIRED) if each]
    if table.shape.layout is Layout.VERSIONS:
        names += [each.name for each in versions_layout.OWN_COLUMNS]
    return [name for name in names if name]


def misfits(table: TableLike) -> Iterator[str]:
    """The properties and columns of a table that do not agree."""
    shape, properties = table.shape, table.properties
    for name, wanted in ((LAYOUT, None), (KEY, None), (LAYOUT_VERSION, "1")):
        if properties.get(name) is None or wanted not in {None, properties[name]}:
            yield name
    if table.rows or shape.layout is not Layout.ODF:  # a dataset has its columns from its first delivery on
        yield from (name for name in shape.key if shape.column(name) is None)
    yield from _strange_columns(shape.columns, _own_names(table), shape.layout)
    if shape.layout is Layout.VERSIONS:
        yield from _strange_settings(table)
    if not shape.key and Law.NULL_KEY in LAWS[shape.layout] and shape.layout.span is not None:
        yield KEY


def _strange_columns(columns: Sequence[Column], own: Sequence[str], layout: Layout) -> Iterator[str]:
    """Columns of the layout that are not there, or of another type."""
    types = {each.name: each.type for each in columns}
    span = layout.span
    for name in dict.fromkeys(own):
        kind = types[name].kind if name in types else None
        times = set() if span is None else {span.start, span.end}
        flags = set() if span is None else {span.flag}
        strange = (name in times and kind not in TIMELY) or (name in flags and kind is not Kind.BOOLEAN)
        if kind is None or strange:
            yield name


def _strange_settings(table: TableLike) -> Iterator[str]:
    """Settings of a native table that cannot be read, or that name columns it does not have (V13)."""
    for name in (TRACK, IGNORE, OVERWRITE):
        named = _parse_list(table.properties.get(name))
        if named is None or set(named) - set(table.shape.names):
            yield name
    told = table.properties.get(SETTLED)
    interval = _parse_list(told)
    if interval is None or not _is_interval(interval):
        yield SETTLED
    if (told is None) != (table.properties.get(versions_layout.MEMORY_SINCE) is None):
        yield versions_layout.MEMORY_SINCE


def _parse_object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _parse_list(text: str | None) -> list[Any] | None:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _is_interval(told: Sequence[Any]) -> bool:
    if not told:
        return True
    try:
        first, last = told
        return first is None or parse_instant(first) <= parse_instant(last)
    except (TypeError, ValueError, UsageError):
        return False
