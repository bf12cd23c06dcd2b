"""A process that forked off: Java answers the one that opened it, and no child of its may break that.

A child has its parent's connections. What it said there would be answered to the parent, and py4j shuts down
those that it lets go, for both.
"""

import os
from functools import cache
from typing import Any

from backstory.errors import UsageError


def hold_to_this_process(jvm: Any) -> None:
    """From now on Java answers this process alone; calls of one that forks off raise `forked`."""
    _refuse_forks()
    jvm._gateway_client.__dict__.setdefault("of_process", os.getpid())  # noqa: SLF001


def of_another_process(jvm: Any) -> bool:
    """Whether this process forked off from the one that Java answers."""
    return _of_another(jvm._gateway_client)  # noqa: SLF001


def _of_another(client: Any) -> bool:
    return bool(getattr(client, "of_process", here := os.getpid()) != here)


@cache
def _refuse_forks() -> None:
    """Ask whose Java it is at the two places through which py4j speaks with it and lets it go."""
    from py4j.clientserver import ClientServerConnection
    from py4j.java_gateway import GatewayClient, quiet_close

    send, close = GatewayClient.send_command, ClientServerConnection.close

    def send_if_ours(client: Any, *told: Any, **more: Any) -> Any:
        if _of_another(client):
            raise _forked()
        return send(client, *told, **more)

    def close_if_ours(connection: Any, reset: bool = False) -> None:  # noqa: FBT001, FBT002 - as py4j has it
        if not _of_another(connection.java_client):
            close(connection, reset)
            return
        quiet_close(connection.stream)  # this process's end of it alone
        quiet_close(connection.socket)
        connection.stream = connection.socket = None

    GatewayClient.send_command, ClientServerConnection.close = send_if_ours, close_if_ours


def _forked() -> UsageError:
    return UsageError(
        "forked",
        "This process was forked after the warehouse was opened, and its Spark answers the parent alone.",
        "Open a warehouse in each process, which must not be forked from one with Spark in it: "
        "multiprocessing.get_context('spawn').",
    )
