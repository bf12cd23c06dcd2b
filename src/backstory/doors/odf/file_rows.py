"""The rows of a source's file.

The file is unpacked and passed through the prepare commands (section 1.5), then read (1.6).
"""

import gzip
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic.alias_generators import to_camel

from backstory.doors.odf.manifest import events as odf
from backstory.engine.staging import (
    ARRIVAL,
    StagedRows,
    copy_whole,
    is_local,
    local_parquet,
    rows_of_staged_file,
    stage_or_hold,
)
from backstory.errors import Failed, UsageError
from backstory.formats.batch_file import require_unchanged, stamp_of
from backstory.formats.encoded import encoding
from backstory.formats.memory import Bound, bound_of
from backstory.formats.options import (
    CsvOptions,
    JsonOptions,
    ParquetOptions,
    ShapefileOptions,
    unsupported_option,
)
from backstory.formats.parquet import plain_parquet
from backstory.formats.produced import UNDECLARED, DeclaredFields
from backstory.formats.reading import Options, rows_of
from backstory.formats.source_files import broken_archive, choose_entry, extract, open_zip
from backstory.formats.values.texts import text_forms
from backstory.settings import Rights
from backstory.spark.versions import metadata_column
from backstory.stores.iceberg.store import IcebergStore

_SEPARATORS: Final = {"\\t": "\t"}

TAIL_BYTES, TAIL_LINES = 2000, 10
HOW_TO_ALLOW = "Set `allow-commands = true` under `[odf]` in backstory.toml if you trust the manifest."


def read_options(read: odf.Reader) -> Options:
    """The options for `formats`. Raises UsageError for an unsupported option."""
    strict = read.unknown_fields is odf.UnknownFields.ERROR
    match read:
        case odf.Csv():
            return _csv(read, strict=strict)
        case odf.Json() | odf.NdJson():
            return JsonOptions(
                lines=isinstance(read, odf.NdJson),
                sub_path=read.sub_path if isinstance(read, odf.Json) else None,
                encoding=encoding(read.encoding),
                forms=text_forms(read.date_format, read.timestamp_format),
                strict=strict,
            )
        case odf.GeoJson() | odf.NdGeoJson():
            return JsonOptions(lines=isinstance(read, odf.NdGeoJson), geo=True, strict=strict)
        case odf.EsriShapefile():
            return ShapefileOptions(read.sub_path, strict)
        case _:
            return ParquetOptions(strict)


def _csv(read: odf.Csv, *, strict: bool) -> CsvOptions:
    for name, (default, _) in odf.REMOVED.items():
        if getattr(read, name) not in {None, default}:
            option = to_camel(name)
            raise unsupported_option(option, "it was removed from the format", "Remove it from `read`.")
    return CsvOptions(
        _SEPARATORS.get(read.separator, read.separator),
        read.quote,
        "" if read.escape == read.quote else read.escape,  # a doubled quote means one quote anyway
        header=read.header,
        encoding=encoding(read.encoding),
        null=read.null_value,
        forms=text_forms(read.date_format, read.timestamp_format),
        infer=read.infer_schema,
        strict=strict,
    )


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """A file to read. `name` is its name in messages, and `bound` limits its unpacked size."""

    path: Path
    name: str
    bound: Bound


def prepare_file(
    path: Path,
    name: str,
    steps: Sequence[odf.Decompress | odf.Pipe],
    folder: Path,
    *,
    rights: Rights,
    logs: Path | None = None,
) -> PreparedFile:
    """The file after all steps, which write into `folder`.

    Raises Refused for a broken archive, and for an archive whose content exceeds the limit in `rights`. Also
    raises Refused for a `subPath` that does not match exactly one entry. Raises UsageError for a command that
    is forbidden or not found, and Failed for a command that fails. The message has the end of the command's
    output; the whole output is kept in `logs`, as `step-N.log`.
    """
    prepared, stamp = PreparedFile(path, name, bound_of(path, rights.unpacked_limit)), stamp_of(path)
    for number, step in enumerate(steps, 1):
        target = folder / f"step-{number}"
        if isinstance(step, odf.Pipe):
            prepared = _pipe(prepared, step, target, logs, allow_commands=rights.allow_commands)
        elif step.format is odf.FileCompression.ZIP:
            with open_zip(prepared.path, prepared.name) as archive:
                entry = choose_entry(archive, prepared.name, step.sub_path)
                extract(archive, entry, target, prepared.name, prepared.bound)
            prepared = replace(prepared, path=target, name=f"{prepared.name}/{entry}")
        else:
            prepared = _gunzip(prepared, step, target)
    require_unchanged([stamp])
    return prepared


def _gunzip(source: PreparedFile, step: odf.Decompress, target: Path) -> PreparedFile:
    if step.sub_path is not None:
        raise UsageError("sub-path", "A gzip has no entries for `subPath` to name.", "Remove `subPath`.")
    if not source.path.stat().st_size:
        raise broken_archive(source.name, "a gzip: it is empty")
    try:
        with gzip.open(source.path) as packed:
            source.bound.copy(packed, target, source.name)
    except (gzip.BadGzipFile, EOFError, zlib.error) as stop:
        raise broken_archive(source.name, f"a whole gzip ({stop})") from None
    return replace(source, path=target, name=source.name.removesuffix(".gz"))


def _pipe(
    source: PreparedFile, step: odf.Pipe, target: Path, logs: Path | None, *, allow_commands: bool
) -> PreparedFile:
    program = step.command[0]
    if not allow_commands:
        raise UsageError(
            "commands-not-allowed",
            f"The manifest runs `{program}`, but commands are turned off.",
            HOW_TO_ALLOW,
        )
    log = target.with_suffix(".log")
    shown_name = f"{source.name} after {Path(program).name}"
    with (
        source.path.open("rb") as input_file,
        log.open("wb") as error_output,
        _run(step, input_file, error_output) as running,
    ):
        assert running.stdout is not None
        try:
            source.bound.copy(running.stdout, target, shown_name)
        except BaseException:
            running.kill()
            raise
        exit_code = running.wait()
    if exit_code:
        message = f"`{program}` ended with {exit_code} on {source.name}: {_tail(log) or 'it printed nothing'}"
        kept_log = _keep_log(log, logs)
        raise Failed(
            "command-failed", message, f"Its full output is in {kept_log}." if kept_log else "Fix `prepare`."
        )
    return replace(source, path=target, name=shown_name)


def _run(step: odf.Pipe, input_file: IO[bytes], error_output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the program without a shell. The operator has allowed it."""
    try:
        return subprocess.Popen(step.command, stdin=input_file, stdout=subprocess.PIPE, stderr=error_output)  # noqa: S603
    except (OSError, ValueError) as stop:
        message = (
            f"The manifest's command `{step.command[0]}` cannot be run: {getattr(stop, 'strerror', stop)}."
        )
        raise UsageError("no-command", message, "Install it, or fix `prepare`.") from None


def _keep_log(log: Path, logs: Path | None) -> Path | None:
    """Copy a log to the permanent folder. Returns None if that is not possible."""
    with suppress(OSError):
        if logs is not None:
            logs.mkdir(0o700, parents=True, exist_ok=True)
            return Path(shutil.copy(log, logs))
    return None


def _tail(log: Path) -> str:
    """The last lines of a command's output."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:]).strip()


def read_batch(
    store: IcebergStore,
    ready: PreparedFile,
    read: odf.Reader,
    schema: pa.Schema | None,
    folder: Path,
    types: DeclaredFields = UNDECLARED,
    *,
    held: ExitStack,
    queried: bool = False,
) -> StagedRows | None:
    """The rows of a prepared file, or None if the file has neither rows nor columns.

    The rows can be read until `held` is closed. `schema` is the declared schema of the source, and `types`
    are the types of columns without a declared type. A Parquet file that needs no conversion is copied into
    `folder` and read there. `queried` is true if a query reads the rows. Raises Refused for malformed data.
    """
    stamp = stamp_of(ready.path)
    if isinstance(read, odf.Parquet) and is_local(store) and plain_parquet(ready.path, schema, types):
        whole = copy_whole(ready.path, stamp, folder)
        frame = local_parquet(store, whole, pq.read_schema(whole))
        # This form finds Spark's metadata even if a column has the same name.
        place = metadata_column(frame, "_metadata")["row_index"]
        return rows_of_staged_file(frame.select("*", place.alias(ARRIVAL)), whole)
    rows = rows_of(ready.path, ready.name, read_options(read), schema, types, ready.bound)
    return stage_or_hold(store, rows, folder, held, queried=queried) if rows.schema.names else None
