"""`backstory sql`: one query."""

from backstory.cli.options import Options
from backstory.cli.output import show
from backstory.cli.read import opened

DEFAULTS = Options()


def sql(query: str, *, limit: int | None = None, options: Options = DEFAULTS) -> None:
    """Answer one query of Spark SQL over the tables of the warehouse.

    A table is schema.table; a name with dots or dashes stands in backticks: odf.`demo.city-2`.

    Args:
        query: The query.
        limit: At most so many rows.
        options: Common options.
    """
    from backstory.reading.queries import answering

    with opened(options) as warehouse:
        frame = warehouse.sql(query)
        with answering():
            rows = (frame if limit is None else frame.limit(limit)).toArrow().to_pylist()
        show(rows, options.answer, frame.columns)
