"""Any text is read or refused as by a simple automaton, with blocks of any size."""

import pytest
from depth import deep
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from odf_files import table_of

from backstory.errors import Refused
from backstory.formats import encoded

Cells = list[list[str | None]]


def quoted(text: str, at: int, escape: str) -> tuple[str, int] | None:
    """The value of the quoted cell at `at`, and its end."""
    value, at = "", at + 1
    while at < len(text):
        letter, then = text[at], text[at + 1 : at + 2]
        if letter == escape and then in {'"', escape}:
            value, at = value + then, at + 2
        elif letter == '"' == then:
            value, at = value + '"', at + 2
        elif letter == '"':
            return None if then and then not in ",\r\n" else (value, at + 1)
        else:
            value, at = value + letter, at + 1
    return None


def automaton(text: str, escape: str) -> Cells | None:
    """The rows of a text, parsed letter by letter, or None if it is not CSV."""
    rows: Cells = []
    row: list[str | None] = []
    at = 0
    while True:
        if text[at : at + 1] == '"':
            cell = quoted(text, at, escape)
            if cell is None:
                return None
            value, at = cell
            row.append(value)
        else:
            end = next((place for place in range(at, len(text)) if text[place] in ",\r\n"), len(text))
            row.append(text[at:end] or None)
            at = end
        if text[at : at + 1] == ",":
            at += 1
            continue
        rows.append(row)
        row = []
        at += 2 if text[at : at + 2] == "\r\n" else 1
        if at >= len(text):
            return rows


def rectangle(rows: Cells | None) -> Cells | None:
    """The rows without empty lines, which are values in a single column. None if lengths differ."""
    full = [row for row in rows or () if row != [None]]
    result = (rows or []) if not full or len(full[0]) == 1 else full
    return None if rows is None or len({len(row) for row in result}) > 1 else result


@settings(
    max_examples=deep(400, 60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(
    text=st.text(st.sampled_from('ab,,"""\\\n\n\rü'), min_size=1, max_size=24),
    escape=st.sampled_from(["", "\\"]),
    block=st.sampled_from([3, 5, 8, 64]),
)
@example('"a",', "", 64)
@example('\na,b,"c"', "\\", 64)
@example('\n\n\n,"""b"""', "\\", 5)
@example('"a\\', "\\", 64)
def test_any_text_has_the_rows_of_the_plain_grammar_or_is_refused(tmp_path, monkeypatch, text, escape, block):
    monkeypatch.setattr(encoded, "BLOCK", block)
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    expected = rectangle(automaton(text, escape))

    if expected is None:
        with pytest.raises(Refused, match="line"):
            table_of(path, kind="Csv", escape=escape)
    else:
        table = table_of(path, kind="Csv", escape=escape)
        assert expected == [list(row.values()) for row in table.to_pylist()]
