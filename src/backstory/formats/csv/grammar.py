"""A field-by-field CSV parser that is exact about quotes and escapes, but slower than Arrow's.

Within quotes, the escape applies only before a quote or another escape. Anywhere else, the escape is an
ordinary character, so that no backslash in a path is lost. A doubled quote within quotes is always one quote.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from backstory.formats.encoded import lines
from backstory.formats.options import CsvOptions


class NotScannable(ValueError):
    """A string that is not a CSV field.

    `at` is the index of the opening quote or, if `closed`, the index after the closing quote.
    """

    def __init__(self, place: int, *, closed: bool) -> None:
        super().__init__(f"byte {place}")
        self.at, self.closed = place, closed


@dataclass(frozen=True, slots=True)
class Grammar:
    """A file's special characters, with the regular expressions for a field and for a quoted value."""

    separator: bytes
    quote: bytes
    escape: bytes
    field: re.Pattern[bytes]
    value: re.Pattern[bytes] | None

    @property
    def clean(self) -> "Grammar":
        """The grammar after `normalize_quotes`: quotes are doubled, and there is no escape character."""
        return _grammar(self.separator, self.quote, b"")


def grammar_of(options: CsvOptions) -> Grammar:
    """The grammar for the options of a UTF-8 file. Its special characters are ASCII."""
    return _grammar(options.separator.encode(), options.quote.encode(), options.escape.encode())


def _grammar(separator: bytes, quote: bytes, escape: bytes) -> Grammar:
    s, q, e = (re.escape(letter) for letter in (separator, quote, escape))
    bare, value = rb"[^%b\r\n]*+" % s, None
    end = rb"(?P<end>%b|\r\n|\n|\r|\Z)" % s
    if quote:
        escaped = rb"|%b." % e if escape else b""
        within = rb"%b(?P<quoted>(?:[^%b%b]++%b|%b%b)*+)%b" % (q, q, e, escaped, q, q, q)
        bare, value = rb"(?:%b|(?!%b)%b)" % (within, q, bare), re.compile(within, re.DOTALL)
    return Grammar(separator, quote, escape, re.compile(bare + end, re.DOTALL), value)


def fields(text: bytes, grammar: Grammar) -> Iterator[re.Match[bytes]]:
    """The fields of complete rows, as regular expression matches.

    Raises NotScannable at a field that violates the grammar.
    """
    place, again = 0, bool(text)
    while again:
        field = grammar.field.match(text, place)
        if field is None:
            closed = grammar.value.match(text, place) if grammar.value else None
            raise NotScannable(closed.end() if closed else place, closed=closed is not None)
        yield field
        place = field.end()
        again = place < len(text) or field["end"] == grammar.separator


def unquote(field: re.Match[bytes], grammar: Grammar) -> bytes:
    """The field's value, without its quotes and escapes."""
    quoted = field["quoted"] if grammar.quote else None
    if quoted is None:
        return bytes(field[0][: len(field[0]) - len(field["end"])])
    q, e = re.escape(grammar.quote), re.escape(grammar.escape)
    pair = rb"%b(%b)" % (q, q) + (rb"|%b([%b%b])" % (e, q, e) if e else b"")
    return re.sub(pair, lambda match: match[0][1:], quoted)


def normalize_quotes(text: bytes, grammar: Grammar) -> bytes:
    """The same rows with doubled quotes instead of escapes, as Arrow's parser requires.

    Raises NotScannable if a field violates the grammar.
    """
    q = grammar.quote
    built = []
    for field in fields(text, grammar):
        quoted = field["quoted"]
        if quoted is None or not grammar.escape or grammar.escape not in quoted:
            built.append(field[0])
        else:
            built.append(q + unquote(field, grammar).replace(q, q + q) + q + field["end"])
    return b"".join(built)


def last_end(text: bytes, grammar: Grammar) -> int:
    """The end of the last row that is certainly complete, or 0 without such a row."""
    end = 0
    try:
        for field in fields(text, grammar):
            if field["end"] not in {grammar.separator, b""} and field.end() < len(text):
                end = field.end()
    except NotScannable:
        pass
    return end


def rows(text: bytes, grammar: Grammar, line: int) -> Iterator[tuple[int, int, bool]]:
    """Each row's line and number of fields, and whether the row is an empty line."""
    start, count = line, 0
    for field in fields(text, grammar):
        count += 1
        line += lines(field[0])
        if field["end"] != grammar.separator:
            yield start, count, count == 1 and len(field[0]) == len(field["end"])
            start, count = line, 0
