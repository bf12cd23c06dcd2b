"""Append, Ledger and Snapshot from source to table (odf-ingest.md, sections 2.1 to 2.4, 2.7 and 3.1)."""

import math
import random
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, counts, e, lines, s

from backstory.doors.odf import door
from backstory.errors import UsageError
from backstory.model.receipt import exit_code

LEDGER = "year INT NOT NULL, city STRING, population INT"
BY_CITY = "{kind: snapshot, primaryKey: [k], encoding: op}"
YEAR = "{kind: setVocab, eventTimeColumn: year}"
P3 = "2020,vancouver,1 2020,seattle,2 2020,kyiv,3"


@pytest.fixture
def dataset(store, tmp_path):
    return partial(Dataset, store, tmp_path, namespace="odf_merging")


# Append


def test_append_stores_every_row_again(dataset):  # R25, R16, B13d, section 2.2
    """Duplicates and repeated ingests are appended. One commit has one system time."""
    life = dataset("{kind: append}", "city STRING, population INT")
    assert life.push("A,1000 B,2000 B,2000").counts == counts(appended=3)
    assert life.push("A,1000").offsets == (3, 3)
    assert list(life.rows()[0]) == ["offset", "system_time", "event_time", "city", "population"]
    assert life.log() == lines("""
        0 s1 e1 A 1000
        1 s1 e1 B 2000
        2 s1 e1 B 2000
        3 s2 e2 A 1000
    """)
    # A late delivery gets the next offset, and the watermark stays (R34, O16).
    late = life.push("C,1", event_time=e(1.5))
    assert (late.counts, late.offsets, late.watermark) == (counts(appended=1, late=1), (4, 4), e(2))


def test_append_can_store_operations(dataset):  # O11, R13, R24
    """`encoding: op` adds the column. Rows of one time are sorted by all other columns, NULL first."""
    vocab = "{kind: setVocab, offsetColumn: nr, operationTypeColumn: what, systemTimeColumn: learnt, eventTimeColumn: at}"
    life = dataset("{kind: append, encoding: op}", "b STRING, a INT", after=(vocab,))
    life.push("x,2 ,2 x,1 x,")
    assert list(life.rows()[0]) == ["nr", "what", "learnt", "at", "b", "a"]
    assert life.data("nr", "what", "b", "a") == [
        *((0, 0, None, 2), (1, 0, "x", None), (2, 0, "x", 1), (3, 0, "x", 2)),
    ]


# Ledger


def test_a_ledger_appends_only_new_events(dataset):  # R26, R27, R34, B1, B3, B42
    """Events that are missing from the source are kept, and a late one gets the next offset."""
    life = dataset("{kind: ledger, primaryKey: [year, city]}", LEDGER, after=(YEAR,))
    assert life.push(P3).counts == counts(appended=3)
    assert life.log() == lines("""
        0 s1 2020 kyiv      3
        1 s1 2020 seattle   2
        2 s1 2020 vancouver 1
    """)
    with life.unchanged():  # R22
        middle = life.push("2020,seattle,2")
    assert (middle.status, middle.counts, middle.offsets) == ("up-to-date", counts(unchanged=1), None)
    more = life.push(f"2019,kyiv,0 {P3} 2021,kyiv,4")
    assert (more.counts, more.offsets) == (counts(appended=2, unchanged=3, late=1), (3, 4))
    assert more.watermark == datetime(2021, 1, 1, tzinfo=UTC)
    late = life.push("2018,kyiv,9")
    assert (late.counts, late.watermark) == (counts(appended=1, late=1), more.watermark)
    assert life.log(3) == lines("""
        3 s3 2019 kyiv 0
        4 s3 2021 kyiv 4
        5 s4 2018 kyiv 9
    """)


@pytest.mark.parametrize(
    ("merge", "table", "outcome"),
    [
        ("primaryKey: [city]", ["2 s2 2020 vancouver 5"], counts(appended=1, unchanged=1)),
        ("primaryKey: [year, city]", ["2 s2 2020 vancouver 5"], counts(appended=1, unchanged=1)),
        ("primaryKey: [city], eventTimeInKey: false", [], counts(unchanged=1, conflicts=1)),
    ],
)
def test_a_ledger_event_is_identified_by_key_and_time_or_only_by_key(
    dataset, merge, table, outcome
):  # R28, R29, O4, O13
    """With a literal key, the second year of a city is a conflict, which is counted and dropped."""
    life = dataset(f"{{kind: ledger, {merge}}}", LEDGER, after=(YEAR,))
    assert ("L1" in [lint.code for lint in life.add().lints]) == ("false" in merge)
    if "false" in merge:
        assert life.refused("2019,kyiv,1 2020,kyiv,2", code="conflicting-rows").keys == [{"city": "kyiv"}]
    life.push("2019,vancouver,1 2019,seattle,2")
    assert life.push("2019,seattle,2 2020,vancouver,5").counts == outcome
    assert life.log(2) == [line.replace("s2", f"s{life.deliveries}") for line in table]


def test_the_manifest_decides_how_a_ledger_conflict_is_handled(dataset):  # R30, O9, O16
    """The pull fails and names the key, or a pair with the old and the new row corrects it."""
    merge = "{kind: ledger, primaryKey: [k], eventTimeInKey: false, encoding: op, onConflict: %s}"
    life = dataset(merge % "error", "k STRING, v INT")
    life.push("A,1 B,2")
    assert life.refused("A,9 B,2 C,3", code="ledger-conflict").keys == [{"k": "A"}]
    life.add(merge=merge % "correct")
    assert life.push("A,9 B,2 C,3").counts == counts(appended=1, corrected=1, unchanged=1)
    assert life.push("A,9 B,2").counts == counts(unchanged=2)
    # The next rows are compared with the corrected ones. Two different corrections are refused.
    assert life.refused("A,1 A,2", code="conflicting-rows").keys == [{"k": "A"}]
    assert life.push("A,").counts == counts(corrected=1)
    assert life.log() == lines("""
        0 +A s1 e1 A 1
        1 +A s1 e1 B 2
        2 -C s3 e1 A 1
        3 +C s3 e3 A 9
        4 +A s3 e3 C 3
        5 -C s6 e3 A 9
        6 +C s6 e6 A -
    """)


def test_the_source_of_a_correction_needs_its_encoding(dataset):  # O11
    """Without `encoding: op`, the table cannot store a correction, so the manifest is refused."""
    with pytest.raises(UsageError, match="encoding op"):
        dataset("{kind: ledger, primaryKey: [k], onConflict: correct}", "k STRING").add()


def test_rows_of_an_unseen_ledger_key(dataset):  # R31, R32, D5, D6, O8
    """Identical rows are one. Different rows and NULL keys refuse the batch, with the count and ten keys."""
    life = dataset("{kind: ledger, primaryKey: [k, l]}", "k STRING, l INT, v INT")
    twice = " ".join(f"k{number:02},1,{value}" for number in range(12) for value in (1, 2))
    error = life.refused(twice, code="conflicting-rows")
    assert "share a primary key" in error.message
    assert len(error.keys) == 10
    assert error.keys[0].keys() == {"k", "l"}
    error = life.refused("A,1,1 ,1,1 B,,1 C,3,1", code="null-key")
    assert error.message.startswith("2 rows of ")
    assert sorted(error.keys, key=str) == [{"k": "B", "l": None}, {"k": None, "l": 1}]
    assert error.remedy
    assert life.push("A,1,1 A,1,1 B,1,").counts == counts(appended=2)
    # A repeated known key is dropped, and each of its rows counts (section 2.3).
    again = life.push("A,1,1 A,1,1 A,1,2 A,1,3", event_time=e(life.deliveries))
    assert again.counts == counts(unchanged=2, conflicts=2)


def test_a_ledger_row_without_a_time_is_identified_by_its_key(dataset):  # O13, R17
    """It refers to the event of its key. An unknown one gets the fallback time, and given times are kept."""
    life = dataset("{kind: ledger, primaryKey: [k]}", "event_time TIMESTAMP, k STRING, v INT")
    life.push("2024-03-01T00:00:00Z,A,1 ,B,2")
    assert life.push(",A,1 ,A,2 ,B,2").counts == counts(unchanged=2, conflicts=1)
    assert life.push("2024-03-02T00:00:00Z,A,1").counts == counts(appended=1)
    assert life.log() == lines("""
        0 s1 e1  B 2
        1 s1 e61 A 1
        2 s3 e62 A 1
    """)


def test_a_ledger_key_with_a_missing_event_time_is_refused(dataset):  # D4, R33
    """NULL would never match, so every ingest would append everything."""
    query = "{kind: sql, engine: spark, query: 'select k, v from input'}"
    merge = "{kind: ledger, primaryKey: [event_time, k]}"
    with pytest.raises(UsageError, match="event_time"):
        dataset(merge, "k STRING, v INT", preprocess=query).add()
    life = dataset(merge, preprocess=query)
    error = life.refused("A,1", header="k,v", code="missing-column")
    assert (error.keys, "It has k, v" in error.remedy) == (["event_time"], True)
    life.add(
        preprocess="{kind: sql, engine: spark, query: 'select k, v, timestamp(t) as event_time from input'}",
        columns="k STRING, v INT, t STRING",
    )
    error = life.refused("A,1,2024-01-01 B,1,", code="null-key")
    assert error.message.startswith("1 row of ")


@pytest.mark.parametrize(
    "merge",
    [
        "{kind: ledger, primaryKey: [k, foo]}",
        "{kind: snapshot, primaryKey: [foo]}",
        "{kind: snapshot, primaryKey: [k], compareColumns: [foo]}",
        "{kind: upsertStream, primaryKey: [k, foo]}",
    ],
)
def test_an_unknown_column_in_merge_is_refused(dataset, merge):  # R33, B5, L2
    """If columns are declared, it fails before fetching. Otherwise the batch is refused."""
    life = dataset(merge, "k STRING, v INT")
    with pytest.raises(UsageError) as refused:
        life.add()
    assert "foo" in str(refused.value)
    assert not life.known
    life = dataset(merge)
    error = life.refused("A,1", header="k,v", code="missing-column")
    assert error.keys == ["foo"]


# Snapshot

LIFE = (
    ("A,1000 B,2000 C,3000", counts(appended=3)),
    ("D,4000 C,3000 B,2500", counts(appended=1, retracted=1, corrected=1, unchanged=1)),
    ("B,2500 C,3000 D,4000", counts(unchanged=3)),
    ("A,1000 B,2500 C,3000 D,4000", counts(appended=1, unchanged=3)),
    ("", counts(retracted=4)),
    ("", counts()),
)
IN_PAIRS = """
    0  +A s1 e1 A 1000
    1  +A s1 e1 B 2000
    2  +A s1 e1 C 3000
    3  -R s2 e1 A 1000
    4  -C s2 e1 B 2000
    5  +C s2 e2 B 2500
    6  +A s2 e2 D 4000
    7  +A s4 e4 A 1000
    8  -R s5 e4 A 1000
    9  -R s5 e2 B 2500
    10 -R s5 e1 C 3000
    11 -R s5 e2 D 4000
"""
OBSERVED = """
    0  s1 e1 I A 1000
    1  s1 e1 I B 2000
    2  s1 e1 I C 3000
    3  s2 e2 D A 1000
    4  s2 e2 U B 2500
    5  s2 e2 I D 4000
    6  s4 e4 I A 1000
    7  s5 e5 D A 1000
    8  s5 e5 D B 2500
    9  s5 e5 D C 3000
    10 s5 e5 D D 4000
"""


@pytest.mark.parametrize(
    ("merge", "table", "names"),
    [
        (BY_CITY, IN_PAIRS, ["offset", "op", "system_time", "event_time"]),
        ("{kind: snapshot, primaryKey: [k]}", OBSERVED, ["offset", "system_time", "event_time", "observed"]),
    ],
    ids=["op", "observed"],
)
def test_the_life_of_a_snapshot(
    dataset, merge, table, names
):  # R35, R22, R37, R38, R45, O2, O3, O11, O16, O19
    """The log is section 2.4's table, in pairs and in letters. Without a change there is no commit."""
    life = dataset(merge, "k STRING, v INT")
    offsets = []
    for text, outcome in LIFE:
        before = life.commits() if life.known else 0
        receipt = life.push(text)
        assert receipt.counts == outcome
        assert life.commits() - before == bool(receipt.offsets)
        assert receipt.status == ("updated" if receipt.offsets else "up-to-date")
        offsets.append(receipt.offsets)
    assert list(life.rows()[0]) == [*names, "k", "v"]
    assert life.log() == lines(table)
    assert [first for first, _ in filter(None, offsets)] == ([0, 3, 7, 8] if "op" in names else [0, 3, 6, 7])
    assert receipt.watermark == (e(4) if "op" in names else e(5))  # R19: the greatest event time so far
    assert receipt.notes == ()


def test_snapshots_of_the_reference(dataset):  # R36, B8, B10, B50, R15
    """The order of rows does not matter. Events are sorted by key, then by operation."""
    life = dataset("{kind: snapshot, primaryKey: [k], encoding: op}", "k STRING, v INT")
    life.push("C,3000 A,1000 D,4000 B,2000")
    assert life.push("D,4000 C,3000 B,2000 A,1000").status == "up-to-date"
    life.push("D,5000 C,3000 B,4000")
    assert life.log() == lines("""
        0 +A s1 e1 A 1000
        1 +A s1 e1 B 2000
        2 +A s1 e1 C 3000
        3 +A s1 e1 D 4000
        4 -R s3 e1 A 1000
        5 -C s3 e1 B 2000
        6 +C s3 e3 B 4000
        7 -C s3 e1 D 4000
        8 +C s3 e3 D 5000
    """)


def test_preprocess_computes_the_rows_of_a_snapshot(dataset):  # R36, B30
    """Queries read `input` and earlier steps. Old rows keep their event time."""
    query = "{kind: sql, engine: datafusion, queries: [{alias: ten, query: 'select city, population * 10 as population from input'}, {query: 'select city, population + 1 as population from ten;'}]}"
    merge = "{kind: snapshot, primaryKey: [city], encoding: op}"
    life = dataset(merge, "city STRING, population INT", preprocess=query, fetch="{kind: url, url: data.csv}")
    life.pull("city,population\nA,1000\nB,2000\nC,3000\n")
    receipt = life.pull("city,population\nA,1000\nB,2000\nC,4000\n")
    assert receipt.watermark == e(2)
    assert life.log() == lines("""
        0 +A s1 e1 A 10001
        1 +A s1 e1 B 20001
        2 +A s1 e1 C 30001
        3 -C s2 e1 C 30001
        4 +C s2 e2 C 40001
    """)


def test_null_and_text_changes_count_but_nan_and_zero_signs_do_not(dataset, tmp_path):  # R39, R43
    """NULL differs from a value and from an empty text. NaN equals NaN, and 0.0 equals -0.0."""
    life = dataset("{kind: snapshot, primaryKey: [k], encoding: op}", read="{kind: parquet}")

    def push(**values):
        path = tmp_path / f"{life.deliveries}.parquet"
        types = pa.schema([("k", pa.string()), ("x", pa.float64()), ("t", pa.string())])
        rows = [{"k": key, "x": x, "t": t} for key, (x, t) in values.items()]
        pq.write_table(pa.Table.from_pylist(rows, types), path)
        return life.push_files(path).counts

    nan = math.nan
    push(a=(None, None), b=(nan, "x"), c=(0.0, ""), d=(1.0, "x "), e=(None, None))
    same = push(a=(None, None), b=(nan, "x"), c=(-0.0, ""), d=(1.0, "x "), e=(None, None))
    assert same == counts(unchanged=5)
    other = push(a=(0.0, None), b=(None, "x"), c=(0.0, None), d=(1.0, "x"))
    assert other == counts(corrected=4, retracted=1)
    back = push(a=(None, None), b=(nan, "x"), c=(0.0, ""), d=(1.0, "X"), e=(None, None))
    assert back == counts(corrected=4, appended=1)
    assert [tuple(map(str, row)) for row in life.data("k", "t")][5:9] == [
        *(("a", "None"), ("a", "None"), ("b", "x"), ("b", "x")),
    ]


def test_a_moved_event_time_of_the_source_is_a_change(dataset):  # R40, R17, O21
    """Moves in both directions count. A missing time is not a change, and the stored one is kept."""
    life = dataset(BY_CITY, "k STRING, v INT, event_time TIMESTAMP")
    life.push("A,1,2024-02-01T00:00:00Z B,1,")
    assert life.push("A,1, B,1,").counts == counts(unchanged=2)
    assert life.push("A,1,2024-02-02T00:00:00Z B,1,").counts == counts(corrected=1, unchanged=1)
    assert life.push("A,1,2024-02-01T00:00:00.000001Z B,2,").counts == counts(corrected=2)
    assert life.log(2) == lines("""
        2 -C s3 e32 A 1
        3 +C s3 e33 A 1
        4 -C s4 e33 A 1
        5 +C s4 2024-02-01T00:00:00.000001Z A 1
        6 -C s4 e1  B 1
        7 +C s4 e4  B 2
    """)


def test_only_compared_columns_make_a_change(dataset):  # R41
    """Other changes wait until a compared column changes. The pair then has the full rows, old and new."""
    life = dataset(
        "{kind: snapshot, primaryKey: [id], compareColumns: [ver], encoding: op}",
        "id INT, ver INT, val STRING",
    )
    life.push("1,1,a")
    assert life.push("1,1,A").status == "up-to-date"
    life.push("1,2,A!!")
    assert life.log() == lines("""
        0 +A s1 e1 1 1 a
        1 -C s3 e1 1 1 a
        2 +C s3 e3 1 2 A!!
    """)


def test_rows_without_values_are_added_and_removed(dataset):  # R42, R43, R44
    """Rows with only keys or only NULL are added and removed. A returning row is appended."""
    keys = dataset(BY_CITY, "k STRING")
    keys.push("A B")
    assert keys.push("B C").counts == counts(appended=1, retracted=1, unchanged=1)
    assert keys.push("A B C").counts == counts(appended=1, unchanged=2)
    empty = dataset(BY_CITY, "k STRING, v INT")
    empty.push("A, B,")
    assert empty.push("B, C,").counts == counts(appended=1, retracted=1, unchanged=1)
    assert empty.push("A,7 B, C,").counts == counts(appended=1, unchanged=2)  # with another value
    assert empty.log(2) == lines("""
        2 -R s2 e1 A -
        3 +A s2 e2 C -
        4 +A s3 e3 A 7
    """)


def test_a_snapshot_with_doubtful_keys_is_refused(dataset):  # R47, D9 to D11, D19, O8
    """NULL in a key column, or different rows of one key, refuse the snapshot. Identical rows are one."""
    life = dataset("{kind: snapshot, primaryKey: [k, l]}", "k STRING, l STRING, v INT")
    assert life.push("A,x,1 A,x,1 B,x,1").counts == counts(appended=2)
    assert life.refused("A,x,1 A,x,2 B,x,1", code="conflicting-rows").keys == [{"k": "A", "l": "x"}]
    assert life.refused(",x,1 B,x,1", code="null-key").keys == [{"k": None, "l": "x"}]
    assert life.refused("A,x,1 B,,1", code="null-key").keys == [{"k": "B", "l": None}]
    assert life.push("A,x,2 A,x,2 B,x,1").counts == counts(corrected=1, unchanged=1)


def test_random_snapshots_determine_the_state_of_the_log(dataset):  # R14, R16, R37, R38, R48, R49, R50
    """The state of the log is the last snapshot, events follow the pattern, and a repeated one adds nothing."""
    life, chance = dataset(BY_CITY, "k STRING, v INT, w INT"), random.Random(7)
    last = {}
    for _ in range(5):
        keys = chance.sample("ABCDEFGHIJ", chance.randint(2, 9))
        last = {key: (chance.choice([1, 2, None]), chance.choice([1, None])) for key in keys}
        rows = [",".join([key, *("" if each is None else str(each) for each in last[key])]) for key in keys]
        life.push(" ".join(rows))
    with life.unchanged():
        assert life.push(" ".join(rows)).counts == counts(unchanged=len(last))
    log = life.rows()
    assert [row["offset"] for row in log] == list(range(len(log)))
    assert [row["system_time"] for row in log] == sorted(row["system_time"] for row in log)
    state, pattern = {}, {}
    for number, row in enumerate(log):
        if row["op"] in {1, 2}:
            before, what = state.pop(row["k"]), ("v", "w", "event_time")
            assert [before[name] for name in what] == [row[name] for name in what]  # R37
        else:
            state[row["k"]] = row
        if row["op"] == 2:
            assert (log[number + 1]["op"], log[number + 1]["k"]) == (3, row["k"])  # R38
        pattern.setdefault(row["k"], []).append(row["op"])
    assert {key: (row["v"], row["w"]) for key, row in state.items()} == last
    for ops in pattern.values():
        text = "".join(map(str, ops)).replace("23", "")
        assert text.replace("01", "") in {"", "0"}  # R49: `+A (-C +C)* -R`, and again, or still there


# Pulls


def test_each_file_of_a_glob_is_a_commit(dataset):  # O17, R76, section 2.4 "Several files"
    """Files are committed in name order, with the time in their path. Files before a broken one are kept."""
    glob = "{kind: filesGlob, path: 'day-*.csv', eventTime: {kind: fromPath, pattern: 'day-(.*).csv'}}"
    life = dataset(BY_CITY, "k STRING, v INT", fetch=glob)
    life.folder.mkdir(exist_ok=True)
    for day, rows in (("02-01", "A,1\nB,1"), ("02-02", "A,2\nB,1"), ("02-03", "A,2\nB,x"), ("02-04", "A,3")):
        (life.folder / f"day-2024-{day}.csv").write_text(f"k,v\n{rows}\n")
    broken = life.pull()
    error = life.error(broken, "unreadable-value")
    assert (broken.counts, broken.offsets) == (counts(appended=2, corrected=1, unchanged=1), (0, 3))
    assert "day-2024-02-03.csv, line 3, column `v`" in error.message  # R69
    assert (life.commits(), life.newest().event["file"]) == (2, "day-2024-02-02.csv")
    (life.folder / "day-2024-02-03.csv").write_text("k,v\nA,2\nB,2\n")
    receipt = life.pull()
    assert (receipt.counts, receipt.offsets) == (counts(corrected=2, retracted=1, unchanged=1), (4, 8))
    assert (receipt.status, receipt.watermark, receipt.system_time) == ("updated", e(35), s(2))
    assert life.commits() == 4
    assert life.log(4) == lines("""
        4 -C s2 e32 B 1
        5 +C s2 e34 B 2
        6 -C s2 e33 A 2
        7 +C s2 e35 A 3
        8 -R s2 e34 B 2
    """)
    with life.unchanged():
        assert life.pull().status == "up-to-date"


def test_system_time_never_decreases(dataset):  # R16, O19
    """An earlier time is raised to the last one, with a warning."""
    life = dataset("{kind: append}", "k STRING")
    life.push("A", system_time=s(5))
    receipt = life.push("B", system_time=s(3))
    assert receipt.system_time == s(5)
    assert "raised" in receipt.notes[0]
    before = datetime.now(UTC)
    late = dataset("{kind: append}", "k STRING")
    now = late.push("A", system_time=None).system_time  # by default it is now
    assert before <= now <= before + timedelta(minutes=5)
    assert life.data("system_time") == [(s(5),), (s(5),)]


def test_a_failed_dataset_does_not_stop_other_datasets(dataset, store):  # O15
    """Each dataset has a receipt. The exit code is the most serious one."""
    polling = {"fetch": "{kind: url, url: data.csv}", "columns": "k STRING, v INT"}
    good, bad, gone = (dataset("{kind: append}", **polling) for _ in range(3))
    for life, file in ((good, "good.csv"), (bad, "bad.csv"), (gone, "gone.csv")):
        life.add(fetch=f"{{kind: url, url: {file}}}")
    (good.folder / "good.csv").write_text("k,v\nA,1\n")
    (good.folder / "bad.csv").write_text("k,v\nA,one\n")
    heard = []
    names = [life.name.upper() for life in (gone, bad, good)]  # names compare without case (R7)
    receipts = door.pull_all(
        store,
        names,
        door.IngestRequest(system_time=s(1)),
        namespace=good.namespace,
        watcher=door.Watcher(ended=heard.append),
    )
    assert [receipt.status for receipt in receipts] == ["failed", "failed", "updated"]
    assert [receipt.error and receipt.error.code for receipt in receipts] == [
        "not-found",
        "unreadable-value",
        None,
    ]
    assert (heard, exit_code(receipts)) == (receipts, 3)
    listed = {each["dataset"]: each for each in door.list_datasets(store, namespace=good.namespace)}
    assert (listed[good.name]["records"], listed[bad.name]["records"]) == (1, 0)
    with pytest.raises(UsageError, match="no dataset"):
        door.pull_all(store, ["unknown"], door.IngestRequest(), namespace=good.namespace)
