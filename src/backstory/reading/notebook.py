"""HTML for notebooks: a table's metadata, and differences with a row for each changed value."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any, Final

from backstory.model.change import COUNTS, DOOR
from backstory.model.table import TableName
from backstory.reading.timelines import value_text
from backstory.spark.versions import arrow_of
from backstory.stores.metadata.table_metadata import existing
from backstory.stores.metadata.values import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backstory.stores.iceberg.store import IcebergStore


MOST: Final = 20  # records
COMMITS: Final = 5
HEADINGS: Final = ("key", "change", "column", "before", "after")


def table_as_html(store: "IcebergStore", name: TableName) -> str:
    """A table's layout, key, columns and newest commits, as HTML.

    Raises UsageError if the table does not exist.
    """
    table = existing(store, name)
    shape = table.shape
    columns = ", ".join(f"{each.source} {each.type}" for each in shape.user_columns)
    about = {"layout": shape.layout.value, "key": ", ".join(shape.source_key) or "none", "columns": columns}
    facts = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in about.items())
    newest = table.commits[::-1][:COMMITS]
    rows = ""
    for each in newest:
        counts = json.loads(each.properties.get(COUNTS) or "{}").items()
        changed = ", ".join(f"{count} {outcome}" for outcome, count in counts if count)
        time = f"{each.committed_at:%Y-%m-%d %H:%M:%S}"
        rows += _row("td", (time, each.properties.get(DOOR, ""), changed))
    commits = f"<table>{_row('th', ('committed', 'door', 'rows'))}{rows}</table>" if newest else ""
    return f"<table><caption>{escape(str(shape.table))}</caption>{facts}</table>{commits}"


def drawn_in_notebooks(differences: "DataFrame") -> "DataFrame":
    """Let a frame returned by `Table.diff` show its first records as a table in notebooks."""
    differences._repr_html_ = lambda: differences_as_html(differences)  # type: ignore[method-assign]
    return differences


def differences_as_html(differences: "DataFrame") -> str:
    """The first records as a table, with a note if there are more records."""
    records = rows_of(arrow_of(differences.limit(MOST + 1)))
    rows = [cells for record in records[:MOST] for cells in _rows(record)]
    more = f"<p>The first {MOST} records are shown.</p>" if len(records) > MOST else ""
    nothing = "" if records else "<p>Nothing changed.</p>"
    return (
        f"<table>{_row('th', HEADINGS)}{''.join(_row('td', cells) for cells in rows)}</table>{more}{nothing}"
    )


def _rows(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    key = " ".join(f"{name}={value_text(value)}" for name, value in record["key"].items())
    before, after = record["before"] or {}, record["after"] or {}
    values = {**before, **after}
    names = record["changed"] or [name for name, value in values.items() if value is not None] or [""]
    for name in names:
        yield key, record["change"], name, value_text(before.get(name)), value_text(after.get(name))


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
