"""The start of the explorer: its port, its token and its link."""

import secrets
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from backstory.errors import Failed, UsageError, bad_option, option
from backstory.explorer.catalog_reader import CatalogReader
from backstory.explorer.guard import Guard, is_loopback

if TYPE_CHECKING:
    from backstory.explorer.server import Explorer

HOST, PORT = "127.0.0.1", 8055
# The minimum length of a token for other machines, because guesses are not limited.
_SHORTEST: Final = 16


def open_explorer(
    source: CatalogReader, host: str = HOST, port: int | None = None, token: str = ""
) -> "Explorer":
    """Start an explorer of a warehouse's tables. Its link opens it in a browser.

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

    If the explorer listens on every address, the link has this machine's own address.
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
    if not token and not is_loopback(host):
        raise UsageError(
            "no-token",
            f"Without a token, anyone who reaches {host} could read every table.",
            f"Use {option('token', new_token())}, or listen on 127.0.0.1.",
        )
    if token and not is_loopback(host) and len(token) < _SHORTEST:
        raise bad_option(
            f"The token is too short: for other machines it needs at least {_SHORTEST} characters.",
            f"Use {option('token', new_token())}.",
        )


def _listen(host: str, port: int | None) -> socket.socket:
    """A listening socket. Raises Failed if it cannot be opened."""
    family, bare = socket.AF_INET6 if ":" in host else socket.AF_INET, host.strip("[]")
    if port is None:
        with suppress(OSError, TypeError, UnicodeError):
            return socket.create_server((bare, PORT), family=family)
    port = port or 0
    try:
        return socket.create_server((bare, port), family=family)
    except (OSError, OverflowError, TypeError, UnicodeError) as stop:
        why = str(getattr(stop, "strerror", None) or stop).rstrip(".")
        raise Failed(
            "port-in-use",
            f"The explorer cannot listen on {host}:{port}: {why}.",
            "Choose another port, or 0 for a free one.",
        ) from None
