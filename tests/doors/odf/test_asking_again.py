"""Repeated polls of a source: files of one name, other places, concurrent pulls (1.3, 1.4, 5.1)."""

from functools import partial

import pytest
from datasets import Dataset, counts, e
from web import Play, serving

from backstory.stores.iceberg.create import drop

APPEND = "{kind: append}"
SNAPSHOT = "{kind: snapshot, primaryKey: [k]}"
COLUMNS = "k STRING, v INT"


@pytest.fixture
def dataset(store, tmp_path):
    return partial(Dataset, store, tmp_path, columns=COLUMNS, namespace="odf_again")


@pytest.fixture
def web():
    with serving() as served:
        yield served


def put(life, **texts):
    """Create files below the dataset's folder, with `__` in a name for a slash."""
    for name, rows in texts.items():
        path = life.folder / f"{name.replace('__', '/')}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["k,v", *rows.split(), ""]), encoding="utf-8")


def glob(path, more=""):
    return f"{{kind: filesGlob, path: '{path}'{more}}}"


def test_files_with_one_name_in_several_folders_are_all_ingested(dataset):  # R76, O17
    life = dataset(APPEND, fetch=glob("*/part.csv"))
    put(life, **{"2024__part": "A,1", "2025__part": "B,2"})
    assert life.pull().counts == counts(appended=2)
    assert life.data("k") == [("A",), ("B",)]
    with life.unchanged():
        receipt = life.pull()
    assert (receipt.status, receipt.notes) == ("up-to-date", ())
    put(life, **{"2023__part": "C,3", "2026__part": "D,4"})
    receipt = life.pull()
    assert life.data("k") == [("A",), ("B",), ("D",)]
    assert receipt.notes[0].startswith("2023/part.csv sorts before 2025/part.csv")


def test_a_source_without_new_files_runs_no_job(dataset, spark):  # 5.1
    life = dataset(APPEND, fetch=glob("*.csv"))
    put(life, a="A,1")
    life.pull()
    before = jobs(spark)
    assert life.pull().status == "up-to-date"
    assert jobs(spark) == before


def jobs(spark):
    return set(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def test_forever_caching_starts_after_all_files_are_ingested(dataset):  # R75, R79
    life = dataset(APPEND, fetch=glob("*.csv", ", cache: {kind: forever}"))
    put(life, a="A,1", b="B,many", c="C,3")
    assert life.error(life.pull(), "unreadable-value")
    put(life, b="B,2")
    assert life.pull().counts == counts(appended=2)
    put(life, d="D,4")
    with life.unchanged():
        assert life.pull().status == "up-to-date"


def test_a_source_with_another_path_is_a_new_source(
    dataset,
):  # O22: the source was replaced, and its events stay
    life = dataset(APPEND, fetch=glob("old/*.csv", ", cache: {kind: forever}"))
    put(life, old__a="A,1", new__a="B,2")
    life.pull()
    life.add(fetch=glob("new/*.csv", ", cache: {kind: forever}"))
    assert life.pull().counts == counts(appended=1)
    life.add(fetch="{kind: url, url: data.csv, cache: {kind: forever}}")
    assert life.pull("k,v\nC,3\n").counts["appended"] == 1
    with life.unchanged():
        assert life.pull("k,v\nD,4\n").status == "up-to-date"
    assert life.data("k") == [("A",), ("B",), ("C",)]


def test_a_source_with_another_order_is_the_same_source(dataset):
    life = dataset(APPEND, fetch=glob("*.csv"))
    put(life, a="A,1", c="C,3")
    life.pull()
    time = ", eventTime: {kind: fromSystemTime}, order: byName"
    life.add(fetch=glob("*.csv", time))
    put(life, d="D,4")
    assert life.pull().counts == counts(appended=1)


def test_a_pull_overtaken_by_another_pull_ingests_nothing(dataset):  # R71, 5.1: state and data never disagree
    """The other pull ingests all files while this one reads its first. No file is ingested twice or lost."""
    life = dataset(APPEND, fetch=glob("*.csv"))
    put(life, a="A,1", b="B,2", c="C,3")
    others = []

    def progress(stage, _done, _total):
        if stage == "Reading data" and not others:
            others.append(None)
            others.append(life.pull())

    first = life.pull(progress=progress)
    assert (first.status, others[1].counts) == ("up-to-date", counts(appended=3))
    assert life.data("k") == [("A",), ("B",), ("C",)]
    assert life.newest().event["source_state"]["value"] == "c.csv"


def test_an_older_download_does_not_undo_a_newer_one(dataset):  # R71
    life = dataset(SNAPSHOT, fetch="{kind: url, url: data.csv}")
    life.pull("k,v\nA,1\n")
    others = []

    def progress(stage, _done, _total):
        if stage == "Reading data" and not others:
            others.append(None)
            others.append(life.pull("k,v\nA,3\n", modified=e(9)))

    assert life.pull("k,v\nA,2\n", progress=progress).status == "up-to-date"
    assert others[1].counts == counts(corrected=1)
    assert life.data("v") == [(1,), (3,)]
    assert life.newest().event["source_state"]["value"].startswith(e(9).date().isoformat())


def test_files_of_an_earlier_path_are_not_ingested_again(dataset):
    """A wrong path that is corrected, or spelled in another way, ingests nothing twice."""
    life = dataset(APPEND, fetch=glob("a/*.csv"))
    put(life, a__1="A,1", b__1="B,2")
    life.pull()
    life.add(fetch=glob("b/*.csv"))
    life.pull()
    for again in ("a/*.csv", "./a/*.csv"):
        life.add(fetch=glob(again))
        assert life.pull().counts == counts()
    assert life.data("k") == [("A",), ("B",)]


def test_a_wider_path_ingests_only_its_new_files(dataset):
    """Files of the narrower path are recognised by their location, whatever the wider path is called."""
    life = dataset(APPEND, fetch=glob("in/2025/b*.csv"))
    put(life, in__2025__b1="A,1", in__2025__a1="B,2", in__2024__b1="C,3")
    life.pull()
    life.add(fetch=glob("in/*/*.csv"))
    assert life.pull().counts == counts(appended=2)
    assert sorted(life.data("k")) == [("A",), ("B",), ("C",)]


def test_files_removed_by_a_rollback_are_ingested_again(dataset):
    life = dataset(APPEND, fetch=glob("*.csv"))
    put(life, a="A,1")
    life.pull()
    first = life.table.iceberg.currentSnapshot().snapshotId()
    put(life, b="B,2", c="C,3")
    life.pull()
    life.table.iceberg.manageSnapshots().rollbackTo(first).commit()
    assert life.data("k") == [("A",)]
    assert life.pull().counts == counts(appended=2)
    assert life.data("k") == [("A",), ("B",), ("C",)]


def test_a_recreated_dataset_starts_at_offset_zero(dataset, spark):
    life = dataset(APPEND, fetch=glob("*.csv"))
    put(life, a="A,1")
    life.pull()
    drop(life.store, life.table.shape.table)
    life.add()
    assert life.pull().offsets == (0, 0)


def test_concurrent_pulls_of_a_source_without_a_state_ingest_once(dataset, web):  # R71, R74
    """The first commit counts. The other pull ingests nothing, and the next pull continues."""
    url = web.play("/a", Play(b"k,v\nA,1\n"))
    life = dataset(APPEND, fetch=f"{{kind: url, url: '{url}'}}")
    others = []

    def progress(stage, _done, _total):
        if stage == "Reading data" and not others:
            others.append(None)
            others.append(life.pull())

    assert life.pull(progress=progress).status == "up-to-date"
    assert (others[1].status, life.data("k")) == ("updated", [("A",)])
    assert life.pull().status == "uncacheable"


def test_a_source_that_stops_reporting_a_state_has_no_state(
    dataset, web
):  # R74: data and state never disagree
    first, second = Play(b"k,v\nA,1\n", etag='"x"'), Play(b"k,v\nA,2\n")
    life = dataset(SNAPSHOT, fetch=f"{{kind: url, url: '{web.play('/a', first, second, first)}'}}")
    life.pull()
    assert life.pull().counts == counts(corrected=1)
    assert life.pull().status == "uncacheable"
    assert life.pull(fetch_uncacheable=True).counts == counts(corrected=1)
    assert life.data("v") == [(1,), (2,), (1,)]


@pytest.mark.parametrize("merge", [SNAPSHOT, APPEND])
@pytest.mark.parametrize("state", [{"etag": 'W/"1"'}, {"modified": "Mon, 01 Jan 2024 00:00:00 GMT"}])
def test_new_content_with_an_old_state_is_ingested_once(dataset, web, merge, state):
    """5.1: Only the answer 304 means that nothing changed. The same content makes no second commit."""
    first, second = (Play(f"k,v\nA,{v}\n".encode(), conditional=False, **state) for v in (1, 2))
    life = dataset(merge, fetch=f"{{kind: url, url: '{web.play('/a', first, second)}'}}")
    life.pull()
    assert life.pull().status == "updated"
    with life.unchanged():
        assert life.pull().status == "up-to-date"
    assert life.data("v")[-1] == (2,)


def test_a_corrected_query_reads_an_unchanged_source_with_refetch(dataset):  # R78
    """The pull warns until then. A refetch without other rows records the manifest, and the warning ends."""
    query = "{kind: sql, query: 'select k, v * %s as v from input'}"
    life = dataset(SNAPSHOT, fetch="{kind: url, url: data.csv}", preprocess=query % 10)
    life.pull("k,v\nA,1\n")
    assert life.pull().notes == ()
    life.add(preprocess=query % 100)
    with life.unchanged():
        assert "--refetch" in life.pull().notes[0]
    assert life.pull(refetch=True).counts == counts(corrected=1)
    life.add(preprocess=query % "(99 + 1)")
    assert (life.pull(refetch=True).counts, life.pull().notes) == (counts(unchanged=1), ())
    with life.unchanged():
        assert life.pull(refetch=True).status == "up-to-date"
    assert life.data("v") == [(10,), (100,)]


def test_an_error_in_a_kept_download_names_its_age_and_the_refetch(dataset, web):  # R78, D33
    """The source is repaired, but the kept download is read until a refetch."""
    bad, good = Play(b"k,v\nA,many\n", etag='"1"'), Play(b"k,v\nA,1\n", etag='"2"')
    life = dataset(SNAPSHOT, fetch=f"{{kind: url, url: '{web.play('/a', bad, good)}'}}")
    assert "refetch" not in life.error(life.pull(), "unreadable-value").remedy
    remedy = life.error(life.pull(), "unreadable-value").remedy
    assert "This is the download of " in remedy
    assert "`refetch=True`" in remedy
    assert life.pull(refetch=True).counts == counts(appended=1)


def test_a_run_continues_with_another_path(dataset):  # R81
    life = dataset(APPEND, fetch=glob("a/*.csv"))
    put(life, a__1="A,1", b__1="B,2", b__2="C,3")
    life.pull(run_id="r1")
    life.add(fetch=glob("b/*.csv"))
    assert life.pull(run_id="r1").counts == counts(appended=2)
    with life.unchanged():
        life.pull(run_id="r1")


def test_a_second_attempt_may_use_another_folder(dataset):  # R81
    life = dataset(APPEND)
    put(life, try1__data="A,1", try2__data="A,1")
    life.push_files(life.folder / "try1" / "data.csv", run_id="r1")
    with life.unchanged():
        life.push_files(life.folder / "try2" / "data.csv", run_id="r1")


def test_two_files_with_one_name_in_a_run_are_both_ingested(dataset):  # R81
    life = dataset(APPEND)
    put(life, **{"2024__data": "A,1", "2025__data": "B,2"})
    files = [life.folder / folder / "data.csv" for folder in ("2024", "2025")]
    assert life.push_files(*files, run_id="r1").counts == counts(appended=2)
    with life.unchanged():
        life.push_files(*files, run_id="r1")


def test_a_run_is_recognised_after_its_snapshots_expire(dataset):  # R81, R85
    life = dataset(APPEND)
    put(life, data="A,1")
    files = [life.folder / "data.csv"]
    life.push_files(*files, run_id="r1")
    life.push_files(*files, run_id="r2")
    timestamp = life.table.iceberg.currentSnapshot().timestampMillis()
    life.table.iceberg.expireSnapshots().expireOlderThan(timestamp).retainLast(1).commit()
    assert life.commits() == 1
    with life.unchanged():
        assert life.push_files(*files, run_id="r1").status == "up-to-date"


def test_a_snapshot_older_than_an_unchanged_snapshot_is_late(dataset):  # section 2.4
    fetch = ", eventTime: {kind: fromPath, pattern: '(\\d{4}-\\d{2})', timestampFormat: '%Y-%m'}, order: byEventTime"
    life = dataset(
        merge="{kind: snapshot, primaryKey: [k], onLateSnapshot: error}", fetch=glob("*.csv", fetch)
    )
    put(life, **{"2024-01": "A,1"})
    life.pull()
    put(life, **{"2024-03": "A,1"})
    assert life.pull().counts == counts(unchanged=1)
    life.fetch, life.file = "{kind: url, url: data.csv}", "data.csv"
    life.add()
    error = life.error(life.pull("k,v\n", modified=e(40)), "late-snapshot")
    assert "2024-03-01" in error.message
    # Event times of rows may be later than their file's time.
    ahead = dataset(
        "{kind: snapshot, primaryKey: [k], onLateSnapshot: error}", columns="event_time TIMESTAMP, k STRING"
    )
    ahead.push("2030-01-01,A")
    assert ahead.push("2030-01-01,A 2030-01-01,B").counts == counts(appended=1, unchanged=1)
