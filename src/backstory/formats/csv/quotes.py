"""Which quotes of a CSV text begin and end values, a piece of text at a time (RFC 4180).

A quote begins a value only where a field begins; further on in a field without quotes it is a letter
like others. Behind the quote that ends a value the field ends, too: more text there is broken.
"""

from typing import Any

import numpy as np
import pyarrow as pa

QUOTE, NEWLINE = b'"'[0], b"\n"[0]
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EDGE = np.isin(np.arange(256), list(b",\n\r"))
_BEHIND = np.isin(np.arange(256), list(b'",\n\r'))


class Quotes:
    """The state of a text between its pieces: whether a value is open, and what may come next."""

    def __init__(self) -> None:
        self._begun = self._inside = False
        self._may_open, self._closed = True, False

    def take(self, text: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The places of the quotes that begin and end values in the next piece of the text, by turns.

        A doubled quote ends its value and begins it again. Raises pa.ArrowInvalid where a value goes on
        behind its closing quote.
        """
        letters, mark = np.frombuffer(text, np.uint8), 0
        if not self._begun and bytes(letters[:3]) == BYTE_ORDER_MARK:
            mark, letters = 3, letters[3:]
        if not len(letters):
            return np.empty(0, np.int64)
        self._begun = True
        if self._closed and not _BEHIND[letters[0]]:
            raise _goes_on()
        places = self._that_count(letters, np.flatnonzero(letters == QUOTE))
        closing = places[1 - self._inside :: 2]
        behind = closing[closing < len(letters) - 1] + 1
        if not _BEHIND[letters[behind]].all():
            raise _goes_on()
        self._inside ^= bool(len(places) & 1)
        self._closed = not self._inside and bool(len(places)) and places[-1] == len(letters) - 1
        self._may_open = self._closed or bool(_EDGE[letters[-1]])
        return places + mark

    def row_ends(self, text: bytes) -> tuple[int, int]:
        """Where the first and the last row of the next piece end, 0 if none does; raises pa.ArrowInvalid."""
        inside = self._inside
        places = self.take(text)
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE)
        ends = ends[(np.searchsorted(places, ends) + inside) & 1 == 0] + 1
        return (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)

    def _that_count(self, letters: Any, places: Any) -> Any:
        """The quotes without those that are letters of a field; where there are none, all of them."""
        opening = places[int(self._inside) :: 2]
        before = letters[opening - 1]
        opens = _EDGE[before] | (before == QUOTE)
        if len(opening) and opening[0] == 0:
            opens[0] = self._may_open
        return places if opens.all() else self._one_by_one(letters, places)

    def _one_by_one(self, letters: Any, places: Any) -> Any:
        found: list[int] = []
        inside, last = self._inside, -1
        for place in places.tolist():
            if not inside and not (
                self._may_open if place == 0 else _EDGE[letters[place - 1]] or last == place - 1 >= 0
            ):
                continue
            found.append(place)
            inside, last = not inside, place
        return np.array(found, np.int64)


def _goes_on() -> pa.ArrowInvalid:
    return pa.ArrowInvalid("text behind a closing quote")
