"""The decoded size of a Parquet file's pages, by the headers that a decoder obeys.

The footer tells sizes, too, but nothing holds it to the truth.
"""

from collections.abc import Iterator

INT32 = 5
LARGEST = 1 << 31
# Headers hold structs of numbers, flags and texts, one in the other: the page's, its kind's, the statistics'.
DEPTH = 4
UNCOMPRESSED, COMPRESSED = 2, 3


def page_sizes(content: bytes, start: int, length: int) -> Iterator[int]:
    """The decompressed size of each page of a column chunk, a dictionary page included.

    Raises ValueError where no page header stands.
    """
    place, end = start, start + length
    while place < end:
        try:
            header, place = _struct(content, place, DEPTH)
            size, packed = header[UNCOMPRESSED], header[COMPRESSED]
        except (IndexError, KeyError):
            raise ValueError("no page header") from None
        if not (0 <= size < LARGEST and 0 <= packed < LARGEST):
            raise ValueError("a page of no size")
        yield size
        place += packed


def _struct(content: bytes, place: int, depth: int) -> tuple[dict[int, int], int]:
    """The 32-bit numbers of a struct in Thrift's compact protocol, by field; and where it ends."""
    if depth == 0:
        raise ValueError("structs in structs")
    numbers: dict[int, int] = {}
    field = 0
    while kind := content[place]:
        place += 1
        if kind >> 4:
            field += kind >> 4
        else:
            number, place = _number(content, place)
            field = _signed(number)
        if kind & 15 == INT32:
            number, place = _number(content, place)
            numbers[field] = _signed(number)
        else:
            place = _passed(content, place, kind & 15, depth)
    return numbers, place + 1


def _passed(content: bytes, place: int, kind: int, depth: int) -> int:
    """Where a value of another kind ends."""
    match kind:
        case 1 | 2:  # a flag, which is its own value
            return place
        case 3:  # a byte
            return place + 1
        case 4 | 6:  # an integer
            return _number(content, place)[1]
        case 7:  # a double
            return place + 8
        case 8:  # bytes
            size, place = _number(content, place)
            return place + size
        case 12:
            return _struct(content, place, depth - 1)[1]
    raise ValueError("no field of a page header")


def _number(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:  # noqa: PLR2004 - the sign that no byte follows
            return value, place
        if shift > 63:  # noqa: PLR2004 - the bits of the largest number
            raise ValueError("a number without an end")


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)
