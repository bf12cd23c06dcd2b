"""Content that is not CSV, or not of its type, is refused with file and line (requirement 63)."""

import pytest
from delivered_cells import CANARY, MARKED, read, refusal

from backstory.formats.batch_file import Encoding

COLUMNS = {"id": "STRING", "v": "LONG", "w": "STRING"}
TEXTS = {"id": "STRING", "v": "STRING"}

LINES = [
    (2, "id,v\na,x\n"),
    (3, "id,v\na,1\nb,x\nc,y\n"),
    (4, 'id,v\n"a\nb",1\nb,x\n'),
    (2, 'id,v\n"a\nb",x\nb,2\n'),
    (6, 'id,v\n"a\r\nb",1\n"c\nd",2\n"\n\n",x\n'),
    (4, 'id,w,v\na,"x\ny",1\nb,,x\n'),
    (4, "w,v,id\n(null),1,a\n(same),(same),b\nz,x,c\n"),
    (4, 'id,v\n"a"",\n""b",1\n"\n",x\n'),
    (3, "id,v\r\na,1\r\nb,x\r\n"),
    (3, "v,id\n1,a\nx,b"),
    (3, '"i\nd",v\na,x\n'),
    (4, "id,v\na,1\n\nb,x\n"),
]


@pytest.mark.parametrize(("line", "content"), LINES, ids=[ascii(text) for _, text in LINES])
def test_an_unreadable_cell_is_refused_with_line_column_and_type(line, content):
    """63: The line is the first one of its row, whatever line breaks are in earlier values."""
    columns = COLUMNS | {"i\nd": "STRING"}
    assert f"line {line}, column v: the value is not of type BIGINT" in refusal(content, columns)


def test_line_numbers_do_not_depend_on_wanted_columns():
    """63: Line breaks inside values of skipped columns count too."""
    content = 'w,v\n"a\nb",1\n"c\n\nd",2\ne,x\n'
    assert "line 7, column v" in refusal(content, COLUMNS, wanted={"v"})


def test_line_numbers_are_right_in_long_files():
    """63: This includes rows beyond the first block of a large file."""
    content = 'id,v\n"a\nb",1\n' + ("a" * 1000 + ",1\n") * 5000
    assert "line 5004, column v" in refusal(content + "b,x\n", COLUMNS)
    assert "line 5004: 3 fields" in refusal(content + "b,1,\n", COLUMNS)


BROKEN = [
    (2, 1, "id,v\na\n"),
    (2, 3, "id,v\na,1,b\n"),
    (3, 3, "id,v\na,1\nb,2,\n"),
    (6, 1, 'id,v\n"a\n\nb",1\n(null),(null)\nb\n'),
    (4, 3, 'id,v\n"a\nb",x\nb,2,c\n'),
    (2, 3, 'id,v\na,"b\nc",d\n'),
    (3, 4, "id,v\r\na,1\r\nb,1,2,3\r\n"),
    (2, 3, "id,v\n" + "😀" * 40 + "," + "é" * 77 + ",x\n"),
]


@pytest.mark.parametrize(("line", "fields", "content"), BROKEN, ids=[ascii(c)[:40] for *_, c in BROKEN])
def test_a_row_of_another_width_is_refused_with_its_line(line, fields, content):
    """63: Too many or too few fields are refused before any value is parsed."""
    count = "1 field" if fields == 1 else f"{fields} fields"
    assert f"line {line}: {count} where the header has 2" in refusal(content, TEXTS)


UNCLOSED = [
    'id,v\na,"b\n',
    'id,v\na,"b',
    'id,v\na,"',
    'id,v\na,"b""\n',
    'id,v\n"a,b\nc,d\n',
    'id,v\na,b\nc,"d\n(null),(null)\n',
    'id,v\n(null),"\n',
    'id,v\na,b\n"',
    'v\n"b\n',
    'v\n"',
]


@pytest.mark.parametrize("content", UNCLOSED, ids=map(ascii, UNCLOSED))
@pytest.mark.parametrize("null", ["(null)", ""])
def test_an_unclosed_quote_is_refused(content, null):
    """E1: Rows after a missing quote are not read as one value."""
    refusal(content, TEXTS, Encoding(null_string=null))


@pytest.mark.parametrize("content", ['id,v\na,b\n(null),"c\n', 'id,v\na,b\n(null),"c\nd,e\n'])
def test_an_unclosed_quote_in_a_skipped_column_is_refused(content):
    """E1: A delete file with only a wanted key loses no row."""
    refusal(content, TEXTS, MARKED, wanted={"id"})


GOING_ON = [
    (2, 'id,v\n1,"Ada"x\n'),
    (2, 'id,v\n1,"Ada" \n'),
    (2, 'id,v\n"1" ,"Ada"\n'),
    (2, 'id,v\n1,""x\n'),
    (2, 'id,v\n1,"a""b"c\n'),
    (5, 'id,v\n1,"a\nb"\n3,"c\nd"e\n'),
    (3, 'id,v\n1,a"b\n2,"c"d\n'),
    (2, '"id","v"\n1,"Ada"x'),
    (5002, "id,v\n" + ("a" * 1000 + ",1\n") * 5000 + '1,"Ada"x\n'),
    (5001, "id,v\n" + 'k,a"b\n' + ('a,"' + "b" * 1000 + '"\n') * 4998 + '1,"x"y\n'),
]


@pytest.mark.parametrize(("line", "content"), GOING_ON, ids=[ascii(text)[-30:] for _, text in GOING_ON])
@pytest.mark.parametrize("wanted", ["id", "v"])
def test_text_after_a_closing_quote_is_refused(line, content, wanted):
    """E1: Such text is not part of the value. The error has the line, whatever columns are read."""
    assert f"line {line}: a value continues" in refusal(content, TEXTS, wanted={wanted})
    streamed = refusal(content, {"id": "STRING", "v": "BOOLEAN"}, wanted={wanted, "v"})
    assert f"line {line}: a value continues" in streamed or "column v" in streamed


@pytest.mark.parametrize("name", ['"id', '"id"x'])
def test_a_broken_header_name_is_refused_with_its_line(name):
    """63: The header is checked like other rows."""
    assert "line 1" in refusal(f"v,{name}\n1,2\n", TEXTS)


@pytest.mark.parametrize(("line", "content"), [(1, b"id,\xff\n1,2\n"), (3, b'id,v\n1,2\n3,"\xff\n"\n')])
def test_bytes_outside_utf8_are_refused_with_their_line(line, content):
    """63: Bytes that are not UTF-8 are refused at their place."""
    assert f"line {line}: the text from here on is not UTF-8" in refusal(content, TEXTS)


@pytest.mark.parametrize(
    "content",
    [
        b"id,v\na,\xff\n",
        b"id,v\na,\xff,\xff\n",
        b"id,v\na,b\nc,\xc3\n",
        b"id,v\na,\xed\xa0\x80\n",
        b"id,\xff\na,b\n",
        "id,v\na,b\n".encode("utf-16"),
    ],
)
@pytest.mark.parametrize("kind", ["STRING", "UTC_DATETIME"])
def test_text_that_is_not_utf_8_is_refused(content, kind):
    """3.2: This holds for every type, and next to other errors."""
    refusal(content, {"id": "STRING", "v": kind})


@pytest.mark.parametrize(
    ("header", "named"),
    [("id,id", "id"), ('v,id,"id"', "id"), ("w,v,w,v,id", "w, v"), ("_fivetran_x,_fivetran_x", "")],
)
def test_a_repeated_column_is_refused(header, named):
    """E1: The intended one is unknown, even if neither is wanted."""
    assert named in refusal(header + "\n" + "1," * header.count(",") + "1\n", COLUMNS, wanted={"v"})


@pytest.mark.parametrize("header", ["id,x", "id,ID", "id, v", "id,v,", "id,_fivetran", "id,_fivetran_End"])
@pytest.mark.parametrize("rows", ["", "1,2\n"])
def test_an_unknown_column_is_refused(header, rows):
    """2.8, E4: This includes a file without rows, and names that differ only in case or a space."""
    refusal(f"{header}\n{rows}", COLUMNS)


def test_an_error_lists_at_most_ten_unknown_columns():
    """E1: A refusal names up to ten of them and counts the rest."""
    text = refusal("id," + ",".join(f"c{n}" for n in range(25)) + "\n", COLUMNS)
    assert "c9 and 15 more" in text
    assert "c10" not in text


@pytest.mark.parametrize(
    "content",
    [
        f'"id,v\n1,{CANARY}\n2,b\n',
        f'id,"v\n1,{CANARY}\n2,b\n',
        f'id,"v"x"\n1,{CANARY}\n',
        f'id,v\n1,"{CANARY}\n',
        f"id,v\n1,{CANARY}\n",
        f"id,v\n{CANARY},1,{CANARY}\n",
        f'id,v\n"{CANARY}\n",1\n"\n{CANARY}",{CANARY}\n',
        f"id,v\n{CANARY},\xff{CANARY}\n".encode("latin-1"),
        f"id,v\n{CANARY},\xff,{CANARY}\n".encode("latin-1"),
        "x" * 100_000 + f",{CANARY[:4]}\n",
        "x" * 200_000 + ",id\n",
        ("y" * 500 + ",") * 20 + "id\n",
    ],
    ids=range(12),
)
@pytest.mark.parametrize("kind", ["LONG", "NAIVE_TIME"])
def test_errors_contain_no_values(content, kind):
    """63, 9: This includes errors in the header, and every error is short."""
    refusal(content, {"id": "STRING", "v": kind})


def test_values_in_skipped_columns_may_have_another_type():
    """2.8: Values that are not read are not checked."""
    assert [{"id": "a"}] == read("id,v\na,x\n", COLUMNS, wanted={"id"})


def test_the_error_reports_the_first_bad_cell_of_a_column():
    """63: Later cells, and cells that need slower parsing, do not matter."""
    rows = "".join(f"k{n},{n}\n" for n in range(1000)) + "k,(same)\nk,x\nk,y\n"
    assert "line 1003, column v" in refusal(f"id,v\n{rows}", COLUMNS)
