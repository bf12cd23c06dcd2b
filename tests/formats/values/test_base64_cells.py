"""Base64 cells are decoded as by the standard library (decision F11)."""

import base64
import binascii

import pyarrow as pa
import pytest
import structlog
from delivered_cells import MARKED, NAME, read
from hypothesis import example, given
from hypothesis import strategies as st

from backstory.formats.values.cells import decode_base64, invalid_base64
from backstory.model.values import UNMODIFIED

ENCODED = st.binary(max_size=12).map(lambda value: base64.b64encode(value).decode())
NEARLY = st.text("ABab01+/=", max_size=9)
UNKNOWN_LAYOUT = st.text("ABab01+/=-_ \n\0é😀", max_size=9)
COLUMNS = {"id": "LONG", "v": "BINARY"}


def is_valid(cell: str) -> bool:
    """Whether the standard library accepts the cell in whole groups of four, without excess padding."""
    try:
        base64.b64decode(cell, validate=True)
    except (binascii.Error, ValueError):
        return False
    return len(cell) % 4 == 0


def standard(cell: str | None) -> bytes | None:
    """The standard library's result, or the cell's own bytes if it is not base64."""
    if cell is None:
        return None
    return base64.b64decode(cell, validate=True) if is_valid(cell) else cell.encode()


@given(st.lists(st.none() | ENCODED | NEARLY | UNKNOWN_LAYOUT, max_size=12), st.integers(0, 3))
@example(
    ["QQ==", None, "", "QR==", "QQ=", "====", "A===", "QUJD=", "Q=Q=", "=QQQ", "QQ\n==", "QUI=", "[B@7d"], 0
)
@example([None, None], 0)
def test_cells_are_decoded_as_in_the_standard_library(cells, skipped):
    """This holds for each cell, including in a slice: valid text is decoded, and other text kept."""
    array = pa.array(cells, pa.string())[skipped:]
    assert [standard(cell) for cell in cells[skipped:]] == decode_base64(array).to_pylist()
    invalid = [cell for cell in cells[skipped:] if cell is not None and not is_valid(cell)]
    assert len(invalid) == invalid_base64(array)


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_survive_encoding_and_decoding(values):
    """Encoded bytes of any length are decoded exactly, next to others."""
    cells = pa.array([base64.b64encode(value).decode() for value in values], pa.string())
    assert values == decode_base64(cells).to_pylist()


@pytest.mark.parametrize("unmodified", [True, False])
def test_markers_in_a_binary_column_are_not_decoded(unmodified):
    """57: NULL and unmodified are recognised before decoding, quoted or not."""
    text = 'id,v\n1,(null)\n2,"(null)"\n3,QUI=\n4,""\n'
    expected = [(1, None), (2, None), (3, b"AB"), (4, b"")]
    with structlog.testing.capture_logs() as logged:
        rows = read(text + ('5,"(same)"\n6,(same)\n' if unmodified else ""), COLUMNS)
    if unmodified:
        expected += [(5, UNMODIFIED), (6, UNMODIFIED)]
    assert expected == [(row["id"], row["v"]) for row in rows]
    assert [] == logged


def test_markers_that_are_base64_are_still_markers():
    """57: A marker of base64 characters is still a marker."""
    encoding = type(MARKED)(null_string="null", unmodified_string="same")
    rows = read("id,v\n1,null\n2,same\n3,nul=\n", COLUMNS, encoding)
    assert [None, UNMODIFIED, base64.b64decode("nul=")] == [row["v"] for row in rows]


@pytest.mark.parametrize("rest", ["", "9,(same),(same)\n"])
def test_text_outside_base64_is_stored_with_one_warning_per_file(rest):
    """58: Each such cell is stored as raw bytes, with one warning per file that contains no value."""
    text = "id,v,w\n1,[B@7d4991ad,QQ==\n2,é,é\n3,QQ==,cell canary\n" + rest
    with structlog.testing.capture_logs() as logged:
        rows = read(text, {**COLUMNS, "w": "BINARY"})
    assert [b"[B@7d4991ad", "é".encode(), b"A"] == [row["v"] for row in rows[:3]]
    assert [b"A", "é".encode(), b"cell canary"] == [row["w"] for row in rows[:3]]
    assert [("warning", NAME)] == [(line["log_level"], line["file"]) for line in logged]
    assert "canary" not in str(logged)


def test_valid_base64_gives_no_warning():
    """58: Only files with such cells cause a warning."""
    with structlog.testing.capture_logs() as logged:
        read("id,v\n1,QQ==\n2,(null)\n3,\n", COLUMNS)
    assert [] == logged
