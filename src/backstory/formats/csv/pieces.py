"""A CSV file in pieces of whole rows, UTF-8 with doubled quotes only: what Arrow's parser reads exactly."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backstory.formats.csv.grammar import Grammar, NotScannable, last_end, look, rewritten
from backstory.formats.encoded import decoded, lines, utf8_blocks
from backstory.formats.produced import broken_csv, no_text

LONGEST_ROW = 1 << 26
NOT_CLOSED = "a quoted value is not closed"
GOES_ON = "a value goes on behind its closing quote"


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole rows; `line` is that of the first one, from 1."""

    text: bytes
    line: int


def pieces(path: Path, name: str, encoding: str, grammar: Grammar) -> Iterator[Piece]:
    """The file's rows without a byte order mark; values in quotes may hold line breaks (O26).

    Raises Refused, with the line, for what is not of the encoding, and for a quote that is not closed
    or goes on after its end.
    """
    line, held = 1, b""
    for chunk in utf8_blocks(path, name, encoding, no_text):
        held += chunk
        end = _end_of_rows(held, grammar)
        if end:
            text, held = held[:end], held[end:]
            yield _strict(Piece(text, line), name, grammar)
            line += lines(text)
        elif len(held) > LONGEST_ROW:
            why = (
                f"the row is longer than {LONGEST_ROW >> 20} MiB, or {NOT_CLOSED} or goes on behind its quote"
            )
            raise broken_csv(name, f"line {line}", why)
    if held:
        if not held.endswith((b"\n", b"\r")):
            held += b"\n"  # without it Arrow takes an empty last cell for a quoted one
        yield _strict(Piece(held, line), name, grammar)


def _end_of_rows(text: bytes, grammar: Grammar) -> int:
    """Where the last whole row ends, 0 if that is not known yet."""
    if not (grammar.quote and grammar.quote in text):
        # A row ends with its line. A CR at the end of a block may be the half of an end.
        return text.rfind(b"\n") + 1 or text.rfind(b"\r", 0, -1) + 1
    if not (grammar.escape and grammar.escape in text):
        seen = look(text, grammar)
        if seen.strict and seen.end:
            return seen.end
    return last_end(text, grammar)


def _strict(piece: Piece, name: str, grammar: Grammar) -> Piece:
    """The piece, if need be with its quotes written anew; Refused where it breaks the grammar."""
    text = piece.text
    if not text.isascii():
        decoded(text, name, piece.line, no_text)
    if not grammar.quote or grammar.quote not in text:
        return piece
    if not (grammar.escape and grammar.escape in text):
        seen = look(text + b"\n", grammar)
        if seen.strict and seen.end > len(text):
            return piece
    try:
        return Piece(rewritten(text, grammar), piece.line)
    except NotScannable as stop:
        why = GOES_ON if stop.closed else NOT_CLOSED
        raise broken_csv(name, f"line {piece.line + lines(text[: stop.at])}", why) from None
