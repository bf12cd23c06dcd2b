"""Rows that wait to be written, with encrypted temporary files for rows that exceed the driver's memory.

Sorting spreads large tables over ranges of the sort order.
"""

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.change import RowBatches

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)

NONCE, LENGTH = 12, 8
# Bytes in each write: larger buffers would be allocated page by page each time.
AT_ONCE = 4 << 20
# The maximum number of tables that wait for the writing thread.
WAITING = 16


class Spill:
    """A temporary folder of encrypted row files. Their key exists only in this process."""

    def __init__(self, kept: ExitStack) -> None:
        """Make an empty spill, whose files are deleted when `kept` closes."""
        self._folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="backstory-rows-")))
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._files: dict[Any, BinaryIO] = {}
        self._written = self._opened = 0
        self._writer = ThreadPoolExecutor(1, "spill")
        self._waiting = deque[Future[None]]()
        kept.callback(self._close)

    def put(self, name: Any, rows: pa.Table) -> None:
        """Add rows to the file with this name. Write errors are raised by a later call."""
        self._waiting.append(self._writer.submit(self._write, name, rows))
        self._wait(WAITING)

    def _write(self, name: Any, rows: pa.Table) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = (self._folder / str(self._opened)).open("w+b")
            self._opened += 1
        count = max(1, AT_ONCE * len(rows) // max(1, rows.nbytes))
        for first in range(0, len(rows), count):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema) as stream:
                stream.write_table(rows.slice(first, count))
            nonce = self._written.to_bytes(NONCE, "big")
            self._written += 1
            sealed = self._cipher.encrypt(nonce, memoryview(sink.getvalue()).cast("B"), None)
            file.write(nonce + len(sealed).to_bytes(LENGTH, "big") + sealed)

    def rows(self, name: Any) -> Iterator[pa.Table]:
        """The rows of a file in their order, in several tables."""
        self._wait(0)
        file = self._files.get(name)
        if file is None:
            return
        file.flush()
        file.seek(0)
        while head := file.read(NONCE + LENGTH):
            sealed = file.read(int.from_bytes(head[NONCE:], "big"))
            with pa.ipc.open_stream(self._cipher.decrypt(head[:NONCE], sealed, None)) as stream:
                yield stream.read_all()

    def drop(self, name: Any) -> None:
        """Delete the rows of a file."""
        self._wait(0)
        file = self._files.pop(name, None)
        if file is not None:
            file.truncate(0)
            file.close()

    def _wait(self, count: int) -> None:
        """Wait until at most this many tables are still to be written."""
        while len(self._waiting) > count:
            self._waiting.popleft().result()

    def _close(self) -> None:
        self._writer.shutdown(cancel_futures=True)
        for file in self._files.values():
            file.close()


# With fewer rows in each piece, a table would have too many files.
ROWS_IN_PIECE = 1_000_000


class RowBuffer:
    """Rows that wait to be written: in memory within the lease, otherwise spilled."""

    def __init__(self, name: str, lease: MemoryLease, kept: ExitStack) -> None:
        """Make an empty buffer.

        The lease holds its rows under this name. Spilled files are deleted with `kept`.
        """
        self._name, self._lease, self._kept = name, lease, kept
        self._tables: list[pa.Table] = []
        self._spill: Spill | None = None
        self.count = self.size = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows with the same columns."""
        self.count += len(rows)
        self.size += rows.nbytes
        if self._spill is None:
            self._tables.append(rows)
            try:
                self._lease.hold(self._name, self.size, spills=True)
            except TooLarge:
                if len(self._tables) == 1:
                    return  # the rows are already in memory, and there may be no more rows
                self._spill = Spill(self._kept)
                for table in self._tables:
                    self._spill.put(self._name, table)
                self.clear()
        else:
            self._spill.put(self._name, rows)

    @property
    def is_spilled(self) -> bool:
        """Whether the rows exceed the lease."""
        return self._spill is not None

    def clear(self) -> None:
        """Release the rows in memory."""
        self._tables.clear()
        self._lease.hold(self._name, 0)

    def tables(self) -> Iterator[pa.Table]:
        """The rows in their order. Spilled rows are in tables that are large enough for one file each."""
        if self._spill is None:
            yield from self._tables
        else:
            yield from combine_tables(self._spill.rows(self._name), ROWS_IN_PIECE)

    def rows(self) -> pa.Table | RowBatches | None:
        """The rows for a Change: one table, or batches if they are spilled, or None without rows."""
        if not self.count:
            return None
        return RowBatches(self.tables) if self.is_spilled else pa.concat_tables(self._tables)


def drain(first: list[Rows], more: Iterable[Rows]) -> Iterator[Rows]:
    """Yield the tables of a list, removing each from the list, and then yield the tables of `more`."""
    first.reverse()
    while first:
        yield first.pop()
    yield from more


def combine_tables(tables: Iterable[pa.Table], count: int) -> Iterator[pa.Table]:
    """The rows in tables of at least `count` rows each, except for the last table."""
    gathered: list[pa.Table] = []
    for table in tables:
        gathered.append(table)
        if sum(map(len, gathered)) >= count:
            yield pa.concat_tables(gathered)
            gathered = []
    if gathered:
        yield pa.concat_tables(gathered)


# The number of rows that are sorted together and written as one file.
ROWS_IN_RANGE: Final = 1_000_000
BYTES_IN_RANGE: Final = 1 << 28
# The number of rows from each table in the sample that determines the ranges.
SAMPLE: Final = 1_000

Order = Callable[[pa.Table], np.ndarray]


def sort_rows(rows: pa.Table | RowBatches, order: Order, kept: ExitStack) -> pa.Table | RowBatches:
    """Sort rows by `order`, a function that returns a table's row numbers in a stable order.

    Spilled files are deleted with `kept`.
    """
    if isinstance(rows, pa.Table):
        if rows.nbytes <= BYTES_IN_RANGE:
            return _sort_table(rows, order)
        whole, starts = rows, range(0, len(rows), ROWS_IN_RANGE)
        rows = RowBatches(lambda: (whole.slice(first, ROWS_IN_RANGE) for first in starts))
    count = size = 0
    samples = []
    for table in rows.tables():
        count, size = count + len(table), size + table.nbytes
        places = np.linspace(0, len(table) - 1, min(len(table), SAMPLE)).astype(np.int64)
        samples.append(table.take(pa.array(places)))
    ranges = max(count // ROWS_IN_RANGE, size // BYTES_IN_RANGE) + 1
    sample, spill = _sort_table(pa.concat_tables(samples), order), Spill(kept)
    # Rows that divide all rows into ranges of similar size.
    ends = sample.take(pa.array(np.arange(1, ranges) * len(sample) // ranges))
    for table in rows.tables():
        places = order(pa.concat_tables([table, ends]))
        own = places < len(table)
        stops = np.append(np.flatnonzero(~own) - np.arange(len(ends)), len(table))
        parts, start = table.take(pa.array(places[own])), 0
        for number, stop in enumerate(stops):
            spill.put(number, parts.slice(start, stop - start))
            start = stop
    return RowBatches(lambda: _ranges(spill, ranges, order))


def _ranges(spill: Spill, count: int, order: Order) -> Iterator[pa.Table]:
    for number in range(count):
        if tables := list(spill.rows(number)):
            yield _sort_table(pa.concat_tables(tables), order)


def _sort_table(rows: pa.Table, order: Order) -> pa.Table:
    return rows.take(pa.array(order(rows)))
