"""UpsertStream and ChangelogStream from source to table (odf-ingest.md, sections 2.5 and 2.6)."""

from dataclasses import replace
from functools import partial

import pyarrow.csv as pa_csv
import pytest
from datasets import Dataset, counts, e, lines

from backstory.formats.memory import Memory

UPSERT = "{kind: upsertStream, primaryKey: [k]}"
CHANGELOG = "{kind: changelogStream, primaryKey: [k]}"
COLUMNS = "op INT, k STRING, v STRING"


@pytest.fixture
def dataset(store, tmp_path):
    return partial(Dataset, store, tmp_path, columns=COLUMNS, namespace="odf_streams")


CUTTING = {"spark.sql.files.maxPartitionBytes": "200", "spark.sql.files.openCostInBytes": "0"}


def query(text: str) -> str:
    return f"{{kind: sql, engine: spark, query: '{text}'}}"


# Upserts

LIFE = (
    ("0,1,a 0,2,b 3,1,a2 1,9,", counts(appended=2)),
    ("3,1,a3 0,2,b 1,77,", counts(corrected=1, unchanged=1)),
    ("1,2,", counts(retracted=1)),
    ("1,2,", counts()),
    ("0,2,b", counts(appended=1)),
    ("0,1,x 1,1,", counts(retracted=1)),
    ("1,2, 0,2,b", counts(unchanged=1)),
    ("1,2, 0,2,B", counts(corrected=1)),
)


def test_the_life_of_an_upsert_stream(dataset):  # R52, R53, R55, O16, B13a
    """Section 2.5's table: the last row of a key counts, and a delete of an unknown key is ignored."""
    life = dataset(UPSERT)
    for text, outcome in LIFE:
        assert life.push(text).counts == outcome
    assert list(life.rows()[0]) == ["offset", "op", "system_time", "event_time", "k", "v"]
    assert life.log() == lines("""
        0 +A s1 e1 1 a2
        1 +A s1 e1 2 b
        2 -C s2 e1 1 a2
        3 +C s2 e2 1 a3
        4 -R s3 e1 2 b
        5 +A s5 e5 2 b
        6 -R s6 e2 1 a3
        7 -C s8 e5 2 b
        8 +C s8 e8 2 B
    """)
    assert life.commits() == 6
    # Keys missing from a batch are unchanged, and an empty batch does nothing.
    with life.unchanged():
        assert life.push("").status == "up-to-date"
    assert life.push("1,99, 0,5,z").counts == counts(appended=1)
    assert life.newest().event["counts"] == {"appended": 1, "absent": 1}  # O16: in the log only


def test_files_and_rows_are_applied_in_order(dataset):  # R54, R57, D13
    """One file or three, with `op` 0 or without the column, give the same log."""
    rows = ["0,1,a 0,2,b", "0,1,c 0,3,d", "0,1,e 0,2,b"]
    one, three = dataset(UPSERT), dataset(UPSERT)
    bare = dataset(UPSERT, columns="k STRING, v STRING")
    assert one.push(" ".join(rows)).counts == counts(appended=3)
    assert bare.push(" ".join(rows).replace("0,", "")).counts == counts(appended=3)
    receipt = three.push(*rows)
    assert receipt.counts == counts(appended=3, corrected=2, unchanged=1)
    assert (receipt.offsets, three.commits()) == ((0, 6), 3)  # one commit for each file (O17)
    assert one.log() == bare.log() == ["0 +A s1 e1 1 e", "1 +A s1 e1 2 b", "2 +A s1 e1 3 d"]
    state = {row["k"]: row["v"] for row in three.rows()}
    assert state == {"1": "e", "2": "b", "3": "d"}


@pytest.mark.parametrize("rows", [",1,a", "0,1,a 7,2,b"])
def test_an_upsert_refuses_other_operations(dataset, rows):  # R56, D12
    life = dataset(UPSERT)
    error = life.refused(rows, code="wrong-op")
    assert error.message.startswith("1 row of ")
    assert error.keys == [{"k": rows[-3]}]


def test_an_operation_is_a_whole_number(dataset):  # R56
    """A text that is not a number is refused by row, and a column of another type before any row."""
    life = dataset(UPSERT, columns="op STRING, k STRING, v STRING")
    assert life.refused("1.5,1,a x,2,b", code="wrong-op").keys == [{"k": "1"}, {"k": "2"}]
    life.add(columns="op DOUBLE, k STRING, v STRING")
    assert life.refused("1,1,a", code="bad-input-schema").keys == ["op"]
    life.add(columns="op BIGINT, k STRING, v STRING")
    assert life.refused("8589934592,1,a", code="wrong-op").keys == [{"k": "1"}]
    life.add(columns=COLUMNS)
    assert life.refused("0,,a 0,1,b", code="null-key").keys == [{"k": None}]


def test_a_sequence_column_overrides_the_arrival_order(dataset):  # O14
    """Among rows with one position, the last to arrive counts. A row without a position is refused."""
    life = dataset(
        "{kind: upsertStream, primaryKey: [k], sequenceColumn: n}",
        columns="op INT, k STRING, v STRING, n INT",
    )
    life.push("0,1,late,9 0,1,early,2 0,2,x,5 0,2,y,5")
    assert life.data("k", "v", "n") == [("1", "late", 9), ("2", "y", 5)]
    assert "sequenceColumn" in life.refused("0,1,z,", code="null-sequence").message
    # Rows with their own positions may be in any order, including rows from a query.
    life.add(preprocess=query("select op, k, v, n from input order by v"))
    assert life.push("0,1,a,11 0,1,b,10").counts == counts(corrected=1)
    assert life.data("v")[-1] == ("a",)


def test_a_query_keeps_the_order_or_is_refused(dataset):  # D13, section 1.7
    """Selecting and filtering keeps the order. Sorting, joining and grouping would produce another log."""
    life = dataset(UPSERT, preprocess=query("select op, k, upper(v) as v from input where v is not null"))
    life.push("0,1,b 0,1,a 0,1,")
    assert life.log() == ["0 +A s1 e1 1 A"]
    for text in (
        "op, k, max(v) as v from input group by all",
        "* from input order by v",
        "a.* from input a join input b using (k)",
    ):
        life.add(preprocess=query(f"select {text}"))
        with life.unchanged(), pytest.raises(Exception, match="changes the order of the rows") as refused:
            life.push("0,1,b")
        assert (refused.value.code, refused.value.exit_code) == ("arrival-order-lost", 2)


def test_an_upsert_keeps_its_event_time(dataset):  # section 2.5 "Differs", B12
    """It has its own time or the fallback. The stored row of a deletion keeps its values and time."""
    life = dataset(UPSERT, columns="op INT, event_time TIMESTAMP, k STRING, v INT")
    life.push("0,2024-02-01T00:00:00Z,vancouver,1 0,,seattle,2 0,2024-02-01T00:00:00Z,kyiv,3")
    life.push("0,,vancouver,2 3,2024-02-01T00:00:00Z,kyiv,4 1,2024-02-09T00:00:00Z,seattle,0")
    assert life.push("0,,vancouver,2").counts == counts(unchanged=1)
    assert life.log(3) == lines("""
        3 -C s2 e32 kyiv      3
        4 +C s2 e32 kyiv      4
        5 -R s2 e1  seattle   2
        6 -C s2 e32 vancouver 1
        7 +C s2 e2  vancouver 2
    """)


# Changelogs


def test_a_changelog_keeps_its_order(dataset):  # R59, D14, B13c, section 2.6
    """`-R` and then `+A` of a key keep this order. Repeated content is skipped (V7)."""
    life = dataset(CHANGELOG)
    first = life.push("0,k2,b 0,k1,1 2,k1,1 3,k1,2")
    assert first.counts == counts(appended=2, corrected=1)
    second = "1,k1,2 0,k1,9"
    assert life.push(second).counts == counts(appended=1, retracted=1)
    with life.unchanged():  # V7, D15
        assert life.push(second).status == "up-to-date"
    assert life.log() == lines("""
        0 +A s1 e1 k2 b
        1 +A s1 e1 k1 1
        2 -C s1 e1 k1 1
        3 +C s1 e1 k1 2
        4 -R s2 e1 k1 2
        5 +A s2 e2 k1 9
    """)
    assert life.push("").status == "up-to-date"


def test_a_repeated_changelog_is_recognised(dataset):  # V7, 5.1, section 2.6
    """The source's new state is stored. `validation: schema` ignores contents."""
    life = dataset(CHANGELOG, fetch="{kind: url, url: data.csv}")
    life.pull("op,k,v\n0,k1,1\n")
    receipt = life.pull("op,k,v\n0,k1,1\n")
    assert (receipt.status, life.commits()) == ("up-to-date", 2)
    assert life.newest().event["source_state"]["value"].startswith(e(2).date().isoformat())
    loose = dataset("{kind: changelogStream, primaryKey: [k], validation: schema}")
    for _ in range(2):
        assert loose.push("0,k1,1").counts == counts(appended=1)


@pytest.mark.parametrize("preprocess", ["", "select * from input where k <> ''k2''"])
def test_halves_of_a_correction_stay_adjacent_in_any_split(dataset, store, spark, monkeypatch, preprocess):
    """V5: Spark's numbers have gaps between parts of a file, and a query may drop rows in between."""
    from backstory.engine import staging

    monkeypatch.setattr(staging, "FEW_ROWS", 0)
    monkeypatch.setattr(staging, "ROWS_IN_GROUP", 2)
    monkeypatch.setattr("backstory.engine.tasks.FEW", 0)
    before = {name: spark.conf.get(name) for name in CUTTING}
    for name, value in CUTTING.items():
        spark.conf.set(name, value)
    try:
        life = dataset(CHANGELOG, preprocess=query(preprocess) if preprocess else "")
        life.store = replace(store, memory=Memory(0))  # plan in tasks
        between = "0,k2,x 1,k2,x" if preprocess else ""
        assert life.push(f"0,k1,1 2,k1,1 {between} 3,k1,2 0,k3,3").counts == counts(appended=2, corrected=1)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_a_strict_changelog_accepts_late_and_missing_event_times(dataset):  # R58: V1 to V7 all hold
    """A retraction without an event time means the stored one, and late times are accepted."""
    life = dataset(CHANGELOG, columns="op INT, event_time TIMESTAMP, k STRING, v STRING")
    life.push("0,2024-02-01T00:00:00Z,k1,1 0,,k2,")
    life.push("2,2024-02-01T00:00:00Z,k1,1 3,2024-01-05T00:00:00Z,k1,2 1,,k2, 0,,k2,x")
    life.push("1,,k1,2")
    assert life.refused("1,2024-03-01T00:00:00Z,k2,x", code="unlike-current").keys == [{"k": "k2"}]
    assert life.log() == lines("""
        0 +A s1 e32 k1 1
        1 +A s1 e1  k2 -
        2 -C s2 e32 k1 1
        3 +C s2 e5  k1 2
        4 -R s2 e1  k2 -
        5 +A s2 e2  k2 x
        6 -R s3 e5  k1 2
    """)
    assert life.newest().event["watermark"].startswith("2024-02-01")


def test_a_changelog_with_schema_validation_accepts_any_content(dataset):  # R60, R56
    """Only the columns are checked: `op` must exist and have one of the four values."""
    life = dataset("{kind: changelogStream, primaryKey: [k], validation: schema}")
    assert life.push("1,k7,x 0,k1,1 0,k1,1 3,k1,2").counts == counts(appended=2, retracted=1, corrected=1)
    assert [row["op"] for row in life.rows()] == [1, 0, 0, 3]
    life.refused("5,k1,1", code="wrong-op")
    bare = dataset(CHANGELOG, columns="", read="{kind: csv, header: true, inferSchema: true}")
    error = bare.refused("k1,1", header="k,v", code="bad-input-schema")
    assert error.keys == ["op"]


def test_an_exported_snapshot_is_a_strict_changelog(dataset, tmp_path):  # R61
    """Its rows, pushed commit by commit, give the same log, row by row."""
    life = dataset("{kind: snapshot, primaryKey: [k], encoding: op}", columns="k STRING, v STRING")
    for text in ("A,1 B,2 C,", "B,3 C, D,4", "A,9 B,3 C,x"):
        life.push(text)
    again = dataset(CHANGELOG, columns="op INT, event_time TIMESTAMP, k STRING, v STRING")
    for number in (1, 2, 3):
        path = tmp_path / f"export-{number}.csv"
        rows = life.frame.where(f"system_time = timestamp'{life.rows()[-1]['system_time']:%Y}-01-0{number}'")
        exported = rows.orderBy("offset").select("op", "event_time", "k", "v").toArrow()
        pa_csv.write_csv(exported, path, pa_csv.WriteOptions(quoting_style="needed"))
        again.push_files(path, event_time=e(number))
    assert again.log() == life.log()
    assert len(life.log()) == 3 + 4 + 4
