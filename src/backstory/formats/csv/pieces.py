"""A CSV in pieces of whole rows, UTF-8 with doubled quotes only: what Arrow's parser reads exactly."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from backstory.errors import Refused
from backstory.formats.csv.grammar import Grammar, NotScannable, fields, last_end, rewritten
from backstory.formats.csv.quotes import GoesOn, Quotes
from backstory.formats.csv.source import CsvSource
from backstory.formats.encoded import decoded, lines

LONGEST_ROW = 1 << 28
NOT_CLOSED = "a quoted value is not closed"
GOES_ON = "a value continues after its closing quote"


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole rows; `line` is that of the first one, from 1."""

    text: bytes
    line: int


def pieces(source: CsvSource, grammar: Grammar) -> Iterator[Piece]:
    """The rows in their order; values in quotes may hold line breaks (O26).

    Raises Refused, with the line, for what is not of the encoding, and for a quote that is not closed
    or goes on after its end.
    """
    line, held = 1, _Held(grammar)
    for block in chain(source.blocks(), [b""]):
        try:
            end = held.end_with(block)
        except GoesOn:
            raise _broken(source, Piece(held.text, line), grammar) from None
        if end:
            escaped, text = held.is_escaped, held.cut(end)
            yield _strict(source, Piece(text, line), grammar, escaped=escaped)
            line += lines(text)
        elif held.size > LONGEST_ROW:
            told = f"the row is longer than {LONGEST_ROW >> 20} MiB, or {NOT_CLOSED}"
            raise source.broken(f"line {line}", told)
    if held.size:
        last = Piece(held.text, line)
        if held.is_open:
            raise _broken(source, last, grammar)
        if not last.text.endswith((b"\n", b"\r")):
            # Without it Arrow takes an empty last cell for a quoted one.
            last = Piece(last.text + b"\n", line)
        yield _strict(source, last, grammar, escaped=held.is_escaped)


class _Held:
    """The rows that have begun, and what is known of their quotes."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._begin(b"")

    def _begin(self, rest: bytes) -> None:
        self._unseen, self._parts = rest, [rest]
        self.size = len(rest)
        self._quotes = Quotes(self.grammar) if self.grammar.quote else None
        self._quoted = self._escape_seen = False

    @property
    def is_escaped(self) -> bool:
        """Whether quotes may be escaped: then each field is looked at."""
        return self._quoted and self._escape_seen

    @property
    def is_open(self) -> bool:
        """Whether a value in quotes is open at the end, if that is known."""
        return self._quotes is not None and not self.is_escaped and self._quotes.inside

    @property
    def text(self) -> bytes:
        """All that is held."""
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

    def end_with(self, block: bytes) -> int:
        """Where the last whole row ends once the block is added, 0 if none surely does; raises GoesOn."""
        before, grammar, unseen = self.size, self.grammar, self._unseen
        self._parts, self._unseen = [*self._parts, block], b""
        self.size += len(block)
        if self._quotes is None:
            # A row ends with its line. A CR at the end of a block may be the half of an end.
            end = max(block.rfind(b"\n"), block.rfind(b"\r", 0, -1)) + 1
            return before + end if end else 0
        for part in (unseen, block):
            self._quoted = self._quoted or grammar.quote in part
            self._escape_seen = self._escape_seen or (bool(grammar.escape) and grammar.escape in part)
        if self.is_escaped:
            return last_end(self.text, grammar)
        self._quotes.take(unseen)
        end = self._quotes.last_end(block)
        return before + end if end else 0

    def cut(self, end: int) -> bytes:
        """The rows to their end, copied once; what follows is held."""
        *first, last = self._parts
        end -= self.size - len(last)
        text = b"".join([*first, memoryview(last)[:end]])
        self._begin(last[end:])
        return text


def _strict(source: CsvSource, piece: Piece, grammar: Grammar, *, escaped: bool) -> Piece:
    """The piece, if need be with its quotes written anew; Refused where it breaks the grammar."""
    _refuse_no_text(source, piece)
    if not escaped:
        return piece
    try:
        return Piece(rewritten(piece.text, grammar), piece.line)
    except NotScannable:
        raise _broken(source, piece, grammar) from None


def _refuse_no_text(source: CsvSource, piece: Piece) -> None:
    if not piece.text.isascii():
        decoded(piece.text, source.name, piece.line, source.no_text)


def _broken(source: CsvSource, piece: Piece, grammar: Grammar) -> Refused:
    """The error for a quote that is not closed or goes on, with its line."""
    _refuse_no_text(source, piece)
    try:
        for _ in fields(piece.text, grammar):
            pass
    except NotScannable as stop:
        why = GOES_ON if stop.closed else NOT_CLOSED
        return source.broken(f"line {piece.line + lines(piece.text[: stop.at])}", why)
    return source.broken(f"after line {piece.line}", GOES_ON)
