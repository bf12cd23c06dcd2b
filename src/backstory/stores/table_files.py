"""The properties by which Iceberg's Java reaches S3, as Arrow's file system takes them.

A file of an object store: opened by one request, and read in as few more as can be, side by side.

Where a file opens: on this machine, or in an object store by what the table's own FileIO is told.

Every reader of a table's files opens them here. What does not open here as it would for Iceberg's Java is
left to Spark, which reads it or says what is wrong with it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from io import BufferedReader, BytesIO, RawIOBase
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

S3_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})
# What files are read with; the secrets among them are named in no representation.
_KEYS: Final = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
_ENDPOINT, _PATH_STYLE, _REGION = "s3.endpoint", "s3.path-style-access", "client.region"
# Only a key that is not ours to send makes an object's bytes other ones.
_OWN_KEY: Final = ("s3.sse.type", "custom")
# What changes how files are written, or how fast they are read, and never what is in them.
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
# Seconds; what does not answer by then is left to Spark, which asks more patiently.
_CONNECTING: Final = 5.0
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class S3Options:
    """Where S3 is, and who asks it; without keys Arrow finds them where Amazon's programs do."""

    endpoint: str | None
    path_style: bool
    region: str | None
    keys: tuple[str | None, str | None, str | None] = field(repr=False)

    def file_system(self) -> "FileSystem":
        """The file system whose files are named BUCKET/KEY."""
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

        access, secret, token = self.keys
        parts = urlsplit(self.endpoint or "")
        there = {"endpoint_override": parts.netloc, "scheme": parts.scheme} if parts.netloc else {}
        host = parts.hostname or _AMAZON
        # As Java does it: a way out that the environment names is the only one.
        proxy = None if proxy_bypass(host) else getproxies().get(parts.scheme or "https")
        return S3FileSystem(
            access_key=access,
            secret_key=secret,
            session_token=token,
            region=self.region or ("us-east-1" if there else None),
            connect_timeout=_CONNECTING,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_TRIES),
            force_virtual_addressing=bool(there) and not self.path_style and not _is_address(parts.hostname),
            proxy_options=proxy,
            **there,
        )


def s3_options(told: Mapping[str, str]) -> S3Options | None:
    """The options that a FileIO's properties tell; None where one of them has no counterpart here."""
    if any(_has_no_counterpart(name, value) for name, value in told.items()):
        return None
    endpoint = told.get(_ENDPOINT)
    parts = urlsplit(endpoint or "")
    if endpoint and (parts.scheme not in {"http", "https"} or parts.path.strip("/") or not parts.netloc):
        return None
    access, secret, token = (told.get(name) for name in _KEYS)
    if (access is None) != (secret is None) or (token is not None and access is None):
        return None
    path_style = told.get(_PATH_STYLE, "").lower() == "true"
    return S3Options(endpoint or None, path_style, told.get(_REGION), (access, secret, token))


def _has_no_counterpart(name: str, value: str) -> bool:
    if (name, value.lower()) == _OWN_KEY:
        return True
    if not name.startswith(_OF_S3) or name in {*_KEYS, _ENDPOINT, _PATH_STYLE, _REGION}:
        return False
    if name in _OFF:
        return value.lower() != "false"
    return not name.startswith(_READS_ALIKE)


def _is_address(host: str | None) -> bool:
    """Whether a host is an address: no bucket can stand before it."""
    try:
        ip_address(host or "")
    except ValueError:
        return False
    return True


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow.fs import FileSystem

# A smaller file is read whole: one request more would take longer than its bytes.
WHOLE: Final = 1 << 20
# Requests wait for the network, not for this machine's cores.
AT_ONCE: Final = 16
# So many bytes that nobody asked for cost less than another request does.
HOLE: Final = 512 << 10
# What one request asks for: more are sent side by side.
PIECE: Final = 8 << 20
# A Parquet file ends with what it says of itself, which mostly is shorter.
ENDING: Final = 256 << 10

Span = tuple[int, int]


class RemoteFile:
    """A file of an object store. What was fetched of it stays until `keep` lets it go; a small one stays.

    `file` is Arrow's, opened. Reading raises the OSError of the storage.
    """

    def __init__(self, file: "pa.NativeFile") -> None:
        self._file = file
        self.size = int(file.size())
        self.metadata: pq.FileMetaData | None = None
        self._pieces: list[tuple[int, bytes]] = []
        self.is_whole = self.size <= WHOLE
        if self.is_whole:
            self._pieces = [(0, self._request((0, self.size)))]

    def read(self, offset: int, length: int) -> bytes:
        """A piece of it, shorter where it ends: out of what was fetched, else by a request."""
        end = min(offset + length, self.size)
        for start, piece in self._pieces:
            if start <= offset and end <= start + len(piece):
                return piece[offset - start : end - start]
        return self._request((offset, end)) if offset < end else b""

    def fetch(self, spans: Iterable[Span]) -> None:
        """Have these parts of it, from their first byte to behind their last, side by side."""
        missing = [each for each in spans if not self._has(each)]
        requests = [part for span in merge_spans(missing, HOLE) for part in _parts(span)]
        if not requests:
            return
        with ThreadPoolExecutor(min(AT_ONCE, len(requests))) as pool:
            found = list(pool.map(self._request, requests))
        self._pieces += _join_pieces(requests, found)

    def keep(self, span: Span) -> None:
        """Let go what was fetched of other parts."""
        if not self.is_whole:
            least, most = span
            self._pieces = [
                each for each in self._pieces if each[0] < most and each[0] + len(each[1]) > least
            ]

    def open(self) -> IO[bytes]:
        """A reader of it that may be closed."""
        return BytesIO(self._pieces[0][1]) if self.is_whole else BufferedReader(self.raw(), WHOLE)

    def raw(self) -> RawIOBase:
        """A reader of it that asks for no more than its reader does."""
        return _RemoteReader(self)

    def _has(self, span: Span) -> bool:
        return any(start <= span[0] and span[1] <= start + len(piece) for start, piece in self._pieces)

    def _request(self, span: Span) -> bytes:
        return bytes(self._file.read_at(span[1] - span[0], span[0])) if span[0] < span[1] else b""


class _RemoteReader(RawIOBase):
    """A remote file for whoever reads files as Python does."""

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
        found = self._remote.read(self._place, self._remote.size if size < 0 else size)
        self._place += len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


def merge_spans(spans: Iterable[Span], hole: int) -> list[Span]:
    """Spans in their order; those that lie no further apart than a hole are one."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= hole:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _parts(span: Span) -> list[Span]:
    """A span in parts of about the same size, none larger than a request's."""
    start, end = span
    number = max(1, -(-(end - start) // PIECE))
    bounds = [start + (end - start) * place // number for place in range(number + 1)]
    return list(pairwise(bounds))


def _join_pieces(spans: Sequence[Span], pieces: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Pieces with the place of each; those of one span are one again, for a column may lie across them."""
    found: list[tuple[int, list[bytes]]] = []
    behind = -1
    for (start, end), piece in zip(spans, pieces, strict=True):
        if start == behind:
            found[-1][1].append(piece)
        else:
            found.append((start, [piece]))
        behind = end
    return [(start, parts[0] if len(parts) == 1 else b"".join(parts)) for start, parts in found]


@lru_cache(maxsize=8)
def file_system(options: S3Options) -> "FileSystem":
    """The file system of these options, with its connections."""
    return options.file_system()


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Properties = Mapping[str, str]

# Bytes of small files that are kept, lest they be read twice; others are read again.
KEPT: Final = 64 << 20


class OpensElsewhere(OSError):
    """A file that this process cannot open as Iceberg's Java does."""


def local_path(location: str) -> Path:
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
            return local_path(location).open("rb")
        return self._remote(location).open()

    @contextmanager
    def parquet(self, location: str) -> "Iterator[pq.ParquetFile]":
        """The same of a Parquet file, whose ending is read once; of others raises ArrowInvalid."""
        if is_remote(location):
            from backstory.stores.remote_parquet import open_parquet

            with open_parquet(self._remote(location)) as file:
                yield file
            return
        import pyarrow.parquet as pq

        with pq.ParquetFile(local_path(location)) as file:
            yield file

    def read(self, location: str, offset: int, length: int) -> bytes:
        """A piece of a file; raises what opening it raises."""
        if is_remote(location):
            return self._remote(location).read(offset, length)
        with self(location) as file:
            file.seek(offset)
            return file.read(length)

    def open_ahead(self, locations: Iterable[str]) -> None:
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
