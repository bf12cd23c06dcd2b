"""Rows that the driver cannot hold together, in files of a temporary folder, encrypted.

Rows that gather while a delivery is planned: in memory as far as the lease goes, beyond it spilled.

Rows in an order; those that the driver cannot hold together are spread over ranges of it.
"""

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.change import RowBatches

NONCE, LENGTH = 12, 8
# Rows are written so many bytes at a time: memory for more is taken from the system each time, page by page.
AT_ONCE = 4 << 20
# So many tables wait for the thread that writes, while the next ones are made.
WAITING = 16


class Spill:
    """A temporary folder of files of rows; their key is nowhere but in this process."""

    def __init__(self, kept: ExitStack) -> None:
        """Files that go when `kept` ends."""
        self._folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="backstory-rows-")))
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._files: dict[Any, BinaryIO] = {}
        self._written = 0
        self._writer = ThreadPoolExecutor(1, "spill")
        self._waiting = deque[Future[None]]()
        kept.callback(self._close)

    def put(self, name: Any, rows: pa.Table) -> None:
        """Add rows to the file of this name; what fails is raised by a later call."""
        self._waiting.append(self._writer.submit(self._write, name, rows))
        self._wait(WAITING)

    def _write(self, name: Any, rows: pa.Table) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = (self._folder / str(len(self._files))).open("w+b")
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
        """The rows of a file, some at a time, in their order."""
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
        """Forget the rows of a file, and give their room back."""
        self._wait(0)
        file = self._files.pop(name, None)
        if file is not None:
            file.truncate(0)
            file.close()

    def _wait(self, count: int) -> None:
        """Until no more than so many tables are unwritten."""
        while len(self._waiting) > count:
            self._waiting.popleft().result()

    def _close(self) -> None:
        self._writer.shutdown(cancel_futures=True)
        for file in self._files.values():
            file.close()


# Fewer rows together would make more files than a table wants.
ROWS_IN_PIECE = 1_000_000


class RowBuffer:
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
    def is_spilled(self) -> bool:
        """Whether the rows are more than the lease could hold."""
        return self._spill is not None

    def tables(self) -> Iterator[pa.Table]:
        """The rows in their order; where they are spilled, in tables that are worth a file each."""
        if self._spill is None:
            yield from self._tables
        else:
            yield from combine_tables(self._spill.rows(self._choose_name), ROWS_IN_PIECE)


def rows_of_buffers(
    tables: Callable[[], Iterator[pa.Table]], *held: RowBuffer
) -> pa.Table | RowBatches | None:
    """The rows of a Change, made of what is held: one table, or pieces where some of it is spilled."""
    if not any(each.count for each in held):
        return None
    return RowBatches(tables) if any(each.is_spilled for each in held) else pa.concat_tables(tables())


def combine_tables(tables: Iterable[pa.Table], count: int) -> Iterator[pa.Table]:
    """The same rows in tables of at least so many rows, but for the last one."""
    gathered: list[pa.Table] = []
    for table in tables:
        gathered.append(table)
        if sum(map(len, gathered)) >= count:
            yield pa.concat_tables(gathered)
            gathered = []
    if gathered:
        yield pa.concat_tables(gathered)


# What is sorted together, and written as a file.
ROWS_IN_RANGE: Final = 1_000_000
BYTES_IN_RANGE: Final = 1 << 28
# The rows of a table by which the ends of ranges are chosen.
SAMPLE: Final = 1_000

Order = Callable[[pa.Table], np.ndarray]


def sort_rows(rows: pa.Table | RowBatches, order: Order, kept: ExitStack) -> pa.Table | RowBatches:
    """The rows in their order; `order` gives the places of a table's rows in it, equal ones as they stand.

    What is spilled goes with `kept`.
    """
    if isinstance(rows, pa.Table):
        if rows.nbytes <= BYTES_IN_RANGE:
            return _sort_table(rows, order)
        rows = RowBatches(partial(_slices, rows))
    count = size = 0
    few = []
    for each in rows.tables():
        count, size = count + len(each), size + each.nbytes
        places = np.linspace(0, len(each) - 1, min(len(each), SAMPLE)).astype(np.int64)
        few.append(each.take(pa.array(places)))
    ranges = max(count // ROWS_IN_RANGE, size // BYTES_IN_RANGE) + 1
    sample, spill = _sort_table(pa.concat_tables(few), order), Spill(kept)
    # Rows that part the others into ranges of about one size.
    ends = sample.take(pa.array(np.arange(1, ranges) * len(sample) // ranges))
    for each in rows.tables():
        places = order(pa.concat_tables([each, ends]))
        own = places < len(each)
        stops = np.append(np.flatnonzero(~own) - np.arange(len(ends)), len(each))
        parts, start = each.take(pa.array(places[own])), 0
        for number, stop in enumerate(stops):
            spill.put(number, parts.slice(start, stop - start))
            start = stop
    return RowBatches(lambda: _ranges(spill, ranges, order))


def _slices(rows: pa.Table) -> Iterator[pa.Table]:
    for first in range(0, len(rows), ROWS_IN_RANGE):
        yield rows.slice(first, ROWS_IN_RANGE)


def _ranges(spill: Spill, count: int, order: Order) -> Iterator[pa.Table]:
    for number in range(count):
        if tables := list(spill.rows(number)):
            yield _sort_table(pa.concat_tables(tables), order)


def _sort_table(rows: pa.Table, order: Order) -> pa.Table:
    return rows.take(pa.array(order(rows)))
