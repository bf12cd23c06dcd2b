"""Rows that gather while a delivery is planned: in memory as far as the lease goes, beyond it spilled."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import pyarrow as pa

from backstory.engine.spill import Spill
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.change import Pieces

# Fewer rows together would make more files than a table wants.
ROWS_IN_PIECE = 1_000_000


class HeldRows:
    """Rows to write, table by table; `kept` holds what is spilled."""

    def __init__(self, name: str, lease: MemoryLease, kept: ExitStack) -> None:
        """No rows yet; the lease holds them by this name."""
        self._name, self._lease, self._kept = name, lease, kept
        self._tables: list[pa.Table] = []
        self._spill: Spill | None = None
        self._schema: pa.Schema | None = None
        self.count = 0

    def add(self, rows: pa.Table) -> None:
        """More rows, of the same columns."""
        self._schema, self.count = rows.schema, self.count + len(rows)
        if self._spill is None:
            self._tables.append(rows)
            try:
                self._lease.hold(self._name, sum(each.nbytes for each in self._tables))
            except TooLarge:
                self._spill = Spill(self._kept)
                for table in self._tables:
                    self._spill.put(self._name, table)
                self._tables.clear()
                self._lease.hold(self._name, 0)
        else:
            self._spill.put(self._name, rows)

    def rows(self) -> pa.Table | Pieces | None:
        """All of them, or the pieces to write them by; None for none."""
        if not self.count:
            return None
        spill = self._spill
        if spill is None:
            return pa.concat_tables(self._tables)
        return Pieces(lambda: in_pieces(spill.rows(self._name)))


def in_pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables that are worth a file each."""
    together: list[pa.Table] = []
    for table in tables:
        together.append(table)
        if sum(map(len, together)) >= ROWS_IN_PIECE:
            yield pa.concat_tables(together)
            together = []
    if together:
        yield pa.concat_tables(together)
