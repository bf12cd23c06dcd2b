"""Rows without a place in a plan are refused with file, row and column (sections 2.8 and 5)."""

import pyarrow as pa
import pytest

from backstory.doors.fivetran.batches import refuse_incomplete
from backstory.errors import Refused
from backstory.formats.rows import Rows

FILE = "part-7.csv"
NEEDED = {
    "earliest": "_fivetran_start",
    "replace": "_fivetran_start",
    "update": "_fivetran_end",
    "delete": "_fivetran_end",
}
SAME = "~"


def rows(text: str, chunk: int = 100) -> Rows:
    """A table from text: `-` is NULL, `~` is unmodified, and all columns are text."""
    header, *lines = [line.split() for line in text.strip().splitlines()]
    cells = {name: [line[place] for line in lines] for place, name in enumerate(header)}

    def chunked(column: list, type_: pa.DataType) -> pa.ChunkedArray:
        pieces = [column[at : at + chunk] for at in range(0, len(column), chunk)]
        return pa.chunked_array([pa.array(piece, type_) for piece in pieces], type_)

    values = {
        n: chunked([None if c in ("-", SAME) else c for c in col], pa.string()) for n, col in cells.items()
    }
    known = {n: chunked([c != SAME for c in col], pa.bool_()) for n, col in cells.items()}
    return Rows(pa.table(values), pa.table(known))


def refusal(kind: str, text: str, key=("id",), *, history: bool = True, chunk: int = 100) -> str | None:
    """The refusal's text, which names the file and contains no value, or None if there is no refusal."""
    delivered = rows(text, chunk)
    try:
        refuse_incomplete(kind, FILE, delivered, key, NEEDED[kind] if history else None)
    except Refused as refused:
        message = str(refused)
        assert message.startswith(FILE)
        shown = {cell for column in delivered.values.to_pydict().values() for cell in column if cell}
        assert [] == [cell for cell in shown if cell in message.removeprefix(FILE)]
        return message
    return None


GOOD = {
    "earliest": "id  _fivetran_start\nA1 T1\nB2 T2",
    "replace": "id v _fivetran_start _fivetran_end\nA1 x T1 T9\nB2 - T2 T9",
    "update": "id v _fivetran_start _fivetran_end\nA1 ~ T1 T9\nB2 - T2 T9",
    "delete": "id _fivetran_end\nA1 T1\nB2 T2",
}


@pytest.mark.parametrize("kind", GOOD)
def test_complete_rows_are_accepted(kind):
    """5: NULL and unmodified cells are placeable if the kind allows them. So is a file without rows."""
    assert refusal(kind, GOOD[kind]) is None
    assert refusal(kind, GOOD[kind].partition("\n")[0]) is None


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("column", ["id", "needed"])
def test_a_file_needs_its_key_and_its_instant(kind, column):
    """5: A file without the key or the instant column of its kind is refused, and the error names the kind."""
    name = NEEDED[kind] if column == "needed" else column
    message = refusal(kind, GOOD[kind].replace(name, "other"))
    assert f"the {kind} file lacks the column {name}" in message


@pytest.mark.parametrize("kind", ["replace", "update", "delete"])
def test_each_part_of_a_composite_key_is_needed(kind):
    """2.8: A file with only part of a composite key is refused."""
    assert "lacks the column part" in refusal(kind, GOOD[kind], key=("id", "part"))


@pytest.mark.parametrize("kind", GOOD)
def test_a_key_may_be_null_but_not_unmodified(kind):
    """70: NULL is a value of a key. An unmodified key identifies no record."""
    assert refusal(kind, GOOD[kind].replace("B2", "-")) is None
    message = refusal(kind, GOOD[kind].replace("B2", SAME))
    assert "row 2, column id: the key is marked unmodified" in message


@pytest.mark.parametrize("history", [True, False])
def test_a_replaced_row_has_no_unmodified_values(history):
    """2.8: A replaced row has no former value for an unmodified cell. NULL is a value."""
    text = "id v _fivetran_start _fivetran_end\nA1 x T1 T9\nB2 ~ T2 T9\nC3 ~ T3 T9"
    assert "row 2, column v" in refusal("replace", text, history=history)
    assert refusal("replace", text.replace(SAME, "-"), history=history) is None


@pytest.mark.parametrize("kind", ["earliest", "replace", "delete"])
@pytest.mark.parametrize("missing", ["-", SAME])
def test_a_row_needs_its_instant(kind, missing):
    """5: A row without its instant, which is NULL or unmodified, is refused."""
    at = {"earliest": "T2", "replace": "T2 T9", "delete": "T2"}[kind]
    text = GOOD[kind].replace(at, missing + at[2:])
    assert f"row 2, column {NEEDED[kind]}" in refusal(kind, text)


def test_a_replaced_version_needs_an_end():
    """5.5: A replaced version without an end is refused. NULL does not mean open."""
    text = "id v _fivetran_start _fivetran_end\nA1 x T1 T9\nB2 x T2 -"
    assert "row 2, column _fivetran_end: the time is missing" in refusal("replace", text)
    assert "lacks the column _fivetran_end" in refusal("replace", "id v _fivetran_start\nA1 x T1")
    assert refusal("replace", text, history=False) is None


@pytest.mark.parametrize("missing", ["-", SAME])
def test_an_update_with_a_start_needs_an_end(missing):
    """5: An update with a start but no end is refused. NULL does not mean open."""
    text = f"id v _fivetran_start _fivetran_end\nA1 x T1 T9\nB2 x T2 {missing}"
    assert "row 2, column _fivetran_end: the end is missing" in refusal("update", text)


@pytest.mark.parametrize("value", ["x", "-"])
@pytest.mark.parametrize("missing", ["-", SAME])
def test_a_value_change_without_a_start_is_refused(value, missing):
    """7.11: A value without a start, including NULL, is refused and not lost."""
    text = f"id v _fivetran_start _fivetran_end\nA1 x T1 T9\nB2 {value} {missing} T9"
    assert "row 2, column v: a value changes but _fivetran_start is missing" in refusal("update", text)


def test_a_value_change_without_a_start_column_is_refused():
    """7.11: The same holds if the whole column is missing."""
    assert "row 2, column v" in refusal("update", "id v _fivetran_end\nA1 ~ T9\nB2 x T9")


@pytest.mark.parametrize("start", ["-", SAME])
def test_an_update_without_a_start_may_close_a_version(start):
    """7.11: A soft delete as an update row with only end and active is accepted."""
    text = f"""
        id  v  _fivetran_active  _fivetran_start  _fivetran_end  _fivetran_synced
        A1  ~  false             {start}          T9             T9
    """
    assert refusal("update", text) is None
    assert refusal("update", "id v _fivetran_active _fivetran_end\nA1 ~ false T9") is None
    assert refusal("update", "id v _fivetran_start _fivetran_end\nA1 ~ - -") is None


def test_key_cells_do_not_count_as_value_changes():
    """5: Key columns identify the record, so they are always present."""
    text = "id part v _fivetran_end\nA1 P1 ~ T9"
    assert refusal("update", text, key=("id", "part")) is None


@pytest.mark.parametrize("kind", ["replace", "update", "delete"])
def test_live_rows_need_no_instant(kind):
    """2.8: In a WriteBatch, only keys and replaced rows are checked."""
    assert refusal(kind, "id v\nA1 x\nB2 -", history=False) is None
    assert "row 1, column id" in refusal(kind, "id v\n~ x", history=False)


def test_a_live_update_may_have_only_unmodified_values():
    """2.8: An update with only unmodified values is accepted and changes nothing."""
    assert refusal("update", "id v w\nA1 ~ ~", history=False) is None


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_row_numbers_continue_across_blocks(chunk):
    """63: Rows are numbered from 1 across all blocks of a file, and the error names the first invalid row."""
    text = "id v _fivetran_start _fivetran_end\n" + "A1 x T1 T9\n" * 4 + "B2 x T1 -\n" * 2
    assert "row 5, column _fivetran_end" in refusal("update", text, chunk=chunk)
    text = "id v _fivetran_end\n" + "A1 ~ T9\n" * 4 + "B2 x T9\n" * 2
    assert "row 5, column v" in refusal("update", text, chunk=chunk)
    text = "id _fivetran_start\n" + "A1 T1\n" * 4 + "~ T1\n" * 2
    assert "row 5, column id" in refusal("earliest", text, chunk=chunk)


def test_the_completeness_check_leaves_rows_unchanged():
    """The check does not change the rows."""
    delivered = rows(GOOD["update"])
    refuse_incomplete("update", FILE, delivered, ["id"], "_fivetran_end")
    assert rows(GOOD["update"]) == delivered
