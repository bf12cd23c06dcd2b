"""Rows that gather while a delivery is planned: in memory as far as the lease goes, beyond it spilled."""

from collections.abc import Callable, Iterable, Iterator
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
        self._choose_name, self._lease, self._kept = name, lease, kept
        self._tables: list[pa.Table] = []
        self._spill: Spill | None = None
        self.count = self.size = 0

    def add(self, rows: pa.Table) -> None:
        """More rows, of the same columns."""
        self.count += len(rows)
        self.size += rows.nbytes
        if self._spill is None:
            self._tables.append(rows)
            try:
                self._lease.gather(self._choose_name, self.size)
            except TooLarge:
                if len(self._tables) == 1:
                    return  # they are in memory already, and may be all
                self._spill = Spill(self._kept)
                for table in self._tables:
                    self._spill.put(self._choose_name, table)
                self._tables.clear()
                self._lease.hold(self._choose_name, 0)
        else:
            self._spill.put(self._choose_name, rows)

    @property
    def spilled(self) -> bool:
        """Whether the rows are more than the lease could hold."""
        return self._spill is not None

    def tables(self) -> Iterator[pa.Table]:
        """The rows in their order; where they are spilled, in tables that are worth a file each."""
        if self._spill is None:
            yield from self._tables
        else:
            yield from together(self._spill.rows(self._choose_name), ROWS_IN_PIECE)


def come_of(tables: Callable[[], Iterator[pa.Table]], *held: HeldRows) -> pa.Table | Pieces | None:
    """The rows of a Change, made of what is held: one table, or pieces where some of it is spilled."""
    if not any(each.count for each in held):
        return None
    return Pieces(tables) if any(each.spilled for each in held) else pa.concat_tables(tables())


def together(tables: Iterable[pa.Table], count: int) -> Iterator[pa.Table]:
    """The same rows in tables of at least so many rows, but for the last one."""
    gathered: list[pa.Table] = []
    for table in tables:
        gathered.append(table)
        if sum(map(len, gathered)) >= count:
            yield pa.concat_tables(gathered)
            gathered = []
    if gathered:
        yield pa.concat_tables(gathered)
