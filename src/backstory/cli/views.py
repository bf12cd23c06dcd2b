"""`backstory views`: views of a table for Spark SQL."""

from backstory.cli.asking import opened
from backstory.cli.options import Flag, Options
from backstory.cli.output import errors, show

DEFAULTS = Options()


def views(table: str, *, dry_run: Flag = False, options: Options = DEFAULTS) -> None:
    """Make views of a history for Spark SQL: TABLE_current and TABLE_versions, in its catalog.

    They stay there for every session. No catalog of Iceberg holds functions, so that the rows of an instant
    are a query on the versions with the parameter :time, which is printed with them. Run it again when
    the table has other columns: a view keeps those that it was made with. The views of meta.load_run_log are
    meta.hist_run and meta.hist_step_log: the runs of models, and their steps.

    Example: backstory views crm.customer

    Args:
        table: The table, as schema.table.
        dry_run: Print the SQL and make nothing.
        options: Common options.
    """
    with opened(options, table) as store:
        found = store.table(table).views(dry_run=dry_run)
    show(found, options.answer, ["view", "made", "sql"], wide=options.wide)
    if not dry_run and not any(each["made"] for each in found) and not options.quiet:
        errors.print("Nothing was made: this catalog holds no views.", markup=False)
