"""Whose log the messages of an envelope are of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogSource:
    """Whose log messages are of: connectors, servers and tables, as the messages name them (V136, V137).

    Of one log there is one of each at most; reads of a snapshot may not name the server.
    """

    connectors: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()

    def joined(self, other: "LogSource") -> "LogSource":
        """The sources of two parts of one delivery."""
        return LogSource(
            self.connectors | other.connectors, self.servers | other.servers, self.tables | other.tables
        )
