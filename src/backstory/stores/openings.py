"""Where a file opens: on this machine, or in an object store by what the table's own FileIO is told.

Every reader of a table's files opens them here. What does not open here as it would for Iceberg's Java is
left to Spark, which reads it or says what is wrong with it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, Final

from backstory.stores.remote import AT_ONCE, RemoteFile, file_system
from backstory.stores.s3 import S3_SCHEMES, S3Options, s3_options

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Properties = Mapping[str, str]

# Bytes of small files that are kept, lest they be read twice; others are read again.
KEPT: Final = 64 << 20


class OpensElsewhere(OSError):
    """A file that this process cannot open as Iceberg's Java does."""


def local(location: str) -> Path:
    """The path of a location as Iceberg writes it."""
    return Path(location.removeprefix("file://").removeprefix("file:"))


def is_remote(location: str) -> bool:
    """Whether a location names a storage and not a path."""
    return "://" in location and not location.startswith("file:")


class TableFiles:
    """The files of a table as one command opens them: a remote one once, whatever is asked of it.

    `properties` gives those of the table's FileIO when a file of S3 is met, None where the FileIO opens files
    in a way of its own. `others` opens what does not open so.
    """

    def __init__(
        self,
        properties: Callable[[], Properties | None] = lambda: None,
        others: "Callable[[str], pa.NativeFile] | None" = None,
    ) -> None:
        self._properties = properties
        self._others = others
        self._lock = Lock()
        self._opened: dict[str, Future[RemoteFile]] = {}
        self._options: list[S3Options | None] = []
        self._kept = 0

    def __call__(self, location: str) -> IO[bytes]:
        """The file, opened for reading; OpensElsewhere, or the OSError of its storage."""
        if not is_remote(location):
            return local(location).open("rb")
        return self._remote(location).open()

    @contextmanager
    def parquet(self, location: str) -> "Iterator[pq.ParquetFile]":
        """The same of a Parquet file, whose ending is read once; of others raises ArrowInvalid."""
        if is_remote(location):
            from backstory.stores.remote_parquet import opened_parquet

            with opened_parquet(self._remote(location)) as file:
                yield file
            return
        import pyarrow.parquet as pq

        with pq.ParquetFile(local(location)) as file:
            yield file

    def read(self, location: str, offset: int, length: int) -> bytes:
        """A piece of a file; raises what opening it raises."""
        if is_remote(location):
            return self._remote(location).read(offset, length)
        with self(location) as file:
            file.seek(offset)
            return file.read(length)

    def ahead(self, locations: Iterable[str]) -> None:
        """Open files that are about to be read, side by side; what is wrong with one, its reader is told."""
        remote = [each for each in dict.fromkeys(locations) if is_remote(each)]
        if len(remote) < 2:  # noqa: PLR2004 - the reader itself opens one
            return
        with ThreadPoolExecutor(min(AT_ONCE, len(remote))) as pool:
            for first in range(0, len(remote), AT_ONCE):
                if self._kept > KEPT // 2:  # more would be let go before it is read
                    return
                some = remote[first : first + AT_ONCE]
                for each in [pool.submit(self._remote, location) for location in some]:
                    with suppress(OSError):
                        each.result()

    def _remote(self, location: str) -> RemoteFile:
        with self._lock:
            opening = self._opened.get(location)
            mine = self._opened[location] = opening or Future()
        if opening is not None:
            return opening.result()
        try:
            file = RemoteFile(self._native(location))
        except BaseException as stop:
            with self._lock:
                del self._opened[location]
            mine.set_exception(stop)
            raise
        mine.set_result(file)
        with self._lock:
            if file.is_whole and self._kept + file.size > KEPT:
                del self._opened[location]
            elif file.is_whole:
                self._kept += file.size
        return file

    def _native(self, location: str) -> "pa.NativeFile":
        """Arrow's file of a location, which costs a request."""
        scheme, _, name = location.partition("://")
        # Iceberg's Java ends a name at these letters.
        options = self._s3() if scheme in S3_SCHEMES and not {*"?#"} & {*name} else None
        if options is not None:
            return file_system(options).open_input_file(name)
        if self._others is not None:
            return self._others(location)
        raise OpensElsewhere(f"a file of {scheme}, as this table is set to reach it")

    def _s3(self) -> S3Options | None:
        with self._lock:
            if not self._options:
                properties = self._properties()
                self._options.append(None if properties is None else s3_options(properties))
            return self._options[0]
