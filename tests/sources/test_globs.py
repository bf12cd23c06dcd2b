"""Files that match a glob, in an order that stores the last one (B53, D20, D30, R76)."""

import errno
import os
from datetime import UTC, datetime

import pytest
from fetch_steps import from_path

from backstory.errors import Failed, Refused, UsageError
from backstory.sources.source import ETAG, LAST_MODIFIED, SourceState

PATTERN = r"cities-(\d{4}-\d\d-\d\d)"
FROM_PATH = from_path(PATTERN)


@pytest.fixture
def put(tmp_path):
    """Create files in the manifest's folder: `put("a.csv", "b/c.csv")`."""

    def put(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)

    return put


def names(answer):
    return [fetched.name for fetched in answer.deliveries]


def last(value):
    return SourceState(ETAG, value)


class TestByName:
    def test_files_are_delivered_in_the_order_of_their_names(self, put, ask, glob, tmp_path):
        put("b.csv", "a.csv", "c.csv", "d.txt")

        deliveries = list(ask(glob("*.csv")).deliveries)

        assert [fetched.path for fetched in deliveries] == [
            tmp_path / name for name in ("a.csv", "b.csv", "c.csv")
        ]
        assert [fetched.state.value for fetched in deliveries] == ["a.csv", "b.csv", "c.csv"]
        assert {fetched.state.kind for fetched in deliveries} == {ETAG}
        assert {(fetched.taken_up, fetched.kept) for fetched in deliveries} == {(None, None)}

    def test_b53_only_greater_names_are_new(self, put, ask, glob):
        put("2.csv", "3.csv")
        assert names(ask(glob("*.csv"))) == ["2.csv", "3.csv"]

        assert (
            ask(glob("*.csv"), state=last("3.csv"), seen=frozenset({"2.csv", "3.csv"})).status == "up-to-date"
        )

        put("4.csv", "1.csv")
        answer = ask(glob("*.csv"), state=last("3.csv"), seen=frozenset({"2.csv", "3.csv"}))
        assert names(answer) == ["4.csv"]

    def test_a_late_file_gives_a_warning(self, put, ask, glob):
        put("1.csv", "2.csv", "3.csv")

        answer = ask(glob("*.csv"), state=last("3.csv"), seen=frozenset({"2.csv", "3.csv"}))

        assert answer.status == "up-to-date"
        [warning] = answer.warnings
        assert warning.startswith("1.csv sorts before 3.csv")

    def test_many_late_files_are_counted(self, put, ask, glob):
        put(*(f"{number:03}.csv" for number in range(30)))

        warnings = ask(glob("*.csv"), state=last("029.csv")).warnings

        assert len(warnings) == 11
        assert warnings[-1] == "19 more files are skipped for the same reason."

    def test_the_last_file_itself_is_not_late(self, put, ask, glob):
        put("1.csv")
        assert ask(glob("*.csv"), state=last("1.csv")).warnings == []

    def test_files_are_ordered_by_name_and_not_by_path(self, put, ask, glob):
        put("z/a.csv", "a/z.csv", "m.csv")

        answer = ask(glob("**/*.csv"))

        assert names(answer) == ["z/a.csv", "m.csv", "a/z.csv"]

    def test_files_with_equal_names_are_all_delivered_or_reported(self, put, ask, glob):
        """They are in the order of their folders."""
        put("2023/a.csv", "2024/a.csv", "2025/a.csv")

        assert names(ask(glob("*/a.csv"))) == ["2023/a.csv", "2024/a.csv", "2025/a.csv"]
        answer = ask(glob("*/a.csv"), state=last("2024/a.csv"), seen=frozenset({"2024/a.csv"}))
        assert names(answer) == ["2025/a.csv"]
        assert [warning.split()[0] for warning in answer.warnings] == ["2023/a.csv"]

    def test_ingested_files_are_not_new(self, put, ask, glob):
        put("1.csv", "2.csv", "3.csv")

        assert names(ask(glob("*.csv"), state=last("1.csv"), seen=frozenset({"1.csv", "3.csv"}))) == ["2.csv"]

    def test_names_are_compared_by_code_point(self, put, ask, glob):
        put("Z.csv", "a.csv", "ä.csv", "10.csv", "9.csv")

        assert names(ask(glob("*.csv"))) == ["10.csv", "9.csv", "Z.csv", "a.csv", "ä.csv"]


class TestFinding:
    def test_a_first_glob_without_files_is_not_found(self, ask, glob):
        with pytest.raises(Failed) as caught:
            ask(glob("data/*.csv"))
        assert (caught.value.code, caught.value.exit_code) == ("not-found", 1)
        assert "data/*.csv" in caught.value.message

    def test_a_later_glob_without_files_is_up_to_date(self, ask, glob):
        assert ask(glob("data/*.csv"), state=last("a.csv")).status == "up-to-date"

    def test_hidden_files_folders_and_dead_links_are_not_matched(self, put, ask, glob, tmp_path):
        put(".hidden.csv", ".git/a.csv", "folder.csv/x.txt", "real.csv")
        (tmp_path / "dead.csv").symlink_to("nowhere")
        (tmp_path / "round").symlink_to("round")

        assert names(ask(glob("**/*.csv"))) == ["real.csv"]
        assert names(ask(glob(".*.csv"))) == [".hidden.csv"]
        assert names(ask(glob("*/*.txt"))) == ["folder.csv/x.txt"]

    @pytest.mark.parametrize("pattern", ["*/*.csv", "**/*.csv"])
    def test_a_folder_that_cannot_be_listed_fails(self, put, ask, glob, tmp_path, monkeypatch, pattern):
        """Its files would be late, and never ingested."""
        put("in/a.csv", "out/b.csv")
        for name in ("scandir", "listdir"):
            call = getattr(os, name)

            def refuse(path, call=call):
                if path in (tmp_path / "in", str(tmp_path / "in")):
                    raise PermissionError(errno.EACCES, "Permission denied", str(path))
                return call(path)

            monkeypatch.setattr(os, name, refuse)

        with pytest.raises(Failed, match="/in cannot be accessed: Permission denied") as caught:
            ask(glob(pattern))
        assert (caught.value.code, caught.value.exit_code) == ("unreadable-file", 1)

    def test_a_file_with_several_links_counts_once(self, put, ask, glob, tmp_path):
        """Its own path counts too if it matches. Links to a parent folder end."""
        put("in/a.csv", "in/2024/b.csv", "in/.kept/c.csv")
        for link, target in {
            "latest": ".",
            "more": ".",
            "current": "2024",
            "b.csv": "2024/b.csv",
            "c.csv": ".kept/c.csv",
        }.items():
            (tmp_path / "in" / link).symlink_to(target)

        assert names(ask(glob("in/**/*.csv"))) == ["a.csv", "2024/b.csv", "c.csv"]
        assert names(ask(glob("in/*/*.csv"))) == ["latest/a.csv", "2024/b.csv", "latest/c.csv"]
        assert names(ask(glob("in/current/*.csv"))) == ["b.csv"]

    def test_a_file_ingested_through_a_link_is_not_new_by_its_own_path(self, put, ask, glob, tmp_path):
        """The earlier path counts."""
        put("2024/b.csv")
        (tmp_path / "current").symlink_to("2024")

        answer = ask(glob("*/*.csv"), state=last("current/b.csv"), seen=frozenset({"current/b.csv"}))
        assert (answer.status, answer.warnings) == ("up-to-date", [])

    @pytest.mark.parametrize("pattern", ["in/*.csv", "in/**/*.csv", "in/*/*.csv", "in/far.csv"])
    def test_a_link_that_leaves_the_folder_is_refused(self, put, ask, glob, tmp_path, pattern):
        """This applies to files and folders. The folder itself may be a link."""
        put("private/a.csv", "in/b.csv", "here/c.csv")
        (tmp_path / "in" / "far.csv").symlink_to("../private/a.csv")
        (tmp_path / "in" / "far").symlink_to(tmp_path / "private")
        (tmp_path / "linked").symlink_to("here")

        with pytest.raises(Refused) as caught:
            ask(glob(pattern))
        assert (caught.value.code, caught.value.exit_code) == ("link-outside", 3)
        assert names(ask(glob("linked/*.csv"))) == ["c.csv"]

    def test_an_absolute_pattern_ignores_the_manifests_folder(self, put, ask, glob, tmp_path):
        put("data/a.csv", "data/b.csv")

        answer = ask(glob(f"{tmp_path}/data/*.csv"), folder=tmp_path / "elsewhere")

        assert names(answer) == ["a.csv", "b.csv"]

    def test_names_are_relative_to_the_fixed_folders(self, put, ask, glob):
        put("x/data/2024/a.csv")

        assert names(ask(glob("./x/data/*/*.csv"))) == ["2024/a.csv"]
        assert names(ask(glob("x/data/2024/a.csv"))) == ["a.csv"]

    def test_a_manifest_folder_with_wildcards_is_taken_literally(self, put, ask, glob, tmp_path):
        put("[1]*/a.csv")

        assert names(ask(glob("*.csv"), folder=tmp_path / "[1]*")) == ["a.csv"]

    def test_a_complete_glob_with_once_is_up_to_date(self, put, ask, glob):
        put("a.csv", "b.csv")

        forever = glob("*.csv", once=True)
        assert [fetched.last for fetched in ask(forever).deliveries] == [False, True]
        assert names(ask(forever, state=last("a.csv"))) == ["b.csv"]
        assert ask(forever, state=last("b.csv"), complete=True).status == "up-to-date"

    def test_a_state_of_another_kind_is_ignored(self, put, ask, glob):
        put("a.csv")

        assert names(ask(glob("*.csv"), state=SourceState(LAST_MODIFIED, "b"))) == ["a.csv"]

    def test_each_delivery_is_returned_once(self, put, ask, glob):
        put("a.csv", "b.csv")
        deliveries = ask(glob("*.csv")).deliveries

        assert next(deliveries).name == "a.csv"
        assert next(deliveries).name == "b.csv"
        assert next(deliveries, None) is None


class TestEventTime:
    def test_the_event_time_is_unset_or_the_system_time(self, put, ask, glob, asking):
        put("a.csv")

        assert [fetched.event_time for fetched in ask(glob("*.csv")).deliveries] == [None]
        answer = ask(glob("*.csv", event_time="FromSystemTime"))
        assert [fetched.event_time for fetched in answer.deliveries] == [asking.system_time]

    def test_the_metadata_time_is_unsupported_for_globs(self, ask, glob):
        with pytest.raises(UsageError) as caught:
            ask(glob("*.csv", event_time="FromMetadata"))
        assert caught.value.code == "event-time"

    def test_the_event_time_is_group_1_of_the_path(self, put, ask, glob):
        put("cities-2024-01-01/b.csv", "cities-2024-02-01/a.csv")

        deliveries = list(ask(glob("*/*.csv", event_time=FROM_PATH)).deliveries)

        assert [fetched.event_time for fetched in deliveries] == [
            datetime(2024, 2, 1, tzinfo=UTC),
            datetime(2024, 1, 1, tzinfo=UTC),
        ]

    def test_folders_above_the_manifest_are_not_matched_for_the_time(self, put, ask, glob, tmp_path):
        put("backup-1999/cities-2024.csv")
        step = glob("*.csv", event_time=from_path(r"-(\d{4})", "%Y"))

        [fetched] = ask(step, folder=tmp_path / "backup-1999").deliveries

        assert fetched.event_time == datetime(2024, 1, 1, tzinfo=UTC)

    def test_an_anchored_pattern_matches_the_whole_path(self, put, ask, glob):
        put("cities-2024-01-01.csv")

        [fetched] = ask(glob("*.csv", event_time=from_path(f"^/.*/{PATTERN}"))).deliveries

        assert fetched.event_time == datetime(2024, 1, 1, tzinfo=UTC)

    def test_a_path_without_a_time_is_refused(self, put, ask, glob):
        put("cities-2024-01-01.csv", "z.csv")

        with pytest.raises(Refused) as caught:
            ask(glob("*.csv", event_time=FROM_PATH))

        assert (caught.value.code, caught.value.exit_code) == ("file-time", 3)
        assert "z.csv" in caught.value.message
        assert repr(PATTERN) in caught.value.message

    def test_ingested_files_need_no_time_in_the_path(self, put, ask, glob):
        put("a.csv", "cities-2024-01-01.csv")

        assert names(ask(glob("*.csv", event_time=FROM_PATH), state=last("a.csv"))) == [
            "cities-2024-01-01.csv"
        ]


class TestByEventTime:
    FIRST = "2024-01-01T00:00:00.000000Z cities-2024-01-01.csv"

    @pytest.fixture
    def step(self, glob):
        return glob("**/*cities*.csv", event_time=FROM_PATH, by_event_time=True)

    def test_files_are_delivered_in_the_order_of_time_and_name(self, put, ask, step):
        put(
            "a-cities-2024-03-01.csv",
            "z-cities-2024-01-01.csv",
            "c-cities-2024-02-01.csv",
            "b-cities-2024-02-01.csv",
        )

        deliveries = list(ask(step).deliveries)

        assert [fetched.name[0] for fetched in deliveries] == ["z", "b", "c", "a"]
        assert deliveries[0].state.value == "2024-01-01T00:00:00.000000Z z-cities-2024-01-01.csv"

    def test_only_later_files_are_new(self, put, ask, step):
        put("cities-2024-01-01.csv", "a-cities-2024-02-01.csv")

        answer = ask(step, state=last(self.FIRST), seen=frozenset({"cities-2024-01-01.csv"}))

        assert (names(answer), answer.warnings) == (["a-cities-2024-02-01.csv"], [])

    def test_a_greater_name_of_the_same_time_is_new(self, put, ask, step):
        put("cities-2024-01-01.csv", "z-cities-2024-01-01.csv", "a-cities-2024-01-01.csv")

        answer = ask(step, state=last(self.FIRST), seen=frozenset({"cities-2024-01-01.csv"}))

        assert names(answer) == ["z-cities-2024-01-01.csv"]
        [warning] = answer.warnings
        assert warning.startswith(
            "a-cities-2024-01-01.csv has the same time and sorts before cities-2024-01-01.csv"
        )
        assert warning.endswith("Rename it to have it ingested.")

    def test_a_file_of_an_earlier_time_gives_a_warning(self, put, ask, step):
        put("cities-2024-01-01.csv", "z-cities-2023-12-31.csv")

        answer = ask(step, state=last(self.FIRST), seen=frozenset({"cities-2024-01-01.csv"}))

        assert answer.status == "up-to-date"
        [warning] = answer.warnings
        assert warning.startswith("z-cities-2023-12-31.csv has an earlier time than cities-2024-01-01.csv")
        assert warning.endswith("Put a later time into its path to have it ingested.")

    def test_all_times_are_read_before_the_first_file(self, put, ask, glob):
        put("cities-2024-01-01.csv", "other.csv")

        with pytest.raises(Refused):
            ask(glob("*.csv", event_time=FROM_PATH, by_event_time=True), state=last(self.FIRST))

    @pytest.mark.parametrize("event_time", [None, "FromSystemTime"])
    def test_files_with_the_time_of_the_run_are_ordered_by_name(self, put, ask, glob, event_time):
        put("b.csv", "a.csv")
        step = glob("*.csv", event_time=event_time, by_event_time=True)

        assert names(ask(step)) == ["a.csv", "b.csv"]
        assert names(ask(step, state=last("a.csv"))) == ["b.csv"]

    def test_a_change_of_the_order_ingests_nothing_twice(self, put, ask, glob, step):
        put("cities-2024-03-01.csv", "z-cities-2024-01-01.csv", "new-cities-2024-02-01.csv")
        seen = frozenset({"cities-2024-03-01.csv", "z-cities-2024-01-01.csv"})
        by_name = glob("**/*cities*.csv", event_time=FROM_PATH)

        assert names(ask(step, state=last("z-cities-2024-01-01.csv"), seen=seen)) == [
            "new-cities-2024-02-01.csv"
        ]
        assert names(ask(by_name, state=last(self.FIRST), seen=seen)) == ["new-cities-2024-02-01.csv"]


def test_patterns_with_many_stars_finish(put, ask, glob):
    """B53: Consecutive `**` count as one, and stars in a name add no time."""
    put("d/d/d/d/d/d/" + "a" * 100 + "-1.csv")
    assert names(ask(glob("**/" * 28 + "*a" * 28 + "-1.csv"))) == ["d/d/d/d/d/d/" + "a" * 100 + "-1.csv"]
    with pytest.raises(Failed, match="No file matches"):
        ask(glob("**/" * 28 + "a*" * 28 + "b"))


@pytest.mark.parametrize("pattern", ["**/*/" * 14 + "*.csv", "*/" * 28 + "*.csv"])
def test_patterns_with_many_folders_finish(put, ask, glob, tmp_path, pattern):
    """Each folder counts once at each part, despite links, so the search ends quickly."""
    put(*(f"{'f/' * depth}x/a.csv" for depth in range(9)))
    for link in ("round", "circle"):
        (tmp_path / link).symlink_to(".")
    paths = [each.path.resolve() for each in ask(glob(pattern)).deliveries]
    assert len(paths) == len(set(paths)) == 9


def test_files_keep_their_identity_when_the_glob_becomes_absolute_or_relative(put, ask, glob, tmp_path):
    """A path that names the same folder in another way ingests only new files."""
    put("in/1.csv", "in/2.csv", "in/3.csv")
    whole = [f"{tmp_path}/in/{number}.csv" for number in (1, 2)]
    absolute = ask(glob(f"{tmp_path}/in/*.csv"), seen=frozenset({"in/1.csv", "in/2.csv"}))
    assert names(absolute) == ["3.csv"]
    assert names(ask(glob("in/*.csv"), seen=frozenset(whole))) == ["3.csv"]
    (tmp_path / "linked").symlink_to(".")
    linked = ask(glob("in/*.csv"), folder=tmp_path / "linked", seen=frozenset(whole))
    assert names(linked) == ["3.csv"]


def test_a_manifest_finds_only_files_in_its_own_folder_with_any_name(put, ask, glob, tmp_path):
    """B53: Only its own files are found, whatever its name."""
    for folder in ("[eu]", "e", "a*b", "#x", "%41", "q?"):
        put(f"{folder}/in/1.csv")
        deliveries = list(ask(glob("in/*.csv"), folder=tmp_path / folder).deliveries)
        assert [each.path for each in deliveries] == [tmp_path / folder / "in/1.csv"]
