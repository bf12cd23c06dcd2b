"""`backstory sql`: one query."""

from backstory.cli.asking import opened, show_frame
from backstory.cli.options import Limit, Options

DEFAULTS = Options()


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
    with opened(options) as warehouse:
        show_frame(warehouse.sql(query), limit, options)
