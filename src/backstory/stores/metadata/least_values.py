"""Up to which value of a column a table must be read for so many rows: bounds tell before rows are read."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backstory.stores.metadata.bounds import bounds_of
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.manifests import DATA, live_files
from backstory.stores.metadata.row_groups import Field, greatest_in_groups
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.searches import Between

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

# So many values of one column are looked through; their bytes are bounded besides.
MOST_VALUES: Final = 1 << 26


def least_values(
    files: Files,
    snapshot: Mapping[str, Any],
    fields: list[Field],
    name: str,
    count: int,
    least: Any = None,
) -> Between | None:
    """The span of a column that at least so many rows have values in, or NULL; None if the table has fewer.

    With `least` the span begins there, and NULL is not in it. Raises Unreadable where bounds do not tell, and
    for more than is read here.
    """
    field = next((each for each in fields if each["name"] == name), None)
    if field is None:
        raise Unreadable(f"no column {name}")
    span = _span_of_groups(files, snapshot, field, count, least)
    if span is None:
        return None
    values = files.rows(snapshot, fields, [name], MOST_VALUES, {name: span})[name]
    more = count - values.null_count
    if len(values) < count:
        return span  # rows that are hidden were counted
    return replace(span, greatest=_nth(values.drop_null(), more)) if more > 0 else span


def _nth(values: pa.ChunkedArray, number: int) -> Any:
    table = pa.table({"value": values})
    places = pc.select_k_unstable(table, number, [("value", "ascending")])
    return table["value"].take(places[-1:]).to_pylist()[0]


def _span_of_groups(
    files: Files, snapshot: Mapping[str, Any], field: Field, count: int, begin: Any
) -> Between | None:
    """The span of the row groups that together have so many rows: those with the least values."""
    bounded = _bounded(files, snapshot, field)
    found = sorted((each for each in bounded if begin is None or each[1] >= begin), key=lambda each: each[0])
    if not found:
        return None
    groups: list[tuple[Any, int]] = []
    for least, greatest, file in found:
        if sum(rows for most, rows in groups if most < least) >= count:
            break
        with files.opener(file.file_path) as source, pq.ParquetFile(source) as opened:
            told = greatest_in_groups(opened, field, greatest)
        groups += [each for each in told if begin is None or each[0] >= begin]
    rows = 0
    for greatest, more in sorted(groups, key=lambda each: each[0]):
        rows += more
        if rows >= count:
            return Between(found[0][0] if begin is None else begin, greatest, null=begin is None)
    return None


def _bounded(
    files: Files, snapshot: Mapping[str, Any], field: Field
) -> "Iterator[tuple[Any, Any, DataFile]]":
    """The data files with their bounds, but for those in which all values are NULL."""
    for _, file in live_files(snapshot["manifest-list"], files.opener):
        if file.content.value != DATA:
            continue
        bounds = bounds_of(file, field)
        if bounds is not None:
            yield bounds.min, bounds.max, file
        elif (file.null_value_counts or {}).get(field["id"]) != file.record_count:
            raise Unreadable(f"no bounds of {field['name']}")
