"""A Parquet file in an object store. The columns of row groups are fetched before they are decoded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.stores.table_files import ENDING, RemoteFile, Span


class RemoteParquet(pq.ParquetFile):  # type: ignore[misc] # pyarrow has no types
    """A Parquet file whose columns are fetched in few concurrent requests. Its footer is read once.

    Arrow's own implementation requests one column after another while it decodes them.
    """

    def __init__(self, remote: RemoteFile) -> None:
        self._remote = remote
        if remote.metadata is None:
            remote.fetch([(max(0, remote.size - ENDING), remote.size)])
        super().__init__(remote.raw(), metadata=remote.metadata, pre_buffer=False)
        remote.metadata = self.metadata

    def read_row_groups(
        self, row_groups: Sequence[int], columns: Sequence[str] | None = None, **more: Any
    ) -> pa.Table:
        """The rows of these groups. The bytes of groups from an earlier call are released."""
        spans = [span for group in row_groups for span in self._spans(group, columns)]
        whole = [span for group in row_groups for span in self._spans(group, None)]
        if spans:
            self._remote.keep((min(start for start, _ in whole), max(end for _, end in whole)))
            self._remote.fetch(spans)
        return super().read_row_groups(row_groups, columns=columns, **more)

    def _spans(self, group: int, columns: Sequence[str] | None) -> Iterator[Span]:
        row_group = self.metadata.row_group(group)
        for place in range(row_group.num_columns):
            column = row_group.column(place)
            if columns is None or _is_of(column.path_in_schema, columns):
                first = column.dictionary_page_offset
                start = column.data_page_offset if not first else min(first, column.data_page_offset)
                yield start, start + column.total_compressed_size


@contextmanager
def open_parquet(remote: RemoteFile) -> Iterator[pq.ParquetFile]:
    """The open file. Its fetched rows are released at the end."""
    if remote.is_whole:
        with pq.ParquetFile(remote.raw(), metadata=remote.metadata) as file:
            remote.metadata = file.metadata
            yield file
        return
    with RemoteParquet(remote) as file:
        try:
            yield file
        finally:
            remote.keep((remote.size, remote.size))


def _is_of(path: str, columns: Sequence[str]) -> bool:
    """Whether the path of a leaf column is one of these columns, or a part of one."""
    return any(path == name or path.startswith(f"{name}.") for name in columns)
