"""The digits of floats: those of their shortest texts, and those of a text that a float has to keep."""

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SURE = 15  # so many digits every float keeps
_LEAST = 2.0**-1022  # but smaller ones have fewer
_ALL = 800  # more than any float has
# What may lose digits: a long text, and one with a great exponent.
_DOUBTFUL = rf"^.{{{_SURE + 1},}}$|[eE][+-]?\d{{3,}}$"
_ZERO = frozenset("-+.0")


def shortest_texts(floats: pa.Array) -> pa.Array:
    """The shortest text of each float that no other float of its width has: 0.1, however many bits it has."""
    if not pa.types.is_float16(floats.type):
        return floats.cast(pa.string())
    singles = floats.cast(pa.float32())
    halves = np.asarray(floats.fill_null(np.float16(0))).astype(str)  # Arrow prints none
    # A whole number has all of its digits: 65504 is not 65500.
    whole = pc.equal(singles, pc.trunc(singles))
    return pc.if_else(whole, singles.cast(pa.string()), pa.array(halves, pa.string()))


def all_kept(texts: pa.Array) -> bool:
    """Whether floats keep all of some numbers, `NaN` and `Inf`; none of the texts is NULL."""
    doubtful = texts.filter(pc.match_substring_regex(texts, _DOUBTFUL))
    # Nearly all of them are what a program prints of a float.
    printed = pc.equal(doubtful.cast(pa.float64()).cast(pa.string()), doubtful)
    return all(map(is_kept, doubtful.filter(pc.invert(printed)).to_pylist()))


def all_kept_single(texts: pa.Array) -> bool:
    """Whether floats of 32 bits are these numbers, or are printed so; none of the texts is NULL."""
    wide, single = texts.cast(pa.float64()), texts.cast(pa.float32())
    printed = single.cast(pa.string()).cast(pa.float64())
    kept = pc.or_(pc.equal(single.cast(pa.float64()), wide), pc.equal(printed, wide))
    return bool(pc.all(pc.or_(kept, pc.is_nan(wide))).as_py())


def is_kept(text: str) -> bool:
    """Whether the number is a float, printed with as many digits as the text has."""
    value = float(text)
    if text in {repr(value), f"{value:.17g}"}:  # as nearly all programs print it
        return True
    if not math.isfinite(value):
        return not any(letter.isdigit() for letter in text)
    if value == 0:
        return set(text.lower().partition("e")[0]) <= _ZERO
    number = Decimal(text)
    digits = len(number.as_tuple().digits)
    if digits <= _SURE and abs(value) >= _LEAST:
        return True
    return number in {Decimal(repr(value)), Decimal(f"{value:.{min(digits, _ALL) - 1}e}")}
