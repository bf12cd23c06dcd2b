"""The command `changes`: the feed out of any table, and its cursors."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backstory.cli.asking import answer_from_files, opened, rows_of_frame
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

    Each row tells in `_change_type` whether it is an `insert`, a `delete`, or one of the pair
    `update_preimage` and `update_postimage`, and which commit did it. A commit is named by its version
    (`_commit_version`), its snapshot id, or a time: then the newest commit not after it is meant. That is
    recorded time, when the table was told, and not valid time, when something was so: `diff` goes by that.

    A cursor remembers how far a consumer has read: `changes T --cursor crm` shows what is new,
    `changes T --cursor crm --advance 7` moves it to the `until` that was shown.

    Example: `backstory changes crm.customer --since 2026-01-01 --net --current`

    Args:
        table: The table, as schema.table.
        since: The commit after which to begin, or its recorded time; by default before the first.
        until: The last commit to tell, or its recorded time; by default the newest.
        net: Tell the difference of the ends, not each commit.
        current: See only rows that are current: live ones, open versions; without technical columns.
        cursor: Begin where the cursor of this name stands; a new one begins before the first commit.
        start: Where a new cursor, or one that is lost, begins.
        advance: Move the cursor to the commit of this version; show nothing.
        drop: Take the cursor away; show nothing.
        limit: At most so many rows.
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
        rows, columns = rows_of_frame(feed.frame, limit, options), feed.frame.columns
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
