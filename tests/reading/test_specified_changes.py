"""The feed for small states, as the reference for the reader on Spark."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from specification.change_feed import (
    E16_CHANGES,
    E16_NET,
    E16_OF_CURRENT_ROWS,
    apply_changes,
    changes_between,
    changes_of_commits,
    net,
)

from backstory.model.change import ChangeType

NAN = float("nan")


def versions(text):
    """`k a 10 20` is version a of k from 10 until 20. A state is one line, with versions separated by commas."""
    lines = [line.split(",") for line in text.strip().splitlines()]
    return [
        [dict(zip(("k", "v", "from", "to"), each.split(), strict=True)) for each in line] for line in lines
    ]


def start(row):
    return row["k"], row["from"]


def key(row):
    return row["k"]


def change_lines(changes):
    return [f"{one.version} {one.type} {' '.join(map(str, one.row.values()))}" for one in changes]


E16 = """k a 10 -, m a 10 -
         k a 10 20, k b 20 -, m a 10 -
         m a 10 -, k b 20 -, k a 10 20
         k a 10 15, k c 15 20, k b 20 -, m a 10 30"""


def test_E16_the_change_feed_skips_a_compaction():
    """The commits are 1 and 2, a compaction (3 here), and 4."""
    states = [[], *versions(E16)]
    changes = changes_of_commits(states, start)
    assert change_lines(changes) == E16_CHANGES
    assert change_lines(net(changes[2:], start)) == E16_NET


def test_E16_the_current_feed_contains_only_open_versions():
    open_ = [[{"k": row["k"], "v": row["v"]} for row in state if row["to"] == "-"] for state in versions(E16)]
    assert change_lines(changes_of_commits([[], *open_], key)) == E16_OF_CURRENT_ROWS


def test_rows_with_equal_values_are_no_change():
    """V16: NaN equals NaN, 0.0 equals -0.0, maps have no order, and a boolean is not a number."""
    before = {"k": 1, "v": NAN, "m": {"a": 0.0, "b": [NAN]}}
    after = {"k": 1, "v": NAN, "m": {"b": [NAN], "a": -0.0}}
    assert changes_between([before], [after], 1, key) == []
    assert len(changes_between([{"k": 1, "v": True}], [{"k": 1, "v": 1}], 1, key)) == 2


def test_rows_with_a_repeated_identity_are_not_paired():
    """V105: Equal rows cancel one by one, and the pairs of the others are unknown."""
    before = [{"k": 1, "v": "a"}, {"k": 1, "v": "a"}, {"k": 1, "v": "b"}]
    after = [{"k": 1, "v": "a"}, {"k": 1, "v": "c"}]
    assert change_lines(changes_between(before, after, 1, key)) == [
        "1 delete 1 a",
        "1 delete 1 b",
        "1 insert 1 c",
    ]


ROWS = st.fixed_dictionaries({"k": st.integers(0, 3), "v": st.sampled_from([None, NAN, 0.0, -0.0, "x"])})
STATES = st.lists(st.lists(ROWS, max_size=5), min_size=2, max_size=5)


@given(STATES)
def test_L12_the_feed_applied_to_a_mirror_gives_the_table(states):
    """This holds between any commits, one by one or net. The net feed is the difference of the ends."""
    for first, last in itertools.combinations(range(len(states)), 2):
        feed = changes_of_commits(states[first : last + 1], key, first + 1)
        for changes in (feed, net(feed, key)):
            mirror = apply_changes(states[first], changes)
            assert changes_between(mirror, states[last], 0, key) == []
        ends = changes_between(states[first], states[last], 0, key)
        assert sorted(map(repr, [(one.type, one.row["k"]) for one in net(feed, key)])) == sorted(
            map(repr, [(one.type, one.row["k"]) for one in ends])
        )


@given(STATES)
def test_a_preimage_is_followed_by_its_postimage(states):
    changes = changes_of_commits(states, key)
    for place, one in enumerate(changes):
        if one.type is ChangeType.BEFORE:
            after = changes[place + 1]
            assert (after.type, after.version, after.row["k"]) == (
                ChangeType.AFTER,
                one.version,
                one.row["k"],
            )
    assert [one.version for one in changes] == sorted(one.version for one in changes)


def test_net_folds_by_sparks_four_rules():
    """V106: Insert and delete cancel, insert and updates are one insert, updates are two images, otherwise a
    delete."""
    a, b, c = ({"k": 1, "v": value} for value in "abc")
    assert net(changes_of_commits([[], [a], []], key), key) == []
    assert change_lines(net(changes_of_commits([[], [a], [b]], key), key)) == ["2 insert 1 b"]
    assert change_lines(net(changes_of_commits([[a], [b], [c]], key), key)) == [
        "2 update_preimage 1 a",
        "2 update_postimage 1 c",
    ]
    assert change_lines(net(changes_of_commits([[a], [b], []], key), key)) == ["2 delete 1 a"]
    assert net(changes_of_commits([[a], [b], [a]], key), key) == []
