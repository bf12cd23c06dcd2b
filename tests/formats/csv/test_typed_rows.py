"""CSV text is read byte for byte: quotes, line breaks, markers, headers (requirements 54 to 56, 61, 62)."""

import pytest
from delivered_cells import MARKED, REFUSED, outcome, read

from backstory.formats.batch_file import Encoding
from backstory.model.values import UNMODIFIED

TEXTS = {"id": "STRING", "v": "STRING"}
NUMBERS = {"id": "LONG", "v": "LONG"}
BLOCK = 1 << 22


def values(*args, **kwargs) -> list[object]:
    return [row["v"] for row in read(*args, **kwargs)]


QUOTED = [
    '"a,b"=a,b',
    '"a""b"=a"b',
    '""""="',
    '"""a"""="a"',
    '"a\\"=a\\',
    '"\\""x"=\\"x',
    "a\\=a\\",
    "\\N=\\N",
    '"a\rb"=a\rb',
    '"a\nb"=a\nb',
    '"a\r\nb"=a\r\nb',
    '"\n"=\n',
    '"a\n\nb\n"=a\n\nb\n',
    '"""\n"","="\n",',
    "a\tb=a\tb",
    "\t=\t",
    "a\0b=a\0b",
    '"\0"=\0',
    "😀 é ﷽=😀 é ﷽",
    "\u2028\x85\x0b\x1c=\u2028\x85\x0b\x1c",
    "\ufeffx=\ufeffx",
    " a = a ",
    '" a "= a ',
    " = ",
    "NULL=NULL",
    "null=null",
    "NA=NA",
    "nan=nan",
    "#N/A=#N/A",
    "(null=(null",
    "(same=(same",
    "(null)x=(null)x",
    "(NULL)=(NULL)",
    " (null)= (null)",
    '"(same) "=(same) ',
    "true=true",
    "0x1F=0x1F",
    "1.50=1.50",
    '""=',
    "=",
    "'a'='a'",
    "a;b|c=a;b|c",
    "# a comment=# a comment",
]


@pytest.mark.parametrize("unmodified", ["", "9,(same)\n"])
@pytest.mark.parametrize("case", QUOTED, ids=[ascii(case) for case in QUOTED])
def test_text_is_read_byte_for_byte(case, unmodified):
    """54: Each `written=read` also holds next to an unmodified cell."""
    written, _, text = case.partition("=")
    read_back = values(f"id,v\n1,{written}\n2,end\n{unmodified}", TEXTS)
    assert [text, "end"] == read_back[:2]


@pytest.mark.parametrize("case", QUOTED, ids=[ascii(case) for case in QUOTED])
def test_text_in_a_single_cell_is_read_exactly(case):
    """54: This includes a table of one column and one row, unless its line is empty."""
    written, _, text = case.partition("=")
    if written:
        assert [text] == values(f"v\n{written}\n", {"v": "STRING"})


def test_null_empty_and_unmodified_are_three_outcomes():
    """55, 56: This holds for text. Quotes make no difference."""
    content = 'id,v\n1,\n2,""\n3,(null)\n4,"(null)"\n5,(same)\n6,"(same)"\n'
    assert ["", "", None, None, UNMODIFIED, UNMODIFIED] == values(content, TEXTS)


@pytest.mark.parametrize("kind", ["LONG", "BOOLEAN", "DECIMAL(5,2)", "UTC_DATETIME", "BINARY", "JSON"])
def test_markers_are_recognised_before_values_are_parsed(kind):
    """55, 56: NULL and unmodified are the same for every type."""
    content = 'id,v\n3,(null)\n4,"(null)"\n5,(same)\n6,"(same)"\n'
    assert [None, None, UNMODIFIED, UNMODIFIED] == values(content, {"id": "LONG", "v": kind})


@pytest.mark.parametrize(("null", "same"), [("a,\"b'", 'c""\n'), ("NULL", "null"), ("0", "00"), (" ", "  ")])
def test_the_request_defines_the_markers(null, same):
    """56: A marker may be any text, and matches byte for byte."""
    cells = [null, same, null + "x", same + "x", "(null)", "(same)"]
    content = "id,v\n" + "".join('1,"' + cell.replace('"', '""') + '"\n' for cell in cells)
    encoding = Encoding(null_string=null, unmodified_string=same)
    assert [None, UNMODIFIED, *cells[2:]] == values(content, TEXTS, encoding)


@pytest.mark.parametrize(
    ("kind", "same"),
    [
        ("BOOLEAN", "true"),
        ("LONG", "0"),
        ("DECIMAL(5,2)", "-1"),
        ("DOUBLE", "NaN"),
        ("FLOAT", "0"),
        ("NAIVE_DATE", "1970-01-01"),
        ("NAIVE_DATETIME", "1970-01-01T00:00:00"),
        ("UTC_DATETIME", "1970-01-01T00:00:00Z"),
        ("NAIVE_TIME", "00:00:00"),
    ],
)
def test_a_marker_is_never_read_as_a_value(kind, same):
    """56: This holds even if the marker would be a valid value."""
    encoding = Encoding(null_string="(null)", unmodified_string=same)
    content = f'id,v\n1,{same}\n2,"{same}"\n3,(null)\n'
    assert [UNMODIFIED, UNMODIFIED, None] == values(content, {"id": "STRING", "v": kind}, encoding)


ODD = ["", "NULL", "null", "NaN", "(null)", "(same)", "\x1fend of file\x1f", "\0"]


@pytest.mark.parametrize("text", ODD, ids=map(ascii, ODD))
def test_an_empty_marker_matches_nothing(text):
    """3.2: With empty markers, no text is NULL or unmodified, including the empty text."""
    assert [text, ""] == values(f'id,v\n1,"{text}"\n2,""\n', TEXTS, Encoding())


def test_one_marker_may_be_empty():
    """3.2: Each marker is on or off separately."""
    content = 'id,v\n1,(null)\n2,(same)\n3,""\n'
    only_null, only_same = Encoding(null_string="(null)"), Encoding(unmodified_string="(same)")
    assert [None, "(same)", ""] == values(content, TEXTS, only_null)
    assert ["(null)", UNMODIFIED, ""] == values(content, TEXTS, only_same)


@pytest.mark.parametrize("null", ["(null)", ""])
@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("last", ["(null),(null)", '"",""', ",", '"a","\n"', "1,2"])
def test_the_last_row_is_read(last, end, null):
    """61: This holds for any content, with or without a line end."""
    encoding = Encoding(null_string=null, unmodified_string="(same)")
    texts = {'"",""': ["", ""], ",": ["", ""], '"a","\n"': ["a", "\n"], "1,2": ["1", "2"]}
    expected = texts.get(last, ["(null)", "(null)"] if not null else [None, None])
    rows = read(f"id,v\na,b\n{last}{end}", TEXTS, encoding)
    assert [["a", "b"], expected] == [[row["id"], row["v"]] for row in rows]


@pytest.mark.parametrize("header", ["id,v", "id,v\n", '"id","v"\r\n', "\ufeffid,v\n"])
def test_a_file_with_only_a_header_has_no_rows(header):
    """61: This holds with and without a line end."""
    assert [] == read(header, NUMBERS)


@pytest.mark.parametrize("header", ["v,id", '"v",id', '"v","id"', "\ufeffv,id", '\ufeff"v",id'])
def test_columns_are_found_by_name(header):
    """61: Columns may be in any order, quoted or not, and after a byte order mark."""
    assert [{"id": 1, "v": 2}] == read(f"{header}\n2,1\n", NUMBERS)


@pytest.mark.parametrize(
    "name", ["a,b", 'a"b', "a b", " a", "a ", "A", "é😀", "a\nb", "a.b", "select", "0", ""]
)
def test_names_are_compared_exactly(name):
    """E4, 61: A quoted name may contain anything. Case and spaces count."""
    quoted = '"' + name.replace('"', '""') + '"'
    assert [{"a": 1, name: 2}] == read(f"{quoted},a\n2,1\n", {"a": "LONG", name: "LONG"})
    assert REFUSED == outcome(f"{quoted},a\n2,1\n", {"a": "LONG"})


def test_only_wanted_columns_are_read():
    """2.8: Other columns are skipped, including system columns that the table lacks."""
    content = "w,_fivetran_index,id,_fivetran_deleted,v\nx,0,1,true,y\n"
    columns = {"id": "LONG", "v": "STRING", "w": "LONG"}
    assert [{"id": 1, "v": "y"}] == read(content, columns, wanted={"id", "v", "elsewhere"})


def test_a_wanted_column_missing_from_the_file_is_not_added():
    """2.8: A column that was not delivered is in neither values nor known."""
    assert [{"id": 1}] == read("id\n1\n", TEXTS | {"id": "LONG"})


def test_lines_may_end_with_crlf():
    """3.2: CRLF after a line is not part of a value."""
    assert [["1", "2"], ["3", "a\r\nb"], ["4", "\r"]] == [
        list(row.values()) for row in read('id,v\r\n1,2\r\n3,"a\r\nb"\r\n4,"\r"\r\n', TEXTS)
    ]


@pytest.mark.parametrize("content", ["v\na\n\nb\n", "v\n\n", "v\n\na\n", "\nv\na\n", "v\na\n\n"])
def test_an_empty_line_loses_no_rows(content):
    """3.2: In one column it is an empty text. Otherwise it may be an error, but never a loss."""
    lines = content.removeprefix("\n").split("\n")[1:-1]
    allowed = [[{"v": line} for line in lines], REFUSED]
    if content.startswith("\n"):
        allowed.append([{"v": line} for line in lines])
    assert outcome(content, {"v": "STRING"}) in allowed


def test_a_cell_of_24_mebibytes_is_read_whole():
    """62: It may be plain, or quoted with line breaks and quotes, with rows before and after."""
    plain, broken = "x" * (24 << 20), 'y\n,""' * (5 << 20)
    rows = read(f'id,v\n1,a\n2,{plain}\n3,"{broken}"\n4,b\n', TEXTS, MARKED)
    assert ["a", plain, broken.replace('""', '"'), "b"] == [row["v"] for row in rows]


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1])
def test_values_at_block_boundaries_are_read_whole(size, end):
    """61, 62: A long value or many lines that fill a block exactly are read completely."""
    last = '2,"\r\n"""'
    long = "a" * (size - len(f"id,v\n1,\n{last}"))
    assert [long, '\r\n"'] == values(f"id,v\n1,{long}\n{last}{end}", TEXTS)
    line = "1," + "a" * 1000 + "\n"
    count, rest = divmod(size - len("id,v\n2,"), len(line))
    ordinary = "id,v\n" + line * count + "2," + "b" * rest
    assert ["a" * 1000] * count + ["b" * rest] == values(ordinary + end, TEXTS)


@pytest.mark.parametrize("size", [BLOCK, BLOCK + 1, 3 * BLOCK])
def test_a_long_last_line_needs_no_line_end(size):
    """61: The missing line end of a file with one long line is accepted."""
    long = "a" * (size - len("id,v\n1,"))
    assert [long] == values(f"id,v\n1,{long}", TEXTS)


@pytest.mark.parametrize("size", [100, 3 * BLOCK])
def test_quotes_inside_unquoted_fields_are_ordinary_characters(size):
    """54: This includes the header and large files, and no row is read twice."""
    line = 'x"y,"' + "a\n" * 50 + '"\n'
    count = size // len(line) + 1
    columns = {"id": "STRING", "w": "STRING", 'v"': "STRING"}
    rows = read('id,"w",v"\n1,2,3"\n' + f"a,{line}" * count + "4,5,(same)\n", columns)
    assert count + 2 == len(rows)
    assert ('3"', UNMODIFIED) == (rows[0]['v"'], rows[-1]['v"'])
