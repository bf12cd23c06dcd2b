"""Answers to a command's question, from metadata or files if these suffice, or else from Spark.

Standard error shows when Spark starts or computes. Progress lines appear only on a terminal. `--quiet` and
`--verbose` turn progress lines off.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from rich.console import Console

from backstory.cli.options import Options
from backstory.cli.output import errors
from backstory.errors import BackstoryError
from backstory.formats.memory import Memory
from backstory.model.table import TableName, possible_names, resolve_name, table_name
from backstory.settings import CATALOG
from backstory.spark.versions import arrow_of
from backstory.stores.port import no_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from backstory.reading.questions import KnownTable
    from backstory.settings import Settings
    from backstory.stores.metadata.table_metadata import Catalog, TableMetadata
    from backstory.stores.metadata.table_rows import TableReader
    from backstory.warehouse import Warehouse

Answer = TypeVar("Answer")
Describe: TypeAlias = "Callable[[Catalog], TableMetadata | None]"
# Use only Java's fast compiler, because a short command ends before the slow one pays off.
FAST_START = "-XX:TieredStopAtLevel=1"
STARTING = "Starting Spark ..."
MEGABYTE = 1_000_000


def answer(options: Options, question: Callable[["Catalog"], Answer]) -> Answer:
    """The answer from the metadata of tables. Spark starts only if nothing else can read the catalog."""
    # The tuple distinguishes an answer that is None from no answer.
    result = _answer_without_spark(options, lambda catalog, _: (question(catalog),))
    if result is not None:
        return result[0]
    with open_warehouse(options, brief=True) as warehouse:
        return question(warehouse.store)


def answer_from_metadata(options: Options, question: Callable[["Catalog"], Answer]) -> Answer | None:
    """The answer from the metadata of tables, or None if only Spark can read the catalog."""
    return _answer_without_spark(options, lambda catalog, _: question(catalog))


def answer_from_files(
    options: Options, table: "str | TableName | Describe", question: Callable[["TableReader"], Answer]
) -> Answer | None:
    """The answer from the files of a small table, or None if Spark must read it.

    A function finds the table in the catalog. Errors of backstory are raised, because Spark would refuse the
    table too.
    """

    def read(catalog: "Catalog", settings: "Settings") -> Answer | None:
        from backstory.stores.metadata.table_rows import TableReader

        if callable(table):
            found = table(catalog)
        else:
            names = possible_names(table) if isinstance(table, str) else [table]
            found = next(filter(None, map(catalog.describe, names)), None)
        if found is None:
            return None
        with Memory(settings.driver_memory).lease() as lease:
            return question(TableReader(found, catalog, lease))

    return _answer_without_spark(options, read)


def answer_from_table(
    options: Options,
    table: str,
    question: Callable[["KnownTable[Any, Any]"], Answer],
    *,
    brief: bool = False,
    activity: str = "",
) -> Answer:
    """The answer to a question about a table, from its files if it is small, or else from Spark."""
    from backstory.reading.files import table_in_files

    small = answer_from_files(options, table, lambda reader: question(table_in_files(reader)))
    if small is not None:
        return small
    with open_warehouse(options, table, brief=brief, activity=activity) as warehouse:
        from backstory.reading.frames import table_in_session
        from backstory.spark.session import hold_settings

        stored = warehouse.table(table)
        with hold_settings(stored.store.session):
            return question(table_in_session(stored.store, stored.name))


def answer_from_dataset(
    options: Options, namespace: str, name: str, question: Callable[["TableReader"], Answer]
) -> Answer | None:
    """The answer from the files of a small dataset. Raises UsageError if the dataset does not exist."""
    from backstory.doors.odf import registry

    def describe(catalog: "Catalog") -> "TableMetadata | None":
        return registry.described_datasets(catalog, namespace).existing(name).table

    return answer_from_files(options, describe, question)


def _answer_without_spark(
    options: Options, question: Callable[["Catalog", "Settings"], Answer | None]
) -> Answer | None:
    """The answer from a catalog that opens without Spark. None if the catalog or the answer needs Spark."""
    from backstory.stores.metadata.catalogs import open_without_spark

    def read() -> Answer | None:
        settings = options.settings()
        catalog = open_without_spark(settings, options.branch)
        return None if catalog is None else question(catalog, settings)

    log_for_options(options)
    return answer_if_readable(read)


def answer_if_readable(question: Callable[[], Answer | None]) -> Answer | None:
    """The answer, or None after an unexpected error. Spark may be able to read more, or report the error."""
    import structlog

    try:
        return question()
    except BackstoryError:
        raise
    except Exception as stop:
        structlog.get_logger().info("not readable without Spark", cause=str(stop))
    return None


def log_for_options(options: Options) -> None:
    """Write log lines for people from now on. The options set their level."""
    from backstory.cli.logs import log_for_people

    log_for_people(quiet=options.quiet, verbose=options.verbose)


@contextmanager
def open_warehouse(
    options: Options, *tables: str, brief: bool = False, catalog: str = CATALOG, activity: str = ""
) -> Iterator["Warehouse"]:
    """The warehouse of the options, with Spark. While it is open, a spinner shows the `activity`.

    If `brief` is true, Spark starts faster but computes more slowly. Raises UsageError before Spark starts
    if an embedded catalog lacks one of `tables`.
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
    with started as opened:
        if options.branch is not None:
            opened = replace(opened, store=replace(opened.store, branch=options.branch))  # noqa: PLW2901
        with show_activity(options, activity) if activity else nullcontext():
            yield opened
        sys.stdout.flush()


def _require_tables(options: Options, tables: Sequence[str]) -> None:
    from backstory.stores.metadata.catalogs import EmbeddedCatalog, open_without_spark

    catalog = open_without_spark(options.settings()) if tables else None
    if not isinstance(catalog, EmbeddedCatalog):
        return
    existing = set(catalog.tables())
    for name in tables:
        if resolve_name(name, existing.__contains__) is None:
            raise no_table(table_name(name), existing, catalog.description)


@contextmanager
def show_start(options: Options) -> Iterator[None]:
    """Show that Spark is starting, and the progress of fetching its connectors the first time."""
    from backstory.spark.jars import CONNECTOR_BYTES, must_fetch

    properties = options.settings().spark
    fetching = must_fetch(properties)
    if fetching and not options.quiet:
        size = f"{CONNECTOR_BYTES // MEGABYTE} MB"
        line = f"Fetching Spark's connectors (Iceberg, SQLite), only this once: {size} from Maven Central ..."
        errors.print(line, style="dim")
    if options.quiet or options.verbose or not sys.stderr.isatty():
        yield
        return
    # Spark's start redirects standard error to a file, so the terminal is kept.
    terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8")
    with terminal, _status_line(Console(file=terminal), properties, fetching=fetching):
        yield


@contextmanager
def show_activity(options: Options, words: str) -> Iterator[None]:
    """Show a spinner with these words until the block ends.

    Standard output is not redirected, because another program may read it.
    """
    if options.quiet or options.verbose or not sys.stderr.isatty():
        yield
        return
    from rich.live import Live
    from rich.spinner import Spinner

    console = Console(stderr=True)
    with Live(Spinner("dots", words), console=console, transient=True, redirect_stdout=False):
        yield


@contextmanager
def _status_line(terminal: Console, properties: Mapping[str, str], *, fetching: bool) -> Iterator[None]:
    from backstory.spark.jars import CONNECTOR_BYTES, fetched_bytes

    ended = threading.Event()
    with terminal.status(STARTING) as line:

        def follow_download() -> None:
            while (so_far := fetched_bytes(properties)) < CONNECTOR_BYTES and not ended.wait(0.5):
                line.update(f"Fetching: {so_far // MEGABYTE} of {CONNECTOR_BYTES // MEGABYTE} MB")
            line.update(STARTING)

        follower = threading.Thread(target=follow_download if fetching else ended.wait, daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()


def rows_of_frame(
    frame: "DataFrame", limit: int | None, options: Options, table: TableName | str
) -> list[dict[str, Any]]:
    """The rows of a frame that reads the table. Raises Refused or Failed if the rows cannot be computed."""
    from backstory.stores.metadata.values import rows_of

    return rows_of(collect_rows(frame, limit, options, table))


def collect_rows(
    frame: "DataFrame", limit: int | None, options: Options, table: TableName | str
) -> "pa.Table":
    """The first rows of a frame that reads the table.

    Raises Refused or Failed if Spark cannot compute them.
    """
    from backstory.reading.queries import translate_query_faults

    with translate_query_faults(table), show_activity(options, "Reading ..."):
        return arrow_of(frame if limit is None else frame.limit(limit))
