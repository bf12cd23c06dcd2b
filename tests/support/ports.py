"""Ports of this machine for servers that tests start."""

import secrets
import socket
from contextlib import suppress

# They are below the ports that the system assigns to connections, so that none is taken in between.
FIRST, LAST = 10_240, 32_000


def free_ports(count: int = 1) -> list[int]:
    """Ports that no program listens on."""
    ports: set[int] = set()
    while len(ports) < count:
        port = FIRST + secrets.randbelow(LAST - FIRST)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)
