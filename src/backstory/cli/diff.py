"""`backstory diff`: what changed between two times."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from backstory.cli.asking import opened, rows_of_frame
from backstory.cli.options import Limit, Options
from backstory.cli.output import show
from backstory.cli.read import time_given
from backstory.errors import UsageError
from backstory.model.instant import parse_instant

DEFAULTS = Options()
Difference = dict[str, Any]


def diff(
    table: str,
    from_: str,
    to: str,
    *,
    known_at: str | None = None,
    axis: Literal["valid", "recorded"] = "valid",
    at: str | None = None,
    limit: Limit = None,
    options: Options = DEFAULTS,
) -> None:
    """Show what changed between two times, by key and column.

    A changed record has a row for each column that differs, with its values before and after. With
    `--axis recorded` the times are of knowing: what the table held at FROM is compared with what it held
    at TO, of one instant.

    Example: `backstory diff crm.customer 2026-01-01 2026-02-01`

    Args:
        table: The table, as schema.table.
        from_: ISO 8601; UTC without an offset, a date is its first instant.
        to: The same.
        known_at: Answer with what the table held at this time.
        axis: What the times are of: valid or recorded.
        at: The instant that is asked about on the axis recorded (now).
        limit: At most so many records.
        options: Common options.
    """
    between = parse_instant(from_), parse_instant(to)
    known, time = time_given(known_at), time_given(at)
    if (known if axis == "recorded" else time) is not None:
        raise UsageError(
            "bad-option", "--known-at is of the axis valid, and --at of recorded.", "Give one of the two."
        )
    with opened(options, table) as store:
        frame = store.table(table).diff(*between, known_at=known, axis=axis, at=time)
        sortable = "map<" not in frame.schema["key"].dataType.simpleString()
        told = rows_of_frame(frame.orderBy("key") if sortable else frame, limit, options)
    show_differences(told, options)


def show_differences(told: Sequence[Difference], options: Options) -> None:
    """Print differences: as JSON an object a record, else a row for each column that differs."""
    if options.answer == "json":
        show([as_object(each) for each in told], "json")
        return
    names = list(dict.fromkeys(name for each in told for name in each["key"])) or ["key"]
    rows = [row for each in told for row in _lines(each)]
    show(rows, options.answer, [*names, "change", "column", "before", "after"])


def as_object(told: Difference) -> Difference:
    """A difference in the words of the contract; only a changed record has columns."""
    found = {"key": told["key"], "change": told["change"]}
    if told["change"] == "changed":
        found["columns"] = {name: [told["before"][name], told["after"][name]] for name in told["changed"]}
    return found


def _lines(told: Difference) -> Iterator[Difference]:
    """A row a changed column; of a record that came or went one, without a column."""
    nothing = {"column": None, "before": None, "after": None}
    if told["change"] != "changed":
        yield {**told["key"], "change": told["change"], **nothing}
    for name in told["changed"]:
        pair = {"column": name, "before": told["before"][name], "after": told["after"][name]}
        yield {**told["key"], "change": told["change"], **pair}
