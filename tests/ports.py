"""Ports of this machine for servers that tests start."""

import socket
from contextlib import ExitStack


def free_ports(count: int = 1) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
