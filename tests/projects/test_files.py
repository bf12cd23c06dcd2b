"""Files are delivered in the order of their times, each once. An invalid time in a name is refused."""

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backstory.errors import Failed, Refused
from backstory.model.table import TableName
from backstory.projects.files import copies, expand, new_copies, times_of_copies


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("id\n1\n")


def taken(folder, source, at=""):
    return [
        (str(each.path.relative_to(folder)), each.at and each.at.isoformat()[:16])
        for each in copies(source, times_of_copies(source, at, "snapshot"), folder)
    ]


@pytest.mark.parametrize("seconds", [3 * 10**11, 10**17])
def test_a_modification_time_outside_the_calendar_is_refused(tmp_path, monkeypatch, seconds):
    """File systems store more years than dates have."""
    touch(tmp_path, "a.csv")
    status = os.stat_result((*(tmp_path / "a.csv").stat()[:8], seconds, 0))
    monkeypatch.setattr(Path, "stat", lambda *_, **__: status)
    with pytest.raises(Failed, match="is not between the years 1 and 9999"):
        taken(tmp_path, "a.csv", "file")


def test_a_pattern_extracts_file_times_and_skips_other_names(tmp_path):
    touch(
        tmp_path,
        "e/order-2024-02-01.csv",
        "e/order-2024-01-31.csv",
        "e/order-items-2024-01-01.csv",
        "e/order-latest.csv",
        "e/[x]-2024.csv",
    )
    assert taken(tmp_path, "e/order-{at:%Y-%m-%d}.csv") == [
        ("e/order-2024-01-31.csv", "2024-01-31T00:00"),
        ("e/order-2024-02-01.csv", "2024-02-01T00:00"),
    ]
    assert taken(tmp_path, "e/*.csv", "order-{at:%Y-%m}-{at:%d}.csv") == taken(
        tmp_path, "e/order-{at:%Y-%m-%d}.csv"
    )
    assert taken(tmp_path, "e", "order-{at:%Y-%m-%d}.csv") == taken(tmp_path, "e/order-{at:%Y-%m-%d}.csv")


@pytest.mark.parametrize(
    ("name", "pattern", "at"),
    [
        ("2024/01/02/c.csv", "{at:%Y}/{at:%m}/{at:%d}/c.csv", "2024-01-02T00:00"),
        ("c-20240102T030405.csv", "c-{at:%Y%m%dT%H%M%S}.csv", "2024-01-02T03:04"),
        ("c-2024-01-02T03+0200.csv", "c-{at:%Y-%m-%dT%H%z}.csv", "2024-01-02T01:00"),
        ("c-2024002.csv.gz", "c-{at:%Y%j}.csv.gz", "2024-01-02T00:00"),
        ("deep/er/c-2024.csv", "**/c-{at:%Y}.csv", "2024-01-01T00:00"),
        ("c-2024.csv", "**/c-{at:%Y}.csv", "2024-01-01T00:00"),
        ("in/2024.csv", "in/**/{at:%Y}.csv", "2024-01-01T00:00"),
        ("in/a/b/2024.csv", "in/**/b/**/{at:%Y}.csv", "2024-01-01T00:00"),
        ("b2-2024.csv", "[!a-a][0-9]-{at:%Y}.csv", "2024-01-01T00:00"),
        ("[x^]/c-2024.csv", "[x^]/?-{at:%Y}.csv", "2024-01-01T00:00"),
        ("^-2024.csv", "[]x^]-{at:%Y}.csv", "2024-01-01T00:00"),
        ("\udcfc\n-2024 Jan.csv", "*-{at:%Y %b}.csv", "2024-01-01T00:00"),
    ],
)
def test_times_in_names_are_utc_unless_they_have_a_zone(tmp_path, name, pattern, at):
    """A file that matches the pattern of the source has its time, in any folder and with any name."""
    touch(tmp_path, name)
    assert taken(tmp_path, pattern) == [(name, at)]


def test_a_file_name_with_an_invalid_time_is_refused(tmp_path):
    touch(tmp_path, "c-2024-02-30.csv")
    with pytest.raises(Refused, match=r"c-2024-02-30\.csv has the form .* is not a time"):
        taken(tmp_path, "c-{at:%Y-%m-%d}.csv")


def test_a_file_with_a_new_modification_time_is_a_new_copy(tmp_path):
    touch(tmp_path, "c.csv")
    os.utime(tmp_path / "c.csv", (1_700_000_000, 1_700_000_000))
    times = times_of_copies("c.csv", "file", "snapshot")
    (first,) = copies("c.csv", times, tmp_path)
    assert first.at == datetime.fromtimestamp(1_700_000_000, UTC)
    assert new_copies([first], {first.mark}) == []
    (tmp_path / "c.csv").write_text("id\n2\n")
    assert new_copies(copies("c.csv", times, tmp_path), {first.mark}) != []


def test_change_files_are_sorted_by_name_and_have_no_time(tmp_path):
    touch(tmp_path, "f/b.csv", "f/a.csv")
    times = times_of_copies("f/*.csv", "", "apply")
    assert [(each.path.name, each.at) for each in copies("f/*.csv", times, tmp_path)] == [
        ("a.csv", None),
        ("b.csv", None),
    ]


def test_a_pattern_without_matching_files_is_no_error(tmp_path):
    assert taken(tmp_path, "c-{at:%Y}.csv") == []
    assert copies("f/*.csv", replace(times_of_copies("f", "file", "snapshot")), tmp_path) == []


def test_copies_in_the_users_home_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    touch(tmp_path, "f/2023.csv")
    source = expand("~/f/{at:%Y}.csv", TableName("s", "t"))
    (copy,) = copies(source, times_of_copies(source, "", "snapshot"), tmp_path / "elsewhere")
    assert copy.path == tmp_path / "f/2023.csv"


@pytest.mark.parametrize("source", ["f", "f/*.csv", "f/{at:%Y}.csv"])
def test_a_broken_link_is_refused(tmp_path, source):
    touch(tmp_path, "f/2023.csv")
    (tmp_path / "f/2024.csv").symlink_to("nowhere")
    times = times_of_copies(source, "", "snapshot" if "{" in source else "apply")
    with pytest.raises(Refused, match=r"2024\.csv is a link") as refusal:
        copies(source, times, tmp_path)
    assert refusal.value.code == "not-found"


ODD = ("[eu]", "a*b", "q?", "%41", "sp ace", "#x", "back\\slash", "{at:%Y}")


@pytest.mark.parametrize("name", ODD)
def test_pattern_characters_in_a_project_folder_name_are_literal(tmp_path, name):
    """B53: This holds for any name, and for folders of a source that exist as written."""
    folder = tmp_path / name
    touch(tmp_path, "e/f/c-2024.csv", "u/f/c-2024.csv", "aXb/f/c-2024.csv", "qq/f/c-2024.csv")
    touch(folder, "f/c-2024.csv", "f/d-2024.csv")
    both, own = [("f/c-2024.csv", None), ("f/d-2024.csv", None)], [("f/c-2024.csv", "2024-01-01T00:00")]
    times = times_of_copies("f/*.csv", "", "apply")
    files = [(str(each.path.relative_to(folder)), each.at) for each in copies("f/*.csv", times, folder)]
    assert files == both
    assert taken(folder, "f/c-{at:%Y}.csv") == own
    assert taken(folder, "f/*.csv", "c-{at:%Y}.csv") == own
    if "{" not in name:
        inside = copies(f"{name}/f/*.csv", times, tmp_path)
        assert [each.path.parent.parent for each in inside] == [folder] * 2
        assert [each.path.parent.parent for each in copies(str(folder / "f/*.csv"), times, tmp_path)] == [
            folder
        ] * 2


def test_a_file_of_a_moved_project_is_recognised_by_its_content(tmp_path):
    """A moved file keeps its identity. Another project's file with the same name, size and time is another
    file."""
    times, taken_ = times_of_copies("f/*.csv", "", "apply"), set[str]()
    for name, text in {"eu": "id\n1\n", "us": "id\n2\n"}.items():
        touch(tmp_path, f"{name}/f/1.csv")
        (tmp_path / name / "f/1.csv").write_text(text)
        os.utime(tmp_path / name / "f/1.csv", (1_700_000_000, 1_700_000_000))
        (new,) = new_copies(copies("f/*.csv", times, tmp_path / name), taken_)
        taken_.add(new.whole_mark())
        assert new_copies(copies("f/*.csv", times, tmp_path / name), taken_) == []
    shutil.copytree(tmp_path / "us", tmp_path / "moved")
    assert new_copies(copies("f/*.csv", times, tmp_path / "moved"), taken_) == []
    assert len(taken_) == 3  # the content is read once
    (tmp_path / "us/f/1.csv").write_text("id\n3\n")
    os.utime(tmp_path / "us/f/1.csv", (1_700_000_000, 1_700_000_000))
    assert len(new_copies(copies("f/*.csv", times, tmp_path / "us"), taken_)) == 1


def test_links_in_a_circle_deliver_a_file_once(tmp_path):
    touch(tmp_path, "a/b/c-2024.csv")
    (tmp_path / "a/b/up").symlink_to(tmp_path / "a")
    (tmp_path / "a/again").symlink_to(tmp_path / "a/b")
    for source in ("**/*.csv", "a/**/c-2024.csv", "a/**/**/*.csv", "**"):
        files = copies(source, times_of_copies(source, "", "apply"), tmp_path)
        assert [str(each.path.relative_to(tmp_path)) for each in files] == ["a/b/c-2024.csv"]
    assert taken(tmp_path, "**/c-{at:%Y}.csv") == [("a/b/c-2024.csv", "2024-01-01T00:00")]


def test_patterns_with_many_stars_terminate(tmp_path):
    """In times, names and folders, the work is at most letters times stars."""
    name = "a" * 200
    touch(tmp_path, f"d/d/d/d/d/d/{name}-2024.csv")
    for source in ("a*" * 28 + "b-{at:%Y}.csv", "**/" * 28 + "*a" * 28 + "b-{at:%Y}.csv"):
        assert taken(tmp_path, source) == []
    many = "**/*/" * 14 + "*a" * 28 + "-{at:%Y}.csv"
    assert taken(tmp_path, many) == []
    assert taken(tmp_path, "**/" + "a*" * 28 + "-{at:%Y}.csv")[0][1] == "2024-01-01T00:00"
