"""`backstory views`: views of a table for Spark SQL."""

from backstory.cli.asking import opened
from backstory.cli.options import Flag, Options
from backstory.cli.output import show, tell_line

DEFAULTS = Options()


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
    with opened(options, table) as store:
        found = store.table(table).views(dry_run=dry_run)
    show(found, options.answer, ["view", "made", "sql"], wide=options.wide)
    if not dry_run and not any(each["made"] for each in found) and not options.quiet:
        tell_line("No view was created: this catalog holds no views.")
