"""The columns of a dataset's table, system columns first (decision O11)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa

from backstory.doors.odf.manifest.dataset import Dataset
from backstory.doors.odf.manifest.events import SetVocab
from backstory.doors.odf.manifest.merge import OBSERVED, encoding_of
from backstory.strategies.events.sides import OP, TIME, data_names
from backstory.strategies.events.terms import LETTERS, EventEncoding, Op

INSTANT: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class LogColumns:
    """The names of a table's system columns, and its encoding of operations."""

    vocab: SetVocab
    encoding: EventEncoding | None

    @property
    def time(self) -> str:
        """The name of the event-time column."""
        return self.vocab.event_time_column

    @property
    def names(self) -> dict[str, str | None]:
        """The names of the system columns by role, for programs that read the table."""
        vocab = self.vocab
        return {
            "offset": vocab.offset_column,
            "op": vocab.operation_type_column if self.encoding is EventEncoding.OP else None,
            "system_time": vocab.system_time_column,
            "event_time": vocab.event_time_column,
            "observed": OBSERVED if self.encoding is EventEncoding.OBSERVED else None,
        }

    @property
    def system(self) -> list[str]:
        """The names of the system columns, in order."""
        vocab = self.vocab
        op = [vocab.operation_type_column] if self.encoding is EventEncoding.OP else []
        observed = [OBSERVED] if self.encoding is EventEncoding.OBSERVED else []
        return [vocab.offset_column, *op, vocab.system_time_column, vocab.event_time_column, *observed]

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The names of all system columns in the manifest's vocabulary."""
        vocab = self.vocab
        return (
            vocab.offset_column,
            vocab.operation_type_column,
            vocab.system_time_column,
            vocab.event_time_column,
        )

    def system_schema(self, *, dated: bool = False) -> pa.Schema:
        """The system columns with their types. If `dated`, the event time is a day instead of an instant."""
        vocab = self.vocab
        types = {
            vocab.offset_column: pa.int64(),
            vocab.operation_type_column: pa.int32(),
            vocab.system_time_column: INSTANT,
            vocab.event_time_column: pa.date32() if dated else INSTANT,
            OBSERVED: pa.string(),
        }
        return pa.schema([(name, types[name]) for name in self.system])

    def stored_rows(self, events: pa.Table, system_time: datetime, start: int) -> pa.Table:
        """Events in their order as rows of the table, with offsets from `start` on."""
        size = len(events)
        letters = [LETTERS.get(op) for op in Op]
        values = {
            self.vocab.offset_column: pa.array(np.arange(start, start + size)),
            self.vocab.operation_type_column: events[OP],
            self.vocab.system_time_column: pa.repeat(pa.scalar(system_time, INSTANT), size),
            self.time: events[TIME],
            OBSERVED: pa.array(letters, pa.string()).take(events[OP]),
        }
        system, data = self.system, data_names(events)
        return pa.table(
            [*(values[name] for name in system), *(events[name] for name in data)], names=[*system, *data]
        )


def log_columns(dataset: Dataset) -> LogColumns:
    """The system columns of a dataset. All its sources have the same encoding."""
    encodings = {encoding_of(source.merge) for _, source in dataset.sources()} - {None}
    return LogColumns(dataset.vocab, next(iter(encodings), None))
