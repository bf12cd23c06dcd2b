"""Fetched bytes are unpacked and piped before they are read: steps from left to right (section 1.5)."""

import gzip
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from backstory.doors.odf.manifest.read import Decompress, FileCompression, Pipe
from backstory.errors import Failed, UsageError
from backstory.formats.unchanged import require_unchanged, stamp_of
from backstory.formats.wrapping import archives
from backstory.formats.wrapping.room import Bound, bound_of
from backstory.settings import Rights

TAIL_BYTES, TAIL_LINES = 2000, 10
HOW_TO_ALLOW = "Set `allow-commands = true` under `[odf]` in backstory.toml if you trust the manifest."


@dataclass(frozen=True, slots=True)
class Prepared:
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
) -> Prepared:
    """The file after all steps; what they make lies in `folder`, under names of ours.

    Raises Refused for a broken archive, for one that unpacks to more than `rights` allow, and for a `subPath`
    that does not name one entry, UsageError for a command that may not run or is not there, Failed for
    one that ends with an error. What it said last is in the message; all of it is kept in `logs`, a
    folder that lasts, in `step-N.log`.
    """
    here, stamp = Prepared(path, name, bound_of(path, rights.unpacked_limit)), stamp_of(path)
    for number, step in enumerate(steps, 1):
        target = folder / f"step-{number}"
        if isinstance(step, Pipe):
            here = _piped(here, step, target, logs, allow_commands=rights.allow_commands)
        elif step.format is FileCompression.ZIP:
            here = _unzipped(here, step, target)
        else:
            here = _gunzipped(here, step, target)
    require_unchanged([stamp])
    return here


def _gunzipped(source: Prepared, step: Decompress, target: Path) -> Prepared:
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


def _unzipped(source: Prepared, step: Decompress, target: Path) -> Prepared:
    with archives.opened(source.path, source.name) as archive:
        entry = archives.chosen(archive, source.name, step.sub_path)
        archives.extract(archive, entry, target, source.name, source.bound)
    return replace(source, path=target, name=f"{source.name}/{entry}")


def _piped(
    source: Prepared, step: Pipe, target: Path, logs: Path | None, *, allow_commands: bool
) -> Prepared:
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
