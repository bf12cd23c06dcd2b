"""The feed out of tables, layout by layout: which rows are told, what identifies them, and in which order."""

from datetime import UTC, datetime, timedelta

from feeding import Fed

from backstory.model.layout import Layout
from backstory.model.remembered import OWN_COLUMNS
from backstory.reading.changes.rule import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def at(number):
    return None if number is None else DAY + timedelta(days=number)


OWN = {each.name: each for each in OWN_COLUMNS}


def version(k, v, start, end=None, recorded=1, **memory):
    return {
        "k": k,
        "v": v,
        "valid_from": at(start),
        "valid_to": at(end),
        "is_current": end is None,
        "recorded_at": at(recorded),
        "_memory": memory or None,
    }


def test_E16_the_feed_of_changes_with_a_compaction_between(store):
    """V101, V104 to V106: types, versions and times behind the row's columns; memory rows are no rows."""
    fed = Fed(store, "e16", {"k": "STRING", "v": "STRING", **OWN}, ("k",), Layout.VERSIONS)
    fed.change([version("k", "a", 10), version("m", "a", 10)])
    fed.change([version("k", "a", 10, 20, ended_at=at(2)), version("k", "b", 20, recorded=2)], "k = 'k'")
    fed.do(
        "CALL backstory.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
    )
    fed.change(
        [
            version("k", "a", 10, 10, role="past", ended_at=at(2)),
            version("k", "a", 10, 15, recorded=2, ended_at=at(4), end_before=at(20)),
            version("k", "c", 15, 20, recorded=4),
            version("m", "a", 10, 30, ended_at=at(4)),
            version("m", None, 30, 30, recorded=4, role="fact", kind="delete"),
        ],
        "v = 'a'",
    )

    def told(**asked):
        with fed.table.changes(**asked) as feed:
            rows = feed.frame.toArrow()
        assert rows.column_names[-3:] == [CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP]
        assert "_memory" not in rows.column_names
        shown = [name for name in ("k", "v", "valid_from", "valid_to") if name in rows.column_names]
        days = lambda value: value if isinstance(value, str) else "-" if value is None else (value - DAY).days  # noqa: E731
        return [
            " ".join(map(str, (row[COMMIT_VERSION], row[CHANGE_TYPE], *(days(row[name]) for name in shown))))
            for row in rows.to_pylist()
        ]

    assert told() == [
        "1 insert k a 10 -",
        "1 insert m a 10 -",
        "2 update_preimage k a 10 -",
        "2 update_postimage k a 10 20",
        "2 insert k b 20 -",
        "4 update_preimage k a 10 20",
        "4 update_postimage k a 10 15",
        "4 insert k c 15 20",
        "4 update_preimage m a 10 -",
        "4 update_postimage m a 10 30",
    ]
    assert told(since=1, net=True) == [
        "4 update_preimage k a 10 -",
        "4 update_postimage k a 10 15",
        "4 insert k c 15 20",
        "2 insert k b 20 -",
        "4 update_preimage m a 10 -",
        "4 update_postimage m a 10 30",
    ]
    assert told(current=True) == [
        "1 insert k a",
        "1 insert m a",
        "2 update_preimage k a",
        "2 update_postimage k b",
        "4 delete m a",
    ]
