"""A CSV file in pieces of whole rows, UTF-8 with doubled quotes only: what Arrow's parser reads exactly."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backstory.doors.odf.formats.csv_grammar import Grammar, NotScannable, last_end, look, rewritten
from backstory.doors.odf.formats.encoded import decoded, lines, utf8_blocks
from backstory.doors.odf.formats.rows import malformed

LONGEST_ROW = 1 << 26
NOT_CLOSED = "a quoted value is not closed, or goes on after its quote"
ONE_LINE = "a quoted value is not closed on its line, or goes on after its quote"
MANY_LINES = "Mend the file; if its values hold line breaks, set `multiLine: true` in `read`."


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole rows; `line` is that of the first one, from 1."""

    text: bytes
    line: int


def pieces(path: Path, name: str, encoding: str, grammar: Grammar, *, many_lines: bool) -> Iterator[Piece]:
    """The file's rows without a byte order mark.

    Raises Refused, with the line, for what is not of the encoding, for a quote that is not closed,
    goes on after its end or, without `many_lines`, holds a line break.
    """
    line, held = 1, b""
    for chunk in utf8_blocks(path, name, encoding):
        held += chunk
        end = _end_of_rows(held, grammar, many_lines=many_lines)
        if end:
            text, held = held[:end], held[end:]
            yield _strict(Piece(text, line), name, grammar, many_lines=many_lines)
            line += lines(text)
        elif len(held) > LONGEST_ROW:
            raise malformed(name, f"line {line}", f"the row is longer than {LONGEST_ROW >> 20} MiB")
    if held:
        if not held.endswith((b"\n", b"\r")):
            held += b"\n"  # without it Arrow takes an empty last cell for a quoted one
        yield _strict(Piece(held, line), name, grammar, many_lines=many_lines)


def _end_of_rows(text: bytes, grammar: Grammar, *, many_lines: bool) -> int:
    """Where the last whole row ends, 0 if that is not known yet."""
    if not (many_lines and grammar.quote and grammar.quote in text):
        # A row ends with its line. A CR at the end of a block may be the half of an end.
        return text.rfind(b"\n") + 1 or text.rfind(b"\r", 0, -1) + 1
    if not (grammar.escape and grammar.escape in text):
        seen = look(text, grammar)
        if seen.strict and seen.end:
            return seen.end
    return last_end(text, grammar)


def _strict(piece: Piece, name: str, grammar: Grammar, *, many_lines: bool) -> Piece:
    """The piece, if need be with its quotes written anew; Refused where it breaks the grammar."""
    text = piece.text
    if not text.isascii():
        decoded(text, name, piece.line)
    if not grammar.quote or grammar.quote not in text:
        return piece
    if not (grammar.escape and grammar.escape in text):
        seen = look(text + b"\n", grammar)
        if seen.strict and seen.end > len(text) and (many_lines or not seen.broken):
            return piece
    try:
        return Piece(rewritten(text, grammar, many_lines=many_lines), piece.line)
    except NotScannable as stop:
        place = f"line {piece.line + lines(text[: stop.at])}"
        why = NOT_CLOSED if many_lines else ONE_LINE
        raise malformed(name, place, why, MANY_LINES) from None
