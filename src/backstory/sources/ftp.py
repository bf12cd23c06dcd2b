"""A file on an FTP server as a source. Such a source has no state, so pulls after the first one skip it."""

import ftplib
import os
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from backstory.errors import BackstoryError, Failed
from backstory.sources import savepoint, source
from backstory.sources.http import CONNECT_SECONDS, READ_SECONDS, FileRequest, no_address, request_to
from backstory.sources.savepoint import Savepoint, unwritable
from backstory.sources.source import Unreachable, broken_transfer, retry_requests
from backstory.sources.templates import redact

NO_STATE: Final = f"{{name}}: FTP does not report whether a file changed; {source.LATER_PULLS_SKIP_IT}"
NO_TIME: Final = "{name}: FTP provides no modification time; rows without a time get the time of the run."
ABSENT: Final = "550"


def fetch_ftp(step: source.Resource, url: str, context: source.FetchContext) -> source.Answer:
    """Download the file into the cache, or use the download that an earlier run kept.

    The event time of its rows is the time of the run (1.4). Raises Failed if the file does not exist. Raises
    TryAgain if the server returns nothing after several attempts.
    """
    forced = context.fetch_uncacheable or step.refetch is not None
    if context.asked_before and not forced:
        return source.Answer("uncacheable")
    target = request_to(step, url, context)
    place, request_digest = savepoint.place_of(step, context), savepoint.digest(url)
    # A kept download does not show whether it was ingested, so a forced fetch always contacts the server.
    saved = None if forced or context.refetch else savepoint.take_up(place, request_digest)
    point, data_file = saved or _download(target, place, request_digest, context)
    since = point.created_at if saved else None
    fetched = source.FetchedFile(
        data_file, target.name, None, None, since, source.KeptDownload(place.name, point.data)
    )
    warnings = [] if step.refetch or step.cache else [NO_STATE]
    warnings += [] if source.origin_of(step) in {None, "FromSystemTime"} else [NO_TIME]
    return source.Answer("new", iter((fetched,)), [text.format(name=target.name) for text in warnings])


def _download(
    target: FileRequest, place: Path, request_digest: str, context: source.FetchContext
) -> tuple[Savepoint, Path]:
    part = savepoint.new_file(place, ".part")
    savepoint.sweep(context.cache)

    def attempt() -> int:
        context.progress(source.CHECKING, 0, None)
        with part.open("wb") as file:
            size = _retrieve(target, file, context.progress)
            file.flush()
            os.fsync(file.fileno())
        return size

    try:
        size = retry_requests(attempt)
        data = part.with_suffix(".data").name
        point = Savepoint(datetime.now(UTC), request_digest, None, None, data, size)
        return point, savepoint.save(place, point, part)
    except OSError as error:  # a local file; network errors were translated
        raise unwritable(error) from None
    finally:
        part.unlink(missing_ok=True)


def _retrieve(target: FileRequest, file: BinaryIO, progress: source.Progress) -> int:
    """Write the whole file, and return its size in bytes.

    Raises Unreachable if the server reports a different size.
    """
    done, total = 0, None

    def keep(chunk: bytes) -> None:
        nonlocal done
        try:
            file.write(chunk)
        except OSError as error:
            raise unwritable(error) from None
        done += len(chunk)
        progress(source.DOWNLOADING, done, total)

    address, path = _address(target.url)
    try:
        # In latin-1 each byte is a character: names are sent as the bytes in the address. Answers are only
        # shown.
        with closing(ftplib.FTP(timeout=CONNECT_SECONDS, encoding="latin-1")) as server:  # noqa: S321 - asked for
            server.connect(address.hostname or "", address.port or ftplib.FTP_PORT)
            server.timeout = READ_SECONDS  # for the data connection
            server.login(_bytes(address.username), _bytes(address.password))
            server.voidcmd("TYPE I")
            with suppress(ftplib.error_perm):  # many servers lack the command
                total = server.size(path)
            progress(source.DOWNLOADING, 0, total)
            server.retrbinary(f"RETR {path}", keep)
    except ftplib.all_errors as error:
        raise _refusal(error, target, done) from None
    except ValueError:
        raise no_address() from None
    if total not in {None, done}:
        raise broken_transfer(target.name, done)
    return done


def _address(url: str) -> tuple[SplitResult, str]:
    """The parts of the address, and the path on the server, relative to the user's login folder."""
    try:
        parts = urlsplit(url)
        path = _bytes(parts.path.removeprefix("/").partition(";type=")[0])
        if parts.hostname and path and not parts.query + parts.fragment:
            return parts, path
    except ValueError:
        pass
    raise no_address()


def _bytes(text: str | None) -> str:
    return unquote_to_bytes(text or "").decode("latin-1")


def _refusal(error: Exception, target: FileRequest, done: int) -> BackstoryError:
    """The error for a failed transfer: Failed if the file does not exist, else Unreachable."""
    answer = redact(str(error), target.secrets)
    if isinstance(error, ftplib.error_perm) and answer.startswith(ABSENT):
        return Failed(
            "not-found",
            f"{target.name} was not found: the server answers {answer}.",
            "Fix the url of the source.",
        )
    if done:
        return broken_transfer(target.name, done)
    no_data = f"returns no data: the server answers {answer}"
    no_connection = f"cannot be reached: {answer or 'the connection broke'}"
    return Unreachable(
        "unreachable",
        f"{target.name} {no_data if isinstance(error, ftplib.Error) else no_connection}.",
        "Try again later; if it persists, check the url, user and password of the source.",
    )
