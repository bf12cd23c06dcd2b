"""The refusals of copies and feeds, with up to ten keys and the option that would allow them (V126).

Before Java and Spark start, small files are checked for the faults that can be found without the table.
"""

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from functools import reduce
from math import ceil
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.doors.native.evolution import refuse_lacking_key, refuse_names
from backstory.doors.native.feeds.events import Ordering
from backstory.doors.native.instants import Interval
from backstory.doors.native.options import ApplyRequest, DeliveryRequest, SnapshotRequest
from backstory.doors.native.sources import SourceRows
from backstory.doors.native.whole_rows import names_whole_row
from backstory.errors import MAX_KEYS, BackstoryError, Refused, bad_option, option
from backstory.formats.csv.table import csv_table, file_source
from backstory.formats.file_options import FileOptions
from backstory.formats.reading import as_files_of_a_user, open_files, refuse_whole_headers
from backstory.formats.source_files import SourceFiles
from backstory.model.change import exceeds
from backstory.model.instant import iso
from backstory.model.values import key_text
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import IcebergStore
from backstory.strategies.copies.comparison import CLAIMED, DIFFERING, FAULTS, NO_KEY, OUTSIDE, SPOILT
from backstory.strategies.feeds import arrival
from backstory.strategies.feeds.terms import FeedTerms
from backstory.strategies.keys import without_key
from backstory.strategies.values import distinct

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Files of up to this many bytes in total are checked whole. Otherwise only their columns are checked.
SMALL: Final = 4 << 20


# Errors in the values of a file that a table's stored options may avoid: types, and a feed's placeholder.
_OF_TYPES: Final = frozenset(["mixed-types"])
_OF_VALUES: Final = _OF_TYPES | {"unreadable-value"}


def refuse_files(source: SourceFiles, request: DeliveryRequest) -> None:
    """Raise the errors in files, and in a full copy's rows and key, that do not depend on the table.

    A feed's table may keep an envelope and columns to drop. Then its JSON is read differently, and its
    reserved names are right.
    """
    is_copy = isinstance(request, SnapshotRequest)
    if not is_copy and source.format in {"json", "jsonl"}:
        return
    with tempfile.TemporaryDirectory(prefix="backstory-checks-") as folder, as_files_of_a_user():
        if sum(file.path.stat().st_size for file in source.files) > SMALL:
            _refuse_columns(names_in_first_file(source, request), request)
            return
        files = open_files(source, Path(folder), request)
        try:
            schema, _ = files.columns()
            _refuse_columns(schema.names, request)
            rows = pa.Table.from_batches(files.batches(schema), schema)
        except Refused as stop:
            if stop.code in (_OF_TYPES if is_copy else _OF_VALUES):
                return
            raise
    if isinstance(request, SnapshotRequest):
        refuse_empty(len(rows), allowed=request.allow_empty)
        _refuse_rows(rows, request.key or ())


def _refuse_columns(names: Sequence[str], request: DeliveryRequest) -> None:
    """Raise the errors in the names of a copy's columns.

    A rename applies to the table, not to the file. If the file has a former name, only the table shows
    whether the rename or the key is wrong.
    """
    if not isinstance(request, SnapshotRequest):
        return
    refuse_names(names)
    key = request.key or ()
    if names and request.rename.keys().isdisjoint(names) and not names_whole_row(key, names):
        refuse_lacking_key(key, names)


def _refuse_rows(rows: pa.Table, key: Sequence[str]) -> None:
    """Raise Refused for faulty rows. Keys whose text form depends on the table are not checked."""
    if not key or not {*key} <= {*rows.column_names} or not are_written_alike(rows, key):
        return
    lacking = without_key(rows, key)
    refuse_null_keys(len(lacking), key, lambda: keys_as_written(lacking, key))
    refuse_duplicates(keys_as_written(distinct(rows, key)[1], key), key)


def names_in_first_file(source: SourceFiles, written: FileOptions) -> list[str]:
    """The columns of the first file, or an empty list if the whole file must be read to find them."""
    first = source.files[0]
    if source.format == "parquet":
        return list(pq.read_schema(first.path).names)
    if source.format != "csv" or first.path.suffix.lower() != ".csv":
        return []
    options = written.csv()
    if written.separator is None:
        refuse_whole_headers([first], options)
    return csv_table(file_source(first.path, first.name, options.encoding), options).names or []


# Losses of fewer values are always allowed.
MASS: Final = 20
WRITTEN_ALIKE: Final = (pa.types.is_string, pa.types.is_integer, pa.types.is_null)


def keys_of(rows: "DataFrame", key: Sequence[str]) -> list[str]:
    """Up to ten sorted keys of a frame's rows."""
    return sorted(key_text(key, list(row)) for row in texts_of(rows, key).distinct().take(MAX_KEYS))


def keys_of_rows(store: IcebergStore, rows: pa.Table, key: Sequence[str]) -> list[str]:
    """Up to ten sorted keys of an Arrow table without repeated keys. Spark formats keys of some types."""
    few = rows.select(list(key)).slice(0, MAX_KEYS)
    if are_written_alike(few, key):
        return keys_as_written(few, key)
    return sorted(key_text(key, list(row)) for row in texts_of(frame_of(store, few), key).collect())


def are_written_alike(rows: pa.Table, key: Sequence[str]) -> bool:
    """Whether Arrow and Spark write values of the key's types as the same strings."""
    return all(any(is_(rows[name].type) for is_ in WRITTEN_ALIKE) for name in key)


def keys_as_written(rows: pa.Table, key: Sequence[str]) -> list[str]:
    """Up to ten sorted keys of rows, for keys that Arrow and Spark write alike."""
    texts = rows.select(list(key)).slice(0, MAX_KEYS)
    texts = pa.table([values.cast(pa.string()) for values in texts.columns], names=texts.column_names)
    return sorted(key_text(key, list(row.values())) for row in texts.to_pylist())


def texts_of(rows: "DataFrame", key: Sequence[str], *beside: "Column") -> "DataFrame":
    """The key of each row as strings, followed by other columns."""
    return rows.select(*(column(name).cast("string").alias(name) for name in key), *beside)


def refuse_null_keys(number: int, key: Sequence[str], keys: Callable[[], list[str]]) -> None:
    """Raise Refused for rows without a key (V47)."""
    if number:
        raise Refused(
            "null-key",
            f"{number} {'row has' if number == 1 else 'rows have'} no value in key "
            f"{'column' if len(key) == 1 else 'columns'} {' or '.join(key)}.",
            "Nothing was written; give each record its key, or leave such rows out.",
            keys(),
        )


def refuse_untyped_key(source: SourceRows, key: Sequence[str], empty: Collection[str]) -> None:
    """Raise Refused if a new table's key has no values, because the key's type is then unknown."""
    if not set(key) & set(empty):
        return
    delivered = source.frame()
    number = delivered.count()
    lacking = [name for name in key if name in empty]
    has_null = reduce(or_, (column(name).isNull() for name in lacking))
    refuse_null_keys(number, lacking, lambda: keys_of(delivered.where(has_null), lacking))
    raise Refused(
        "empty-snapshot",
        "The source has no rows, and the table does not exist, so the column types are unknown.",
        "Nothing was written; begin with a copy that has rows.",
    )


def refuse_duplicates(keys: Sequence[str], key: Sequence[str]) -> None:
    """Raise Refused for rows with the same key and different values."""
    if keys:
        raise Refused(
            "duplicate-key",
            f"Rows with the same key ({', '.join(key)}) have different values.",
            "Nothing was written; deliver each record once, or use a key of more columns.",
            keys,
        )


def refuse_spoilt(keys: Sequence[str], key: Sequence[str]) -> None:
    """Raise Refused for records with two versions at one instant or a version that never began (V119)."""
    if keys:
        raise Refused(
            "spoilt-table",
            "The table has two versions of a record at the same time, or one without `valid_from`; "
            f"the key is ({', '.join(key)}).",
            "Nothing was written; repair the table with `backstory repair`.",
            keys,
        )


def refuse_copy_faults(
    store: IcebergStore, key: Sequence[str], faults: Mapping[str, int], few: Mapping[str, pa.Table]
) -> None:
    """Raise Refused for the first fault of a copy. `few` has a few keys of each fault."""
    keys = {kind: keys_of_rows(store, rows, key) for kind, rows in few.items() if kind in FAULTS}
    refuse_null_keys(faults.get(NO_KEY, 0), key, lambda: keys[NO_KEY])
    refuse_spoilt(keys.get(SPOILT, []), key)
    refuse_duplicates(keys.get(DIFFERING, []), key)
    if number := faults.get(OUTSIDE, 0):
        raise Refused(
            "out-of-scope",
            f"{number} {'row is' if number == 1 else 'rows are'} outside of the copy's scope.",
            "Nothing was written; leave such rows out, or choose the scope that has them.",
            keys[OUTSIDE],
        )
    if faults.get(CLAIMED):
        raise Refused(
            "same-instant",
            "Another copy of this time has some of the records in its scope.",
            "Nothing was written; send each record in only one copy per time.",
            keys[CLAIMED],
        )


def refuse_other_content(at: datetime, keys: Sequence[str], differing: int) -> None:
    """Raise Refused for a second, different copy for the instant of a stored one (V37)."""
    raise Refused(
        "same-instant",
        f"Another copy for {iso(at)} is stored, with {differing} different records.",
        f"Nothing was written; use {option('restate', value=True)} to replace the stored copy, "
        "or give another time.",
        keys,
    )


def decimal_comma_error(stop: BackstoryError, columns: Sequence[str]) -> Refused:
    """The error for columns whose strings are numbers with decimal commas."""
    return Refused(
        stop.code,
        f"{stop.message} Its numbers have decimal commas.",
        f"Nothing was written; use {option('decimal', ',')}.",
        tuple(columns),
    )


def refuse_empty(delivered: int, *, allowed: bool) -> None:
    """Raise Refused for a source without rows, unless it is allowed."""
    if not delivered and not allowed:
        raise Refused(
            "empty-snapshot",
            "The source has no rows.",
            f"Nothing was written; use {option('allow_empty', value=True)} to accept it.",
        )


def refuse_absences(names: Sequence[str], renames: Mapping[str, str], delivery: str) -> None:
    """Raise Refused for missing columns, and for new columns that may be renamed columns (N8)."""
    if not names and not renames:
        return
    lacking = [*dict.fromkeys([*names, *renames])]
    likely = "".join(f"; {new} has the values of {old}" for old, new in renames.items())
    renamed = option("rename", dict(renames)) if renames else "`rename=`"
    renamed += " of a full copy" if delivery == "feed" else ""
    one = len(lacking) == 1
    raise Refused(
        "columns-changed",
        f"{'Column' if one else 'Columns'} {', '.join(lacking)} {'is' if one else 'are'} missing from this "
        f"{delivery}{likely}.",
        f"Nothing was written; use {renamed} if a column has a new name, "
        f"{option('on_schema_change', 'accept')} if it was removed on purpose, or fix the source.",
        lacking,
    )


def refuse_other_columns(missing: Sequence[str], added: Sequence[str]) -> None:
    """Raise Refused for a copy of whole rows with different columns, which would change the rows' keys."""
    if not missing and not added:
        return
    clauses = [f"the copy lacks {', '.join(missing)}"] if missing else []
    if added:
        clauses.append(f"the copy has the new {', '.join(added)}")
    text = " and ".join(clauses)
    raise Refused(
        "columns-changed",
        f"{text[:1].upper()}{text[1:]}. The key is the whole row, so each row with a value there "
        "would be closed and opened as another row.",
        f"Nothing was written; use {option('on_schema_change', 'accept')} to accept this, or fix the source.",
        [*missing, *added],
    )


def refuse_mass_null(
    losses: Mapping[str, tuple[int, int]], request: SnapshotRequest, keys: Callable[[str], list[str]]
) -> None:
    """Raise Refused if more records lose a column's value than is allowed (N4)."""
    excessive = {
        name: (lost, had)
        for name, (lost, had) in losses.items()
        if lost >= MASS and exceeds(lost, request.max_null_ratio, had)
    }
    if not excessive:
        return
    counts = "; ".join(f"{name}: {lost} of {had} records" for name, (lost, had) in excessive.items())
    allowed = max(_share(lost, had) for lost, had in excessive.values())
    few_keys = dict.fromkeys(key for name in excessive for key in keys(name))
    raise Refused(
        "mass-null",
        f"Too many values would become NULL ({counts}), "
        f"more than the allowed share of {request.max_null_ratio}.",
        f"Nothing was written; fix the source, or use {option('max_null_ratio', allowed)} to allow it.",
        list(few_keys)[:MAX_KEYS],
    )


def _share(part: int, whole: int) -> float:
    """The share of a part in the whole, rounded up to hundredths for use as a limit."""
    return ceil(Fraction(100 * part, whole)) / 100


def warnings_of(losses: Mapping[str, tuple[int, int]]) -> list[str]:
    """Warnings for columns that lose at least 20 values, or more than a tenth of their values."""
    return [
        f"column {name}: {lost} of {had} records lose their value"
        for name, (lost, had) in losses.items()
        if lost >= MASS or 10 * lost > had
    ]


def refuse_mass_delete(
    closed: int,
    there: int,
    request: SnapshotRequest,
    keys: Callable[[], list[str]],
    *,
    other_columns: bool = False,
) -> None:
    """Raise Refused if more records would be closed than is allowed (V36).

    If `other_columns` is true, the records are whole rows, and the copy's columns differ from the last
    copy's.
    """
    if exceeds(closed, request.max_delete_ratio, there):
        allowed, none = option("max_delete_ratio", _share(closed, there)), option("deletes", "ignore")
        instead = "" if request.whole_rows else f", or {none} to close none"
        cause = ""
        if other_columns and request.on_schema_change != "accept":
            cause = " The copy has other columns, so each row with a value there is another row."
            instead = f", or {option('on_schema_change', 'accept')} to accept the columns of this copy"
        raise Refused(
            "mass-delete",
            f"{closed} of {there} {'rows' if request.whole_rows else 'records'} would be closed, "
            f"more than the allowed share of {request.max_delete_ratio}.{cause}",
            f"Nothing was written; use {allowed} to allow it{instead}.",
            keys(),
        )


def refuse_feed_faults(
    counts: Mapping[str, int],
    keys: Callable[[str], list[str]],
    terms: FeedTerms,
    ordering: Ordering,
    settled: Interval,
) -> None:
    """Raise Refused for the first fault of a delivery. `keys` returns the keys of a fault."""
    faults = {name: count for name, count in counts.items() if count}
    refuse_null_keys(faults.get(arrival.NO_KEY, 0), terms.key, lambda: keys(arrival.NO_KEY))
    if number := faults.get(arrival.NO_SEQUENCE, 0):
        raise Refused(
            "null-sequence",
            f"{number} {'row has' if number == 1 else 'rows have'} no value in "
            f"{' or '.join(ordering.expressions)}.",
            "Nothing was written; give each change its time and place in the order, or leave such rows out.",
            keys(arrival.NO_SEQUENCE),
        )
    if faults.get(arrival.OUTSIDE):
        raise Refused(
            "outside-restatement",
            f"{_changes(faults[arrival.OUTSIDE])} a time outside the restated window.",
            "Nothing was written; choose a longer window, or apply these changes without `restate_from=`.",
            keys(arrival.OUTSIDE),
        )
    if arrival.OVERLAP in faults:
        raise Refused(
            "settled",
            f"The restated window overlaps the settled time between {_span(settled)}.",
            "Nothing was written; choose a window outside that time.",
        )
    if faults.get(arrival.SETTLED):
        changes = _changes(faults[arrival.SETTLED])
        raise Refused(
            "settled",
            f"{changes} a time between {_span(settled)}, where changes are no longer accepted.",
            f"Nothing was written; use {option('late', 'drop')} to leave such changes out and count them.",
            keys(arrival.SETTLED),
        )
    refuse_spoilt(keys(arrival.SPOILT) if faults.get(arrival.SPOILT) else [], terms.key)
    if faults.get(arrival.CONFLICT):
        raise Refused(
            "sequence-conflict",
            f"{_changes(faults[arrival.CONFLICT])} the same time and order as another change of the record, "
            "but different content.",
            "Nothing was written; order them by a further column: "
            f"{option('sequence_by', [*ordering.expressions, '…'])}.",
            keys(arrival.CONFLICT),
        )


def refuse_empty_restatement(count: int, request: ApplyRequest) -> None:
    """Refuse a restatement of all keys without changes, because it would withdraw everything (V86)."""
    if not count and request.all_keys and request.restate_until is None:
        raise bad_option(
            "The source has no changes, so the end of the restated window is unknown.",
            f"Give the end: {option('restate_until', 'TIME')}.",
        )
    if not count and request.all_keys and not request.allow_empty:
        raise Refused(
            "empty-snapshot",
            "The source has no changes, so everything in the restated window would be withdrawn.",
            f"Nothing was written; use {option('allow_empty', value=True)} to accept it.",
        )


def _changes(number: int) -> str:
    return "1 change has" if number == 1 else f"{number} changes have"


def _span(settled: Interval) -> str:
    first, last = settled or (None, None)
    return f"{'the beginning' if first is None else iso(first)} and {'' if last is None else iso(last)}"
