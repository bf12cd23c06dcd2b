"""Written text is read back exactly, in any time zone (requirements 54, 60, E3)."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from delivered_cells import MARKED, read, types
from hypothesis import example, given
from hypothesis import strategies as st

from backstory.formats.batch_file import Compression, Encoding, Format
from backstory.formats.delivered import read_files
from backstory.model.values import UNMODIFIED
from backstory.testing.sender import AS_FIVETRAN, NULL_STRING, UNMODIFIED_STRING, write_batch_file

MARKERS = {"null_string": NULL_STRING, "unmodified_string": UNMODIFIED_STRING}
ENCODINGS = [
    AS_FIVETRAN,
    Encoding(**MARKERS),
    Encoding(compression=Compression.GZIP, encrypted=True, **MARKERS),
    Encoding(compression=Compression.ZSTD, **MARKERS),
]
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
AWKWARD = st.text('",\\\r\n\t\0 aé😀(', max_size=6)
PARTS = st.sampled_from(
    ["", "NULL", "null", "NaN", NULL_STRING[:-1], UNMODIFIED_STRING + " ", "(null", "(same))"]
)
CELLS = ANY_TEXT | AWKWARD | PARTS
NAMES = st.lists(ANY_TEXT | AWKWARD, min_size=1, max_size=4, unique=True)


@st.composite
def tables(draw) -> tuple[list[str], list[dict[str, object]]]:
    """Distinct column names, and rows of text, NULL and unmodified."""
    names = draw(NAMES.filter(lambda names: names[0][:1] != "\ufeff"))
    cells = st.none() | st.just(UNMODIFIED) | CELLS
    rows = st.lists(st.fixed_dictionaries(dict.fromkeys(names, cells)), max_size=6)
    return names, draw(rows)


def by_jackson(names: list[str], rows: list[dict[str, object]], quoted: list[bool]) -> str:
    """CSV text as in section 3.2: with quotes if needed, and at random elsewhere."""

    def field(value: object, *, quote: bool) -> str:
        text = {None: "(null)", UNMODIFIED: "(same)"}.get(value, value)
        if not quote and text and not set(text) & set('",\r\n'):
            return text
        return '"' + text.replace('"', '""') + '"'

    at_will = iter(quoted)
    lines = [names, *([row[name] for name in names] for row in rows)]
    return "".join(
        ",".join(field(value, quote=next(at_will, True)) for value in line) + "\n" for line in lines
    )


@given(tables(), st.lists(st.booleans(), max_size=30), st.randoms(use_true_random=False))
def test_any_text_written_by_fivetran_is_read(table, quoted, order):
    """54, 55: This holds for any text, quoted or not, with columns in any order."""
    names, rows = table
    order.shuffle(names)
    assert rows == read(by_jackson(names, rows, quoted), dict.fromkeys(names, "STRING"), MARKED)


@given(tables(), st.sampled_from(ENCODINGS))
@example((["v"], [{"v": "a\rb"}]), AS_FIVETRAN)
def test_any_text_written_by_the_sender_is_read(table, encoding):
    """54: The sender of tests and demos writes exact files."""
    names, rows = table
    with TemporaryDirectory() as folder:
        file = write_batch_file(Path(folder), rows, names, encoding)
        columns = types(dict.fromkeys(names, "STRING"))
        parts = read_files([file], encoding, columns, frozenset(names))
    read_back = [row for _, part in parts for row in part.values.to_pylist()]
    known = [row for _, part in parts for row in part.known.to_pylist()]
    assert [{n: None if v is UNMODIFIED else v for n, v in row.items()} for row in rows] == read_back
    assert [{n: v is not UNMODIFIED for n, v in row.items()} for row in rows] == known


PRINT_INSTANTS = """
import sys
from pathlib import Path
import time
import pyarrow as pa
from backstory.formats.batch_file import BatchFile, Encoding, Format
from backstory.formats.delivered import read_files
from backstory.model.types import ColumnType

folder = Path(sys.argv[1])
kinds = dict(d="NAIVE_DATE", t="NAIVE_DATETIME", u="UTC_DATETIME", c="NAIVE_TIME")
columns = {name: ColumnType.parse(kind) for name, kind in kinds.items()}
print(time.tzname, file=sys.stderr)
for name in ("plain.csv", "nanos.csv", "typed.parquet"):
    encoding = Encoding(Format(name.partition(".")[2]))
    [(_, rows)] = read_files([BatchFile(folder / name)], encoding, columns, frozenset(columns))
    for field, as_stored in zip(rows.values.schema, rows.values.columns):
        if pa.types.is_temporal(field.type):
            wide = pa.int32() if pa.types.is_date(field.type) else pa.int64()
            as_stored = as_stored.cast(wide)
        print(name, field.name, as_stored.to_pylist())
"""

INSTANTS = """d,t,u,c
2024-03-10,2024-03-10T02:30:00,2024-03-10T02:30:00Z,02:30:00
2024-11-03,2024-11-03T01:30:00.5,2024-11-03T01:30:00.5+01:00,01:30:00.5
0001-01-01,0001-01-01T00:00:00,0001-01-01T00:00:00Z,00:00
9999-12-31,9999-12-31T23:59:59.999,9999-12-31T23:59:59.999Z,23:59
"""
NANOS = "1969-12-31,1969-12-31T23:59:59.123456789,1969-12-31T23:59:59.123456789,00:00:00.123456789\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    """The same instants in a CSV file, in one that needs slower parsing, and in a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "plain.csv").write_text(INSTANTS)
    (tmp_path / "nanos.csv").write_text(INSTANTS + NANOS)
    seconds = pa.array([1710037800, -1], pa.int64())
    typed = {
        "d": pa.array([19792, -1], pa.int32()).cast(pa.date32()),
        "t": seconds.cast(pa.timestamp("s")).cast(pa.timestamp("us")),
        "u": seconds.cast(pa.timestamp("s")).cast(pa.timestamp("us", "UTC")),
        "c": pa.array(["02:30:00", "00:00:00.5"]),
    }
    pq.write_table(pa.table(typed), tmp_path / "typed.parquet")
    return tmp_path


START, LAST = 1710037800_000000, 253402300799_999000
CSV_DAYS = [19792, 20030, -719162, 2932896]
CSV_NAIVE = [START, 1730597400_500000, -62135596800_000000, LAST]
CSV_INSTANTS = [START, 1730593800_500000, -62135596800_000000, LAST]
STORED = {
    "plain.csv d": CSV_DAYS,
    "plain.csv t": CSV_NAIVE,
    "plain.csv u": CSV_INSTANTS,
    "plain.csv c": ["02:30:00", "01:30:00.5", "00:00:00", "23:59:00"],
    "nanos.csv d": [*CSV_DAYS, -1],
    "nanos.csv t": [*CSV_NAIVE, -876544],
    "nanos.csv u": [*CSV_INSTANTS, -876544],
    "nanos.csv c": ["02:30:00", "01:30:00.5", "00:00:00", "23:59:00", "00:00:00.123456"],
    "typed.parquet d": [19792, -1],
    "typed.parquet t": [START, -1_000000],
    "typed.parquet u": [START, -1_000000],
    "typed.parquet c": ["02:30:00", "00:00:00.5"],
}


def test_the_time_zone_of_the_process_changes_nothing(folder):
    """60, E3: In New York the stored numbers are the same, including on days when clocks change."""
    ran = subprocess.run(
        [sys.executable, "-c", PRINT_INSTANTS, str(folder)],
        env={**os.environ, "TZ": "America/New_York"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "EST" in ran.stderr
    assert [f"{name} {stored}" for name, stored in STORED.items()] == ran.stdout.splitlines()


def test_parquet_and_csv_agree(tmp_path):
    """F2: The same rows give the same values in both formats."""
    rows = [{"id": 1, "v": "a,b\n"}, {"id": 2, "v": None}, {"id": 3, "v": UNMODIFIED}, {"id": 4, "v": ""}]
    columns = types({"id": "LONG", "v": "STRING"})
    got = []
    for form in Format:
        encoding = Encoding(form, Compression.ZSTD, True, **MARKERS)
        file = write_batch_file(tmp_path, rows, ["id", "v"], encoding)
        [(_, part)] = read_files([file], encoding, columns, frozenset(columns))
        got.append((part.values.to_pylist(), part.known.to_pylist()))
    assert got[0] == got[1]
    assert ["a,b\n", None, None, ""] == [row["v"] for row in got[0][0]]
    assert [True, True, False, True] == [row["v"] for row in got[0][1]]
