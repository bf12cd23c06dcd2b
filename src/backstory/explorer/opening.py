"""Open the explorer: where it listens, who may look, and its link."""

import secrets
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from backstory.errors import Failed, UsageError, option
from backstory.explorer.catalog_reader import CatalogReader
from backstory.explorer.guard import Guard, is_loopback

if TYPE_CHECKING:
    from backstory.explorer.server import Explorer

HOST, PORT = "127.0.0.1", 8055
# A token beyond this machine, where nobody counts how often it is guessed, in letters.
_SHORTEST: Final = 16


def open_explorer(
    source: CatalogReader, host: str = HOST, port: int | None = None, token: str = ""
) -> "Explorer":
    """Answer in browsers from now on, from the tables of a source; the link says where.

    Without a port it is 8055, or a free one where that is taken. Raises UsageError for a host beyond this
    machine without a token or with a short one, and where a package is missing; Failed where the port is
    taken.
    """
    _require_packages()
    _require_token(host, token)
    from backstory.explorer.server import start

    listening = _listen(host, port)
    return start(source, listening, Guard(token, is_loopback(host)), _link_host(host))


def _link_host(host: str) -> str:
    """The host that a link names: what listens on every address is reached on this machine's own."""
    bare = host.strip("[]")
    bare = {"0.0.0.0": HOST, "": HOST, "::": "::1"}.get(bare, bare)  # noqa: S104
    return f"[{bare}]" if ":" in bare else bare


def new_token() -> str:
    """A token that nobody guesses."""
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
            f"Without a token whoever reaches {host} could read every table.",
            f"Use {option('token', new_token())}, or listen on 127.0.0.1.",
        )
    if token and not is_loopback(host) and len(token) < _SHORTEST:
        raise UsageError(
            "bad-option",
            f"The token is too short: beyond this machine it needs at least {_SHORTEST} characters.",
            f"Use {option('token', new_token())}.",
        )


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens; Failed if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    places = [PORT, 0] if port is None else [port]
    for place in places[:-1]:
        with suppress(OSError, TypeError, UnicodeError):
            return socket.create_server((host.strip("[]"), place), family=family)
    try:
        return socket.create_server((host.strip("[]"), places[-1]), family=family)
    except (OSError, OverflowError, TypeError, UnicodeError) as stop:
        why = str(getattr(stop, "strerror", None) or stop).rstrip(".")
        raise Failed(
            "port-in-use",
            f"The explorer cannot listen on {host}:{places[-1]}: {why}.",
            "Choose another port, or 0 for a free one.",
        ) from None
