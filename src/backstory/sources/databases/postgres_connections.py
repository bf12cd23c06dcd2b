"""Connections to PostgreSQL, and its errors in words of ours."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from backstory.errors import Failed, TryAgain, UsageError

# What may be otherwise later, by SQL states: serialization failures, deadlocks and locks; a server that is
# not there, starts or ends; one that has no room, or gave a query up.
_CONFLICT: Final = ("40", "55P03")
_DOWN: Final = ("08", "57P")
_BUSY: Final = ("53", "57")
# What a server that answers says of a connection that it will not open later either; it has no code here.
_TURNED_AWAY: Final = re.compile(r"does not exist|authentication failed|pg_hba\.conf|no password supplied")


def connect(url: str, *, autocommit: bool = True) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection in UTC to `postgresql://user@host:port/db`; TryAgain if the server does not answer.

    Raises UsageError for what is no such address, without a word of it, and for one that is turned away.
    """
    if url.partition("://")[0] not in {"postgres", "postgresql"} or not _is_readable(url):
        raise UsageError(
            "wrong-url",
            "This is not an address of PostgreSQL.",
            "Write postgresql://user@host:port/database; in a password, write @ and / as %40 and %2F.",
        )
    with translate_postgres():
        try:
            return psycopg.connect(url, autocommit=autocommit, options="-c TimeZone=UTC")
        except psycopg.OperationalError as refused:
            told = str(refused).split("\n", 1)[0].rpartition("FATAL:")[2].strip()
            if not _TURNED_AWAY.search(told):
                raise
            remedy = "Create the database or the role, or fix the address or the password."
            raise UsageError("no-database", f"PostgreSQL: {told}.", remedy) from None


def _is_readable(url: str) -> bool:
    """Whether the driver reads no part of a password as another part, which its errors would show."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return False
    host, port = str(parts.get("host") or ""), str(parts.get("port") or "")
    return "@" not in host and not port.strip("0123456789,")


@contextmanager
def translate_postgres() -> Iterator[None]:
    """Raise TryAgain for what may be otherwise later, and Failed for other errors of PostgreSQL."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ("08" if isinstance(error, psycopg.OperationalError) else "")
        told = error.diag.message_primary or str(error).split("\n", 1)[0]
        if state.startswith(_CONFLICT):
            raise TryAgain("conflict", f"PostgreSQL: {told}.", "Try again.") from None
        if state.startswith(_DOWN):
            raise TryAgain(
                "database-down", f"PostgreSQL does not answer: {told}.", "Try again once it runs."
            ) from None
        if state.startswith(_BUSY):
            raise TryAgain("database-busy", f"PostgreSQL: {told}.", "Try again later.") from None
        raise Failed("database-failed", f"PostgreSQL: {told}.", "Check the database.") from None
