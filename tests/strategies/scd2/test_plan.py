"""R29: a small load, planned on the driver, is the rule's; many lives, in memory."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from backstory.model.layout import ENDED, LOAD_RUN_ID, LOADED_AT, ROW_HASH, STARTED, STATE
from backstory.strategies.scd2.pair import Pair
from backstory.strategies.scd2.plan import LoadMoment, begins, closes, tally
from backstory.strategies.scd2.rule import BaseRow, Rules, Version, historize
from backstory.strategies.scd2.transitions import WORDS, State
from backstory.strategies.sift.plan import matched, take_rows

DAY = datetime(2025, 1, 2, tzinfo=UTC)
LABELS = {State.NEW: "N", State.CHANGED: "C", State.DELETED: "D", State.REAPPEARED: "R"}
INSTANT = pa.timestamp("us", "UTC")
TEXTS = [pa.field(name, pa.string()) for name in ("h_key", "b_key", ROW_HASH, "a")]
TIMES = [pa.field(name, INSTANT) for name in (STARTED, ENDED)]
LAST = [pa.field(STATE, pa.string()), pa.field(LOAD_RUN_ID, pa.string()), pa.field(LOADED_AT, INSTANT)]
STORED = pa.schema([*TEXTS, *TIMES, *LAST])


def pair(words):
    return Pair(None, "h", "b", "b_key", "h_key", {"a": "a"}, {}, words, lambda _: "", lambda _: "")


def stored(versions):
    """Versions as rows of a history."""
    names = dict(zip(asdict(Version(*range(9))), STORED.names, strict=True))
    rows = []
    for version in versions:
        told = {names[name]: value for name, value in vars(version).items()}
        rows.append(told | {"a": told["a"]["a"]})
    return pa.Table.from_pylist(rows, STORED)


def made(rows):
    """Rows of a history as versions."""
    found = []
    for row in rows.to_pylist():
        built = row["h_key"] or f"{row['b_key']} {row[STARTED]}"
        found.append(
            Version(built, row["b_key"], row[ROW_HASH], {"a": row["a"]}, *[row[n] for n in STORED.names[4:]])
        )
    return found


@st.composite
def lives(draw):
    """Words for states, a scope of deletes, archived keys, and bases that are loaded one after the other."""
    keys = st.sampled_from("abcdef")
    bases = st.lists(st.dictionaries(keys, st.sampled_from(["1", "2", None])), min_size=1, max_size=6)
    return (
        draw(st.sampled_from([WORDS, LABELS])),
        draw(st.sampled_from([None, "1"])),
        draw(st.frozensets(keys, max_size=2)),
        draw(bases),
    )


@given(lives())
def test_a_small_load_is_the_rules(life):
    """Versions that close and begin, their words and the counts, load after load."""
    words, scope, archived, bases = life
    history = []
    for number, rows in enumerate(bases, start=1):
        instant, run = DAY + timedelta(seconds=number), f"r{number}"
        base = [BaseRow(key, f"#{value}", {"a": value}) for key, value in rows.items()]
        within = (lambda version: version.values["a"] == scope) if scope else (lambda _: True)
        rules = Rules(within, allow_empty=True, archived=archived, words=words)
        expected, counted = historize(
            history, base, instant, run, lambda key, started: f"{key} {started}", rules
        )

        live = pa.table(
            {
                "b_key": pa.array([row.key for row in base], pa.string()),
                "a": pa.array([row.values["a"] for row in base], pa.string()),
                ROW_HASH: pa.array([row.row_hash for row in base], pa.string()),
            }
        )
        open_ = stored([version for version in history if version.ended is None])
        known = pa.chunked_array([pa.array([within(each) for each in made(open_)], pa.bool_())])
        found = matched(live, open_, ["b_key"], [ROW_HASH], known)
        closed = {version.key for version in history if version.ended is not None} | archived
        came = live["b_key"].take(found.appeared).to_pylist()
        seen = pa.array([key for key in came if key in closed], pa.string())
        moment = LoadMoment(instant, run)
        before = (take_rows(open_, each) for each in (found.changed[1], found.vanished))
        after = (take_rows(live, each) for each in (found.changed[0], found.appeared))
        ended = made(closes(pair(words), *before, moment))
        begun = begins(pair(words), *after, seen, moment)
        begun = begun.append_column("h_key", pa.nulls(len(begun), pa.string()))

        after = {version.hist_key: version for version in [*history, *ended]}
        after |= {version.hist_key: version for version in made(begun.select(STORED.names))}
        history = sorted(after.values(), key=lambda version: version.hist_key)
        assert history == sorted(expected, key=lambda version: version.hist_key)
        assert tally(found.sizes, len(seen)).counts == counted.counts
        assert found.nothing == (not ended and not begun.num_rows)
