"""Changes of a table: `diff` compares two times, `changes` reads the commits between two versions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from backstory.cli.answers import answer_from_files, open_warehouse, print_remark, rows_of_frame
from backstory.cli.options import DEFAULTS, Flag, Limit, Names, Options, no_known_times, parse_names
from backstory.cli.output import show, show_document
from backstory.errors import UsageError
from backstory.model.change_feed import Cursor, Start
from backstory.model.instant import optional_instant, parse_instant
from backstory.model.table import TableName, table_name
from backstory.reading.selection import ENDS, ChangeKind, Comparison, as_object, side_values

if TYPE_CHECKING:
    from backstory.reading.changes.feed import ChangeFeed
    from backstory.reading.changes.small_feed import SmallFeed
    from backstory.stores.metadata.table_rows import TableReader

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
    options: Options = DEFAULTS,
) -> None:
    """Show the differences between two times, by key and column.

    A changed record has a row for each column that differs, with its values before and after. --change shows
    only records of one kind, such as removed ones with their last values. With `--axis recorded`, the data
    that the table held at FROM is compared with the data that it held at TO.

    --through also shows records that changed between the times but are the same at both: they were gone in
    between (returned), had other values (reverted), or existed only in between (passed).

    Example: `backstory diff crm.customer 2026-01-01 2026-02-01`

    Args:
        table: The table, as schema.table.
        from_: The first time in ISO 8601; without an offset it is UTC, and a date is its first instant.
        to: The second time, in the same form.
        known_at: Answer with the data that the table held at this time.
        axis: Whether the times are valid time or recorded time.
        at: The valid time to compare, with --axis recorded. Default: now.
        columns: Compare only these columns, a,b.
        change: Show only these records: added, changed, removed; with --through returned, reverted, passed.
        through: Also show records that changed between the times but are the same at both.
        url: Database with the history of a model: duckdb:///path or postgresql://host/name.
        key: Key columns of the history in a database (--url), a,b.
        limit: Largest number of records to show.
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
        differences = _database_differences(url, table, between, (parse_names(key), comparison), plain=plain)[
            :limit
        ]
    else:
        request = DiffRequest(axis, known, time, comparison)
        differences = _read_differences(options, table, between, request, limit)
    show_differences(differences, options, comparison)
    if not differences:
        print_remark(options, "No differences.")


def _database_differences(
    url: str | None,
    table: str,
    between: tuple[datetime, datetime],
    compared: "tuple[Sequence[str], Comparison]",
    *,
    plain: bool,
) -> Sequence[Difference]:
    """The differences of a history in a database; `compared` are its key columns and the comparison."""
    from backstory.reading.databases.database_history import read_differences

    key, comparison = compared
    if url is None or not key:
        raise UsageError("bad-option", "--url and --key go together.", "Write --url URL --key a,b.")
    if not plain:
        raise no_known_times()
    return read_differences(url, table_name(table), between, key, comparison)


@dataclass(frozen=True, slots=True)
class DiffRequest:
    """The axis of the two times, the time on the other axis, and the comparison."""

    axis: Axis
    known_at: datetime | None
    at: datetime | None
    comparison: Comparison


def _read_differences(
    options: Options, table: str, between: tuple[datetime, datetime], request: DiffRequest, limit: int | None
) -> Sequence[Difference]:
    """The differences in the order of their keys, from the files of a small table, else by Spark."""
    from backstory.reading.arrow import differences

    comparison = request.comparison

    def of_files(files: "TableReader") -> differences.Differences:
        if request.axis == "recorded":
            return differences.diff_knowledge(files, *between, request.at or datetime.now(UTC), comparison)
        return differences.diff(files, *between, request.known_at, comparison)

    small = answer_from_files(options, table, of_files)
    if small is not None:
        return small.page(0, limit)
    with open_warehouse(options, table) as warehouse:
        frame = warehouse.table(table).diff(
            *between,
            known_at=request.known_at,
            axis=request.axis,
            at=request.at,
            columns=comparison.columns,
            change=comparison.change,
            through=comparison.through,
        )
        sortable = "map<" not in frame.schema["key"].dataType.simpleString()
        return rows_of_frame(frame.orderBy("key") if sortable else frame, limit, options, table)


def show_differences(
    differences: Sequence[Difference], options: Options, comparison: Comparison = ENDS
) -> None:
    """Print differences: in JSON an object per record, else a row per differing column.

    If the comparison is of one kind of change, added and removed records are printed with their values.
    """
    whole = comparison.change is not None
    if options.output_format == "json":
        show([as_object(difference, whole=whole) for difference in differences], "json")
        return
    names = list(dict.fromkeys(name for difference in differences for name in difference["key"])) or ["key"]
    rows = [row for difference in differences for row in _difference_rows(difference, whole=whole)]
    away = ["away"] if comparison.through else []
    columns = [*names, "change", *away, "column", "before", "after"]
    show(rows, options.output_format, columns, wide=options.wide)


def _difference_rows(difference: Difference, *, whole: bool) -> Iterator[Difference]:
    """A row per changed column; without `whole`, an added or removed record has one row without a column."""
    before, after = (side_values(difference, side) or {} for side in ("before", "after"))
    change = difference["change"]
    names = difference["changed"] if change == "changed" else [*(before or after)] if whole else []
    first = {**difference["key"], "change": change, "away": difference.get("away")}
    for name in names:
        yield {**first, "column": name, "before": before.get(name), "after": after.get(name)}
    if not names:
        yield {**first, "column": None, "before": None, "after": None}


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
    newest commit not after it. Times here are recorded time, when the table received the data; for valid
    time, when the data was true, use `diff`.

    A cursor remembers how far a consumer has read: `changes T --cursor crm` shows the new changes,
    `changes T --cursor crm --advance 7` moves it to the `until` version printed before.

    Example: `backstory changes crm.customer --since 2026-01-01 --net --current`

    Args:
        table: The table, as schema.table.
        since: Commit after which to begin, or its recorded time. Default: before the first commit.
        until: Last commit to show, or its recorded time. Default: the newest.
        net: Show the difference between the two ends, not each commit.
        current: Show only current rows (live rows, open versions), without technical columns.
        cursor: Begin at the cursor of this name; a new one begins before the first commit.
        start: Where a new or lost cursor begins.
        advance: Move the cursor to the commit of this version; show nothing.
        drop: Remove the cursor; show nothing.
        limit: Largest number of rows to show.
        options: Common options.
    """
    if advance is None and not drop:
        from backstory.reading.changes import small_feed as small
        from backstory.reading.changes.feed import ChangesRequest

        request = ChangesRequest(since, until, net, current, cursor, start)
        small_feed = answer_from_files(options, table, lambda files: small.read_changes(files, request))
        if small_feed is not None:
            rows = small_feed.rows[:limit]
            _show_changes(small_feed.table, small_feed, rows, small_feed.columns, options)
            return
    with open_warehouse(options, table) as warehouse:
        stored = warehouse.table(table)
        feed = stored.changes(
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
    _show_changes(stored.name, feed, rows, columns, options)


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
    """Print the document as JSON, or its rows as a table or CSV."""
    if options.output_format == "json":
        show_document(document)
    else:
        show(rows, options.output_format, columns, wide=options.wide)
