"""The table of a shapefile: fixed fields of text, read as text, so that no cell is guessed at."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from backstory.errors import Refused
from backstory.formats.produced import malformed

_HEADER, _FIELD = struct.Struct("<4xIHH20x"), struct.Struct("<11sc4xBB14x")
_END_OF_FIELDS = b"\r"
_DELETED = b"*"
_TYPES = {"C": pa.string(), "L": pa.bool_(), "D": pa.date32(), "F": pa.float64(), "N": pa.float64()}
_YES, _NO, _UNKNOWN = set("YyTt"), set("NnFf"), {"?", ""}


@dataclass(frozen=True, slots=True)
class DbfField:
    """A column: its letter in the file, where its bytes stand in a record, and its digits after the point."""

    name: str
    letter: str
    start: int
    length: int
    decimals: int

    @property
    def type(self) -> pa.DataType | None:
        """What the file says that the column is; None for what is no text."""
        return pa.int64() if self.letter == "N" and not self.decimals else _TYPES.get(self.letter)

    def cell(self, record: bytes) -> bytes:
        """The field's bytes of a record."""
        return record[self.start : self.start + self.length]

    def text(self, cell: str) -> str | None:
        """The cell as text of the column's type; blanks are NULL, and so are stars for a number."""
        if self.letter == "C":
            return cell.rstrip(" \0") or None
        cell = cell.strip(" \0")
        if self.letter == "L":
            known = "true" if cell in _YES else "false" if cell in _NO else cell
            return None if known in _UNKNOWN else known
        if self.letter == "D":
            dashed = f"{cell[:4]}-{cell[4:6]}-{cell[6:]}"
            return None if not cell.strip("0") else dashed
        return cell if cell.strip("*") else None


@dataclass(frozen=True, slots=True)
class Dbf:
    """A file, its fields and the bounds of its records."""

    path: Path
    name: str
    fields: tuple[DbfField, ...]
    count: int
    start: int
    length: int

    def records(self) -> Iterator[bytes | None]:
        """The records, None for a deleted one; Refused if the file ends before the last."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            for number in range(1, self.count + 1):
                record = file.read(self.length)
                if len(record) < self.length:
                    raise malformed(
                        self.name,
                        f"row {number}",
                        f"the table ends here, although its header says {self.count} rows",
                    )
                yield None if record[:1] == _DELETED else record

    def is_utf8(self) -> bool:
        """Whether all texts are UTF-8."""
        texts = [field for field in self.fields if field.letter == "C"]
        try:
            for record in self.records():
                if record is not None and not record.isascii():
                    for field in texts:
                        field.cell(record).decode()
        except UnicodeDecodeError:
            return False
        return True


def dbf(path: Path, name: str, encoding: str) -> Dbf:
    """The table's layout; Refused for what is no dBASE table."""
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            raise _no_table(name)
        count, start, length = _HEADER.unpack(head)
        told = file.read(max(0, start - _HEADER.size))
    fields, position, place = [], 1, 0
    while told[place : place + 1] not in {_END_OF_FIELDS, b""}:
        if len(told) < place + _FIELD.size:
            raise _no_table(name)
        raw, letter, size, decimals = _FIELD.unpack_from(told, place)
        if letter == b"C":
            size, decimals = size + (decimals << 8), 0  # long texts keep the upper half here
        named = raw.split(b"\0")[0]
        try:
            column = named.decode(encoding).strip()
        except UnicodeDecodeError:
            raise malformed(name, "", f"the column name {named!r} is not {encoding}") from None
        fields.append(DbfField(column, letter.decode("latin-1"), position, size, decimals))
        position, place = position + size, place + _FIELD.size
    if not fields or position > length:
        raise _no_table(name)
    return Dbf(path, name, tuple(fields), count, start, length)


def _no_table(name: str) -> Refused:
    return malformed(name, "", "its .dbf is not a dBASE table")
