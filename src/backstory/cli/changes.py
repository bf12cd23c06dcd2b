"""The command `changes`: the feed out of any table, and its cursors."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backstory.cli.asking import answer_from_files, opened, rows_of_frame, tell_nothing
from backstory.cli.options import Flag, Limit, Options
from backstory.cli.output import show, show_document
from backstory.cli.read import DEFAULTS
from backstory.model.cursor import Cursor, Start
from backstory.model.table import TableName

if TYPE_CHECKING:
    from backstory.reading.arrow.changes import SmallFeed
    from backstory.reading.changes.feed import Feed


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
        from backstory.reading.arrow import changes as small
        from backstory.reading.changes.feed import FeedRequest

        asked = FeedRequest(since, until, net, current, cursor, start)
        told = answer_from_files(options, table, lambda files: small.changes(files, asked))
        if told is not None:
            _tell(told.table, told, told.rows[:limit], told.columns, options)
            return
    with opened(options, table) as store:
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
            _answer(feed.to_dict(), [feed.to_dict()], options)
            return
        rows, columns = rows_of_frame(feed.frame, limit, options, table), feed.frame.columns
    _tell(found.name, feed, rows, columns, options)


def _tell(
    table: TableName,
    feed: "Feed | SmallFeed",
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    options: Options,
) -> None:
    document = {"table": str(table), "since": feed.since, "until": feed.until, "changes": rows}
    _answer(document, rows, options, columns)
    if not rows:
        tell_nothing(options, "No changes.")


def _answer(
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
