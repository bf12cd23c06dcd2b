"""The rows that commits of a small table moved: of files that came or went, or that vectors hide since."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from backstory.stores.metadata.hidden import Unreadable, Vector, read_vector, vector_of
from backstory.stores.metadata.manifests import DATA, POSITIONS, VECTOR, live_files
from backstory.stores.metadata.rows import MOST_ROWS, Files
from backstory.stores.metadata.values import integers

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from backstory.stores.metadata.manifests import Known

QUIET = "replace"


@dataclass(frozen=True, slots=True)
class Standing:
    """A file of rows in a snapshot, and what hides rows of it."""

    file: "DataFile"
    vector: Vector | None


@dataclass(slots=True)
class MovedRows:
    """The rows that commits of a table let go and come, with these columns; each file is read once.

    Raises Unreadable for more than is small, and for what is not read exactly here.
    """

    files: Files
    names: Sequence[str]
    manifests: "Known" = field(default_factory=dict)
    read: dict[str, pa.Table] = field(default_factory=dict)
    moved: int = 0

    def of_commits(
        self, before: int | None, commits: Sequence[tuple[int, str]]
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """For each commit, by its snapshot and operation, the rows that went and those that came."""
        there = {} if before is None else self._live_files(before)
        for snapshot, operation in commits:
            then = self._live_files(snapshot)
            yield self._between({} if operation == QUIET else there, {} if operation == QUIET else then)
            there = then

    def _between(
        self, before: Mapping[str, Standing], after: Mapping[str, Standing]
    ) -> tuple[pa.Table, pa.Table]:
        gone, come = [], []
        for path in sorted({*before, *after}):
            was, now = before.get(path), after.get(path)
            if was is not None and now is not None and was.vector == now.vector:
                continue
            one, other = self._alive(was), self._alive(now)
            gone.append(self._rows(was or now, one - other))
            come.append(self._rows(now or was, other - one))
        return self._together(gone), self._together(come)

    def _together(self, parts: list[pa.Table | None]) -> pa.Table:
        found = [each for each in parts if each is not None]
        return pa.concat_tables(found) if found else pa.table({name: [] for name in self.names})

    def _live_files(self, snapshot: int) -> dict[str, Standing]:
        """The data files of a snapshot by their paths, each with its deletion vector."""
        described = self.files.table.snapshot_by_id(snapshot)
        if described is None:
            raise Unreadable("a snapshot that is gone")
        data: dict[str, DataFile] = {}
        vectors: dict[str, Vector] = {}
        for _, file in live_files(described["manifest-list"], self.files.opener, self.manifests):
            if file.content.value == DATA:
                data[file.file_path] = file
            elif file.content.value == POSITIONS and file.file_format.value == VECTOR:
                vectors.update([vector_of(file)])
            else:
                raise Unreadable("rows that other files than vectors hide")
        return {path: Standing(file, vectors.get(path)) for path, file in data.items()}

    def _alive(self, standing: Standing | None) -> BitMap64:
        if standing is None:
            return BitMap64()
        every = BitMap64(range(standing.file.record_count))
        if standing.vector is None:
            return every
        return every - read_vector(standing.vector, self.files.opener)

    def _rows(self, standing: Standing | None, positions: BitMap64) -> pa.Table | None:
        if standing is None or not positions:
            return None
        file = standing.file
        if file.file_path not in self.read:
            self._count(file.record_count)
            self.read[file.file_path] = self.files.whole_file(file, self.names)
        self._count(len(positions))
        places = np.fromiter(positions, dtype=np.int64, count=len(positions))
        return self.read[file.file_path].take(integers(places))

    def _count(self, rows: int) -> None:
        self.moved += rows
        if self.moved > MOST_ROWS:
            raise Unreadable(f"{self.moved} rows")
