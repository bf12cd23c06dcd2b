"""A file of an FTP server as a source: it has no state, so pulls after the first skip it."""

import ftplib
import os
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from backstory.errors import BackstoryError, Failed
from backstory.sources import savepoint
from backstory.sources.http import CONNECT_SECONDS, READ_SECONDS, FileRequest, no_address
from backstory.sources.retries import Unreachable, retry_requests
from backstory.sources.savepoint import Savepoint, unwritable
from backstory.sources.source import (
    CHECKING,
    DOWNLOADING,
    PASSED_OVER,
    Answer,
    Asking,
    FetchedFile,
    KeptDownload,
    Progress,
    Resource,
    SystemTime,
)
from backstory.sources.templates import private_parts, redact, secrets_of, without_secrets

NO_STATE: Final = f"{{name}}: FTP does not say whether a file changed: {PASSED_OVER}"
NO_TIME: Final = "{name}: FTP gives no time: rows without one get the time of the run."
ABSENT: Final = "550"


def fetch_ftp(step: Resource, url: str, asking: Asking) -> Answer:
    """The file in the cache, perhaps one that an earlier run kept; its event time is the run's (1.4).

    Raises Failed when it is not there, TryAgain when the server gives nothing now, after several attempts.
    """
    forced = asking.fetch_uncacheable or step.always
    if asking.asked_before and not forced:
        return Answer("uncacheable")
    target = _request_to(step, url, asking)
    place, asked = savepoint.place_of(step, asking), savepoint.digest(url)
    # A kept download cannot be told from one that was ingested: who insists, asks.
    taken = None if forced or asking.refetch else savepoint.take_up(place, asked)
    point, own = taken or _download(target, place, asked, asking)
    since = point.created_at if taken else None
    fetched = FetchedFile(own, target.name, None, None, since, KeptDownload(place.name, point.data))
    told = [] if step.always or step.once else [NO_STATE]
    told += [] if isinstance(step.event_time, SystemTime | None) else [NO_TIME]
    return Answer("new", iter((fetched,)), [text.format(name=target.name) for text in told])


def _request_to(step: Resource, url: str, asking: Asking) -> FileRequest:
    try:
        secrets = private_parts(url, ()) | secrets_of(step.url, asking.environment)
    except ValueError:
        raise no_address() from None
    return FileRequest(without_secrets(step.url), url, (), frozenset(secrets))


def _download(target: FileRequest, place: Path, asked: str, asking: Asking) -> tuple[Savepoint, Path]:
    part = savepoint.new_file(place, ".part")
    savepoint.sweep(asking.cache)

    def attempt() -> int:
        asking.progress(CHECKING, 0, None)
        with part.open("wb") as file:
            size = _retrieve(target, file, asking.progress)
            file.flush()
            os.fsync(file.fileno())
        return size

    try:
        size = retry_requests(asking.retry, attempt)
        data = part.with_suffix(".data").name
        point = Savepoint(datetime.now(UTC), asked, None, None, data, size)
        return point, savepoint.save(place, point, part)
    except OSError as error:  # those of the network are other errors by now
        raise unwritable(error) from None
    finally:
        part.unlink(missing_ok=True)


def _retrieve(target: FileRequest, file: BinaryIO, progress: Progress) -> int:
    """Write the whole file and give its size: the server's last word and, if it tells one, its size agree."""
    done, total = 0, None

    def keep(chunk: bytes) -> None:
        nonlocal done
        try:
            file.write(chunk)
        except OSError as error:
            raise unwritable(error) from None
        done += len(chunk)
        progress(DOWNLOADING, done, total)

    address, path = _address(target.url)
    try:
        # A letter a byte: the address says the bytes of names, and what a server answers is shown only.
        with closing(ftplib.FTP(timeout=CONNECT_SECONDS, encoding="latin-1")) as server:  # noqa: S321 - asked for
            server.connect(address.hostname or "", address.port or ftplib.FTP_PORT)
            server.timeout = READ_SECONDS  # of the data, which come by a connection of their own
            server.login(_bytes(address.username), _bytes(address.password))
            server.voidcmd("TYPE I")
            with suppress(ftplib.error_perm):  # many do not know the command
                total = server.size(path)
            progress(DOWNLOADING, 0, total)
            server.retrbinary(f"RETR {path}", keep)
    except ftplib.all_errors as error:
        raise _refusal(error, target, done) from None
    except ValueError:
        raise no_address() from None
    if total not in {None, done}:
        raise _broken_transfer(target, done)
    return done


def _address(url: str) -> tuple[SplitResult, str]:
    """The parts of the address, and the path on the server, which is relative to where the user arrives."""
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
    """What an answer or a broken connection means: Failed if the file is not there, else Unreachable."""
    told = redact(str(error), target.secrets)
    if isinstance(error, ftplib.error_perm) and told.startswith(ABSENT):
        return Failed(
            "not-found",
            f"{target.name} was not found: the server answers {told}.",
            "Fix the url of the source.",
        )
    if done:
        return _broken_transfer(target, done)
    answers = f"returns no data: the server answers {told}"
    broke = f"cannot be reached: {told or 'the connection broke'}"
    return Unreachable(
        "unreachable",
        f"{target.name} {answers if isinstance(error, ftplib.Error) else broke}.",
        "Try again later; if it persists, check the url, user and password of the source.",
    )


def _broken_transfer(target: FileRequest, done: int) -> Unreachable:
    return Unreachable(
        "broken-transfer",
        f"The transfer of {target.name} broke off after {done:,} bytes.",
        "Try again later.",
    )
