"""The Fivetran destination.

`backstory serve` runs a destination, and `backstory send` delivers to a destination as Fivetran does.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from backstory.cli.options import DEFAULTS, Flag, Options, with_flags
from backstory.cli.output import in_flags, print_lines, show
from backstory.doors.fivetran.options import ServeRequest
from backstory.errors import BackstoryError, Failed, TryAgain, UsageError, missing_part
from backstory.formats.batch_file import Compression, Format
from backstory.formats.file_options import FileOptions
from backstory.formats.memory import Memory
from backstory.model.instant import parse_instant
from backstory.model.table import TableName
from backstory.spark.launch import java_of
from backstory.stores.embedded_catalog import remember_if_writable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backstory.settings import Settings
    from backstory.stores.iceberg.store import IcebergStore
    from backstory.testing.sender import SentPair


@with_flags(ServeRequest)
def serve(
    *,
    options: Options = DEFAULTS,
    unknown: Annotated[Sequence[str], Parameter(parse=False)] = (),
    **words: Any,
) -> None:
    """Run the Fivetran destination until SIGTERM. JSON log lines go to standard output.

    Args:
        unknown: Unknown arguments, which are ignored (section 7.1).
    """
    import structlog

    from backstory.doors.fivetran import server
    from backstory.spark.session import start_session

    settings = options.settings()
    request = ServeRequest(**words, batch_folder=settings.batch_folder)
    _require_startable(request)
    spark = start_session(settings, verbose=options.verbose)
    running = server.serve(_open_stores(spark, settings), request, _account())
    if unknown:
        structlog.get_logger().warning("unknown arguments are ignored", count=len(unknown))
    server.serve_until_signal(running, java_of(spark))
    spark.stop()


def _require_startable(request: ServeRequest) -> None:
    """Raise an error in certificates, ports or the batch folder before Spark starts."""
    from backstory.doors.fivetran.server import credentials_of, require_port

    credentials_of(request)
    require_port(request.host, request.port)
    if request.metrics_port is not None:
        require_port(request.host, request.metrics_port, "metrics_port")
    if request.batch_folder and not request.batch_folder.is_dir():
        raise UsageError(
            "no-folder",
            f"There is no folder {request.batch_folder}.",
            "Create it, or fix batch-folder in [serve].",
        )


def _open_stores(spark: "SparkSession", settings: "Settings") -> "dict[str, IcebergStore]":
    """A store for each catalog. Raises Failed for a catalog that does not respond."""
    from backstory.stores.iceberg.store import IcebergStore, tables

    memory = Memory(settings.driver_memory)
    stores = {name: IcebergStore(spark, name, settings.format_version, memory) for name in settings.catalogs}
    for name, store in stores.items():
        try:
            tables(store, schema="")  # lists the schemas, because any response is enough
        except TryAgain as silent:  # a start is not retried
            remedy = "Start it, or fix its settings in backstory.toml."
            raise Failed(silent.code, f"The catalog {name} does not answer.", remedy) from silent
        remember_if_writable(store.home)
    return stores


def run(command: Callable[[], None]) -> int:
    """Run `serve` with JSON log lines from the start, and return the exit code."""
    import structlog

    from backstory.cli.logs import log_for_fivetran

    log = structlog.get_logger()
    log_for_fivetran()
    try:
        command()
    except Exception as stop:
        error = stop if isinstance(stop, BackstoryError) else missing_part(stop)
        if error is None:
            log.critical(f"the server stopped on a bug: {type(stop).__name__}")
            return 1
        log.critical(in_flags(str(error)), code=error.code)
        return error.exit_code
    return 0


def _account() -> dict[str, str]:
    """The Fivetran account and group named in the environment, for log lines."""
    variables = {"account": "FIVETRAN_ACCOUNT_NAME", "group": "FIVETRAN_GROUP_NAME"}
    return {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}


@with_flags(FileOptions)
def send(
    before: Path,
    after: Path,
    *,
    to: str,
    schema: str,
    table: str,
    key: str,
    history: Flag = False,
    at: str | None = None,
    format: Format = Format.CSV,  # noqa: A002 - the option's name
    compression: Compression = Compression.ZSTD,
    encryption: Literal["aes", "none"] = "aes",
    dry_run: Flag = False,
    options: Options = DEFAULTS,
    **words: Any,
) -> None:
    """Send the difference between two full copies to a destination, as one batch.

    A missing table is created, and missing columns are added. To send everything, use an empty file as
    BEFORE. If the same pair is sent again, the batch is the same, with the same times. The destination
    recognizes the batch and commits nothing, unless it has committed another batch since then.

    Args:
        before: The older copy: a CSV, Parquet or JSON file, compressed or not.
        after: The newer copy.
        to: Destination, as host:port.
        schema: Schema of the table.
        table: Name of the table.
        key: Key columns, separated by commas.
        history: Send a history batch, for a table that keeps history.
        at: The time when the source changed, ISO 8601. Default: when the pair was first sent.
        format: Format of the batch files. The destination's --batch-format must be the same.
        compression: Compression of the batch files.
        encryption: Encryption of the batch files.
        dry_run: Print the counts of the batch, and send nothing.
    """
    from backstory.testing.sender import AS_FIVETRAN, CopyPair, Sender, rehearse_pair, send_pair

    time, name = parse_instant(at) if at else None, TableName(schema, table)
    names = tuple(name.strip() for name in key.split(","))
    pair = CopyPair(before, after, names, FileOptions(**words), history)
    if dry_run:
        _show_sent(rehearse_pair(pair, time), str(name), options, dry_run=True)
        return
    encoding = replace(AS_FIVETRAN, format=format, compression=compression, encrypted=encryption == "aes")
    with tempfile.TemporaryDirectory(prefix="backstory-send-") as folder:
        sent = send_pair(Sender.to(to, Path(folder), encoding=encoding), name, pair, time)
    _show_sent(sent, str(name), options, dry_run=False)


def _show_sent(sent: "SentPair", table: str, options: Options, *, dry_run: bool) -> None:
    """Print the rows of a batch by kind, and notes on strings that look like numbers."""
    from backstory.formats.reading import comma_notes

    rows, notes = sent.rows, [in_flags(note).replace("`", "") for note in comma_notes(sent.with_commas)]
    summary = {
        "table": table,
        "sent": not dry_run and not rows.empty,
        "recognised": sent.is_recognised and not rows.empty,
        "replace": len(rows.replace),
        "update": len(rows.update),
        "delete": len(rows.delete),
        "repeated_keys": [list(repeated) for repeated in sent.repeated],
    }
    if options.for_people:
        show([summary], "table")
        print_lines(notes)
    else:
        options.show([{**summary, "notes": notes}])
