"""Changes to a table. `diff` compares two times, and `changes` reads the commits between two versions."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from backstory.cli.answers import answer, answer_from_files, answer_from_table, open_warehouse, rows_of_frame
from backstory.cli.options import (
    BRANCH_DEFAULTS,
    BranchOptions,
    HistoryUrl,
    Limit,
    NamedTable,
    Names,
    Options,
    RowLimit,
    parse_names,
    refuse_for_database,
    with_flags,
)
from backstory.errors import bad_option
from backstory.model.change import Cursor
from backstory.model.instant import parse_instant
from backstory.model.table import table_name
from backstory.reading.options import (
    ENDS,
    ChangesRequest,
    Comparison,
    CursorRequest,
    DiffRequest,
    as_object,
    side_values,
)
from backstory.stores.branches import MAIN, began_at

if TYPE_CHECKING:
    from backstory.reading.questions import KnownTable
    from backstory.stores.metadata.table_metadata import Catalog

Difference = dict[str, Any]


@with_flags(Comparison)
def diff(
    table: NamedTable,
    from_: str,
    to: str | None = None,
    *,
    options: BranchOptions = BRANCH_DEFAULTS,
    url: HistoryUrl = None,
    key: Names = (),
    limit: Limit = None,
    **words: Any,
) -> None:
    """Show the differences between two times, by key and column.

    A changed record has a row for each column that differs, with its values before and after. --change shows
    only records of one kind. For example, removed records are shown with their last values. With `--axis
    recorded`, the data that the table held at FROM is compared with the data that it held at TO.

    --through also shows records that changed between the times but are the same at both: they were absent in
    between (returned), had other values (reverted), or existed only in between (passed).

    `diff TABLE main..BRANCH` shows the changes that publishing a branch would make.

    Example: `backstory diff crm.customer 2026-01-01 2026-02-01`

    Args:
        from_: The first time in ISO 8601. Without an offset it is UTC, and a date is its first instant.
        to: The second time, in the same form. Omit it after main..BRANCH.
        key: Key columns of the history in a database (--url), a,b.
        limit: Largest number of records to show.
    """
    if to is None:
        branch = _branch_after_main(from_)
        between = _times_around_branch(options, table, branch)
        options, words = replace(options, branch=branch), {**words, "axis": "recorded"}
    else:
        between = parse_instant(from_), parse_instant(to)
    request = DiffRequest(*between, **words)
    differences: Sequence[Difference]
    if url is not None or key:
        from backstory.reading.database_history import read_differences

        if url is None or not key:
            raise bad_option("--url and --key must be used together.", "Write --url URL --key a,b.")
        refuse_for_database(options, known_times=not request.is_plain)
        differences = read_differences(url, table_name(table), parse_names(key), request)[:limit]
    else:
        differences = _read_differences(options, table, request, limit)
    show_differences(differences, options, request)
    if not differences:
        options.remark("No differences.")


def _branch_after_main(words: str) -> str:
    """The branch in main..BRANCH. Raises UsageError for other words."""
    main, dots, branch = words.partition("..")
    if main != MAIN or not dots or not branch:
        raise bad_option("The second time is missing.", f"Write two times, or {MAIN}..BRANCH.")
    return branch


def _times_around_branch(options: Options, table: str, branch: str) -> tuple[datetime, datetime]:
    """The known times before and after the commits of a branch."""
    name = table_name(table)

    def question(catalog: "Catalog") -> tuple[datetime, datetime]:
        from backstory.stores.metadata.table_metadata import existing

        described = existing(catalog, name)
        return began_at(described.metadata, name, branch), datetime.now(UTC)

    return answer(options, question)


def _read_differences(
    options: Options, table: str, request: DiffRequest, limit: int | None
) -> Sequence[Difference]:
    """The differences in key order, from the files of a small table, or else from Spark."""
    from backstory.reading import files, questions

    def read(known: "KnownTable[Any, Any]") -> Sequence[Difference]:
        differences = questions.diff(known, request)
        if isinstance(differences, files.Differences):
            return differences.page(0, limit)
        sortable = "map<" not in differences.schema["key"].dataType.simpleString()
        ordered = differences.orderBy("key") if sortable else differences
        return rows_of_frame(ordered, limit, options, table)

    return answer_from_table(options, table, read)


def show_differences(
    differences: Sequence[Difference], options: Options, comparison: Comparison = ENDS
) -> None:
    """Print differences: an object per record in JSON, or else a row per differing column.

    If the comparison selects one kind of change, added and removed records are printed with their values.
    """
    whole = comparison.change is not None
    if options.output_format == "json":
        options.show([as_object(difference, whole=whole) for difference in differences])
        return
    names = list(dict.fromkeys(name for difference in differences for name in difference["key"])) or ["key"]
    rows = [row for difference in differences for row in _difference_rows(difference, whole=whole)]
    away = ["away"] if comparison.through else []
    columns = [*names, "change", *away, "column", "before", "after"]
    options.show(rows, columns)


def _difference_rows(difference: Difference, *, whole: bool) -> Iterator[Difference]:
    """A row per changed column.

    Unless `whole` is true, an added or removed record has one row without a column.
    """
    before, after = (side_values(difference, side) or {} for side in ("before", "after"))
    change = difference["change"]
    names = difference["changed"] if change == "changed" else [*(before or after)] if whole else []
    first = {**difference["key"], "change": change, "away": difference.get("away")}
    for name in names:
        yield {**first, "column": name, "before": before.get(name), "after": after.get(name)}
    if not names:
        yield {**first, "column": None, "before": None, "after": None}


@with_flags(ChangesRequest, CursorRequest)
def changes(
    table: NamedTable, *, options: BranchOptions = BRANCH_DEFAULTS, limit: RowLimit = None, **words: Any
) -> None:
    """Show the rows that changed between two commits.

    The column `_change_type` is `insert`, `delete`, or one of the pair `update_preimage` and
    `update_postimage`. Name a commit by its version (`_commit_version`), its snapshot id or a time. A time
    selects the newest commit at or before it. In a native table, a time is compared with the recorded time,
    in other tables with the time of the commit. For valid time, when the data was true, use `diff`.

    A cursor stores the last commit that a consumer has read. `changes T --cursor crm` shows the new changes,
    and `changes T --cursor crm --advance 7` moves the cursor to the `until` version printed before.

    Example: `backstory changes crm.customer --since 2026-01-01 --net --current`
    """
    request = CursorRequest(**words)
    small, feed = None, None
    if request.advance is None and not request.drop:
        from backstory.reading.feeds import read_changes

        small = answer_from_files(options, table, lambda files: read_changes(files, request))
    if small is not None:
        name, feed, rows, columns = small.table, small, small.rows[:limit], small.columns
    else:
        with open_warehouse(options, table) as warehouse:
            stored = warehouse.table(table)
            feed = stored.changes(**words)
            if isinstance(feed, Cursor):
                options.show_document(feed.to_dict(), [feed.to_dict()])
                return
            name, columns = stored.name, feed.frame.columns
            rows = rows_of_frame(feed.frame, limit, options, table)
    document = {"table": str(name), "since": feed.since, "until": feed.until, "changes": rows}
    options.show_document(document, rows, columns)
    if not rows:
        options.remark("No changes.")
