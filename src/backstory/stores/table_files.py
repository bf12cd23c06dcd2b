"""The files of tables, opened by this process: on this machine, or in S3 with the table's own credentials.

Every reader of a table's files opens them here. A file that cannot be opened as Iceberg's Java would open it
is left to Spark, which reads it or reports the error. Several files are read ahead in threads.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from io import BufferedReader, BytesIO, RawIOBase
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import IO, Any, Final, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import AwsStandardS3RetryStrategy, FileSystem, S3FileSystem

Item = TypeVar("Item")


def read_ahead(pool: Executor, readers: Iterable[Callable[[], Iterator[Item]]], count: int) -> Iterator[Item]:
    """The items of the readers, in order. Up to `count` readers work concurrently, each on its next item."""
    rest = iter(readers)
    started = deque[tuple[Iterator[Item], Future[Item | None]]]()

    def begin() -> None:
        for reader in rest:
            items = reader()
            started.append((items, pool.submit(next, items, None)))
            return

    for _ in range(count):
        begin()
    try:
        while started:
            items, first = started[0]
            item = first.result()
            if item is None:
                started.popleft()
                begin()
            else:
                started[0] = items, pool.submit(next, items, None)
                yield item
    finally:
        for items, pending in started:
            pending.add_done_callback(partial(_close, items))


def _close(items: Iterator[Item], _done: object) -> None:
    """Close a reader that is no longer needed."""
    close = getattr(items, "close", None)
    if close is not None:
        close()


S3_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})
# Credentials. No representation shows their values.
_KEYS: Final = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
_ENDPOINT, _PATH_STYLE, _REGION = "s3.endpoint", "s3.path-style-access", "client.region"
# Objects encrypted with a customer's key, which Arrow cannot send.
_OWN_KEY: Final = ("s3.sse.type", "custom")
# Properties that affect how files are written, or how fast they are read, but not their content.
_READS_ALIKE: Final = (
    "client.refresh-credentials",
    "http-client.apache.",
    "http-client.type",
    "http-client.urlconnection.",
    "s3.acl",
    "s3.analytics-accelerator.",
    "s3.checksum-enabled",
    "s3.crt.",
    "s3.delete",
    "s3.multipart.",
    "s3.preload-client-enabled",
    "s3.retry.",
    "s3.session-token-expires-at-ms",
    "s3.sse.",
    "s3.staging-dir",
    "s3.write.",
)
_OFF: Final = frozenset(
    {
        "s3.acceleration-enabled",
        "s3.access-grants.enabled",
        "s3.dualstack-enabled",
        "s3.remote-signing-enabled",
    }
)
_OF_S3: Final = ("client.", "http-client.", "s3.")
_AMAZON: Final = "s3.amazonaws.com"
# In seconds. If a storage does not respond by then, Spark reads its files, with longer timeouts.
_CONNECTING: Final = 5.0
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class S3Options:
    """The address of S3, and credentials. Without keys, Arrow looks for them where Amazon's programs do."""

    endpoint: str | None
    path_style: bool
    region: str | None
    keys: tuple[str | None, str | None, str | None] = field(repr=False)


@lru_cache(maxsize=8)
def file_system(options: S3Options) -> FileSystem:
    """Arrow's file system of S3, in which a file's name is BUCKET/KEY. The file system is created once."""
    access, secret, token = options.keys
    parts = urlsplit(options.endpoint or "")
    override = {"endpoint_override": parts.netloc, "scheme": parts.scheme} if parts.netloc else {}
    host = parts.hostname or _AMAZON
    # As in Java: if the environment names a proxy, all requests use it.
    proxy = None if proxy_bypass(host) else getproxies().get(parts.scheme or "https")
    is_virtual = bool(override) and not options.path_style and not _is_address(parts.hostname)
    return S3FileSystem(
        access_key=access,
        secret_key=secret,
        session_token=token,
        region=options.region or ("us-east-1" if override else None),
        connect_timeout=_CONNECTING,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_TRIES),
        force_virtual_addressing=is_virtual,
        proxy_options=proxy,
        **override,
    )


def s3_options(properties: Mapping[str, str]) -> S3Options | None:
    """The options in a FileIO's properties, or None if one of the properties has no counterpart in Arrow."""
    if any(_has_no_counterpart(name, value) for name, value in properties.items()):
        return None
    endpoint = properties.get(_ENDPOINT)
    parts = urlsplit(endpoint or "")
    if endpoint and (parts.scheme not in {"http", "https"} or parts.path.strip("/") or not parts.netloc):
        return None
    access, secret, token = (properties.get(name) for name in _KEYS)
    if (access is None) != (secret is None) or (token is not None and access is None):
        return None
    path_style = properties.get(_PATH_STYLE, "").lower() == "true"
    return S3Options(endpoint or None, path_style, properties.get(_REGION), (access, secret, token))


def _has_no_counterpart(name: str, value: str) -> bool:
    if (name, value.lower()) == _OWN_KEY:
        return True
    if not name.startswith(_OF_S3) or name in {*_KEYS, _ENDPOINT, _PATH_STYLE, _REGION}:
        return False
    if name in _OFF:
        return value.lower() != "false"
    return not name.startswith(_READS_ALIKE)


def _is_address(host: str | None) -> bool:
    """Whether a host is an IP address, which cannot have a bucket as its subdomain."""
    try:
        ip_address(host or "")
    except ValueError:
        return False
    return True


# A smaller file is read whole: a second request would take longer than its bytes.
WHOLE: Final = 1 << 20
# Requests wait for the network, not for this machine's cores.
AT_ONCE: Final = 16
# Spans with a smaller gap between them are fetched by one request, which costs less than two.
LARGEST_GAP: Final = 512 << 10
# The bytes of one request. Larger spans are fetched by several concurrent requests.
PIECE: Final = 8 << 20
# The last bytes of a Parquet file, which mostly contain its whole footer.
ENDING: Final = 256 << 10

Span = tuple[int, int]


class RemoteFile:
    """A file in an object store, opened with one request and read with a few concurrent requests.

    Fetched bytes are held until `keep` releases them. A small file is held whole. `file` is Arrow's open
    file. Reading raises the storage's OSError.
    """

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self.size = int(file.size())
        self.metadata: pq.FileMetaData | None = None
        self._pieces: list[tuple[int, bytes]] = []
        self.is_whole = self.size <= WHOLE
        if self.is_whole:
            self._pieces = [(0, self._request((0, self.size)))]

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file, fetched before or requested now. Returns fewer bytes at the end of the file."""
        end = min(offset + length, self.size)
        for start, piece in self._pieces:
            if start <= offset and end <= start + len(piece):
                return piece[offset - start : end - start]
        return self._request((offset, end)) if offset < end else b""

    def fetch(self, spans: Iterable[Span]) -> None:
        """Fetch these spans concurrently. The end of a span is exclusive."""
        held = [(start, start + len(piece)) for start, piece in self._pieces]
        missing = [span for span in spans if not any(a <= span[0] and span[1] <= b for a, b in held)]
        requests = [part for span in merge_spans(missing, LARGEST_GAP) for part in _parts(span)]
        if not requests:
            return
        with ThreadPoolExecutor(min(AT_ONCE, len(requests))) as pool:
            pieces = list(pool.map(self._request, requests))
        self._pieces += _join_pieces(requests, pieces)

    def keep(self, span: Span) -> None:
        """Release fetched bytes outside of a span."""
        if not self.is_whole:
            least, most = span
            self._pieces = [
                piece for piece in self._pieces if piece[0] < most and piece[0] + len(piece[1]) > least
            ]

    def open(self) -> IO[bytes]:
        """A buffered reader, which the caller may close."""
        return BytesIO(self._pieces[0][1]) if self.is_whole else BufferedReader(self.raw(), WHOLE)

    def raw(self) -> RawIOBase:
        """An unbuffered reader, which requests only the bytes that are read."""
        return _RemoteReader(self)

    def _request(self, span: Span) -> bytes:
        return bytes(self._file.read_at(span[1] - span[0], span[0])) if span[0] < span[1] else b""


class _RemoteReader(RawIOBase):
    """A remote file as a Python file object."""

    def __init__(self, remote: RemoteFile) -> None:
        super().__init__()
        self._remote = remote
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self._remote.size)[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        content = self._remote.read(self._place, self._remote.size if size < 0 else size)
        self._place += len(content)
        return content

    def readinto(self, buffer: Any) -> int:
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def merge_spans(spans: Iterable[Span], hole: int) -> list[Span]:
    """Spans in ascending order. Spans are merged if the gap between them is at most `hole`."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start - merged[-1][1] <= hole:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _parts(span: Span) -> list[Span]:
    """A span in parts of about the same size, each at most as large as one request."""
    start, end = span
    number = max(1, -(-(end - start) // PIECE))
    bounds = [start + (end - start) * place // number for place in range(number + 1)]
    return list(pairwise(bounds))


def _join_pieces(spans: Sequence[Span], pieces: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """The pieces with their offsets. Adjacent pieces are joined, because a column may extend over several."""
    joined: list[tuple[int, list[bytes]]] = []
    previous_end = -1
    for (start, end), piece in zip(spans, pieces, strict=True):
        if start == previous_end:
            joined[-1][1].append(piece)
        else:
            joined.append((start, [piece]))
        previous_end = end
    return [(start, parts[0] if len(parts) == 1 else b"".join(parts)) for start, parts in joined]


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
            path = column.path_in_schema
            if columns is None or any(path == name or path.startswith(f"{name}.") for name in columns):
                first = column.dictionary_page_offset
                start = column.data_page_offset if not first else min(first, column.data_page_offset)
                yield start, start + column.total_compressed_size


@contextmanager
def open_parquet(remote: RemoteFile) -> Iterator[pq.ParquetFile]:
    """A Parquet file, opened for the block. The fetched bytes are released at the end of the block."""
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


Properties = Mapping[str, str]

# Bytes of small files that are kept for a second reading. Other files are fetched again.
KEPT: Final = 64 << 20


class JavaOnlyFile(OSError):
    """A file that this process cannot open as Iceberg's Java does."""


def local_path(location: str) -> Path:
    """The path of a location on this machine, as Iceberg writes it."""
    return Path(location.removeprefix("file://").removeprefix("file:"))


def is_remote(location: str) -> bool:
    """Whether a location is in a remote storage, and not on this machine."""
    return "://" in location and not location.startswith("file:")


class TableFiles:
    """The files of a table, opened for one command. Most remote files are opened only once.

    `properties` is called for the first file in S3. It returns the properties of the table's FileIO, or None
    if the FileIO opens files in its own way. `others` opens all other remote files.
    """

    def __init__(
        self,
        properties: Callable[[], Properties | None] = lambda: None,
        others: Callable[[str], pa.NativeFile] | None = None,
    ) -> None:
        self._properties = properties
        self._others = others
        self._lock = Lock()
        self._opened: dict[str, Future[RemoteFile]] = {}
        self._options: list[S3Options | None] = []
        self._kept = 0

    def __call__(self, location: str) -> IO[bytes]:
        """The file, opened for reading. Raises JavaOnlyFile, or the storage's OSError."""
        if not is_remote(location):
            return local_path(location).open("rb")
        return self._remote(location).open()

    @contextmanager
    def parquet(self, location: str) -> Iterator[pq.ParquetFile]:
        """A Parquet file, whose footer is read once. Raises ArrowInvalid for a file in another format."""
        if is_remote(location):
            with open_parquet(self._remote(location)) as file:
                yield file
            return
        with pq.ParquetFile(local_path(location)) as file:
            yield file

    def read(self, location: str, offset: int, length: int) -> bytes:
        """Bytes of a file. Raises the errors of opening it."""
        if is_remote(location):
            return self._remote(location).read(offset, length)
        with self(location) as file:
            file.seek(offset)
            return file.read(length)

    def open_ahead(self, locations: Iterable[str]) -> None:
        """Open files concurrently before they are read. An error is only raised when its file is read."""
        remote = [location for location in dict.fromkeys(locations) if is_remote(location)]
        if len(remote) < 2:  # noqa: PLR2004 - the reader itself opens one
            return
        with ThreadPoolExecutor(min(AT_ONCE, len(remote))) as pool:
            for first in range(0, len(remote), AT_ONCE):
                if self._kept > KEPT // 2:  # further ones would be dropped before they are read
                    return
                some = remote[first : first + AT_ONCE]
                for opening in [pool.submit(self._remote, location) for location in some]:
                    with suppress(OSError):
                        opening.result()

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

    def _native(self, location: str) -> pa.NativeFile:
        """Arrow's file for a location. Opening a file in S3 costs a request."""
        scheme, _, name = location.partition("://")
        # In Iceberg's Java, a name ends at these characters.
        options = self._s3() if scheme in S3_SCHEMES and not {*"?#"} & {*name} else None
        if options is not None:
            return file_system(options).open_input_file(name)
        if self._others is not None:
            return self._others(location)
        raise JavaOnlyFile(f"a file of {scheme}, as this table is set to reach it")

    def _s3(self) -> S3Options | None:
        with self._lock:
            if not self._options:
                properties = self._properties()
                self._options.append(None if properties is None else s3_options(properties))
            return self._options[0]
