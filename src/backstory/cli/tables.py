"""The tables of a warehouse. `tables` lists them, and `views` and `sql` open them to Spark SQL."""

from typing import Any

from backstory.cli.answers import answers_from_metadata, open_warehouse, print_remark, rows_of_frame
from backstory.cli.options import DEFAULTS, Flag, Limit, Options
from backstory.cli.output import add_error_column, drop_idle_columns, in_flags, print_error, short_time, show
from backstory.errors import UsageError
from backstory.settings import CATALOG

TABLES = ["table", "layout", "rows", "open_versions", "last_commit"]
TABLES_OF_VERSIONS = [*TABLES[:-1], "memory_rows", "settled", TABLES[-1]]


def tables(*, limit: Limit = None, options: Options = DEFAULTS) -> int:
    """List the tables of the warehouse: layout, rows, open versions, last commit.

    For a native table, rows counts its versions, and memory_rows counts rows that are needed only for late
    copies. settled is the interval in which no late copy is accepted. If there are no tables, the searched
    warehouse is named. Spark starts only if pyiceberg cannot open the catalog.

    Args:
        limit: Largest number of tables to list.
        options: Common options.
    """
    rows = _inventory(options)
    moved = [row["error"] for row in rows if "error" in row]
    if moved and len(moved) == len(rows):
        raise UsageError(**moved[0])
    if not rows:
        print_remark(options, _no_tables_text(options))
    rows = rows[:limit]
    columns = TABLES_OF_VERSIONS if any("settled" in row for row in rows) else TABLES
    if options.output_format == "table":
        rows = [{**row, "last_commit": row["last_commit"] and short_time(row["last_commit"])} for row in rows]
        columns = columns if options.wide else drop_idle_columns(columns, rows, ("memory_rows", "settled"))
        for error in moved:
            print_error(error)
    names = columns if options.output_format == "table" else add_error_column(columns, rows)
    show(rows, options.output_format, names, wide=options.wide)
    return UsageError.exit_code if moved else 0


def _no_tables_text(options: Options) -> str:
    """The remark that the warehouse has no tables, with its location."""
    settings = options.settings()
    absent = not settings.catalogs[CATALOG] and not settings.warehouse.exists()
    return in_flags(f"There are no tables in {settings.location}{': it does not exist' if absent else ''}.")


def _inventory(options: Options) -> list[dict[str, Any]]:
    """A row for each table. Spark starts only if a table cannot be read without it."""
    from backstory.reading.commits import inventory

    rows_of = answers_from_metadata(options, lambda catalog, table: inventory(catalog, [table]))
    if rows_of is None or None in rows_of.values():
        from backstory.stores.metadata.catalogs import SessionCatalog

        with open_warehouse(options, brief=True) as warehouse:
            catalog = SessionCatalog(warehouse.store)
            if rows_of is None:
                return inventory(catalog)
            rows_of |= {table: inventory(catalog, [table]) for table, rows in rows_of.items() if rows is None}
    return [row for rows in rows_of.values() for row in rows or ()]


def views(table: str, *, dry_run: Flag = False, options: Options = DEFAULTS) -> None:
    """Create views of a history for Spark SQL: TABLE_current and TABLE_versions.

    The views are in the table's catalog and work in every session. Iceberg catalogs have no functions, so the
    rows at a time are a printed query with the parameter :time. A view keeps the columns that it was created
    with, so run the command again after the table's columns change. For meta.load_run_log the views are
    meta.hist_run and meta.hist_step_log: the runs of models and their steps.

    Example: `backstory views crm.customer`

    Args:
        table: The table, as schema.table.
        dry_run: Print the SQL, and create nothing.
        options: Common options.
    """
    with open_warehouse(options, table) as warehouse:
        rows = warehouse.table(table).views(dry_run=dry_run)
    show(rows, options.output_format, ["view", "made", "sql"], wide=options.wide)
    if not dry_run and not any(row["made"] for row in rows):
        print_remark(options, "No view was created: this catalog holds no views.")


def sql(query: str, *, limit: Limit = None, options: Options = DEFAULTS) -> None:
    """Run one read-only query of Spark SQL on the tables of the warehouse.

    A query computes rows with Spark's own functions, or lists and describes tables (SHOW TABLES, DESCRIBE).
    Name a table as schema.table, and put a name with dots or dashes in backticks: `` odf.`demo.city-2` ``.

    Args:
        query: The query.
        limit: Largest number of rows to print.
        options: Common options.
    """
    with open_warehouse(options) as warehouse:
        frame = warehouse.sql(query)
        rows = rows_of_frame(frame, limit, options, "a table of the query")
        show(rows, options.output_format, frame.columns, wide=options.wide)
