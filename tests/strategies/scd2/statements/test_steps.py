"""The four statements and the MERGE, derived from the table, have the rule's result, without model or door."""

import random
from datetime import UTC, datetime, timedelta

import duckdb
import pytest
from specification.scd2 import BaseRow, Rules, Version, historize

from backstory.dialects import DuckDB
from backstory.stores.sql.engine import fill_placeholders
from backstory.strategies.scd2.statements import (
    ArchiveTable,
    Pair,
    actions,
    count_cases,
    hist_merge,
    hist_steps,
)
from backstory.strategies.scd2.transitions import BEGINNINGS, CLOSINGS, WORDS, Past, State

HIST = (
    "(id VARCHAR, k VARCHAR, a VARCHAR, row_hash VARCHAR, version_started_at TIMESTAMP,"
    " version_ended_at TIMESTAMP, version_state VARCHAR, load_run_id VARCHAR, loaded_at TIMESTAMP)"
)
LABELS = dict(WORDS) | {State.REAPPEARED: "back"}
KEYS = "abcdefgh"


def second(at):
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at)


def text_of(at):
    return second(at).strftime("%Y-%m-%d %H:%M:%S.%f")


def pair(words=WORDS):
    columns = ("id", "k", "a", "row_hash")
    return Pair(
        DuckDB(), "h1", "b1", "k", "id", {"a": "a"}, dict.fromkeys(columns, "VARCHAR"), words,
        version_key=lambda alias: f"{alias}.k || '@' || {{{{ load_timestamp_text }}}}",
        live=lambda alias: f" AND {alias}.a <> 'flagged'", scope="h.a <> 'spared'", archive=ArchiveTable("z1", "k"),
    )  # fmt: skip


def life(seed):
    """A history, the keys of its archive, and a base, which cover every case of the table."""
    chance = random.Random(seed)
    versions, archived = [], {key for key in KEYS if chance.random() < 0.2}
    for key in KEYS:
        at = 0
        while at < 9 and chance.random() < 0.4:
            state, ended = chance.choice(["changed", "deleted"]), chance.choice([at + 1, 9, 10])
            versions.append(version(key, "1", at, ended, state))
            at = ended
        if chance.random() < 0.5 and at < 10:
            versions.append(version(key, chance.choice(["1", "spared"]), at, None, "new"))
    base = [(key, chance.choice(["1", "2", "flagged"])) for key in KEYS if chance.random() < 0.7]
    return versions, archived, [*base, ("z", "1")]


def version(key, a, at, ended, state):
    end = ended and second(ended)
    return Version(f"{key}@{text_of(at)}", key, a, {"a": a}, second(at), end, state, "r0", second(at))


def loaded(database, tables, versions, archived, base, *, merges):
    """The history after the load, and the counts before it, by the statements or by the MERGE."""
    database.execute("CREATE OR REPLACE TABLE b1 (k VARCHAR, a VARCHAR, row_hash VARCHAR)")
    database.execute("CREATE OR REPLACE TABLE z1 (k VARCHAR)")
    database.execute(f"CREATE OR REPLACE TABLE h1 {HIST}")
    rows = [
        (
            v.hist_key,
            v.key,
            v.values["a"],
            v.row_hash,
            bare(v.started),
            bare(v.ended),
            v.state,
            v.run,
            bare(v.loaded_at),
        )
        for v in versions
    ]
    for table, table_rows in (
        ("b1", [(k, a, a) for k, a in base]),
        ("z1", [(k,) for k in archived]),
        ("h1", rows),
    ):
        if table_rows:
            marks = ", ".join("?" * len(table_rows[0]))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", table_rows)
    at = f"'{text_of(10)}'"
    values = {"load_timestamp": f"TIMESTAMP {at}", "load_timestamp_text": at, "load_run_id": "'r1'"}
    counted = count_cases(tables, lambda sql: database.execute(fill_placeholders(sql, values)).fetchall())
    if merges:  # DuckDB's MERGE may read rows of its source that it has already written
        database.execute(
            f"CREATE OR REPLACE TEMPORARY TABLE kept AS {fill_placeholders(actions(tables), values)}"
        )
    statements = [hist_merge(tables, "kept")] if merges else hist_steps(tables)
    touched = {
        step.step: database.execute(fill_placeholders(step.sql, values)).fetchone()[0] for step in statements
    }
    after = database.execute("SELECT * FROM h1").fetchall()
    return sorted(after, key=repr), counted, touched


def bare(instant):
    return instant and instant.replace(tzinfo=None)


@pytest.mark.parametrize("words", [WORDS, LABELS], ids=["plain", "labelled"])
def test_statements_and_merge_give_the_result_of_the_rule(words):
    """R29, sections 3.3 and 9.3: Rows, counts and touched rows are equal, including interrupted loads and
    archives."""
    reached = set()
    with duckdb.connect() as database:
        for seed in range(25):
            versions, archived, base = life(seed)
            rules = Rules(lambda v: v.values["a"] != "spared", archived=archived, words=words)
            rows = [BaseRow(key, a, {"a": a}) for key, a in base if a != "flagged"]
            expected, outcome = historize(
                versions, rows, second(10), "r1", lambda key, at: f"{key}@{at:%Y-%m-%d %H:%M:%S.%f}", rules
            )
            listed = [
                (
                    v.hist_key,
                    v.key,
                    v.values["a"],
                    v.row_hash,
                    bare(v.started),
                    bare(v.ended),
                    v.state,
                    v.run,
                    bare(v.loaded_at),
                )
                for v in expected
            ]
            for merges in (False, True):
                after, counted, touched = loaded(
                    database, pair(words), versions, archived, base, merges=merges
                )
                assert after == sorted(listed, key=repr), (seed, merges)
                assert (counted.counts, counted.rows) == (outcome.counts, outcome.rows), (seed, merges)
                assert (counted.base_records, counted.open_records) == (
                    outcome.base_records,
                    outcome.open_records,
                )
                assert touched == ({"merge": sum(outcome.rows.values())} if merges else outcome.rows)
            reached |= {past for (past, _), number in outcome.cases.items() if number}
    assert reached == set(Past)


def test_the_statements_have_the_specified_names_and_order():
    """Section 3.3: Close changed versions, close removed ones, begin changed ones, begin new ones."""
    assert tuple(step.step for step in hist_steps(pair())) == (*CLOSINGS, *BEGINNINGS)
