"""How a command comes to its answer: from metadata alone where that tells it, else from Spark."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from backstory.cli.options import Options
from backstory.cli.output import print_line, show
from backstory.cli.progress import show_activity, show_start
from backstory.errors import BackstoryError
from backstory.model.table import TableName, possible_names, resolve_name, table_name
from backstory.settings import CATALOG
from backstory.spark.versions import arrow_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from backstory.settings import Settings
    from backstory.stores.metadata.table_metadata import Catalog, ReadableCatalog, TableMetadata
    from backstory.stores.metadata.table_rows import TableReader
    from backstory.table import Table
    from backstory.warehouse import Warehouse

Answer = TypeVar("Answer")
# Java compiles no code twice that runs but once.
FAST_START = "-XX:TieredStopAtLevel=1"


def answer(options: Options, question: Callable[["Catalog"], Answer]) -> Answer:
    """What the metadata of tables tells; Spark is started only where nothing else can read it."""
    from backstory.stores.metadata.catalogs import SessionCatalog

    found = _answer_without_spark(options, lambda catalog, _: (question(catalog),))
    if found is not None:
        return found[0]
    with open_warehouse(options, brief=True) as started:
        return question(SessionCatalog(started.store))


def answer_from_metadata(options: Options, question: Callable[["ReadableCatalog"], Answer]) -> Answer | None:
    """What the metadata of tables tells; None where Spark alone knows their catalog."""
    return _answer_without_spark(options, lambda catalog, _: question(catalog))


def answer_from_files(
    options: Options, table: str | TableName, question: Callable[["TableReader"], Answer]
) -> Answer | None:
    """The answer that the files of a small table give without Spark; None where Spark must be asked.

    What a table is refused for is raised, for Spark would refuse it too.
    """

    def described(catalog: "ReadableCatalog") -> "TableMetadata | None":
        meant = possible_names(table) if isinstance(table, str) else [table]
        return next(filter(None, map(catalog.describe, meant)), None)

    return _answer_from_table(options, described, question)


def answers_from_metadata(
    options: Options, question: Callable[["ReadableCatalog", "TableName"], Answer]
) -> dict[TableName, Answer | None] | None:
    """The answers for all tables of a catalog that is read without Spark, None for those that cannot be."""
    return _answer_without_spark(
        options,
        lambda catalog, _: {
            each: _answer_if_readable(partial(question, catalog, each)) for each in catalog.tables()
        },
    )


def answer_from_dataset(
    options: Options, namespace: str, name: str, question: Callable[["TableReader"], Answer]
) -> Answer | None:
    """The same of a dataset by its name; UsageError if there is none."""
    from backstory.doors.odf import registry

    def described(catalog: "ReadableCatalog") -> "TableMetadata | None":
        return registry.described_datasets(catalog, namespace).existing(name).table

    return _answer_from_table(options, described, question)


def _answer_from_table(
    options: Options,
    described: Callable[["ReadableCatalog"], "TableMetadata | None"],
    question: Callable[["TableReader"], Answer],
) -> Answer | None:
    def answer(catalog: "ReadableCatalog", settings: "Settings") -> Answer | None:
        from backstory.formats.memory import Memory
        from backstory.stores.metadata.table_rows import TableReader

        table = described(catalog)
        if table is None:
            return None
        with Memory(settings.driver_memory).lease() as lease:
            return question(TableReader(table, catalog, lease))

    return _answer_without_spark(options, answer)


def _answer_without_spark(
    options: Options, question: Callable[["ReadableCatalog", "Settings"], Answer | None]
) -> Answer | None:
    """The answer from a catalog that is read without Spark; None where either cannot be had without Spark."""
    from backstory.stores.metadata.catalogs import open_without_spark

    def answer() -> Answer | None:
        settings = options.settings()
        catalog = open_without_spark(settings)
        return None if catalog is None else question(catalog, settings)

    log_for_options(options)
    return _answer_if_readable(answer)


def _answer_if_readable(question: Callable[[], Answer | None]) -> Answer | None:
    """The answer; None where something in the way is Spark's to read, or to tell of."""
    import structlog

    try:
        return question()
    except BackstoryError:
        raise
    except Exception as stop:
        structlog.get_logger().info("not readable without Spark", cause=str(stop))
    return None


def log_for_options(options: Options) -> None:
    """From now on what is logged is for people, as much of it as the options want."""
    from backstory.observe.logs import log_for_people

    log_for_people(quiet=options.quiet, verbose=options.verbose)


@contextmanager
def open_warehouse(
    options: Options, *tables: str, brief: bool = False, catalog: str = CATALOG
) -> Iterator["Warehouse"]:
    """The warehouse of the options, while Spark runs; with `brief` it starts faster and computes slower.

    Of `tables` that must be there, one that is not is told of before Spark starts, where that is known.
    """
    from backstory import warehouse

    log_for_options(options)
    _require_tables(options, tables)
    if brief:
        os.environ.setdefault("SPARK_SUBMIT_OPTS", FAST_START)
    with show_start(options):
        started = warehouse.open(
            options.warehouse, catalog=catalog, config=options.config, verbose=options.verbose
        )
    with started as found:
        yield found
        sys.stdout.flush()


def _require_tables(options: Options, tables: Sequence[str]) -> None:
    from backstory.stores.metadata.catalogs import EmbeddedCatalog, open_without_spark
    from backstory.stores.refusals import no_table

    catalog = open_without_spark(options.settings()) if tables else None
    if not isinstance(catalog, EmbeddedCatalog):
        return
    there = set(catalog.tables())
    for name in tables:
        if resolve_name(name, there.__contains__) is None:
            raise no_table(table_name(name), there, catalog.searched)


def show_state(
    options: Options,
    table: str,
    limit: int | None,
    of_files: Callable[["TableReader"], "pa.Table"],
    of_table: Callable[["Table"], "DataFrame"],
    nothing: Callable[[Sequence[str]], str],
) -> None:
    """Print rows of a table in the order of its key, from its files if it is small, else from Spark.

    `nothing` says of a key's columns what is told where there are no rows.
    """
    from backstory.reading.arrow.sorting import sort_rows
    from backstory.reading.frames.versions import order_columns
    from backstory.stores.metadata.values import rows_of

    small = answer_from_files(options, table, lambda files: (of_files(files), files.table.shape))
    if small is not None:
        found, shape = small
        first = order_columns(shape, found.column_names)
    else:
        from backstory.reading.frames.versions import sortable_columns
        from backstory.stores.iceberg.store import existing

        with open_warehouse(options, table) as started:
            asked = started.table(table)
            frame = of_table(asked)
            shape = existing(asked.store, asked.name).shape
            first = order_columns(shape, frame.columns)
            if limit is not None:
                frame = frame.orderBy(*sortable_columns(frame, first))
            found = _collect_rows(frame, limit, options, table)
    rows = rows_of(sort_rows(found, first).slice(0, limit))
    show(rows, options.answer, found.column_names, wide=options.wide)
    if not rows:
        print_remark(options, nothing(shape.source_key))


def print_remark(options: Options, told: str) -> None:
    """Say on standard error that an answer has no rows: headings alone are easily overlooked."""
    if not options.quiet:
        print_line(told)


def show_frame(frame: "DataFrame", limit: int | None, options: Options) -> None:
    """Print the rows of a frame; Refused or Failed if they cannot be computed."""
    rows = rows_of_frame(frame, limit, options, "a table of the query")
    show(rows, options.answer, frame.columns, wide=options.wide)


def rows_of_frame(
    frame: "DataFrame", limit: int | None, options: Options, table: TableName | str
) -> list[dict[str, Any]]:
    """The rows of a frame that reads a table; Refused or Failed if they cannot be computed."""
    from backstory.stores.metadata.values import rows_of

    return rows_of(_collect_rows(frame, limit, options, table))


def _collect_rows(
    frame: "DataFrame", limit: int | None, options: Options, table: TableName | str
) -> "pa.Table":
    from backstory.reading.queries import translate_query_faults

    with translate_query_faults(table), show_activity(options, "Reading ..."):
        return arrow_of(frame if limit is None else frame.limit(limit))
