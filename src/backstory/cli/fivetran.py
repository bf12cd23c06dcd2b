"""The Fivetran destination: `backstory serve` runs it, `backstory send` delivers to one as Fivetran does."""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from cyclopts import Parameter

from backstory.cli.flags import with_flags
from backstory.cli.options import DEFAULTS, Flag, Options
from backstory.cli.output import console, in_flags, show
from backstory.errors import BackstoryError, Failed, TryAgain, UsageError, missing_part
from backstory.formats.file_options import FileWords, parse_file_words
from backstory.formats.memory import Memory
from backstory.formats.wrapping.batch_file import Compression, Encoding, Format
from backstory.model.instant import parse_instant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backstory.settings import Settings
    from backstory.stores.iceberg.store import IcebergStore
    from backstory.testing.sender import SourceCopy


def serve(
    *,
    host: str | None = None,
    port: int = 50052,
    metrics_port: int | None = None,
    batch_format: Format = Format.CSV,
    enable_live_modes: Flag = False,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    tls_client_ca: Path | None = None,
    options: Options = DEFAULTS,
    unknown: Annotated[Sequence[str], Parameter(parse=False)] = (),
) -> None:
    """Run the Fivetran destination until SIGTERM; JSON log lines go to standard output.

    Args:
        host: Interface to listen on. Default: all IPv4 and IPv6 interfaces.
        port: Port to listen on; 0 picks a free one.
        metrics_port: Port for Prometheus metrics, under /metrics. Default: no metrics.
        batch_format: Format of the batch files that Fivetran is asked to send.
        enable_live_modes: Offer migrations from and to live mode, which Fivetran has withdrawn.
        tls_cert: The server's certificate chain, in PEM; without it requests are not encrypted.
        tls_key: The certificate's private key, in PEM.
        tls_client_ca: Accept only clients with a certificate signed by this authority.
        options: Common options.
        unknown: Unknown arguments, which are ignored (section 7.1).
    """
    import structlog

    from backstory.doors.fivetran.server import ServeOptions, require_port, serve_until_signal
    from backstory.doors.fivetran.server import serve as start_serving
    from backstory.spark.launch import java_of
    from backstory.spark.session import start_session

    settings = options.settings()
    request = ServeOptions(
        host=host,
        port=port,
        metrics_port=metrics_port,
        batch_format=batch_format,
        enable_live_modes=enable_live_modes,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        batch_folder=settings.batch_folder,
    )
    request.credentials()  # raises errors of the files before Spark starts
    require_port(host, port)
    if metrics_port is not None:
        require_port(host, metrics_port, "metrics_port")
    _require_batch_folder(settings)
    spark = start_session(settings, verbose=options.verbose)
    running = start_serving(_open_stores(spark, settings), request, _account())
    if unknown:
        structlog.get_logger().warning("unknown arguments are ignored", count=len(unknown))
    serve_until_signal(running, java_of(spark))
    spark.stop()


def _require_batch_folder(settings: "Settings") -> None:
    if settings.batch_folder and not settings.batch_folder.is_dir():
        raise UsageError(
            "no-folder",
            f"There is no folder {settings.batch_folder}.",
            "Create it, or fix batch-folder in [serve].",
        )


def _open_stores(spark: "SparkSession", settings: "Settings") -> "dict[str, IcebergStore]":
    """A store for each catalog; Failed for a catalog that does not answer."""
    from backstory.stores.embedded_catalog import remember_if_writable
    from backstory.stores.iceberg.store import IcebergStore

    memory = Memory(settings.driver_memory)
    stores = {name: IcebergStore(spark, name, settings.format_version, memory) for name in settings.catalogs}
    for store in stores.values():
        _require_answer(store)
        remember_if_writable(store.home)
    return stores


def _require_answer(store: "IcebergStore") -> None:
    """Raise Failed, not TryAgain, if a catalog is busy or unreachable: a start is not retried."""
    from backstory.stores.iceberg.store import tables

    try:
        tables(store, schema="")  # lists the schemas, which is answer enough
    except TryAgain as silent:
        raise Failed(
            silent.code,
            f"The catalog {store.catalog} does not answer.",
            "Start it, or fix its settings in backstory.toml.",
        ) from silent


def run(command: Callable[[], None]) -> int:
    """Run `serve` with JSON log lines from the first moment on, and return the exit code."""
    import structlog

    from backstory.observe.logs import log_for_fivetran

    log = structlog.get_logger()
    log_for_fivetran()
    try:
        command()
    except BackstoryError as error:
        log.critical(in_flags(str(error)), code=error.code)
        return error.exit_code
    except Exception as bug:
        if (part := missing_part(bug)) is not None:
            log.critical(in_flags(str(part)), code=part.code)
            return part.exit_code
        log.critical(f"the server stopped on a bug: {type(bug).__name__}")
        return 1
    return 0


def _account() -> dict[str, str]:
    """The account and group of Fivetran that the environment names, for log lines."""
    variables = {"account": "FIVETRAN_ACCOUNT_NAME", "group": "FIVETRAN_GROUP_NAME"}
    return {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}


@with_flags(FileWords)
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
    **words: Unpack[FileWords],
) -> None:
    """Send the difference between two full copies to a destination, as one batch.

    A missing table is created, and missing columns are added. To send everything, use an empty file as
    BEFORE. The same pair sent again is the same batch, with the same times: the destination recognises it and
    commits nothing, unless it has committed another batch since.

    Args:
        before: The older copy: a CSV, Parquet or JSON file, packed or not.
        after: The newer copy.
        to: Destination, as host:port.
        schema: Schema of the table.
        table: Name of the table.
        key: Key columns, separated by commas.
        history: Send a history batch, for a table that keeps history.
        at: The time when the source changed, ISO 8601. Default: when the pair was first sent.
        format: Format of the batch files; the destination's --batch-format must be the same.
        compression: Compression of the batch files.
        encryption: Encryption of the batch files.
        dry_run: Print the counts of the batch, and send nothing.
        options: Common options.
    """
    from backstory.formats.file_columns import comma_notes
    from backstory.testing.sender import (
        NULL_STRING,
        UNMODIFIED_STRING,
        Sender,
        SentBatches,
        difference,
        pair_of,
        read_copy,
        text_columns,
    )

    names = [name.strip() for name in key.split(",")]
    time = parse_instant(at) if at else None
    file_options = parse_file_words(**words)
    encoding = Encoding(format, compression, encryption == "aes", NULL_STRING, UNMODIFIED_STRING)

    def read_copies(texts: Sequence[str]) -> "tuple[SourceCopy, SourceCopy]":
        newer, older = (read_copy(path, names, texts, file_options) for path in (after, before))
        return newer, older

    recognised = False
    with tempfile.TemporaryDirectory(prefix="backstory-send-") as folder:
        sender = Sender.to(to, Path(folder), encoding=encoding)
        newer, older = read_copies(text_columns(None if dry_run else sender.describe(schema, table)))
        notes = [in_flags(note).replace("`", "") for note in comma_notes(newer.with_commas)]
        if dry_run:
            rows = difference(older, newer, time or datetime.now(UTC), history=history)
        else:
            definition = sender.prepare(schema, table, newer, history=history)
            newer, older = read_copies(text_columns(definition))  # a new table has a definition only now
            sent = SentBatches.of(to, schema, table)
            pair = pair_of((before, after), names, time, history, encoding)
            batch = sent.batch(pair, time)
            rows, recognised = difference(older, newer, batch.time, history=history), batch.taken
            if not rows.empty:
                replace(sender, secret=batch.secret).write(schema, definition, rows)
                sent.mark_taken(pair)
    summary = {
        "table": f"{schema}.{table}",
        "sent": not dry_run and not rows.empty,
        "recognised": recognised and not rows.empty,
        "replace": len(rows.replace),
        "update": len(rows.update),
        "delete": len(rows.delete),
        "repeated_keys": [list(repeated) for repeated in newer.repeated],
    }
    if options.output_format != "table":
        summary["notes"] = notes
    show([summary], options.output_format)
    for note in notes if options.output_format == "table" else ():
        console.print(note, markup=False)
