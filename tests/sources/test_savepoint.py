"""A download is kept until its rows are committed (R78), and never used for anything else."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from fetch_steps import url_step
from web import Play

from backstory.errors import Failed
from backstory.sources import savepoint
from backstory.sources.source import ETAG, SourceState

FIRST = Play(b"first", etag='"one"', modified="Wed, 21 Oct 2015 07:28:00 GMT")
SECOND = Play(b"second", etag='"two"')
ONE, TWO = SourceState(ETAG, '"one"'), SourceState(ETAG, '"two"')


def only(answer):
    [fetched] = answer.deliveries
    return fetched


def test_a_repeated_run_reuses_the_download(web, ask):
    address = web.play("/a", FIRST, SECOND)

    first = only(ask(address))
    again = only(ask(address))

    assert len(web.seen) == 1
    assert again.path.read_bytes() == b"first"
    assert (again.state, again.event_time, again.name) == (first.state, first.event_time, first.name)
    assert first.taken_up is None
    assert datetime.now(UTC) - again.taken_up < timedelta(minutes=5)


def test_a_refetch_downloads_again(web, ask):
    address = web.play("/a", FIRST, SECOND)
    ask(address)

    fetched = only(ask(address, refetch=True))

    assert (fetched.path.read_bytes(), fetched.taken_up) == (b"second", None)
    assert only(ask(address)).path.read_bytes() == b"second"
    assert len(web.seen) == 2


def test_a_failed_refetch_keeps_the_download(web, ask):
    address = web.play("/a", FIRST, Play(b"", 404))
    ask(address)

    with pytest.raises(Failed):
        ask(address, refetch=True)
    assert only(ask(address)).path.read_bytes() == b"first"


def test_a_refetch_downloads_an_unchanged_source(web, ask, asking):
    """A refetch sends no condition, because a changed manifest may read the same content in another way."""
    address = web.play("/a", SECOND, FIRST)
    ask(address, state=ONE)

    fetched = only(ask(address, state=ONE, refetch=True))
    assert (fetched.path.read_bytes(), fetched.state) == (b"first", ONE)
    savepoint.forget(fetched, asking)
    assert ask(address, state=ONE).status == "up-to-date"
    assert list(asking.cache.glob("*.json")) == []


def test_a_download_is_removed_after_the_commit(web, ask, asking):
    address = web.play("/a", FIRST, SECOND)
    fetched = only(ask(address))

    savepoint.forget(fetched, asking)

    assert list(asking.cache.iterdir()) == []
    assert only(ask(address, state=ONE)).path.read_bytes() == b"second"
    savepoint.forget(fetched, asking)


def test_reused_downloads_are_removed_after_the_commit(web, ask, asking):
    address = web.play("/a", FIRST)
    ask(address)
    ask(address)

    for fetched in (only(ask(address)), only(ask(address))):
        savepoint.forget(fetched, asking)

    assert list(asking.cache.glob("*.json")) == []


def test_a_download_for_another_state_is_not_reused(web, ask):
    address = web.play("/a", FIRST, SECOND)
    ask(address)

    assert only(ask(address, state=ONE)).path.read_bytes() == b"second"


@pytest.mark.parametrize(
    "fields",
    [{"event_time": "FromSystemTime"}, {"headers": (("a", "b"),)}, {"always": True}],
)
def test_a_download_for_another_step_is_not_reused(web, ask, fields):
    address = web.play("/a", FIRST, SECOND)
    ask(address)

    assert only(ask(url_step(address, **fields))).path.read_bytes() == b"second"


def test_a_download_for_other_template_values_is_not_reused(web, ask):
    web.play("/2023", FIRST)
    web.play("/2024", SECOND)
    step = url_step(web.url("/") + "${{ env.YEAR }}")
    ask(step, environment={"YEAR": "2023"})

    assert only(ask(step, environment={"YEAR": "2024"})).path.read_bytes() == b"second"


def test_a_reused_download_has_the_system_time_of_the_run(web, ask, asking):
    step = url_step(web.play("/a", FIRST), event_time="FromSystemTime")
    ask(step)
    later = datetime(2030, 1, 1, tzinfo=UTC)

    assert only(ask(step, system_time=later)).event_time == later


def test_a_forced_pull_without_a_state_downloads_again(web, ask):
    """5.3: Without a state, a kept download cannot be distinguished from an ingested one."""
    address = web.play("/a", Play(b"first"), Play(b"second"))
    ask(address, asked_before=True, fetch_uncacheable=True)

    assert only(ask(address, asked_before=True, fetch_uncacheable=True)).path.read_bytes() == b"second"


def test_an_uncacheable_download_is_reused_before_the_first_success(web, ask):
    address = web.play("/a", Play(b"first"), Play(b"second"))
    ask(address)

    assert only(ask(address)).path.read_bytes() == b"first"


def spoil_size(place, data):
    data.write_bytes(b"fir")


def spoil_data(place, data):
    data.unlink()


def spoil_text(place, data):
    place.write_text(place.read_text()[:-20])


def spoil_time(place, data):
    place.write_text(json.dumps({**json.loads(place.read_text()), "created_at": "soon"}))


def spoil_kind(place, data):
    place.write_text('["no", "savepoint"]')


def spoil_all(place, data):
    place.write_bytes(b"\xff\xfe")


@pytest.mark.parametrize("spoil", [spoil_size, spoil_data, spoil_text, spoil_time, spoil_kind, spoil_all])
def test_a_damaged_download_is_not_reused(web, ask, asking, spoil):
    address = web.play("/a", FIRST, SECOND)
    ask(address)
    [place] = asking.cache.glob("*.json")
    spoil(place, asking.cache / json.loads(place.read_text())["data"])

    assert only(ask(address)).path.read_bytes() == b"second"


def test_a_savepoint_cannot_use_files_outside_its_folder(web, ask, asking, tmp_path):
    """A manipulated savepoint can neither deliver nor remove a file elsewhere."""
    address = web.play("/a", FIRST, SECOND)
    ask(address)
    outside = tmp_path / "outside.data"
    outside.write_bytes(b"other")
    [place] = asking.cache.glob("*.json")
    place.write_text(json.dumps({**json.loads(place.read_text()), "data": "../../outside.data"}))

    assert only(ask(address)).path.read_bytes() == b"second"
    assert outside.exists()


def test_a_download_is_reused_without_hard_links(web, ask, asking, monkeypatch):
    def refuse(self, target):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("pathlib.Path.hardlink_to", refuse)
    address = web.play("/a", FIRST)
    ask(address)

    fetched = only(ask(address))
    assert fetched.path.read_bytes() == b"first"
    savepoint.forget(fetched, asking)
    assert list(asking.cache.iterdir()) == []


class TestTwoAtOnce:
    """Two processes that fetch the same source do not disturb each other."""

    def test_a_second_reader_survives_the_commit_of_the_first(self, web, ask, asking):
        address = web.play("/a", FIRST)
        first, second = only(ask(address)), only(ask(address))

        savepoint.forget(first, asking)

        assert second.path.read_bytes() == b"first"
        savepoint.forget(second, asking)
        assert list(asking.cache.iterdir()) == []

    def test_a_first_reader_survives_the_commit_of_the_second(self, web, ask, asking):
        address = web.play("/a", FIRST)
        first, second = only(ask(address)), only(ask(address))

        savepoint.forget(second, asking)

        assert first.path.read_bytes() == b"first"

    def test_a_newer_download_survives_the_commit_of_an_older_one(self, web, ask, asking):
        address = web.play("/a", FIRST, SECOND)
        older, newer = only(ask(address)), only(ask(address, refetch=True))

        assert older.path.read_bytes() == b"first"
        savepoint.forget(older, asking)

        assert newer.path.read_bytes() == b"second"
        assert only(ask(address)).path.read_bytes() == b"second"
        assert len(web.seen) == 2

    def test_many_simultaneous_refetches_read_whole_files(self, web, ask, asking):
        address = web.play("/a", Play(b"x" * 50_000, etag='"one"'))
        contents, wrong = [], []

        def work():
            try:
                fetched = only(ask(address, refetch=True))
                contents.append(fetched.path.read_bytes())
                savepoint.forget(fetched, asking)
            except BaseException as error:  # noqa: BLE001
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert wrong == []
        assert contents == [b"x" * 50_000] * 8


class TestKilled:
    """After a kill, no file is treated as a download."""

    PROGRAM = """
import os, signal, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from backstory.sources.source import FetchContext
from backstory.sources.fetching import fetch
from backstory.doors.odf.manifest.events import Url

def die(stage, done, total):
    if done > 3000:
        os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[2])
fetch(Url(url=sys.argv[1]), FetchContext(datetime.now(UTC), folder, folder, {}, progress=die))
"""

    def test_a_killed_download_leaves_only_a_partial_file(self, web, ask, asking):
        address = web.play("/a", Play(b"x" * 10_000, etag='"one"'))
        environment = {**os.environ, "NO_PROXY": "*"}

        ended = subprocess.run(
            [sys.executable, "-c", self.PROGRAM, address, str(asking.cache)], env=environment
        )

        assert ended.returncode == -signal.SIGKILL
        assert [file.suffix for file in asking.cache.iterdir()] == [".part"]
        fetched = only(ask(address))
        assert (fetched.path.stat().st_size, fetched.taken_up) == (10_000, None)

    def test_abandoned_files_are_removed_later(self, web, ask, asking, monkeypatch):
        address = web.play("/a", FIRST)
        asking.cache.mkdir(parents=True)
        for name in ("left.part", "left.data", "mine.txt"):
            (asking.cache / name).write_text("")
        ask(address)
        assert (asking.cache / "left.part").exists()

        monkeypatch.setattr(savepoint, "ABANDONED", -1.0)
        time.sleep(0.01)
        file_name = json.loads(next(asking.cache.glob("*.json")).read_text())["data"]
        ask(address, state=TWO)

        assert not (asking.cache / "left.part").exists()
        assert not (asking.cache / "left.data").exists()
        assert (asking.cache / "mine.txt").exists()
        assert (asking.cache / file_name).exists()


def test_a_cache_without_savepoints_fails(web, ask, asking, monkeypatch):
    """If a folder blocks the savepoint, the download is not returned as if it were kept."""
    address = web.play("/a", FIRST)
    place = savepoint.place_of(url_step(address), asking)
    (place / "full").mkdir(parents=True)

    with pytest.raises(Failed) as caught:
        ask(address)
    assert caught.value.code == "cache-unwritable"
