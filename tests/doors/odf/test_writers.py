"""Concurrent and interrupted writers, and the resulting table (sections 5.3 and 6.4)."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from datasets import Dataset, counts, e, s
from structlog.testing import capture_logs

from backstory.doors.odf import door
from backstory.doors.odf.registry import renamings
from backstory.journal.chain import log_of, log_rows
from backstory.journal.verify import verify
from backstory.stores.iceberg import commit
from backstory.stores.iceberg.store import existing

CITIES = "city STRING, population INT"
BY_CITY = "{kind: snapshot, primaryKey: [city], encoding: op}"
GLOB = "{kind: filesGlob, path: 'in-*.csv'}"


@pytest.fixture
def dataset(store, tmp_path):
    return partial(Dataset, store, tmp_path, namespace="odf_writers")


def sound(life):
    """Check that offsets have no gap, and that the chain covers all rows."""
    assert [row["offset"] for row in life.rows()] == list(range(len(life.rows())))
    assert verify(life.store, life.table.shape.table, renamings).problems == []


@pytest.mark.parametrize("locked", [True, False], ids=["threads", "as processes"])
def test_concurrent_writers_leave_offsets_without_a_gap(dataset, monkeypatch, locked):
    """R71: Writers in one process wait for each other. Others conflict and try again."""
    life = dataset("{kind: append}", CITIES)
    life.push("first,0")
    if not locked:
        monkeypatch.setattr("backstory.engine.deliver.lock_tables", lambda *_: nullcontext())
    paths = [life.folder / f"{number}.csv" for number in range(4)]
    for path in paths:
        path.write_text(f"{life.header}\n{path.stem}-a,1\n{path.stem}-b,2\n")
    request = door.IngestRequest(system_time=s(2))

    def write(path):
        pushed = door.PushedFiles([path], None, e(2))
        return door.ingest(life.store, life.name, pushed, request, namespace=life.namespace)

    with ThreadPoolExecutor(len(paths)) as pool:
        receipts = list(pool.map(write, paths))
    assert [receipt.status for receipt in receipts] == ["updated"] * 4
    assert sorted(receipt.offsets for receipt in receipts) == [(1, 2), (3, 4), (5, 6), (7, 8)]
    written = {city for path in paths for city in (f"{path.stem}-a", f"{path.stem}-b")}
    assert {city for (city,) in life.data("city")} == {"first", *written}
    sound(life)


def test_an_interrupt_between_files_keeps_committed_files(dataset):
    """R79: The second file is not begun, and the next pull continues with it."""
    life = dataset("{kind: append}", CITIES, fetch=GLOB)
    life.add()
    for number in (1, 2, 3):
        (life.folder / f"in-{number}.csv").write_text(f"{life.header}\nA,{number}\n")
    seen = []

    def interrupt(stage, *_):
        seen.append(stage)
        if seen.count("Reading data") == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        life.pull(progress=interrupt)
    assert life.data("population") == [(1,)]
    assert life.pull().counts == counts(appended=2)
    assert life.data("population") == [(1,), (2,), (3,)]
    sound(life)


@pytest.mark.parametrize("committed", [False, True])
def test_an_interrupted_commit_leaves_the_old_or_new_state(dataset, monkeypatch, committed):
    """R79: Later runs, including their log, continue from either state."""
    life = dataset(BY_CITY, CITIES)
    life.push("A,1 B,2")
    finish = commit.finish

    def interrupted(*arguments, **options):
        if committed:
            finish(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(commit, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        life.push("A,9 C,3")
    monkeypatch.setattr(commit, "finish", finish)
    assert len(life.rows()) == (6 if committed else 2)
    again = life.push("A,9 C,3")
    assert again.status == ("up-to-date" if committed else "updated")
    assert len(life.rows()) == 6
    life.push("A,9 C,4")
    assert [row["sequence_number"] for row in log_rows(life.store, life.table.shape.table)] == [0, 1, 2]
    sound(life)


def test_written_data_files_never_change(dataset):
    """R84: Corrections and retractions are appended too, and every written file is kept."""
    life = dataset(BY_CITY, CITIES)
    files = set()
    for rows in ("A,1 B,2", "A,2 C,3", "B,2", ""):
        life.push(rows)
        now = {row.file_path for row in life.store.spark.table(f"{files_of(life)}").collect()}
        assert files < now
        files = now
    snapshots = life.table.iceberg.snapshots()
    assert {snapshot.operation() for snapshot in snapshots} == {"append"}


def files_of(life):
    return life.store.sql_name(life.table.shape.table) + ".files"


def cut_short(life):
    """The log after a run that ended between its commit and its log."""
    log = existing(life.store, log_of(life.table.shape.table)).iceberg
    log.manageSnapshots().rollbackTo(log.currentSnapshot().parentId()).commit()
    return log


def compacted_and_expired(life):
    """The dataset after others have compacted its files, and expired all snapshots but their own."""
    name = f"{life.namespace}.`{life.name}`"
    rewrite = (
        f"CALL backstory.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
    )
    life.store.spark.sql(rewrite).collect()
    table = life.table.iceberg
    timestamp = table.currentSnapshot().timestampMillis()
    table.expireSnapshots().expireOlderThan(timestamp).retainLast(1).commit()
    assert life.commits() == 1


def test_writers_are_refused_if_a_commit_is_missing_from_the_log(dataset):
    """R14: If a snapshot expired before the log was written, every writer is refused."""
    life = dataset("{kind: append}", CITIES)
    life.push("A,1 B,2")
    life.push("C,3 D,4", run_id="r1")
    cut_short(life)
    compacted_and_expired(life)
    error = life.refused("E,5", code="log-behind")
    assert "holds 4 rows, but its newest known commit counts 2" in error.message
    life.refused("C,3 D,4", code="log-behind", run_id="r1")
    life.refused("E,5", code="log-behind", dry_run=True)


def test_lost_rows_are_detected_from_the_log(dataset):
    """R14: A rollback followed by an expiry removes rows that the source seems to have delivered."""
    life = dataset("{kind: append}", CITIES)
    life.push("A,1 B,2")
    before = life.table.iceberg.currentSnapshot().snapshotId()
    life.push("C,3")
    life.table.iceberg.manageSnapshots().rollbackTo(before).commit()
    compacted_and_expired(life)
    life.refused("C,3", code="rows-lost")


def test_a_repeated_run_completes_an_interrupted_log(dataset):
    """R83: After a crash, a retry writes the log, which makes an expiry harmless."""
    life = dataset("{kind: append}", CITIES)
    life.push("A,1 B,2")
    (life.folder / "c.csv").write_text(f"{life.header}\nC,3\nD,4\n")
    life.push_files(life.folder / "c.csv", run_id="r1")
    cut_short(life)
    with life.unchanged():
        life.push_files(life.folder / "c.csv", run_id="r1")
    assert len(log_rows(life.store, life.table.shape.table)) == 2
    compacted_and_expired(life)
    assert life.push("E,5").offsets == (4, 4)
    sound(life)


def test_an_unwritable_log_causes_a_warning(dataset):
    """O10: The pull succeeds, and the next one writes the log."""
    life = dataset("{kind: append}", CITIES)
    life.push("A,1")
    place = Path(
        existing(life.store, log_of(life.table.shape.table)).iceberg.location().removeprefix("file:")
    )
    (place / "data").rename(place / "kept")
    (place / "data").write_text("")
    with capture_logs() as logs:
        assert life.push("B,2").offsets == (1, 1)
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
        "the log is behind; do not expire snapshots until a pull has written it"
    ]
    (place / "data").unlink()
    (place / "kept").rename(place / "data")
    life.push("C,3")
    sound(life)
