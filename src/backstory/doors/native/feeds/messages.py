"""The messages of an envelope, wherever they come from: read by the driver, or left to Spark's tasks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from backstory.doors.native.feeds.options import FeedRequest
from backstory.doors.native.feeds.source_rows import read_rows
from backstory.doors.native.feeds.unwrapping import VALUE, FeedRows, unwrap
from backstory.doors.native.feeds.unwrapping_tasks import unwrap_in_tasks
from backstory.doors.native.source import Source
from backstory.engine.either_way import plan_either_way
from backstory.engine.staging import stage_rows
from backstory.formats.encoded import utf8_lines
from backstory.formats.envelopes.messages import debezium_lines
from backstory.formats.envelopes.unavailable import UNAVAILABLE
from backstory.formats.memory import UNPACKED, MemoryLease
from backstory.formats.produced import ProducedRows
from backstory.formats.source_files import SourceFile, unpacked
from backstory.formats.unchanged import require_unchanged
from backstory.model.table import TableName
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LINES: Final = pa.schema([(VALUE, pa.string())])
LINES_AT_ONCE: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of an envelope: `table` reads all, or raises TooLarge; `frame` leaves them to Spark."""

    table: Callable[[MemoryLease], pa.Table]
    frame: "Callable[[], DataFrame]"


def messages_of_rows(store: Store, rows: Source) -> Messages:
    """The rows of a source as messages."""
    return Messages(partial(read_rows, store, rows, {}), rows.frame)


def messages_of_lines(
    store: Store, files: Sequence[SourceFile], request: FeedRequest, held: ExitStack
) -> Messages:
    """The lines of files as messages of Debezium; what is unpacked and staged of them goes with `held`."""
    folder = Path(held.enter_context(TemporaryDirectory(prefix="backstory-native-")))
    lines = [unpacked(each, folder) for each in files]
    encoding, unavailable = request.files.text_encoding, request.unmodified or UNAVAILABLE

    def table(lease: MemoryLease) -> pa.Table:
        lease.hold("feed", UNPACKED * sum(each.path.stat().st_size for each in lines))
        read = [
            debezium_lines(each.path, encoding, unavailable=unavailable, name=each.name) for each in lines
        ]
        require_unchanged(each.stamp for each in lines)
        return pa.concat_tables(read, promote_options="permissive")

    def frame() -> "DataFrame":
        _, made = stage_rows(store, ProducedRows(LINES, _batches(lines, encoding)), folder, held)
        require_unchanged(each.stamp for each in lines)
        return made()

    return Messages(table, frame)


def unwrap_either_way(
    store: Store, into: TableName, messages: Messages, request: FeedRequest, key: Sequence[str]
) -> AbstractContextManager[FeedRows]:
    """What `unwrap` gives, by the driver or in Spark's tasks."""

    def here(kept: ExitStack) -> FeedRows:
        lease = kept.enter_context(store.memory.lease())
        return unwrap(store, messages.table(lease), request, key)

    def tasks() -> AbstractContextManager[FeedRows]:
        with translate_faults(into):  # the types of all messages are asked of tasks at once
            return nullcontext(unwrap_in_tasks(messages.frame(), request, key))

    return plan_either_way(store, into, here, tasks)


def _batches(files: Sequence[SourceFile], encoding: str) -> Iterator[pa.RecordBatch]:
    for file in files:
        lines: list[str | None] = []
        for _, line in utf8_lines(file.path, file.name, encoding):
            lines.append(line if line.strip() else None)
            if len(lines) == LINES_AT_ONCE:
                yield pa.record_batch([pa.array(lines, pa.string())], schema=LINES)
                lines = []
        yield pa.record_batch([pa.array(lines, pa.string())], schema=LINES)
