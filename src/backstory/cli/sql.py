"""`backstory sql`: one query."""

from backstory.cli.asking import opened, show_frame
from backstory.cli.options import Limit, Options

DEFAULTS = Options()


def sql(query: str, *, limit: Limit = None, options: Options = DEFAULTS) -> None:
    """Answer one query of Spark SQL over the tables of the warehouse; it can only read.

    It computes on rows with Spark's own functions, or lists and describes tables (SHOW TABLES, DESCRIBE).
    A table is schema.table; a name with dots or dashes stands in backticks: `` odf.`demo.city-2` ``.

    Args:
        query: The query.
        limit: At most so many rows.
        options: Common options.
    """
    with opened(options) as warehouse:
        show_frame(warehouse.sql(query), limit, options)
