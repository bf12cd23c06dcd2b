"""The logical hash of rows in plain Python, with which every other implementation is compared (section 6.5)."""

import hashlib
import math
from datetime import UTC, datetime
from decimal import Context, Decimal
from struct import pack

import xxhash

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def counted(letter, text):
    return f"{letter}{len(text.encode())}:{text}"


def micros(time):
    return str((time.replace(tzinfo=UTC) - EPOCH) // (EPOCH.resolution))


def hex_of(value):
    """Hexadecimal digits as Java writes them."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "-Infinity" if value < 0 else "Infinity"
    digits, _, power = abs(value).hex().partition("p")
    whole, _, part = digits.partition(".")
    return f"{'-' if value < 0 else ''}{whole}.{part.rstrip('0') or '0'}p{int(power)}"


SCALARS = {
    **dict.fromkeys(("byte", "short", "integer", "long"), ("i", str)),
    **dict.fromkeys(("float", "double"), ("f", hex_of)),
    "decimal": ("n", lambda value: str(value.quantize(Decimal("1E-10"), context=Context(prec=38)))),
    "boolean": ("b", lambda value: str(value).lower()),
    "date": ("d", lambda value: str((value - EPOCH.date()).days)),
    "timestamp": ("t", micros),
    "timestamp_ntz": ("w", micros),
    "binary": ("x", lambda value: value.hex().upper()),
    "string": ("s", str),
}


def value_text(value, type_):
    """The rule in plain Python."""
    if value is None:
        return "~"
    kind = type_["type"] if isinstance(type_, dict) else type_
    match kind:
        case "array":
            return f"l{len(value)}:" + "".join(value_text(each, type_["elementType"]) for each in value)
        case "map":
            entries = [
                value_text(k, type_["keyType"]) + value_text(v, type_["valueType"]) for k, v in value.items()
            ]
            return f"m{len(value)}:" + "".join(sorted(entries))
        case "struct":
            return "{" + fields_text(value, type_) + "}"
    letter, text = SCALARS[kind.partition("(")[0]]
    return counted(letter, text(value))


def fields_text(row, struct):
    fields = sorted(
        (field["name"], field["type"], value)
        for field, value in zip(struct["fields"], row, strict=True)
        if value is not None
    )
    return "".join(f"{len(name.encode())}:{name}{value_text(value, type_)}" for name, type_, value in fields)


def in_python(rows, struct):
    """The hash of rows, with the offset of each in the first column."""
    words = [0, 0, 0, 0]
    for row in rows:
        digest = sha256(f"{row[0]} {fields_text(row, struct)}")
        for place in range(4):
            seed = xxhash.xxh64_intdigest(pack("<i", place), 42)
            words[place] ^= xxhash.xxh64_intdigest(digest.encode(), seed)
    return "".join(f"{word:016x}" for word in words)
