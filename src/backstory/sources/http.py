"""An HTTP server's resource as a source, downloaded if a conditional request shows that it has changed.

Requests carry the manifest's headers and follow redirects. A broken transfer continues at the byte where it
stopped, if the server supports ranges.
"""

import logging
import os
import re
import ssl
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import httpx2

from backstory.errors import BackstoryError, Failed, UsageError
from backstory.formats.memory import bound_by
from backstory.model.instant import parse_instant
from backstory.sources import savepoint, source
from backstory.sources.savepoint import Savepoint, unwritable
from backstory.sources.source import Unreachable, broken_transfer, retry_requests, seconds_of
from backstory.sources.templates import fill, private_parts, redact, secrets_of, without_secrets

REDIRECTS: Final = 10
CONNECT_SECONDS: Final = 30.0
# The longest wait for data.
READ_SECONDS: Final = 120.0
SAMPLE: Final = 200

ABSENT: Final = {404, 410}
# Headers of the manifest that may be sent to another host. Any other header could be a secret of the first
# host.
HARMLESS: Final = {"accept", "accept-charset", "accept-encoding", "accept-language", "user-agent"}
_TEXTS: Final = ("text/", "application/json", "application/problem+json", "application/xml")

Headers = Sequence[tuple[bytes, bytes]]

_PARTS: Final = ("connection", "http11", "http2", "proxy", "socks")
LOGGERS: Final = ("httpx2", *(f"httpcore2.{part}" for part in _PARTS))
_asking: ContextVar[bool] = ContextVar("asking", default=False)

OK: Final = {200, 203}
PARTIAL: Final = 206
NOT_MODIFIED: Final = 304
NO_SUCH_RANGE: Final = 416
# A compressed file stays compressed, whatever content encoding the server reports.
_COMPRESSED: Final = (".gz", ".gzip", ".tgz", ".zip", ".zst", ".br")
_DECODED: Final = {"gzip", "deflate"}
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
NO_STATE: Final = f"{{name}} sends neither an ETag nor a modification time; {source.LATER_PULLS_SKIP_IT}"


@dataclass(frozen=True, slots=True)
class FileRequest:
    """A request for a file. Only `name` may be shown in messages; `secrets` must be masked everywhere."""

    name: str
    url: str = field(repr=False)
    headers: Headers = field(repr=False)
    secrets: frozenset[str] = field(repr=False)


def request_to(
    step: source.Resource, url: str, context: source.FetchContext, headers: Sequence[Any] = ()
) -> FileRequest:
    """The request for the file at this URL, with these headers. Raises UsageError for an invalid URL."""
    values = [fill(header.value, context.environment) for header in headers]
    try:
        secrets = private_parts(url, values)
    except ValueError:
        raise no_address() from None
    for text in (step.url, *(header.value for header in headers)):
        secrets |= secrets_of(text, context.environment)
    filled = [(header.name.encode(), value.encode()) for header, value in zip(headers, values, strict=True)]
    return FileRequest(without_secrets(step.url), url, filled, frozenset(secrets))


def new_client() -> httpx2.Client:
    """A client for the attempts of one fetch.

    The client does not follow redirects by itself. It requests uncompressed bodies, because the transfer of a
    compressed body cannot be resumed.
    """
    return httpx2.Client(
        headers={"User-Agent": f"backstory/{version('backstory')}", "Accept-Encoding": "identity"},
        verify=_trusted_certificates(),
        timeout=httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        follow_redirects=False,
    )


@contextmanager
def open_answer(client: httpx2.Client, target: FileRequest, conditions: Headers) -> Iterator[httpx2.Response]:
    """A context manager for the final answer to a GET request, after redirects, with its body unread.

    Raises Unreachable if there is no answer. Raises UsageError for an address or a header that cannot be
    sent.
    """
    with _hide_logs():
        response = _first(client, target, conditions)
        try:
            yield response
        finally:
            response.close()


@contextmanager
def _hide_logs() -> Iterator[None]:
    """Suppress the libraries' logs below warning level, because they contain passwords, queries and headers.

    Requests that other code of the process makes through the same libraries are logged as before.
    """
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_harmless)
    before = _asking.set(True)
    try:
        yield
    finally:
        _asking.reset(before)


def _harmless(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or not _asking.get()


def _first(client: httpx2.Client, target: FileRequest, conditions: Headers) -> httpx2.Response:
    try:
        return _follow_redirects(client, target, conditions)
    except httpx2.InvalidURL:
        raise no_address() from None
    except (httpx2.LocalProtocolError, UnicodeError):
        raise UsageError(
            "invalid-header",
            f"A header for {target.name} cannot be sent: it has characters that are not allowed.",
            "Fix fetch.headers, or the variables that fill them.",
        ) from None
    except httpx2.HTTPError as error:
        raise Unreachable(
            "unreachable",
            f"{target.name} cannot be reached: {_cause(error, target)}.",
            "Try again later, or fix the url of the source.",
        ) from None


def refusal(response: httpx2.Response, target: FileRequest) -> BackstoryError:
    """The error for an answer without data: Failed if the source does not exist, else Unreachable."""
    status = f"{response.status_code} {response.reason_phrase}".strip()
    if response.status_code in ABSENT:
        return Failed(
            "not-found",
            f"{target.name} was not found: the server answers {redact(status, target.secrets)}.",
            "Fix the url of the source.",
        )
    sample = _sample(response)
    answer = redact(f"{status}: {sample}" if sample else status, target.secrets)
    return Unreachable(
        "unreachable",
        f"{target.name} returns no data: the server answers {answer}.",
        "Try again later; if it persists, check the url and the headers of the source.",
        seconds_of(response.headers.get("Retry-After")),
    )


@cache
def _trusted_certificates() -> ssl.SSLContext:
    """The trusted certificates, cached because reading them takes longer than most requests."""
    return httpx2.create_ssl_context()


def _follow_redirects(client: httpx2.Client, target: FileRequest, conditions: Headers) -> httpx2.Response:
    request = client.build_request("GET", target.url, headers=[*target.headers, *conditions])
    if not request.url.host:
        raise no_address()
    private = {name.decode("latin-1").lower() for name, _ in target.headers} - HARMLESS
    for _ in range(REDIRECTS + 1):
        response = client.send(request, stream=True)
        if response.next_request is None:
            return response
        response.close()
        if not _same_host(request.url, response.next_request.url):
            for name in private:
                response.next_request.headers.pop(name, None)
        request = response.next_request
    raise httpx2.TooManyRedirects("", request=request)


def _same_host(one: httpx2.URL, other: httpx2.URL) -> bool:
    """Whether two URLs have the same origin, or the second is the first with https instead of http."""
    if one.origin == other.origin:
        return True
    upgraded = (one.scheme, other.scheme) == ("http", "https")
    return upgraded and one.host == other.host and one.port is None and other.port is None


def _cause(error: httpx2.HTTPError, target: FileRequest) -> str:
    match error:
        case httpx2.TooManyRedirects():
            return f"more than {REDIRECTS} redirects"
        case httpx2.ConnectTimeout():
            return f"no connection within {CONNECT_SECONDS:.0f} s"
        case httpx2.TimeoutException():
            return f"no answer within {READ_SECONDS:.0f} s"
        case httpx2.UnsupportedProtocol():
            return "it redirects to an address that is neither http nor https"
        case httpx2.ConnectError() | httpx2.ReadError() | httpx2.ProxyError():
            return redact(str(error), target.secrets) or "the connection broke"
        case _:
            # The messages of protocol errors may quote the address.
            return "the server did not answer in HTTP, or closed the connection"


def _sample(response: httpx2.Response) -> str:
    """The first characters of a body, if it is text."""
    if not response.headers.get("Content-Type", "").lower().startswith(_TEXTS):
        return ""
    body = b""
    try:
        for chunk in response.iter_bytes():
            body += chunk
            # A character has at most four bytes.
            if len(body) >= 4 * SAMPLE:
                break
    except httpx2.HTTPError:
        pass
    return body.decode("utf-8", "replace")[:SAMPLE].rstrip()


def no_address() -> UsageError:
    """The error for an invalid URL. No part of the URL is shown, because any part could be the password."""
    return UsageError(
        "invalid-url",
        "The url of the source is not the address of a server.",
        "Write it as https://host/path, with special characters as %XX.",
    )


@dataclass(slots=True)
class BodyPart:
    """The part of a body received so far.

    Attributes:
        path: the file with the bytes.
        headers: the headers of the answer with the first byte; later answers need not repeat them.
        tag: the strong ETag if the rest can be requested, or None.
        size: the number of bytes received.
        limit: the maximum size of a compressed body after unpacking, or None for the general limit.
    """

    path: Path
    headers: httpx2.Headers | None = None
    tag: str | None = None
    size: int = 0
    limit: int | None = None


def transfer_bytes(
    client: httpx2.Client, target: FileRequest, conditions: Headers, part: BodyPart, progress: source.Progress
) -> httpx2.Headers | None:
    """Write the whole body into the part's file, and return the answer's headers.

    Returns None if the resource was not modified. Raises Unreachable for errors that may be retried, and
    Failed if the source does not exist.
    """
    resuming = part.tag is not None and part.size > 0
    with open_answer(client, target, _rest(part) if resuming else conditions) as response:
        if response.status_code == NOT_MODIFIED and conditions and not resuming:
            return None
        if resuming and response.status_code not in OK:
            _check_rest(response, part, target)
        elif response.status_code in OK:
            _begin(response, part)
        else:
            raise refusal(response, target)
        _write(response, part, target, progress)
    return part.headers


def _rest(part: BodyPart) -> Headers:
    assert part.tag is not None
    return [(b"Range", f"bytes={part.size}-".encode()), (b"If-Range", part.tag.encode("latin-1"))]


def _begin(response: httpx2.Response, part: BodyPart) -> None:
    """Discard the bytes received so far, because the new answer starts at the first byte."""
    tag = tag_of(response.headers)
    ranges = response.headers.get("Accept-Ranges", "").strip().lower() == "bytes"
    strong = tag is not None and tag.startswith('"')
    part.headers = response.headers
    part.tag = tag if ranges and strong and not _encodings(response) else None
    part.size = 0


def _check_rest(response: httpx2.Response, part: BodyPart, target: FileRequest) -> None:
    """Raise an error unless the answer is the rest of the same body.

    If the range does not exist or the body has changed, the next attempt starts at byte 0.
    """
    span = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    tag = tag_of(response.headers)
    is_rest = span is not None and int(span[1]) == part.size and tag in {None, part.tag}
    if response.status_code not in {PARTIAL, NO_SUCH_RANGE}:
        raise refusal(response, target)
    if response.status_code == NO_SUCH_RANGE or not is_rest:
        part.tag = None
        raise broken_transfer(target.name, part.size)


def _write(response: httpx2.Response, part: BodyPart, target: FileRequest, progress: source.Progress) -> None:
    """Write the body, and check its size. The client itself checks only the bytes of one answer."""
    total, packed = _total(response), bool(_encodings(response))
    try:
        with part.path.open("ab" if response.status_code == PARTIAL else "wb") as file:
            progress(source.DOWNLOADING, part.size, total)
            for chunk in _chunks(response, target):
                file.write(chunk)
                part.size += len(chunk)
                if packed and part.size > (bound := bound_by(response.num_bytes_downloaded, part.limit)).most:
                    raise bound.too_large(target.name)
                progress(source.DOWNLOADING, part.size, total)
            file.flush()
            os.fsync(file.fileno())
    except (httpx2.HTTPError, EOFError, zlib.error):
        raise broken_transfer(target.name, part.size) from None
    except OSError as error:
        raise unwritable(error) from None
    if total is not None and part.size != total:
        raise broken_transfer(target.name, part.size)


def _chunks(response: httpx2.Response, target: FileRequest) -> Iterator[bytes]:
    encodings, chunks = _encodings(response), response.iter_raw()
    if not _DECODED.issuperset(encodings):
        raise Failed(
            "unsupported-encoding",
            f"{target.name} is sent in an encoding that is not supported: {', '.join(encodings)}.",
            "Do not ask for it in fetch.headers, or configure the server to send the data unencoded.",
        )
    for encoding in reversed(encodings):
        chunks = _decode(chunks, encoding)
    return chunks


def _encodings(response: httpx2.Response) -> list[str]:
    """The compressions that the server applied although none were requested, in their order."""
    if response.url.path.lower().endswith(_COMPRESSED):
        return []
    encodings = response.headers.get("Content-Encoding", "").lower().split(",")
    return [name for name in map(str.strip, encodings) if name not in {"", "identity"}]


def _decode(chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """The decoded bytes of all compressed streams in a body.

    The HTTP library decodes only the first stream, and accepts one that breaks off. Raises EOFError if the
    last stream is incomplete.
    """
    decoder = None
    for chunk in chunks:
        packed = chunk
        while packed:
            decoder = decoder or zlib.decompressobj(_window(encoding, packed))
            yield decoder.decompress(packed)
            packed = decoder.unused_data.lstrip(b"\0")  # streams may be padded with zeros
            decoder = None if decoder.eof else decoder
    if decoder is not None:
        raise EOFError


def _window(encoding: str, packed: bytes) -> int:
    """The parameter of zlib for a stream that starts with these bytes. Some servers send bare deflate."""
    if encoding == "gzip":
        return zlib.MAX_WBITS | 16
    is_zlib = packed[0] & 15 == zlib.DEFLATED and int.from_bytes(packed[:2]) % 31 == 0
    return zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS


def _total(response: httpx2.Response) -> int | None:
    """The size of the whole body in bytes, or None if it is unknown."""
    if response.status_code == PARTIAL:
        span = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        return int(span[2]) if span and span[2] != "*" else None
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() and not _encodings(response) else None


def tag_of(headers: httpx2.Headers) -> str | None:
    """The ETag exactly as received, as a string with one character for each byte."""
    values = [value for name, value in headers.raw if name.lower() == b"etag"]
    return values[0].decode("latin-1").strip() or None if values else None


def fetch_http(step: source.Resource, url: str, context: source.FetchContext) -> source.Answer:
    """Download the resource into the cache if it changed, or use the download that an earlier run kept.

    Raises Failed if the resource does not exist. Raises TryAgain if the server returns nothing after several
    attempts.
    """
    forced = context.fetch_uncacheable or step.refetch is not None
    if context.asked_before and context.state is None and not forced:
        return source.Answer("uncacheable")
    target = request_to(step, url, context, step.headers)
    place = savepoint.place_of(step, context)
    request_digest = savepoint.digest(
        url, [[name.decode(), value.decode()] for name, value in target.headers]
    )
    # Without a state, a kept download does not show whether it was ingested, so a forced fetch sends a
    # request.
    fresh = context.refetch or (forced and context.state is None)
    saved = None if fresh else savepoint.take_up(place, request_digest)
    downloaded = saved or _download(target, place, request_digest, context)
    if downloaded is None:
        return source.Answer("up-to-date")
    point, data_file = downloaded
    fetched = source.FetchedFile(
        path=data_file,
        name=target.name,
        event_time=context.system_time if source.origin_of(step) == "FromSystemTime" else point.event_time,
        state=point.state,
        taken_up=point.created_at if saved else None,
        kept=source.KeptDownload(place.name, point.data),
    )
    warnings = [] if saved or point.state or step.refetch else [NO_STATE.format(name=target.name)]
    return source.Answer("new", iter((fetched,)), warnings)


def _download(
    target: FileRequest, place: Path, request_digest: str, context: source.FetchContext
) -> tuple[Savepoint, Path] | None:
    """The download with its savepoint, or None if the resource did not change."""
    part = BodyPart(savepoint.new_file(place, ".part"), limit=context.unpacked_limit)
    savepoint.sweep(context.cache)
    conditions = _conditions(None if context.refetch else context.state)

    def attempt() -> httpx2.Headers | None:
        context.progress(source.CHECKING, 0, None)
        return transfer_bytes(client, target, conditions, part, context.progress)

    try:
        with new_client() as client:
            headers = retry_requests(attempt)
        if headers is None:
            savepoint.discard(place)
            return None
        modified = _instant(headers.get("Last-Modified"))
        state = None
        if (tag := tag_of(headers)) is not None:
            state = source.SourceState(source.ETAG, tag)
        elif modified is not None:
            state = source.SourceState(source.LAST_MODIFIED, source.instant_text(modified))
        data = part.path.with_suffix(".data").name
        point = Savepoint(datetime.now(UTC), request_digest, state, modified, data, part.size)
        return point, savepoint.save(place, point, part.path)
    finally:
        part.path.unlink(missing_ok=True)


def _conditions(state: source.SourceState | None) -> Headers:
    """The header that requests a body only if the body changed. An ETag is sent back exactly as received."""
    tag, modified = source.of_kind(state, source.ETAG), source.of_kind(state, source.LAST_MODIFIED)
    if tag is not None:
        return [(b"If-None-Match", tag.encode("latin-1", "replace"))]
    if modified is not None:
        with suppress(UsageError):
            date = format_datetime(parse_instant(modified).replace(microsecond=0), usegmt=True)
            return [(b"If-Modified-Since", date.encode())]
    return []


def _instant(date: str | None) -> datetime | None:
    """The time in a header's date, or None if the date is unreadable (RFC 9110, 8.8.2)."""
    try:
        instant = parsedate_to_datetime(date or "")
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
