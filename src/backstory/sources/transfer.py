"""A body on its way into a file: an attempt continues where the last one broke off, if the server can."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2

from backstory.errors import Failed, TryAgain
from backstory.formats.wrapping.room import bound_by
from backstory.sources.asking import DOWNLOADING, Progress
from backstory.sources.request import FileRequest, Headers, answered, refusal
from backstory.sources.retries import Unreachable
from backstory.sources.savepoint import unwritable

OK: Final = {200, 203}
PARTIAL: Final = 206
NOT_MODIFIED: Final = 304
NO_SUCH_RANGE: Final = 416
# A file that is compressed for itself is kept so, whatever its server calls the compression.
_COMPRESSED: Final = (".gz", ".gzip", ".tgz", ".zip", ".zst", ".br")
_DECODED: Final = {"gzip", "deflate"}
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(slots=True)
class BodyPart:
    """What is there of a body.

    Attributes:
        path: the file it is written into.
        headers: those of the answer that the first byte came with; a later part need not repeat them.
        tag: its strong ETag if the rest can be asked for, else None.
        size: the bytes that are there.
        limit: the bytes that one that came compressed may have, None for the limit of every door.
    """

    path: Path
    headers: httpx2.Headers | None = None
    tag: str | None = None
    size: int = 0
    limit: int | None = None


def transfer_bytes(
    client: httpx2.Client, target: FileRequest, conditions: Headers, part: BodyPart, progress: Progress
) -> httpx2.Headers | None:
    """The headers of the answer whose body is now whole in the part's file; None if nothing was modified.

    Raises Unreachable for what may be tried again, Failed when the source is not there.
    """
    resuming = part.tag is not None and part.size > 0
    with answered(client, target, _rest(part) if resuming else conditions) as response:
        if response.status_code == NOT_MODIFIED and conditions and not resuming:
            return None
        if resuming and response.status_code not in OK:
            _check_rest(response, part, target)
        elif response.status_code in OK:
            _begin(response, part)
        else:
            raise refusal(response, target)
        _write(response, part, target, progress)
    return part.headers


def _rest(part: BodyPart) -> Headers:
    assert part.tag is not None
    return [(b"Range", f"bytes={part.size}-".encode()), (b"If-Range", part.tag.encode("latin-1"))]


def _begin(response: httpx2.Response, part: BodyPart) -> None:
    """Whatever was there is of no use: this answer starts at the first byte."""
    tag = tag_of(response.headers)
    ranges = response.headers.get("Accept-Ranges", "").strip().lower() == "bytes"
    strong = tag is not None and tag.startswith('"')
    part.headers = response.headers
    part.tag = tag if ranges and strong and not _encodings(response) else None
    part.size = 0


def _check_rest(response: httpx2.Response, part: BodyPart, target: FileRequest) -> None:
    """Raise unless the answer is the rest of the same body; the next attempt then starts anew."""
    span = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    tag = tag_of(response.headers)
    same = span is not None and int(span[1]) == part.size and tag in {None, part.tag}
    if response.status_code not in {PARTIAL, NO_SUCH_RANGE}:
        raise refusal(response, target)
    if response.status_code == NO_SUCH_RANGE or not same:
        part.tag = None
        raise _broken(target, part)


def _write(response: httpx2.Response, part: BodyPart, target: FileRequest, progress: Progress) -> None:
    """Write the body and see that it is whole: the client counts an answer's bytes, this all parts'."""
    total, packed = _total(response), bool(_encodings(response))
    try:
        with part.path.open("ab" if response.status_code == PARTIAL else "wb") as file:
            progress(DOWNLOADING, part.size, total)
            for chunk in _chunks(response, target):
                file.write(chunk)
                part.size += len(chunk)
                if packed and part.size > (bound := bound_by(response.num_bytes_downloaded, part.limit)).most:
                    raise bound.passed(target.name)
                progress(DOWNLOADING, part.size, total)
            file.flush()
            os.fsync(file.fileno())
    except httpx2.HTTPError:
        raise _broken(target, part) from None
    except OSError as error:
        raise unwritable(error) from None
    if total is not None and part.size != total:
        raise _broken(target, part)


def _chunks(response: httpx2.Response, target: FileRequest) -> Iterator[bytes]:
    encodings = _encodings(response)
    if encodings - _DECODED:
        raise Failed(
            "unsupported-encoding",
            f"{target.name} is sent in an encoding that is not supported: {', '.join(sorted(encodings))}.",
            "Do not ask for it in fetch.headers, or have the server send the data as they are.",
        )
    return response.iter_bytes() if encodings else response.iter_raw()


def _encodings(response: httpx2.Response) -> set[str]:
    """How the body was compressed on its way, though nobody asked for it."""
    if response.url.path.lower().endswith(_COMPRESSED):
        return set()
    named = response.headers.get("Content-Encoding", "").lower().split(",")
    return {name.strip() for name in named} - {"", "identity"}


def _total(response: httpx2.Response) -> int | None:
    """The bytes of the whole body, None if that is not known."""
    if response.status_code == PARTIAL:
        span = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        return int(span[2]) if span and span[2] != "*" else None
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() and not _encodings(response) else None


def _broken(target: FileRequest, part: BodyPart) -> TryAgain:
    return Unreachable(
        "broken-transfer",
        f"The transfer of {target.name} broke off after {part.size:,} bytes.",
        "Try again later.",
    )


def tag_of(headers: httpx2.Headers) -> str | None:
    """The ETag exactly as it came: each byte a character."""
    values = [value for name, value in headers.raw if name.lower() == b"etag"]
    return values[0].decode("latin-1").strip() or None if values else None
