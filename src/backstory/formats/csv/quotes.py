"""Which quotes of a CSV text begin and end values, a block of text at a time (RFC 4180).

A quote begins a value only where a field begins; further on in a field without quotes it is a letter
like others. Behind the quote that ends a value the field ends, too: more text there is broken.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from backstory.formats.csv.grammar import Grammar

_Places = np.ndarray[Any, np.dtype[np.int64]]


class GoesOn(ValueError):
    """A value goes on behind its closing quote."""


class Quotes:
    """The state of a text between its blocks: whether a value is open, and what may come next."""

    def __init__(self, grammar: Grammar) -> None:
        self._quote = grammar.quote[0]
        self._edge, self._behind = _tables(grammar.separator, grammar.quote)
        self.inside = False
        self._may_open, self._closed = True, False

    def take(self, text: bytes) -> _Places:
        """The places of the quotes that begin and end values in the next block of the text, by turns.

        A doubled quote ends its value and begins it again. Raises GoesOn where a value goes on behind its
        closing quote.
        """
        letters = np.frombuffer(text, np.uint8)
        if not len(letters):
            return np.empty(0, np.int64)
        if self._closed and not self._behind[letters[0]]:
            raise GoesOn
        places = self._that_count(letters, np.flatnonzero(letters == self._quote))
        closing = places[1 - self.inside :: 2]
        at_end = bool(len(places)) and bool(places[-1] == len(letters) - 1)
        self.inside ^= bool(len(places) & 1)
        self._closed = at_end and not self.inside
        behind = closing[: len(closing) - self._closed] + 1
        if not self._behind[letters[behind]].all():
            raise GoesOn
        self._may_open = self._closed or bool(self._edge[letters[-1]])
        return places

    def last_end(self, text: bytes) -> int:
        """Where the last row of the next block ends, 0 if none surely does; raises GoesOn."""
        inside = self.inside
        places = self.take(text)
        # A CR at the end of a block may be the half of an end.
        feed = _last(text, b"\n", len(text), places, inside)
        return max(feed, _last(text, b"\r", len(text) - 1, places, inside))

    def _that_count(self, letters: Any, places: _Places) -> _Places:
        """The quotes without those that are letters of a field; where there are none, all of them."""
        opening = places[int(self.inside) :: 2]
        opens = self._behind[letters[opening - 1]]
        if len(opening) and opening[0] == 0:
            opens[0] = self._may_open
        return places if opens.all() else self._one_by_one(letters, places)

    def _one_by_one(self, letters: Any, places: _Places) -> _Places:
        found: list[int] = []
        inside, last = self.inside, -1
        for place in places.tolist():
            if not inside and not (
                self._may_open if place == 0 else self._edge[letters[place - 1]] or last == place - 1 >= 0
            ):
                continue
            found.append(place)
            inside, last = not inside, place
        return np.array(found, np.int64)


@lru_cache(maxsize=8)
def _tables(separator: bytes, quote: bytes) -> tuple[Any, Any]:
    """For each letter whether a value may begin behind it, and whether it may stand before or behind one."""
    edge = np.isin(np.arange(256), list(separator + b"\n\r"))
    return edge, edge | (np.arange(256) == quote[0])


def _last(text: bytes, letter: bytes, end: int, places: _Places, inside: bool) -> int:  # noqa: FBT001
    """Behind the last such letter that is in no value; 0 if there is none."""
    place = text.rfind(letter, 0, end)
    if place < 0 or (int(np.searchsorted(places, place)) + inside) & 1 == 0:
        return place + 1
    # In a long value each letter may lie between two quotes: all are looked at, at once.
    letters = np.flatnonzero(np.frombuffer(text, np.uint8, end) == letter[0])
    outside = letters[(np.searchsorted(places, letters) + inside) & 1 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0
