"""Quotes of values are distinguished from ordinary ones, for any division into pieces (3.2)."""

import csv

from hypothesis import given
from hypothesis import strategies as st

from backstory.formats.csv.grammar import grammar_of
from backstory.formats.csv.table import Quotes, TextAfterQuote
from backstory.formats.options import CsvOptions

PIECES = st.lists(st.sampled_from(['"', '""', ",", "\n", "a", "é", "\r\n", '",', ',"']), max_size=30)


@given(PIECES, st.integers(1, 9))
def test_rows_end_as_in_pythons_csv_reader(letters, size):
    """3.2: Rows end where a row-by-row reader ends them, for any division into pieces."""
    text = "".join(letters).encode()
    quotes, row_ends = Quotes(grammar_of(CsvOptions())), [0]
    try:
        for start in range(0, len(text), size):
            last = quotes.last_end(text[start : start + size])
            row_ends += [start + last] if last else []
    except TextAfterQuote:
        row_ends = []
    lines, ends = text.decode().splitlines(keepends=True), {0}
    reader = csv.reader(iter(lines), strict=True)
    try:
        for _ in reader:
            ends.add(len("".join(lines[: reader.line_num]).encode()))
        goes_on = False
    except csv.Error as stop:
        goes_on = "end of data" not in str(stop)
    assert goes_on == (not row_ends)
    assert set(row_ends) <= ends
