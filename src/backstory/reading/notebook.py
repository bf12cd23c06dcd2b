"""Differences as a notebook shows them: a row for each value that changed, computed when it is drawn."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any, Final

from backstory.reading.lives import shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST: Final = 20  # records
HEADINGS: Final = ("key", "change", "column", "before", "after")


def drawn_in_notebooks(differences: "DataFrame") -> "DataFrame":
    """The same frame of `Table.diff`, which draws its first records as a table in a notebook."""
    differences._repr_html_ = lambda: differences_as_html(differences)  # type: ignore[method-assign]
    return differences


def differences_as_html(differences: "DataFrame") -> str:
    """The first records as a table; what there is beyond them is said below it."""
    records = differences.limit(MOST + 1).toArrow().to_pylist(maps_as_pydicts="strict")
    rows = [cells for record in records[:MOST] for cells in _rows(record)]
    more = f"<p>The first {MOST} records are shown.</p>" if len(records) > MOST else ""
    nothing = "" if records else "<p>Nothing changed.</p>"
    return (
        f"<table>{_row('th', HEADINGS)}{''.join(_row('td', cells) for cells in rows)}</table>{more}{nothing}"
    )


def _rows(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    key = " ".join(f"{name}={shown(value)}" for name, value in record["key"].items())
    before, after = record["before"] or {}, record["after"] or {}
    values = {**before, **after}
    names = record["changed"] or [name for name, value in values.items() if value is not None] or [""]
    for name in names:
        yield key, record["change"], name, shown(before.get(name)), shown(after.get(name))


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
