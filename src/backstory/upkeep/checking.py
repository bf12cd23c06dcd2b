"""`check`: for each law of a table's layout, the number of violations and their keys (V114, V115)."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from backstory.errors import MAX_KEYS, BackstoryError, Failed, Refused, TryAgain, UsageError
from backstory.model import versions_layout
from backstory.model.instant import parse_instant
from backstory.model.layout import Layout
from backstory.model.receipt import attempt_each, exit_code
from backstory.model.table import Column, TableName
from backstory.model.types import Kind
from backstory.model.versions_layout import IGNORE, OVERWRITE, SETTLED, TRACK
from backstory.reading.lifetimes import KINDS_OF_INSTANTS
from backstory.reading.questions import REQUIRED, SYSTEM_COLUMNS
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.schema import KEY, LAYOUT, LAYOUT_VERSION
from backstory.stores.iceberg.store import IcebergStore, existing_as_is, tables
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.port import TableLike
from backstory.upkeep.laws.checks import Broken, broken_in_files, broken_in_table
from backstory.upkeep.laws.terms import LAWS, Law

Known = TypeVar("Known", bound=TableLike)
Parsed = TypeVar("Parsed", dict[str, Any], list[Any])
# The code of the error for a table of unknown layout.
UNKNOWN_LAYOUT: Final = "unknown-layout"
# The statuses of a law.
OK, VIOLATED, UNCHECKED = "ok", "violated", "unchecked"
# The status of a record without a law. It lists commits of other programs since the last delivery.
NOTED: Final = "noted"
_FOREIGN_WRITES: Final = {"table": "", "law": "foreign-writes", "violations": 0, "keys": [], "status": NOTED}


def check(store: IcebergStore, table: TableName) -> list[dict[str, Any]]:
    """Check each law of the layout in one scan.

    Each record has the fields table, law, violations, keys and status.

    If the law holds, `violations` is 0 and `status` is `ok`. Otherwise, `status` is `violated`. `keys` has up
    to ten keys in readable form. For the law `offsets`, the keys are offsets. For `properties`, they are
    names of properties and columns. Commits of other programs since the last delivery have a separate record,
    with status `noted`. Raises UsageError if the table does not exist or has an unknown layout.
    """
    with translate_faults(table):
        stored = require_known_layout(existing_as_is(store, table))
        return _records(stored, partial(broken_in_table, store, stored))


def check_files_first(store: IcebergStore, table: TableName) -> list[dict[str, Any]]:
    """The rows that `check` reports, computed from the table's files if possible, or else by Spark."""
    with translate_faults(table):
        described = store.describe(table)
    if described is not None:
        with store.memory.lease() as lease, suppress(Unreadable, OSError):
            return check_small(TableReader(described, store, lease))
    return check(store, table)


def check_small(files: TableReader) -> list[dict[str, Any]]:
    """The rows that `check` reports, computed from the files of a small table.

    Raises Unreadable if only Spark can read them.
    """
    return _records(require_known_layout(files.table), partial(broken_in_files, files))


def _records(table: TableLike, find_broken: Callable[[], Broken]) -> list[dict[str, Any]]:
    broken, wrong = find_broken() if table.rows and readable(table) else {}, sorted(set(misfits(table)))
    if wrong:
        broken = {**broken, Law.PROPERTIES: (len(wrong), wrong[:MAX_KEYS])}
    laws = ((law, *broken.get(law, (0, []))) for law in LAWS[table.shape.layout])
    foreign = table.foreign_writes
    return [
        *([{**_FOREIGN_WRITES, "table": str(table.shape.table), "keys": list(foreign)}] if foreign else []),
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


def check_tables(
    store: IcebergStore, named: Sequence[TableName], *, every: bool = False
) -> list[dict[str, Any]]:
    """The rows that `check` reports for the named tables, or for every table with a known layout.

    After all tables were checked, their errors are raised as one error. Its `results` are all records, with
    status `unchecked` for each table that failed. A UsageError for a named table, or any error of a single
    table, is raised at once.
    """
    names = tables(store) if every else named
    results = attempt_each(
        names, partial(check_files_first, store), every=every, alone=len(named) == 1 and not every
    )
    all_records = [record for table in names for record in records(table, results[table])]
    _refuse_unchecked(all_records, results)
    return all_records


def _refuse_unchecked(all_records: Sequence[dict[str, Any]], results: Mapping[TableName, object]) -> None:
    failed = {str(table): result for table, result in results.items() if isinstance(result, BackstoryError)}
    left = {table: error for table, error in failed.items() if error.code != UNKNOWN_LAYOUT}
    if not left:
        return
    kinds = {kind.exit_code: kind for kind in (Failed, UsageError, Refused, TryAgain)}
    tables = {record["table"] for record in all_records}
    why = ", ".join(f"{table} ({error.code})" for table, error in list(left.items())[:MAX_KEYS])
    error = kinds[exit_code(left.values())](
        UNCHECKED,
        f"{len(left)} of {len(tables)} tables could not be checked: {why}.",
        "Read the records, and each table's error, in the `results` of this exception.",
        list(left),
    )
    error.results = all_records
    raise error


def records(
    table: TableName | str, result: list[dict[str, Any]] | BackstoryError | None
) -> list[dict[str, Any]]:
    """The records of a table's result. For an error, there is one record with status `unchecked` and no law.

    A table of unknown layout has no records.
    """
    if not isinstance(result, BackstoryError):
        return result or []
    if result.code == UNKNOWN_LAYOUT:
        return []
    nothing: dict[str, Any] = {"table": str(table), "law": None, "violations": None, "keys": []}
    return [{**nothing, "status": UNCHECKED, "error": result.to_dict()}]


def require_known_layout(table: Known) -> Known:
    """The table, if its layout is known. Raises UsageError otherwise."""
    if table.shape.layout is Layout.FOREIGN:
        raise UsageError(
            UNKNOWN_LAYOUT,
            f"The layout of {table.shape.table} is unknown.",
            "If another tool keeps a history in it, use `backstory adopt`.",
        )
    return table


def readable(table: TableLike) -> bool:
    """Whether the table has a key, and the columns of its key and layout exist with readable types."""
    wrong = set(misfits(table))
    keyless = KEY in wrong and not table.shape.key
    return not keyless and not wrong & {*table.shape.key, *_own_names(table)}


def _own_names(table: TableLike) -> list[str]:
    span = table.shape.layout.span
    names = [] if span is None else [span.start, span.end, span.flag, span.state]
    names += table.shape.layout.required_columns
    if table.shape.layout is Layout.ODF and table.rows:
        columns = _parse(table.properties.get(SYSTEM_COLUMNS), {}) or {}
        names += [name for name in map(columns.get, REQUIRED) if name]
    if table.shape.layout is Layout.VERSIONS:
        names += [column.name for column in versions_layout.OWN_COLUMNS]
    return [name for name in names if name]


def misfits(table: TableLike) -> Iterator[str]:
    """The properties and columns of a table that do not match its layout."""
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
    """The columns of the layout that are missing or have the wrong type."""
    kinds, span = {column.name: column.type.kind for column in columns}, layout.span
    wanted: dict[str, Collection[Kind]] = {}
    if span is not None:
        wanted = {span.start: KINDS_OF_INSTANTS, span.end: KINDS_OF_INSTANTS, span.flag: {Kind.BOOLEAN}}
    for name in dict.fromkeys(own):
        if name not in kinds or kinds[name] not in wanted.get(name, Kind):
            yield name


def _strange_settings(table: TableLike) -> Iterator[str]:
    """A native table's settings that cannot be parsed, or that name columns that the table lacks (V13)."""
    for name in (TRACK, IGNORE, OVERWRITE):
        named = _parse(table.properties.get(name), [])
        if named is None or set(named) - set(table.shape.names):
            yield name
    settled = table.properties.get(SETTLED)
    interval = _parse(settled, [])
    if interval is None or not _is_interval(interval):
        yield SETTLED
    if (settled is None) != (table.properties.get(versions_layout.MEMORY_SINCE) is None):
        yield versions_layout.MEMORY_SINCE


def _parse(text: str | None, empty: Parsed) -> Parsed | None:
    """The JSON object or list in a string, `empty` if there is no string, or None for any other string."""
    try:
        parsed = json.loads(text) if text else empty
    except ValueError:
        return None
    return parsed if isinstance(parsed, type(empty)) else None


def _is_interval(bounds: Sequence[Any]) -> bool:
    if not bounds:
        return True
    try:
        first, last = bounds
        return first is None or parse_instant(first) <= parse_instant(last)
    except (TypeError, ValueError, UsageError):
        return False
