"""Guards of a dataset: refusals without changes, one commit per pull, names of any kind."""

from datetime import datetime
from functools import partial

import pytest
from datasets import Dataset, counts, e, lines, s

from backstory.doors.odf import door
from backstory.errors import UsageError

APPEND, SNAPSHOT = "{kind: append}", "{kind: snapshot, primaryKey: [k]}"
KV = "k STRING, v INT"
POLLING = "{kind: url, url: data.csv}"
INFERRED = "{kind: csv, header: true, inferSchema: true}"
MORE = {"name": "more", "type": {"kind": "Option", "inner": {"kind": "String"}}}


@pytest.fixture
def dataset(store, tmp_path):
    return partial(Dataset, store, tmp_path, namespace="odf_guards")


def query(text: str) -> str:
    return f'{{kind: sql, engine: spark, query: "{text}"}}'


# Implausible snapshots


def test_a_snapshot_may_not_retract_too_much(dataset):  # R46, section 2.4
    """More than the fraction is refused with keys, exactly the fraction is not, and above a half there is a
    warning."""
    merge = "{kind: snapshot, primaryKey: [k], maxRetract: %s}"
    life = dataset(merge % 0.5, KV)
    life.push("A,1 B,1 C,1 D,1")
    error = life.refused("A,2 E,1", code="too-many-retracted")
    assert "3 of 4 records" in error.message
    assert sorted(key["k"] for key in error.keys) == ["B", "C", "D"]
    assert "maxRetract" in error.remedy
    half = life.push("A,2 B,1 E,1")
    assert (half.counts, half.notes) == (counts(appended=1, corrected=1, retracted=2, unchanged=1), ())
    assert life.refused("", code="too-many-retracted").keys
    life.add(merge=SNAPSHOT)
    emptied = life.push("")
    assert emptied.counts == counts(retracted=3)
    assert "retracts 3 of 3 records" in emptied.notes[0]
    strict = dataset(merge % 0, KV)
    strict.push("A,1")
    assert strict.refused("B,1", code="too-many-retracted").keys == [{"k": "A"}]
    exact = dataset(merge % 0.29, KV)
    exact.push(" ".join(f"{n},1" for n in range(100)))
    assert exact.push(" ".join(f"{n},1" for n in range(71))).counts == counts(retracted=29, unchanged=71)


def test_a_late_snapshot_causes_a_warning_or_a_refusal(
    dataset,
):  # section 2.4: a batch older than the last one
    """By default it is an ordinary difference. `onLateSnapshot: error` refuses it."""
    life = dataset(SNAPSHOT, KV)
    life.push("A,1")
    life.push("A,2")
    late = life.push("A,1", event_time=e(1))
    assert (late.counts, late.watermark) == (counts(corrected=1), e(2))
    assert "older than the last one" in late.notes[0]
    assert life.log(2) == ["2 s3 e1 U A 1"]
    life.add(merge="{kind: snapshot, primaryKey: [k], onLateSnapshot: error}")
    assert life.refused("A,3", code="late-snapshot", event_time=e(1)).remedy
    assert life.push("A,3", event_time=e(2)).counts == counts(corrected=1)


def test_a_snapshot_without_a_time_can_be_late(dataset):
    """Its time is the beginning of its run, whatever system time its events get."""
    warned = dataset(SNAPSHOT, KV)
    strict = dataset("{kind: snapshot, primaryKey: [k], onLateSnapshot: error}", KV)
    for life in (warned, strict):
        life.push("A,1", event_time=None, system_time=s(5))
        life.push("A,2", event_time=None, system_time=s(9))
    assert "older than the last one" in str(warned.push("A,1", event_time=None, system_time=s(7)).notes)
    assert strict.refused("A,1", code="late-snapshot", event_time=None, system_time=s(7)).remedy


def test_an_empty_snapshot_file_needs_columns_to_retract_records(dataset):  # R45, R23, B34
    """With columns, it retracts everything once. Without them, only the source's state is stored."""
    life = dataset("{kind: snapshot, primaryKey: [k], encoding: op}", read=INFERRED, fetch=POLLING)
    empty = life.pull("")
    assert (empty.status, empty.counts, empty.watermark) == ("up-to-date", counts(), None)
    assert (life.commits(), life.newest().offsets) == (1, None)
    assert life.pull("k,v\nA,1\nB,2\n").counts == counts(appended=2)
    state_only = life.pull("")
    assert (state_only.counts, state_only.watermark, life.commits()) == (counts(), e(2), 3)
    assert life.pull("k,v\n").counts == counts(retracted=2)
    # Only the source's state is new, so the commit has no rows and repeats the watermark.
    again = life.pull("k,v\n")
    assert (again.status, again.offsets, again.watermark, life.commits()) == ("up-to-date", None, e(2), 5)
    assert life.log() == lines("""
        0 +A s2 e2 A 1
        1 +A s2 e2 B 2
        2 -R s4 e2 A 1
        3 -R s4 e2 B 2
    """)
    declared = dataset(SNAPSHOT, read="{kind: ndJson, ddlSchema: [k STRING, v INT]}")
    declared.push_texts('{"k": "A", "v": 1}\n', ending="json")
    assert declared.push_texts("", ending="json").counts == counts(retracted=1)
    # A CSV file without its promised header was cut off.
    cut = dataset(SNAPSHOT, KV)
    cut.push("A,1")
    with cut.unchanged():
        cut.error(cut.push_texts(""), "broken-csv")


# Reserved names


RESERVED = [
    (APPEND, "offset"),
    (APPEND, "system_time"),
    (APPEND, "op"),
    ("{kind: ledger, primaryKey: [k]}", "op"),
    (SNAPSHOT, "op"),
    (SNAPSHOT, "observed"),
    ("{kind: upsertStream, primaryKey: [k]}", "system_time"),
]


def test_a_reserved_column_is_refused(dataset):  # R20, L10, O11, 2.1 step 1
    """The lint refuses a declared one. One from a query is refused before anything is written."""
    lives = {merge: dataset(merge) for merge, _ in RESERVED}
    for merge, name in RESERVED:
        with pytest.raises(UsageError, match=name):
            dataset(merge, f"k STRING, {name} INT").add()
        made = query(f"select k, 1 as {name} from input")
        with pytest.raises(UsageError, match=name):
            dataset(merge, "k STRING", preprocess=made).add()
        life = lives[merge]
        life.add(preprocess=made)
        assert life.refused("A", header="k", code="bad-input-schema").keys == [name]


def test_an_inferred_column_with_a_reserved_name_is_renamed(dataset):  # B40, D32
    """It gets a leading `_`. `observed` is free in a table without that column."""
    life = dataset(APPEND, read="{kind: ndJson}")
    life.push_texts('{"op": 123, "foo": "bar", "offset": 1, "observed": "U"}\n', ending="json")
    [row] = life.rows()
    assert list(row) == ["offset", "system_time", "event_time", "_op", "foo", "_offset", "observed"]
    assert list(row.values())[3:] == [123, "bar", 1, "U"]
    snapshot = dataset(SNAPSHOT, read="{kind: ndJson}")
    snapshot.push_texts('{"k": "A", "observed": "U"}\n', ending="json")
    assert snapshot.log() == ["0 s1 e1 I A U"]
    assert list(snapshot.rows()[0])[-1] == "_observed"
    both = dataset(APPEND, read="{kind: ndJson}")
    error = both.error(both.push_texts('{"op": 1, "_op": 2}\n', ending="json"), "bad-input-schema")
    assert error.keys == ["op"]


# Failures


def test_a_failed_run_changes_nothing(dataset):  # R21, R69
    """After unreadable rows, a query that does not fit, or one that fails, the next run works."""
    life = dataset(APPEND, KV)
    life.push("A,1")
    many = " ".join(f"k{number},{number}" for number in range(3000))
    error = life.refused(f"{many} B,many", code="unreadable-value")
    assert "line 3002, column `v`: `many`" in error.message
    life.refused("B,1,2", code="broken-csv")
    assert life.refused("B", header="k", code="missing-column").keys == ["v"]
    with life.unchanged(), pytest.raises(UsageError) as refused:
        life.add(preprocess=query("select k, nowhere as v from input"))
    assert (refused.value.code, "nowhere" in refused.value.message) == ("wrong-query", True)
    assert "k, v" in refused.value.remedy
    life.add(preprocess=query("select k, cast(if(k = 'B', 'x', '7') as int) as v from input"))
    error = life.refused("A,1 B,1", code="query-failed")
    assert "CAST_INVALID_INPUT" in error.message
    life.add(preprocess="")
    assert life.push("C,3").offsets == (1, 1)


def test_a_missing_file_fails_the_push(dataset):  # O15
    """The pull fails with 1, and earlier files are kept."""
    life = dataset(APPEND, KV)
    life.add()
    good = life.folder / "good.csv"
    good.write_text("k,v\nA,1\n")
    receipt = life.push_files(good, life.folder / "gone.csv")
    life.error(receipt, "not-found", exit_code=1)
    assert (receipt.counts, receipt.offsets, life.commits()) == (counts(appended=1), (0, 0), 1)


# Commits


def test_a_pull_makes_at_most_one_commit(dataset):  # R22, R23, R21, O10, O20, E2
    """Rows or a new state make one commit. An unchanged or failing source makes none."""
    life = dataset(SNAPSHOT, KV, fetch=POLLING)
    assert life.pull("k,v\nA,1\n").status == "updated"
    assert life.commits() == 1
    with life.unchanged():  # the file was not modified
        untouched = life.pull()
    assert (untouched.status, untouched.watermark, untouched.system_time) == ("up-to-date", e(1), s(1))
    touched = life.pull("k,v\nA,1\n", modified=e(9))
    assert (touched.status, touched.counts["unchanged"], touched.watermark) == ("up-to-date", 1, e(1))
    assert (life.commits(), life.newest().offsets) == (2, None)
    with life.unchanged():
        life.error(life.pull("k,v\n,1\n", modified=e(10)), "null-key")
    assert life.pull("k,v\nA,2\n", modified=e(11)).offsets == (1, 1)  # the failed state was not saved
    dry = life.pull("k,v\nB,2\n", modified=e(12), dry_run=True)
    assert (dry.counts, dry.offsets, life.commits()) == (counts(appended=1, retracted=1), (2, 3), 3)
    assert life.pull().counts == dry.counts  # R90
    operations = [each.operation() for each in life.table.iceberg.snapshots()]
    assert operations == ["append"] * 4  # R84: files are added, and never changed
    assert {
        file[0] for file in life.store.spark.sql(f"select distinct content from {files_of(life)}").collect()
    } == {0}


def files_of(life) -> str:
    return f"{life.store.catalog}.`{life.namespace}`.`{life.name}`.all_files"


def test_every_commit_can_be_read_again(dataset):  # R87, R14, R16
    """By table version, offset and system time, the rows are the same."""
    life = dataset(SNAPSHOT, KV)
    for text in ("A,1 B,1", "B,2", "B,2 C,1"):
        life.push(text)
    rows, offsets = life.rows(), []
    for snapshot in life.table.iceberg.snapshots():
        version = life.rows(version=snapshot.snapshotId())
        last = int(snapshot.summary()["backstory.odf.offsets"].split(",")[1])
        learnt = datetime.fromisoformat(snapshot.summary()["backstory.odf.system-time"])
        assert version == [row for row in rows if row["offset"] <= last]
        assert version == [row for row in rows if row["system_time"] <= learnt]
        offsets.append(last)
    assert offsets == [1, 3, 4]


def test_a_run_is_ingested_once(dataset):  # R81
    """A repeated run id adds nothing, even in an append. Each file of a run is recognised."""
    life = dataset(APPEND, KV)
    life.add()
    files = [life.folder / f"{name}.csv" for name in "ab"]
    for number, file in enumerate(files):
        file.write_text(f"k,v\nA,{number}\n")
    assert life.push_files(*files, run_id="r1").counts == counts(appended=2)
    with life.unchanged():
        assert life.push_files(*files, run_id="r1").status == "up-to-date"
    assert life.push_files(files[0], run_id="r2").offsets == (2, 2)
    assert life.newest().event["run_id"] == "r2"


def test_the_watermark_moves_only_forward(dataset):  # O20, R19
    """Nothing is polled. An earlier watermark is refused, and late rows do not change it."""
    life = dataset(APPEND, KV, fetch=POLLING)
    life.pull("k,v\nA,1\n")
    moved = life.pull("k,v\nA,2\n", set_watermark=e(30))
    assert (moved.status, moved.offsets, moved.watermark, life.commits()) == ("updated", None, e(30), 2)
    with life.unchanged():
        life.error(life.pull(set_watermark=e(29)), "watermark-back")
    with life.unchanged():
        assert life.pull(set_watermark=e(30)).status == "up-to-date"
    late = life.pull()
    assert (late.counts, late.watermark) == (counts(appended=1, late=1), e(30))


# Sources that are switched off, and none


def test_a_disabled_source_ingests_nothing(dataset):  # R82, D31
    """Polling and push sources can be disabled and enabled again, and the dataset is kept."""
    polling = dataset(APPEND, KV, fetch=POLLING)
    polling.pull("k,v\nA,1\n")
    polling.add(after=("{kind: disablePollingSource}",))
    with polling.unchanged():
        assert polling.pull("k,v\nB,1\n").status == "disabled"
    polling.add(after=())
    assert polling.pull().counts == counts(appended=1)
    push = dataset(APPEND, KV)
    push.push("A,1")
    push.add(after=("{kind: disablePushSource, sourceName: default}",))
    with push.unchanged():
        assert push.push("B,1").status == "disabled"
    assert push.data("k") == [("A",)]


def test_pushing_and_pulling_need_their_sources(dataset):  # section 3.6 B69, O15
    """A push into a polling dataset is refused. A dataset without a source reads each file by its name."""
    polling = dataset(APPEND, KV, fetch=POLLING)
    with polling.unchanged(), pytest.raises(UsageError, match="polling source only"):
        polling.push("A,1")
    push = dataset(APPEND, KV)
    with push.unchanged(), pytest.raises(UsageError, match="no push source other"):
        push.push("A,1", source="other")
    with push.unchanged():
        assert push.pull().status == "disabled"
    bare = dataset(APPEND)
    bare.add(f"kind: DatasetSnapshot\nversion: 1\ncontent: {{name: {bare.name}, kind: Root, metadata: []}}\n")
    assert bare.push("1,x", header="n,t").counts == counts(appended=1)
    assert bare.log() == ["0 s1 e1 1 x"]
    files = {"b.csv": "n,t\n2,y\n", "c.ndjson": '{"n": 3, "t": "z"}\n', "d.xyz": ""}
    paths = [bare.folder / name for name in files]
    for path in paths:
        path.write_text(files[path.name])
    with bare.unchanged(), pytest.raises(UsageError, match=r"d\.xyz does not show the format"):
        bare.push_files(*paths)
    bare.push_files(*paths[:2])
    assert bare.data("n", "t") == [(1, "x"), (2, "y"), (3, "z")]


# Names


NAMES = [
    "a.b",
    "a b",
    "a`b",
    "[x]",
    "it's",
    'q"t',
    "Großstadt",
    "города",
    "UPPER",
    "upper",
    " ",
    "{c}",
    "x$y",
    "%s",
]


def test_any_column_name_is_supported(dataset):  # R67, B32, B38, E4
    """Any name works in keys, compared columns, queries, errors, files and tables. Names are case-sensitive."""
    header = ",".join('"' + name.replace('"', '""') + '"' for name in NAMES)
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in NAMES)
    life = dataset(
        f"{{kind: snapshot, primaryKey: [{quoted}], encoding: op}}",
        read="{kind: csv, header: true, inferSchema: true, quote: '\"', escape: '\"'}",
        fetch=POLLING,
    )
    row = ",".join(map(str, range(len(NAMES))))
    life.pull(f"{header},v\n{row},1\n")
    assert life.pull(f"{header},v\n{row},2\n").counts == counts(corrected=1)
    assert list(life.rows()[0]) == ["offset", "op", "system_time", "event_time", *NAMES, "v"]
    assert list(life.rows()[2].values())[4:] == [*range(len(NAMES)), 2]
    with life.unchanged():
        assert life.error(life.pull(f"{header},v\n{row},2\n{row},3\n"), "conflicting-rows").keys == [
            {name: number for number, name in enumerate(NAMES)}
        ]
    other = dataset(
        "{kind: snapshot, primaryKey: ['a.b'], compareColumns: ['a`b']}",
        read="{kind: ndJson}",
        preprocess="{kind: sql, engine: spark, queries: [{alias: 'a step', query: 'select `a.b`, `a``b`, LOWER from input'}, {query: 'select *, LOWER as lower from `a step`'}]}",
        after=("{kind: setVocab, eventTimeColumn: 'at. `time`', offsetColumn: 'o.n'}",),
    )
    text = '{"a.b": 1, "a`b": %d, "LOWER": %d}\n'
    other.push_texts(text % (1, 1), ending="json")
    assert other.push_texts(text % (1, 2), ending="json").counts == counts(unchanged=1)
    assert other.push_texts(text % (2, 3), ending="json").counts == counts(corrected=1)
    names = ["o.n", "system_time", "at. `time`", "observed", "a.b", "a`b", "LOWER", "lower"]
    assert list(other.rows()[1].items()) == list(zip(names, [1, s(3), e(3), "U", 1, 2, 3, 3], strict=True))


def test_a_dataset_may_have_dots_and_capitals(dataset, store):  # O18
    """The name is one table name, and another spelling is the same dataset."""
    life = dataset(APPEND, KV, name="Demo.City-2")
    life.push("A,1")
    life.name = "demo.CITY-2"
    assert life.add().status in {"unchanged", "updated"}
    life.push("B,2")
    life.name = "Demo.City-2"
    assert life.data("k") == [("A",), ("B",)]
    tables = {row[1] for row in store.spark.sql(f"show tables in {store.catalog}.{life.namespace}").collect()}
    assert {name for name in tables if "emo" in name.lower()} == {"Demo.City-2", "Demo.City-2__log"}


@pytest.mark.parametrize(
    ("statement", "words", "added"),
    [
        ("ALTER TABLE {table} ADD COLUMN more STRING", ["more was added"], [MORE]),
        ("CALL backstory.system.rewrite_data_files(table => '{name}')", [], []),
    ],
)
def test_foreign_writes_are_noted_once(dataset, statement, words, added):
    """The next delivery reports changed rows, but not moved ones. `inspect` lists added columns."""
    life = dataset(APPEND, KV)
    life.push("A,1")
    name = f"{life.namespace}.`{life.name}`"
    life.store.spark.sql(statement.format(name=name, table=f"backstory.{name}"))
    assert door.inspect(life.store, life.name, namespace=life.namespace).schema["fields"][5:] == added
    notes = life.push("B,1").notes
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)
    assert life.push("C,1").notes == ()
