"""A CSV's fields one by one: exact about quotes and escapes, and slow beside Arrow's parser.

What the escape does is what its name promises, and no more: within quotes it stands before a quote
or before itself. Before any other letter, and outside quotes, it is a letter like others, so that
no backslash of a path is lost. A doubled quote within quotes is a quote with any escape.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from backstory.formats.encoded import lines
from backstory.formats.options import CsvOptions


class NotScannable(ValueError):
    """The text is no field; `at` is where its quote opens, or where it goes on once that is `closed`."""

    def __init__(self, place: int, *, closed: bool) -> None:
        super().__init__(f"byte {place}")
        self.at, self.closed = place, closed


@dataclass(frozen=True, slots=True)
class Grammar:
    """A file's letters as bytes; the expressions of a field with what ends it, and of a quoted value."""

    separator: bytes
    quote: bytes
    escape: bytes
    field: re.Pattern[bytes]
    value: re.Pattern[bytes] | None

    @property
    def clean(self) -> "Grammar":
        """The grammar of what `normalize_quotes` makes: quotes are doubled, nothing is escaped."""
        return _grammar(self.separator, self.quote, b"")


def grammar_of(options: CsvOptions) -> Grammar:
    """The grammar of a file; a text is UTF-8, and all its letters that matter are ASCII."""
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
    """All fields of a text of whole rows; raises NotScannable at a field that breaks the grammar."""
    place, again = 0, bool(text)
    while again:
        found = grammar.field.match(text, place)
        if found is None:
            closed = grammar.value.match(text, place) if grammar.value else None
            raise NotScannable(closed.end() if closed else place, closed=closed is not None)
        yield found
        place = found.end()
        again = place < len(text) or found["end"] == grammar.separator


def unquote(field: re.Match[bytes], grammar: Grammar) -> bytes:
    """What the field says, without its quotes and escapes."""
    quoted = field["quoted"] if grammar.quote else None
    if quoted is None:
        return bytes(field[0][: len(field[0]) - len(field["end"])])
    q, e = re.escape(grammar.quote), re.escape(grammar.escape)
    pair = rb"%b(%b)" % (q, q) + (rb"|%b([%b%b])" % (e, q, e) if e else b"")
    return re.sub(pair, lambda found: found[0][1:], quoted)


def normalize_quotes(text: bytes, grammar: Grammar) -> bytes:
    """The same rows with quotes doubled and nothing escaped, as Arrow's parser wants them.

    Raises NotScannable for what breaks the grammar.
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
    """Where the last row ends that surely does; 0 if none does."""
    end = 0
    try:
        for field in fields(text, grammar):
            if field["end"] not in {grammar.separator, b""} and field.end() < len(text):
                end = field.end()
    except NotScannable:
        pass
    return end


def rows(text: bytes, grammar: Grammar, line: int) -> Iterator[tuple[int, int, bool]]:
    """For each row its line, its number of fields, and whether it is an empty line."""
    start, count = line, 0
    for field in fields(text, grammar):
        count += 1
        line += lines(field[0])
        if field["end"] != grammar.separator:
            yield start, count, count == 1 and len(field[0]) == len(field["end"])
            start, count = line, 0
