"""The read step of a manifest in the words of `formats` (section 1.6).

Fetched bytes are unpacked and piped before they are read: steps from left to right (section 1.5).

Rows of a source's file become a DataFrame.
"""

import gzip
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.doors.odf.manifest.events import (
    Csv,
    Decompress,
    EsriShapefile,
    FileCompression,
    GeoJson,
    Json,
    NdGeoJson,
    NdJson,
    Parquet,
    Pipe,
    Reader,
    UnknownFields,
)
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
from backstory.formats.csv.options import CsvOptions, unsupported
from backstory.formats.encoded import encoding
from backstory.formats.json.options import JsonOptions
from backstory.formats.parquet.options import ParquetOptions
from backstory.formats.parquet.plain import plain_parquet
from backstory.formats.produced import UNTOLD, Told
from backstory.formats.reading import Options, rows_of
from backstory.formats.shapefile.options import ShapefileOptions
from backstory.formats.unchanged import require_unchanged, stamp_of
from backstory.formats.values.texts import text_forms
from backstory.formats.wrapping import archives
from backstory.formats.wrapping.room import Bound, bound_of
from backstory.settings import Rights
from backstory.spark.versions import metadata_column
from backstory.stores.iceberg.store import Store

# Removed from the format, and what they did when they were not set (section 1.6).
_REMOVED: Final = {
    "comment": ("comment", None),
    "enforce_schema": ("enforceSchema", True),
    "ignore_leading_white_space": ("ignoreLeadingWhiteSpace", False),
    "ignore_trailing_white_space": ("ignoreTrailingWhiteSpace", False),
    "empty_value": ("emptyValue", ""),
    "nan_value": ("nanValue", "NaN"),
    "positive_inf": ("positiveInf", "Inf"),
    "negative_inf": ("negativeInf", "-Inf"),
}
_SPELLED: Final = {"\\t": "\t"}


def read_options(read: Reader) -> Options:
    """How the file is read; UsageError that names the option for what is not supported."""
    strict = read.unknown_fields is UnknownFields.ERROR
    match read:
        case Csv():
            return _csv(read, strict=strict)
        case Json() | NdJson():
            return JsonOptions(
                lines=isinstance(read, NdJson),
                sub_path=read.sub_path if isinstance(read, Json) else None,
                encoding=encoding(read.encoding),
                forms=text_forms(read.date_format, read.timestamp_format),
                strict=strict,
            )
        case GeoJson() | NdGeoJson():
            return JsonOptions(lines=isinstance(read, NdGeoJson), geo=True, strict=strict)
        case EsriShapefile():
            return ShapefileOptions(read.sub_path, strict)
        case _:
            return ParquetOptions(strict)


def _csv(read: Csv, *, strict: bool) -> CsvOptions:
    for attribute, (option, default) in _REMOVED.items():
        if getattr(read, attribute) not in {None, default}:
            raise unsupported(option, "it was removed from the format", "Remove it from `read`.")
    return CsvOptions(
        _SPELLED.get(read.separator, read.separator),
        read.quote,
        "" if read.escape == read.quote else read.escape,  # a doubled quote stands for one anyway
        header=read.header,
        encoding=encoding(read.encoding),
        null=read.null_value,
        forms=text_forms(read.date_format, read.timestamp_format),
        infer=read.infer_schema,
        strict=strict,
    )


TAIL_BYTES, TAIL_LINES = 2000, 10
HOW_TO_ALLOW = "Set `allow-commands = true` under `[odf]` in backstory.toml if you trust the manifest."


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """A file to read; `name` is what messages call it, `bound` that of what is unpacked from it."""

    path: Path
    name: str
    bound: Bound


def prepare_file(
    path: Path,
    name: str,
    steps: Sequence[Decompress | Pipe],
    folder: Path,
    *,
    rights: Rights,
    logs: Path | None = None,
) -> PreparedFile:
    """The file after all steps; what they make lies in `folder`, under names of ours.

    Raises Refused for a broken archive, for one that unpacks to more than `rights` allow, and for a `subPath`
    that does not name one entry, UsageError for a command that may not run or is not there, Failed for
    one that ends with an error. What it said last is in the message; all of it is kept in `logs`, a
    folder that lasts, in `step-N.log`.
    """
    here, stamp = PreparedFile(path, name, bound_of(path, rights.unpacked_limit)), stamp_of(path)
    for number, step in enumerate(steps, 1):
        target = folder / f"step-{number}"
        if isinstance(step, Pipe):
            here = _pipe(here, step, target, logs, allow_commands=rights.allow_commands)
        elif step.format is FileCompression.ZIP:
            here = _unzip(here, step, target)
        else:
            here = _gunzip(here, step, target)
    require_unchanged([stamp])
    return here


def _gunzip(source: PreparedFile, step: Decompress, target: Path) -> PreparedFile:
    if step.sub_path is not None:
        raise UsageError("sub-path", "A gzip has no entries for `subPath` to name.", "Remove `subPath`.")
    if not source.path.stat().st_size:
        raise archives.broken(source.name, "a gzip: it is empty")
    try:
        with gzip.open(source.path) as packed:
            source.bound.copy(packed, target, source.name)
    except (gzip.BadGzipFile, EOFError, zlib.error) as stop:
        raise archives.broken(source.name, f"a whole gzip ({stop})") from None
    return replace(source, path=target, name=source.name.removesuffix(".gz"))


def _unzip(source: PreparedFile, step: Decompress, target: Path) -> PreparedFile:
    with archives.opened(source.path, source.name) as archive:
        entry = archives.chosen(archive, source.name, step.sub_path)
        archives.extract(archive, entry, target, source.name, source.bound)
    return replace(source, path=target, name=f"{source.name}/{entry}")


def _pipe(
    source: PreparedFile, step: Pipe, target: Path, logs: Path | None, *, allow_commands: bool
) -> PreparedFile:
    program = step.command[0]
    if not allow_commands:
        raise UsageError(
            "commands-not-allowed",
            f"The manifest runs `{program}`, but commands are turned off.",
            HOW_TO_ALLOW,
        )
    log = target.with_suffix(".log")
    called = f"{source.name} after {Path(program).name}"
    with source.path.open("rb") as given, log.open("wb") as said, _run(step, given, said) as running:
        assert running.stdout is not None
        try:
            source.bound.copy(running.stdout, target, called)
        except BaseException:
            running.kill()
            raise
        ended = running.wait()
    if ended:
        told = f"`{program}` ended with {ended} on {source.name}: {_tail(log) or 'it printed nothing'}"
        kept = _keep_log(log, logs)
        raise Failed("command-failed", told, f"Its full output is in {kept}." if kept else "Fix `prepare`.")
    return replace(source, path=target, name=called)


def _run(step: Pipe, given: IO[bytes], said: IO[bytes]) -> subprocess.Popen[bytes]:
    """The running program: the operator allowed it, and there is no shell."""
    try:
        return subprocess.Popen(step.command, stdin=given, stdout=subprocess.PIPE, stderr=said)  # noqa: S603
    except (OSError, ValueError) as stop:
        told = f"The manifest's command `{step.command[0]}` cannot be run: {getattr(stop, 'strerror', stop)}."
        raise UsageError("no-command", told, "Install it, or fix `prepare`.") from None


def _keep_log(log: Path, logs: Path | None) -> Path | None:
    """Copy a log to where it stays; None if it is not kept, as no message may name a file that is removed."""
    if logs is None:
        return None
    try:
        logs.mkdir(0o700, parents=True, exist_ok=True)
        return Path(shutil.copy(log, logs))
    except OSError:
        return None


def _tail(log: Path) -> str:
    """The last lines of what a command said."""
    with log.open("rb") as said:
        said.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = said.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:]).strip()


if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read_batch(
    store: Store,
    ready: PreparedFile,
    read: Reader,
    schema: pa.Schema | None,
    folder: Path,
    told: Told = UNTOLD,
    *,
    held: ExitStack,
    queried: bool = False,
) -> StagedRows | None:
    """The rows of a prepared file.

    There are none if it has neither rows nor columns. They can be read until `held` is closed. `schema` is
    what the source declares, `told` the types of columns without it. A Parquet file that needs no look at its
    values is copied into `folder` and read there. `queried` tells that a query reads them. Refused is
    raised for whatever is malformed.
    """
    stamp = stamp_of(ready.path)
    if isinstance(read, Parquet) and is_local(store) and plain_parquet(ready.path, schema, told):
        whole = copy_whole(ready.path, stamp, folder)
        return rows_of_staged_file(
            _placed_by_spark(local_parquet(store, whole, pq.read_schema(whole))), whole
        )
    rows = rows_of(ready.path, ready.name, read_options(read), schema, told, ready.bound)
    return stage_or_hold(store, rows, folder, held, queried=queried) if rows.schema.names else None


def _placed_by_spark(frame: "DataFrame") -> "DataFrame":
    # Asked for in this way, it is Spark's even if a column has the same name.
    place = metadata_column(frame, "_metadata")["row_index"]
    return frame.select("*", place.alias(ARRIVAL))
