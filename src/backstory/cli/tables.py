"""`backstory tables`: what a warehouse holds, and which one was searched where that is nothing.

`backstory views`: views of a table for Spark SQL.

`backstory sql`: one query.
"""

from typing import Any

from backstory.cli.answers import answers_from_metadata, open_warehouse, show_frame
from backstory.cli.options import Flag, Limit, Options
from backstory.cli.output import (
    add_error_column,
    drop_idle_columns,
    in_flags,
    print_error,
    print_line,
    short_time,
    show,
)
from backstory.errors import UsageError
from backstory.settings import CATALOG

DEFAULTS = Options()
TABLES = ["table", "layout", "rows", "open_versions", "last_commit"]
TABLES_OF_VERSIONS = [*TABLES[:-1], "memory_rows", "settled", TABLES[-1]]


def tables(*, limit: Limit = None, options: Options = DEFAULTS) -> int:
    """List the tables of the warehouse: layout, rows, open versions, last commit.

    For a native table, rows counts its versions; memory_rows counts the rows that only serve late copies,
    and settled is the interval for which none is accepted. If there are no tables, the warehouse that was
    searched is named. Spark starts only for a catalog that pyiceberg cannot open.

    Args:
        limit: The largest number of tables.
        options: Common options.
    """
    found = _inventory(options)
    moved = [each["error"] for each in found if "error" in each]
    if moved and len(moved) == len(found):
        raise UsageError(**moved[0])
    if not found and not options.quiet:
        print_line(_no_tables_text(options))
    found = found[:limit]
    columns = TABLES_OF_VERSIONS if any("settled" in row for row in found) else TABLES
    if options.answer == "table":
        found = [
            {**row, "last_commit": row["last_commit"] and short_time(row["last_commit"])} for row in found
        ]
        columns = columns if options.wide else drop_idle_columns(columns, found, ("memory_rows", "settled"))
        for each in moved:
            print_error(each)
    names = columns if options.answer == "table" else add_error_column(columns, found)
    show(found, options.answer, names, wide=options.wide)
    return UsageError.exit_code if moved else 0


def _no_tables_text(options: Options) -> str:
    """That there are no tables, and where they were looked for."""
    settings = options.settings()
    absent = not settings.catalogs[CATALOG] and not settings.warehouse.exists()
    return in_flags(f"There are no tables in {settings.location}{': it does not exist' if absent else ''}.")


def _inventory(options: Options) -> list[dict[str, Any]]:
    """A row for each table; Spark is asked for those that nothing else can read, and for no others."""
    from backstory.reading.commits import inventory

    found = answers_from_metadata(options, lambda catalog, each: inventory(catalog, [each]))
    if found is None or None in found.values():
        from backstory.stores.metadata.catalogs import SessionCatalog

        with open_warehouse(options, brief=True) as started:
            catalog = SessionCatalog(started.store)
            if found is None:
                return inventory(catalog)
            found |= {each: inventory(catalog, [each]) for each, rows in found.items() if rows is None}
    return [row for rows in found.values() for row in rows or ()]


def views(table: str, *, dry_run: Flag = False, options: Options = DEFAULTS) -> None:
    """Create views of a history for Spark SQL: TABLE_current and TABLE_versions.

    The views are in the table's catalog, for every session. Iceberg catalogs hold no functions, so a query
    with the parameter :time is printed for the rows at a time. Run the command again after the table's
    columns change: a view keeps the columns it was created with. For meta.load_run_log the views are
    meta.hist_run and meta.hist_step_log: the runs of models and their steps.

    Example: `backstory views crm.customer`

    Args:
        table: The table, as schema.table.
        dry_run: Print the SQL, and create nothing.
        options: Common options.
    """
    with open_warehouse(options, table) as store:
        found = store.table(table).views(dry_run=dry_run)
    show(found, options.answer, ["view", "made", "sql"], wide=options.wide)
    if not dry_run and not any(each["made"] for each in found) and not options.quiet:
        print_line("No view was created: this catalog holds no views.")


def sql(query: str, *, limit: Limit = None, options: Options = DEFAULTS) -> None:
    """Run one read-only query of Spark SQL on the tables of the warehouse.

    A query computes on rows with Spark's own functions, or lists and describes tables (SHOW TABLES,
    DESCRIBE). Name a table as schema.table, and put a name with dots or dashes in
    backticks: `` odf.`demo.city-2` ``.

    Args:
        query: The query.
        limit: Largest number of rows to print.
        options: Common options.
    """
    with open_warehouse(options) as warehouse:
        show_frame(warehouse.sql(query), limit, options)
