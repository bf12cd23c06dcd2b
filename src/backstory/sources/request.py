"""One request to a server: the manifest's headers, redirects, and what its refusals mean."""

import logging
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Final

import httpx2

from backstory.errors import BackstoryError, Failed, UsageError
from backstory.sources.retries import Unreachable, seconds_of
from backstory.sources.secrecy import redacted

REDIRECTS: Final = 10
CONNECT_SECONDS: Final = 30.0
# A server may think for long before it sends, but not for ever.
READ_SECONDS: Final = 120.0
SAMPLE: Final = 200

GONE: Final = {404, 410}
# Headers of the manifest that another host may see; any other could be a secret of the first.
HARMLESS: Final = {"accept", "accept-charset", "accept-encoding", "accept-language", "user-agent"}
_TEXTS: Final = ("text/", "application/json", "application/problem+json", "application/xml")

Headers = Sequence[tuple[bytes, bytes]]

_PARTS: Final = ("connection", "http11", "http2", "proxy", "socks")
LOGGERS: Final = ("httpx2", *(f"httpcore2.{part}" for part in _PARTS))
_asking: ContextVar[bool] = ContextVar("asking", default=False)


@dataclass(frozen=True, slots=True)
class FileRequest:
    """A request for a file. Only `name` may be shown; `secrets` must be masked in other texts."""

    name: str
    url: str = field(repr=False)
    headers: Headers = field(repr=False)
    secrets: frozenset[str] = field(repr=False)


def new_client() -> httpx2.Client:
    """A client for the attempts of one fetch; it follows no redirects by itself.

    Bodies are asked for as they are: only then can a broken transfer be taken up in the middle.
    """
    return httpx2.Client(
        headers={"User-Agent": f"backstory/{version('backstory')}", "Accept-Encoding": "identity"},
        verify=_trusted(),
        timeout=httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        follow_redirects=False,
    )


@contextmanager
def answered(client: httpx2.Client, target: FileRequest, conditions: Headers) -> Iterator[httpx2.Response]:
    """The last answer to a GET, its body not read yet; closed in the end.

    Raises Unreachable when there is none, UsageError for an address or a header that cannot be sent.
    """
    with _unlogged():
        response = _first(client, target, conditions)
        try:
            yield response
        finally:
            response.close()


@contextmanager
def _unlogged() -> Iterator[None]:
    """The libraries log addresses with passwords and queries, and headers: of ours only their warnings.

    What the process asks through the same libraries by itself is logged as it wishes.
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
        return _followed(client, target, conditions)
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
    """The error of an answer that brings no data: Failed if the source is not there, else Unreachable."""
    status = f"{response.status_code} {response.reason_phrase}".strip()
    if response.status_code in GONE:
        return Failed(
            "not-found",
            f"{target.name} was not found: the server answers {redacted(status, target.secrets)}.",
            "Fix the url of the source.",
        )
    sample = _sample(response)
    told = redacted(f"{status}: {sample}" if sample else status, target.secrets)
    return Unreachable(
        "unreachable",
        f"{target.name} returns no data: the server answers {told}.",
        "Try again later; if it persists, check the url and the headers of the source.",
        seconds_of(response.headers.get("Retry-After")),
    )


@cache
def _trusted() -> ssl.SSLContext:
    """Who is trusted; reading all the certificates takes longer than most requests."""
    return httpx2.create_ssl_context()


def _followed(client: httpx2.Client, target: FileRequest, conditions: Headers) -> httpx2.Response:
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
    """Whether both are of one origin, or the other is the same host by https."""
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
            return redacted(str(error), target.secrets) or "the connection broke"
        case _:
            # Texts of broken protocols may quote the address.
            return "the server does not speak HTTP, or closed the connection"


def _sample(response: httpx2.Response) -> str:
    """The first characters of a body that is text."""
    if not response.headers.get("Content-Type", "").lower().startswith(_TEXTS):
        return ""
    body = b""
    try:
        for chunk in response.iter_bytes():
            body += chunk
            # Four bytes are the most that a character has.
            if len(body) >= 4 * SAMPLE:
                break
    except httpx2.HTTPError:
        pass
    return body.decode("utf-8", "replace")[:SAMPLE].rstrip()


def no_address() -> UsageError:
    """The error of a url that is none; not even a part of it is shown, for which part is the password?"""
    return UsageError(
        "invalid-url",
        "The url of the source is not the address of a server.",
        "Write it as https://host/path, with special characters as %XX.",
    )
