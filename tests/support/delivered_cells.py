"""Bytes that a test writes are read as one delivered file."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from backstory.errors import Refused
from backstory.formats.batch_file import BatchFile, Encoding
from backstory.formats.delivered import read_files
from backstory.formats.rows import Rows, log_mended
from backstory.model.types import ColumnType
from backstory.model.values import UNMODIFIED

MARKED = Encoding(null_string="(null)", unmodified_string="(same)")
KEY = b"a key that is 32 bytes long, yes"
NAME = "part-7.csv"
FOLDER = "folder-canary"
CANARY = "cell-canary"
REFUSED = "refused"


@contextmanager
def a_file(content: bytes, key: bytes | None = None) -> Iterator[BatchFile]:
    """A delivered file with exactly these bytes, in a folder that errors must not name."""
    with TemporaryDirectory(prefix=FOLDER) as folder:
        path = Path(folder) / NAME
        path.write_bytes(content)
        yield BatchFile(path, key)


def types(columns: Mapping[str, str]) -> dict[str, ColumnType]:
    return {name: ColumnType.parse(text) for name, text in columns.items()}


def dicts(rows: Rows) -> list[dict[str, object]]:
    """The rows as Python values, with UNMODIFIED for cells without a value."""
    pairs = zip(rows.values.to_pylist(), rows.known.to_pylist(), strict=True)
    return [
        {name: value if known[name] else UNMODIFIED for name, value in row.items()} for row, known in pairs
    ]


def read(
    content: bytes | str,
    columns: Mapping[str, str],
    encoding: Encoding = MARKED,
    wanted: set[str] | None = None,
    key: bytes | None = None,
) -> list[dict[str, object]]:
    """The rows of one file with this content. `columns` are the columns of the table."""
    content = content.encode() if isinstance(content, str) else content
    with a_file(content, key) as file:
        parts = read_files([file], encoding, types(columns), frozenset(wanted or columns))
    assert all(part[0] is file for part in parts)
    for _, rows in parts:
        log_mended(rows.mended)
    return [row for _, rows in parts for row in dicts(rows)]


def refusal(*args: object, **kwargs: object) -> str:
    """The message with which a file is refused, which names the file and contains no secret."""
    with pytest.raises(Refused) as caught:
        read(*args, **kwargs)
    return checked(str(caught.value))


def checked(text: str) -> str:
    """The message, after checks that it names the file, is short and contains no secret."""
    assert NAME in text
    assert len(text) < 2000
    secrets = [FOLDER, CANARY, KEY.decode(), KEY.hex(), str(KEY)]
    assert [] == [secret for secret in secrets if secret in text]
    return text


def outcome(*args: object, **kwargs: object) -> object:
    """The rows, or REFUSED."""
    try:
        return read(*args, **kwargs)
    except Refused as refused:
        checked(str(refused))
        return REFUSED
