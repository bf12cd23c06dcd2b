"""The command `changes`: the feed out of any table, and its cursors.

`backstory diff`: what changed between two times.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from backstory.cli.answers import answer_from_files, open_warehouse, print_remark, rows_of_frame
from backstory.cli.options import Flag, Limit, Names, Options, no_known_times, parse_names
from backstory.cli.output import show, show_document
from backstory.cli.read import DEFAULTS
from backstory.errors import UsageError
from backstory.model.change_feed import Cursor, Start
from backstory.model.instant import optional_instant, parse_instant
from backstory.model.table import TableName, table_name
from backstory.reading.selection import ENDS, ChangeKind, Comparison, as_object, side_values

if TYPE_CHECKING:
    from backstory.stores.metadata.table_rows import TableReader

DIFF_DEFAULTS = Options()
Difference = dict[str, Any]
Axis = Literal["valid", "recorded"]


def diff(
    table: str,
    from_: str,
    to: str,
    *,
    known_at: str | None = None,
    axis: Axis = "valid",
    at: str | None = None,
    columns: Names = (),
    change: ChangeKind | None = None,
    through: Flag = False,
    url: str | None = None,
    key: Names = (),
    limit: Limit = None,
    options: Options = DIFF_DEFAULTS,
) -> None:
    """Show what changed between two times, by key and column.

    A changed record has a row for each column that differs, with its values before and after. --change shows
    only records of one kind, such as removed ones with their last values. --through also shows what happened
    between the times: a record that is the same at both was gone in between (returned) or had other values
    (reverted); a record that is missing at both existed in between (passed). With `--axis recorded`, what the
    table held at FROM is compared with what it held at TO.

    Example: `backstory diff crm.customer 2026-01-01 2026-02-01`

    Args:
        table: The table, as schema.table.
        from_: ISO 8601; UTC without an offset, a date is its first instant.
        to: The same.
        known_at: Answer with what the table held at this time.
        axis: Whether the times are valid time or recorded time.
        at: With --axis recorded: the valid time to compare. Default: now.
        columns: Compare only these columns, a,b.
        change: Only these records: added, changed, removed; with --through returned, reverted, passed.
        through: Also show what happened between the times, such as a record that was gone and returned.
        url: A model's history in a database: duckdb:///path or postgresql://host/name.
        key: With --url: key columns, a,b; the database does not know them.
        limit: The largest number of records.
        options: Common options.
    """
    between = parse_instant(from_), parse_instant(to)
    known, time = optional_instant(known_at), optional_instant(at)
    if (known if axis == "recorded" else time) is not None:
        raise UsageError(
            "bad-option",
            "--known-at belongs to --axis valid, and --at to --axis recorded.",
            "Use the one that belongs to the axis.",
        )
    comparison = Comparison.of(parse_names(columns), change, through=through, axis=axis)
    if url is not None or key:
        plain = axis == "valid" and known is None
        told = _database_differences(url, table, between, (parse_names(key), comparison), plain=plain)[:limit]
    else:
        told = _read_differences(options, table, between, DiffRequest(axis, known, time, comparison), limit)
    show_differences(told, options, comparison)
    if not told:
        print_remark(options, "No differences.")


def _database_differences(
    url: str | None,
    table: str,
    between: tuple[datetime, datetime],
    asked: "tuple[Sequence[str], Comparison]",
    *,
    plain: bool,
) -> Sequence[Difference]:
    from backstory.reading.databases.database_history import read_differences

    key, comparison = asked
    if url is None or not key:
        raise UsageError("bad-option", "--url and --key go together.", "Write --url URL --key a,b.")
    if not plain:
        raise no_known_times()
    return read_differences(url, table_name(table), between, key, comparison)


@dataclass(frozen=True, slots=True)
class DiffRequest:
    """What the times of a difference are of, and what is asked about there."""

    axis: Axis
    known_at: datetime | None
    at: datetime | None
    comparison: Comparison


def _read_differences(
    options: Options, table: str, between: tuple[datetime, datetime], asked: DiffRequest, limit: int | None
) -> Sequence[Difference]:
    """The differences in the order of their keys, from the files of a small table, else from Spark."""
    from backstory.reading.arrow import differences

    def of_files(files: "TableReader") -> differences.Differences:
        if asked.axis == "recorded":
            return differences.diff_knowledge(
                files, *between, asked.at or datetime.now(UTC), asked.comparison
            )
        return differences.diff(files, *between, asked.known_at, asked.comparison)

    small = answer_from_files(options, table, of_files)
    if small is not None:
        return small.page(0, limit)
    with open_warehouse(options, table) as store:
        told = asked.comparison
        frame = store.table(table).diff(
            *between,
            known_at=asked.known_at,
            axis=asked.axis,
            at=asked.at,
            columns=told.columns,
            change=told.change,
            through=told.through,
        )
        sortable = "map<" not in frame.schema["key"].dataType.simpleString()
        return rows_of_frame(frame.orderBy("key") if sortable else frame, limit, options, table)


def show_differences(told: Sequence[Difference], options: Options, comparison: Comparison = ENDS) -> None:
    """Print differences: as JSON an object a record, else a row for each column that differs.

    Where one kind of change was asked for, what was added or removed is told with its values.
    """
    whole = comparison.change is not None
    if options.answer == "json":
        show([as_object(each, whole=whole) for each in told], "json")
        return
    names = list(dict.fromkeys(name for each in told for name in each["key"])) or ["key"]
    rows = [row for each in told for row in _difference_rows(each, whole=whole)]
    away = ["away"] if comparison.through else []
    columns = [*names, "change", *away, "column", "before", "after"]
    show(rows, options.answer, columns, wide=options.wide)


def _difference_rows(told: Difference, *, whole: bool) -> Iterator[Difference]:
    """A row a changed column; of a record that came or went one, without a column unless it is told whole."""
    before, after = (side_values(told, side) or {} for side in ("before", "after"))
    names = told["changed"] if told["change"] == "changed" else [*(before or after)] if whole else []
    first = {**told["key"], "change": told["change"], "away": told.get("away")}
    for name in names:
        yield {**first, "column": name, "before": before.get(name), "after": after.get(name)}
    if not names:
        yield {**first, "column": None, "before": None, "after": None}


if TYPE_CHECKING:
    from backstory.reading.changes.feed import ChangeFeed
    from backstory.reading.changes.small_feed import SmallFeed


def changes(
    table: str,
    *,
    since: str | None = None,
    until: str | None = None,
    net: Flag = False,
    current: Flag = False,
    cursor: str | None = None,
    start: Start | None = None,
    advance: int | None = None,
    drop: Flag = False,
    limit: Limit = None,
    options: Options = DEFAULTS,
) -> None:
    """Show the rows that changed between two commits.

    The column `_change_type` is `insert`, `delete`, or one of the pair `update_preimage` and
    `update_postimage`. Name a commit by its version (`_commit_version`), its snapshot id, or a time: the
    newest commit not after it. Times here are recorded time, when the table learned something; for valid
    time, when something was true, use `diff`.

    A cursor remembers how far a consumer has read: `changes T --cursor crm` shows what is new,
    `changes T --cursor crm --advance 7` moves it to the `until` version printed before.

    Example: `backstory changes crm.customer --since 2026-01-01 --net --current`

    Args:
        table: The table, as schema.table.
        since: The commit after which to begin, or its recorded time; by default before the first.
        until: The last commit to show, or its recorded time; by default the newest.
        net: Show the difference between the two ends, not each commit.
        current: Show only current rows (live rows, open versions), without technical columns.
        cursor: Begin at the cursor of this name; a new one begins before the first commit.
        start: Where a new cursor, or one that was lost, begins.
        advance: Move the cursor to the commit of this version; show nothing.
        drop: Remove the cursor; show nothing.
        limit: The largest number of rows.
        options: Common options.
    """
    if advance is None and not drop:
        from backstory.reading.changes import small_feed as small
        from backstory.reading.changes.feed import ChangesRequest

        asked = ChangesRequest(since, until, net, current, cursor, start)
        told = answer_from_files(options, table, lambda files: small.read_changes(files, asked))
        if told is not None:
            _show_changes(told.table, told, told.rows[:limit], told.columns, options)
            return
    with open_warehouse(options, table) as store:
        found = store.table(table)
        feed = found.changes(
            since=since,
            until=until,
            net=net,
            current=current,
            cursor=cursor,
            start=start,
            advance=advance,
            drop=drop,
        )
        if isinstance(feed, Cursor):
            _show_feed(feed.to_dict(), [feed.to_dict()], options)
            return
        rows, columns = rows_of_frame(feed.frame, limit, options, table), feed.frame.columns
    _show_changes(found.name, feed, rows, columns, options)


def _show_changes(
    table: TableName,
    feed: "ChangeFeed | SmallFeed",
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    options: Options,
) -> None:
    document = {"table": str(table), "since": feed.since, "until": feed.until, "changes": rows}
    _show_feed(document, rows, options, columns)
    if not rows:
        print_remark(options, "No changes.")


def _show_feed(
    document: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    options: Options,
    columns: Sequence[str] = (),
) -> None:
    """Print the one document, or its rows alone."""
    if options.answer == "json":
        show_document(document)
    else:
        show(rows, options.answer, columns, wide=options.wide)
