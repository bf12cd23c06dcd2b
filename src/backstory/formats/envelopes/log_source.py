"""The origin of a log: its connector, server and tables."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogSource:
    """The connectors, servers and tables that messages name (V136, V137).

    One log has at most one of each; reads of a snapshot may lack the server.
    """

    connectors: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()

    def join(self, other: "LogSource") -> "LogSource":
        """The common origin of two parts of one delivery."""
        return LogSource(
            self.connectors | other.connectors, self.servers | other.servers, self.tables | other.tables
        )
