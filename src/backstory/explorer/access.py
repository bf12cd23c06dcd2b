"""Access to the explorer: its port, token and link, the host of a request, and the policy of its pages."""

import base64
import hashlib
import hmac
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from backstory.errors import Failed, UsageError, bad_option, option
from backstory.explorer.catalog_reader import CatalogReader
from backstory.reading.timelines import STYLE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from backstory.explorer.server import Explorer

HOST, PORT = "127.0.0.1", 8055
# The minimum length of a token for other machines, because guesses are not limited.
_SHORTEST: Final = 16
COOKIE: Final = "backstory"
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        f"style-src 'self' 'sha256-{_STYLE_HASH}'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def open_explorer(
    source: CatalogReader, host: str = HOST, port: int | None = None, token: str = ""
) -> "Explorer":
    """Start an explorer of a warehouse's tables. Returns the explorer with the link to its pages.

    The default port is 8055, or a free one if 8055 is taken. Raises UsageError if other machines can reach
    the host and the token is missing or too short, or if a package is missing. Raises Failed if the port is
    taken.
    """
    _require_packages()
    _require_token(host, token)
    from backstory.explorer.server import start

    listening = _listen(host, port)
    return start(source, listening, Guard(token, is_loopback(host)), _link_host(host))


def _link_host(host: str) -> str:
    """The host for a link.

    If the explorer listens on every address, the link has the loopback address.
    """
    bare = host.strip("[]")
    bare = {"0.0.0.0": HOST, "": HOST, "::": "::1"}.get(bare, bare)  # noqa: S104
    return f"[{bare}]" if ":" in bare else bare


def new_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(24)


def _require_packages() -> None:
    try:
        import jinja2
        import starlette
        import uvicorn
    except ImportError as missing:
        raise UsageError(
            "no-package",
            f"The explorer needs the package {missing.name}.",
            "Install it: pip install 'backstory[explore]'.",
        ) from None
    del jinja2, starlette, uvicorn


def _require_token(host: str, token: str) -> None:
    if is_loopback(host) or len(token) >= _SHORTEST:
        return
    if not token:
        raise UsageError(
            "no-token",
            f"Without a token, anyone who reaches {host} could read every table.",
            f"Use {option('token', new_token())}, or listen on 127.0.0.1.",
        )
    raise bad_option(
        f"The token is too short: for other machines it needs at least {_SHORTEST} characters.",
        f"Use {option('token', new_token())}.",
    )


def _listen(host: str, wanted: int | None) -> socket.socket:
    """A listening socket. Raises Failed if it cannot be opened."""
    family, why = socket.AF_INET6 if ":" in host else socket.AF_INET, ""
    for port in (PORT, 0) if wanted is None else (wanted,):
        try:
            return socket.create_server((host.strip("[]"), port), family=family)
        except (OSError, OverflowError, TypeError, UnicodeError) as stop:
            why = f"{host}:{port}: {str(getattr(stop, 'strerror', None) or stop).rstrip('.')}"
    remedy = "Choose another port, or 0 for a free one."
    raise Failed("port-in-use", f"The explorer cannot listen on {why}.", remedy)


@dataclass(frozen=True, slots=True, repr=False)
class Guard:
    """The required token, empty if no token is required, and whether only this machine can send requests."""

    token: str = ""
    loopback: bool = True

    def admits_host(self, host: str) -> bool:
        """Whether a request may name this host.

        A hostile site can point its own name at the explorer's address. If other machines can send requests,
        the server may have any name, and the token keeps hostile sites out.
        """
        if not self.loopback:
            return True
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return is_loopback(name.lower())

    @property
    def cookie(self) -> str:
        """The cookie of a browser that has sent the token. The token cannot be derived from it."""
        return hashlib.sha256(f"backstory explorer {self.token}".encode()).hexdigest()

    def admits(self, token: str) -> bool:
        """Whether the token is right."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    def admits_headers(self, headers: Mapping[str, str]) -> bool:
        """Whether a request has the token or its cookie, or whether no token is required."""
        if not self.token:
            return True
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return hmac.compare_digest(token.encode("latin-1"), self.token.encode())
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.cookie.encode())


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listening address or name."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def guard_application(app: "ASGIApp", guard: Guard) -> "ASGIApp":
    """The application behind the guard. It only answers authorized reads, with a strict security policy."""
    from starlette.responses import PlainTextResponse, Response

    async def answer(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        responding = app
        if not guard.admits_host(headers.get("host", "")):
            responding = PlainTextResponse("This host name is not one of the explorer's.", 421)
        elif scope["method"] not in {"GET", "HEAD"}:
            responding = PlainTextResponse("The explorer only reads.", 405)
        elif (place := _with_token(scope, guard)) is not None:
            cookie = f"{COOKIE}={guard.cookie}; HttpOnly; SameSite=Strict; Path=/"
            responding = Response(status_code=303, headers={"location": place, "set-cookie": cookie})
        elif not guard.admits_headers(headers):
            words = "Open the link that the command printed; it contains the token."
            responding = PlainTextResponse(words, 401)
        await responding(scope, receive, _with_headers(send))

    return answer


def _with_token(scope: "Scope", guard: Guard) -> str | None:
    """The path and query of the request without the token, or None unless it contains the right token."""
    words = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    token = dict(words).get("token")
    if not guard.token or token is None or not guard.admits(token):
        return None
    rest = urlencode([pair for pair in words if pair[0] != "token"])
    # One slash: two would name another host.
    path = "/" + scope["raw_path"].decode("latin-1").lstrip("/\\")
    return f"{path}?{rest}" if rest else path


def _with_headers(send: "Send") -> "Send":
    async def sending(message: "Message") -> None:
        if message["type"] == "http.response.start":
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sending
