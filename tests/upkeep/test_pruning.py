"""R55: Pruning, archives and erasure in databases, compared with a row-by-row reference."""

from dataclasses import replace
from datetime import datetime

import pytest
import sqlglot
from depth import deep
from historizing import Place, dataset, document, second
from hypothesis import given, settings
from hypothesis import strategies as st
from versions_in_python import (
    INSTANTS,
    KEYS,
    MOMENTS,
    answer,
    effective,
    events,
    fill,
    gaps,
    in_dialect,
    labelled,
    lives,
    ordered,
    plain,
    prepare,
    pruned_at,
    stored,
    valid,
)

from backstory.doors.historize.resolve import read_state
from backstory.doors.historize.upkeep import Upkeep
from backstory.errors import Failed, Refused, UsageError
from backstory.model.table import Dating, Labels
from backstory.reading.history_queries import as_of, changes, current, labeled, timeline
from backstory.reading.history_queries import effective as effective_query
from backstory.stores.sql.dialects import get_dialect
from backstory.upkeep import model_histories
from backstory.upkeep.model_histories import Cut

EXAMPLES = {"duckdb": deep(20, 8), "postgres": deep(10, 5)}
AT = second(1_000)
RULES = {"allow_prune": True}


@pytest.fixture(params=["duckdb", "postgres"])
def place(request, tmp_path):
    """An empty database of either kind. DuckDB is in memory, because each example changes schemas."""
    url = "duckdb://" if request.param == "duckdb" else request.getfixturevalue("postgres_url")
    database = Place(request.param, url, tmp_path)
    yield database
    database.close()


def upkeep(place: Place, name="rc_p") -> Upkeep:
    return Upkeep(place.model, place.folder, place.target, place.target._engine, name, clock=lambda: AT)


def empty(place: Place) -> Upkeep:
    """The place before any pruning."""
    for kind, name in (("VIEW", "rc_p_hist_all"), ("TABLE", "rc_p_hist_archive")):
        place.sql(f"DROP {kind} IF EXISTS rawcore.{name}")
    place.lock("rc_p").unlink(missing_ok=True)
    return upkeep(place)


def may_go(history, before, keep_last, hold):
    """The versions that the reference prunes."""

    def later(one):
        return any(v.key == one.key and v.started > one.started for v in history)

    return [
        v
        for v in history
        if v.ended and v.ended < before and (later(v) or not keep_last) and v.values["k"] not in hold
    ]


def archived(place: Place, history):
    """The rows of the archive."""
    names = [each.name for each in model_histories.archive_columns(history)]
    rows = place.rows(f"SELECT {', '.join(names)} FROM {history.archive}")
    return ordered(dict(zip(names, map(plain, row), strict=True)) for row in rows)


def table_of(place: Place, history, name):
    names = [each.name for each in history.columns]
    rows = place.rows(f"SELECT {', '.join(names)} FROM {name}")
    return ordered(dict(zip(names, map(plain, row), strict=True)) for row in rows)


def holds(place: Place, law, *strategies):
    """Check that the law holds for random histories."""
    settings(max_examples=EXAMPLES[place.name], deadline=None, derandomize=True)(given(*strategies)(law))()


HOLDS = st.sets(st.sampled_from(KEYS), max_size=1)


def test_pruned_versions_are_moved_to_the_archive(place):
    """R55: Candidates are archived unchanged, and all others are kept. The watermark is the last archived
    end."""
    history = prepare(place, **RULES)["rc_p"]

    def law(life, before, keep_last, hold):
        keep = empty(place)
        fill(place, history, life)
        gone = may_go(life, before, keep_last, hold)

        plan = keep.prune(before, keep_last=keep_last, legal_hold=sorted(hold))
        assert table_of(place, history, history.table) == ordered(stored(history, v) for v in life)
        receipt = keep.prune(before, keep_last=keep_last, legal_hold=sorted(hold), run_id="p", apply=True)

        assert (
            plan == receipt == model_histories.Pruned(len(gone), max((v.ended for v in gone), default=None))
        )
        left = [v for v in life if v not in gone]
        assert table_of(place, history, history.table) == ordered(stored(history, v) for v in left)
        rows = [{**stored(history, v), "archived_at": AT, "archive_run_id": "p"} for v in gone]
        assert archived(place, history) == ordered(rows)
        assert all(v in left for v in life if v.ended is None)
        assert not keep_last or {v.key for v in left} == {v.key for v in life}

    holds(place, law, lives(), MOMENTS, st.booleans(), HOLDS)


def test_pruning_changes_no_query_result_but_refuses_earlier_times(place):
    """R51, R55: After pruning, each query returns the same rows or is refused. Effective time loses nothing."""
    ask = prepare(place, **RULES)["rc_p"]
    dating = Dating("since")
    words = Labels(reappeared="again")

    def law(life, before, at):
        keep = empty(place)
        fill(place, ask, life)
        watermark = keep.prune(before, apply=True).watermark
        history = upkeep(place).history()

        assert history.watermark == watermark
        if watermark is not None and at < watermark:
            for question in (lambda: as_of(history, at), lambda: changes(history, at, INSTANTS[-1])):
                with pytest.raises(Refused):
                    question()
        else:
            assert answer(place, as_of(history, at)) == ordered(stored(ask, v) for v in valid(life, at))
            kinds = sorted((e["change"], e["k"]) for e in answer(place, changes(history, at, INSTANTS[-1])))
            assert kinds == sorted((e[0], (e[2] or e[3]).values["k"]) for e in events(life, at, INSTANTS[-1]))
        assert answer(place, current(history)) == ordered(stored(ask, v) for v in life if v.ended is None)
        for known in (None, at):
            spans = [
                {**stored(ask, v), "effective_from": a, "effective_to": b}
                for v, a, b in effective(life, "since", "timestamp", known)
            ]
            assert answer(place, effective_query(history, dating, known)) == ordered(spans)
        states = {
            each["rc_p_hist_key"]: each["version_state"] for each in answer(place, labeled(history, words))
        }
        assert states.items() <= {v.hist_key: word for v, word in labelled(life, words)}.items()
        for key in KEYS:
            lines = [
                (each["rc_p_hist_key"], each["gap_before"])
                for each in upkeep(place).ask(timeline(history, key))
            ]
            assert lines == [(v.hist_key, gap) for v, gap in gaps(life, f"key {key}")]
        if watermark is not None:
            assert table_of(place, ask, "rawcore.rc_p_hist_all") == ordered(stored(ask, v) for v in life)

    holds(place, law, lives(), MOMENTS, MOMENTS)


def test_repeated_pruning_moves_the_watermark_only_forward(place):
    """R55: A repeated cut changes nothing, a later one moves the watermark, and an earlier one does not."""
    history = prepare(place, **RULES)["rc_p"]

    def law(life, cuts):
        empty(place)
        fill(place, history, life)
        known = None
        for number, before in enumerate(cuts):
            upkeep(place).prune(before, run_id=f"p{number}", apply=True)
            dump = place.dump(history.table, history.archive)
            again = upkeep(place).prune(before, run_id="again", apply=True)
            assert again.versions == 0
            assert place.dump(history.table, history.archive) == dump
            gone = may_go(life, max(cuts[: number + 1]), True, ())
            known = max((v.ended for v in gone), default=None)
            assert again.watermark == upkeep(place).history().watermark == known
        assert table_of(place, history, history.table) == ordered(
            stored(history, v) for v in life if v not in may_go(life, max(cuts), True, ())
        )

    holds(place, law, lives(), st.lists(MOMENTS, min_size=2, max_size=3))


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_an_interrupted_prune_is_resumed(place, steps):
    """R55: After an interruption at any committed statement, a repeated prune gives the same tables."""
    history = prepare(place, **RULES)["rc_p"]
    cut = Cut(second(6))

    def law(life):
        empty(place)
        fill(place, history, life)
        model_histories.prepare_archive(history, place.target._engine)
        statements = [
            *model_histories.copy_statements(history, cut, "p1", AT),
            f"UPDATE {history.table} SET load_run_id = 'other' WHERE version_ended_at IS NOT NULL",
            model_histories.delete_statement(history, cut),
        ]
        for sql in statements[:steps]:
            place.sql(sql)
        changed = steps > 2
        upkeep(place).prune(cut.before, run_id="p2", apply=True)

        life = [replace(v, run="other") if changed and v.ended and steps == 3 else v for v in life]
        gone = may_go(life, cut.before, True, ())
        keys = {each["rc_p_hist_key"] for each in table_of(place, history, history.table)}
        assert keys == {v.hist_key for v in life if v not in gone}
        rows = archived(place, history)
        assert {each["rc_p_hist_key"] for each in rows} == {v.hist_key for v in gone}
        assert steps == 4 or {each["load_run_id"] for each in rows} == {v.run for v in gone}
        assert upkeep(place).history().watermark == max((v.ended for v in gone), default=None)

    holds(place, law, lives())


def test_a_half_archived_version_appears_once_in_queries(place):
    """R55: Between copy and delete, each version is returned once."""
    history = prepare(place, **RULES)["rc_p"]

    def law(life):
        empty(place)
        fill(place, history, life)
        model_histories.prepare_archive(history, place.target._engine)
        for sql in model_histories.copy_statements(history, Cut(second(9)), "p", AT):
            place.sql(sql)
        query = timeline(pruned_at(history, second(0)), "x")
        assert [row[0] for row in place.rows(query.sql)] == [v.hist_key for v, _ in gaps(life, "key x")]

    holds(place, law, lives())


TWO = """
    a 1 [1,2) changed r2
    a 2 [2,4) changed r4
    a 3 [4,-) changed r4
    b 1 [1,3) deleted r3
"""


@pytest.fixture
def two(place):
    """Two records. `a` has two closed versions and an open one."""
    place.use(document(dataset(historization=RULES)))
    return place.base("a:3").put(TWO)


def test_pruning_must_be_allowed(two):
    """R55: Without allow_prune in the model nothing is pruned, but the plan is shown."""
    two.use(document(dataset()))
    before = two.dump()

    assert upkeep(two, "rc_c").prune(second(9)).versions == 2
    with pytest.raises(Refused) as refused:
        upkeep(two, "rc_c").prune(second(9), apply=True)

    assert refused.value.code == "PRUNE_NOT_ALLOWED"
    assert two.dump() == before


def test_a_version_without_an_exact_archived_copy_is_kept(two):
    """R55: A version that is not archived exactly stays in the history, and the run fails."""
    history = upkeep(two, "rc_c").history()
    model_histories.prepare_archive(history, two.target._engine)
    before = two.dump()

    assert two.rows(model_histories.uncopied_query(history, Cut(second(9)))) == [(2,)]
    if two.name == "postgres":
        two.sql(f"CREATE RULE lost AS ON INSERT TO {history.archive} DO INSTEAD NOTHING")
        with pytest.raises(Failed) as failed:
            upkeep(two, "rc_c").prune(second(9), apply=True)
        assert failed.value.code == "ARCHIVE_DIFFERS"
        assert two.dump() == before
        assert not two.lock().exists()


def test_the_lock_file_has_the_watermark(two):
    """R55: The lock file contains the watermark. Without the file, it is read from the archive."""
    upkeep(two, "rc_c").prune(second(9), apply=True)
    lock = two.lock()

    assert read_state(lock).prune_watermark == "2025-01-02T00:00:04.000000Z"
    lock.unlink()
    assert upkeep(two, "rc_c").history().watermark == second(4)


def test_pruning_is_logged(two):
    """R55: A prune and an erasure each have a row in the step log."""
    upkeep(two, "rc_c").prune(second(9), run_id="p", apply=True)
    upkeep(two, "rc_c").erase("b", run_id="e", apply=True)

    rows = two.rows("SELECT load_run_id, step, rows_affected FROM meta.hist_step_log ORDER BY load_run_id")
    assert rows == [("e", "erase_values", 1), ("p", "prune", 2)]


def test_loads_continue_after_pruning(two):
    """R55: After pruning, a load recognises every record, and keeps the watermark."""
    two.base("a:3").load("r5", 5)
    upkeep(two, "rc_c").prune(second(9), apply=True)

    receipt = two.base("a:4 b:1").load("r6", 6)

    assert {name: count for name, count in receipt.counts.items() if count} == {"changed": 1, "reappeared": 1}
    assert upkeep(two, "rc_c").history().watermark == second(4)
    assert upkeep(two, "rc_c").state.prune_watermark == "2025-01-02T00:00:04.000000Z"


def test_the_archive_is_usable_after_schema_changes_and_renames(place, tmp_path):
    """R55: After columns are added and removed and the dataset is renamed, the archive is still read and
    written."""

    def load(number, columns, name="rc_c", **more):
        rows = {"k": "x", "a": number, "b": number, "n": number}
        names = [each.partition(":")[0].strip("*") for each in columns.split()]
        (tmp_path / "stage.csv").write_text(
            f"{','.join(names)}\n{','.join(str(rows[each]) for each in names)}\n"
        )
        place.use(document(dataset(columns, name, input="stage.csv", historization=RULES, **more)))
        (receipt,) = place.loads(f"r{number}", number)
        assert receipt.error is None

    key = {"lineage_key": "rawcore:c"}
    load(1, "k* a", **key)
    load(2, "k* a", **key)
    load(3, "k* a", **key)
    upkeep(place, "rc_c").prune(second(2.5), apply=True)
    renamed = dataset("k* a", "rc_d", former_names=["rc_c"], historization=RULES, **key)
    place.use(document(renamed))
    lock = place.lock("rc_c").rename(tmp_path / "lost")
    assert upkeep(place, "rc_d").history().model.name == "rc_c_hist"  # until the next load
    lock.rename(place.lock("rc_c"))
    place.sql("DROP VIEW rawcore.rc_c_hist_all")
    load(4, "k* b n:INTEGER", "rc_d", former_names=["rc_c"], **key)
    keep = upkeep(place, "rc_d")
    lines = keep.ask(timeline(keep.history(), "x"))

    assert [(row["a"], row["b"], row["n"]) for row in lines] == [
        ("1", None, None),
        ("2", None, None),
        ("3", None, None),
        (None, "4", 4),
    ]
    assert keep.prune(second(4.5), apply=True).versions == 2
    assert upkeep(place, "rc_d").ask(timeline(upkeep(place, "rc_d").history(), "x")) == lines
    assert len(place.rows("SELECT * FROM rawcore.rc_d_hist_all")) == 4
    assert not place.has("rawcore", "rc_c_hist_archive")


def test_views_use_the_present_columns(place, tmp_path):
    """R52, R53, R55: The model's views can be recreated after columns changed."""
    rules = {**RULES, "effective_dating": {"column": "day"}, "state_labels": {"new": "N"}}

    def load(number, columns, header):
        (tmp_path / "stage.csv").write_text(f"{header}\nx,2025-01-0{number},{number}\n")
        place.use(document(dataset(columns, input="stage.csv", historization=rules)))
        (receipt,) = place.loads(f"r{number}", number)
        assert receipt.error is None

    load(1, "k* day:DATE a", "k,day,a")
    load(2, "k* day:DATE a", "k,day,a")
    upkeep(place, "rc_c").prune(second(9), apply=True)
    load(3, "k* day:DATE b", "k,day,b")
    upkeep(place, "rc_c").refresh_views()

    assert place.rows("SELECT a, b FROM rawcore.rc_c_hist_all ORDER BY day") == [
        ("1", None),
        ("2", None),
        (None, "3"),
    ]
    assert place.rows("SELECT b, version_state FROM rawcore.rc_c_hist_labeled ORDER BY day")[1:] == [
        ("3", "changed")
    ]
    assert len(place.rows("SELECT b, effective_from FROM rawcore.rc_c_hist_effective")) == 3


# Erasure


@pytest.mark.parametrize("rows", [False, True])
def test_a_record_is_erased_everywhere(place, rows):
    """R55: Erasure clears a record's values or deletes its rows, in history and archive, and nothing else."""
    history = prepare(place, **RULES)["rc_p"]

    def law(life, before, key):
        empty(place)
        fill(place, history, life)
        upkeep(place).prune(before, apply=True)
        plan = upkeep(place).erase(key, rows=rows)
        count = upkeep(place).erase(key, rows=rows, apply=True)

        mine = [v for v in life if v.values["k"] == key]
        assert plan == count == len(mine)
        nothing = dict.fromkeys(("a", "n", "since", "day", "doc"))
        expected = [stored(history, v) for v in life if v not in mine]
        if not rows:
            expected += [{**stored(history, v), **nothing, "row_hash": "erased"} for v in mine]
        query = upkeep(place).history().union()
        names = [each.name for each in history.columns]
        versions = ordered(dict(zip(names, map(plain, row), strict=True)) for row in place.rows(query))
        assert versions == ordered(expected)

    holds(place, law, lives(), MOMENTS, st.sampled_from(KEYS))


def test_a_record_in_the_base_is_not_erased(two):
    """R55: If the next load would add the record again, erasure is refused and writes nothing."""
    before = two.dump()

    with pytest.raises(Refused) as refused:
        upkeep(two, "rc_c").erase("a", apply=True)

    assert refused.value.code == "KEY_PRESENT"
    assert two.dump() == before


def test_a_record_that_is_flagged_as_deleted_can_be_erased(place, tmp_path):
    """R54, R55: A softly deleted record of the base is not part of the history's input, so it can be erased."""
    soft = {"soft_delete": {"column": "gone", "deleted_values": ["X"]}}
    place.use(document(dataset("k* a gone", input="stage.csv", historization=soft)))
    for number, flag in enumerate(["", "X"], start=1):
        (tmp_path / "stage.csv").write_text(f"k,a,gone\nx,1,{flag}\ny,1,\n")
        place.loads(f"r{number}", number)

    assert upkeep(place, "rc_c").erase("x", apply=True) == 1
    (receipt,) = place.loads("r3", 3)

    assert receipt.status == "unchanged"
    assert place.rows("SELECT k, a, row_hash FROM rawcore.rc_c_hist WHERE k = 'x'") == [("x", None, "erased")]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda keep: keep.prune(datetime(2025, 1, 2)), "naive-time"),
        (lambda keep: keep.prune(AT, legal_hold=[{"id": 1}]), "other-key"),
        (lambda keep: keep.erase({"k": "x", "a": 1}), "other-key"),
        (lambda keep: replace(keep, name="rc_x").history(), "no-dataset"),
        (lambda keep: replace(keep, name="rc_c").history(), "no-history"),
    ],
)
def test_invalid_upkeep_calls_are_wrong_usage(tmp_path, call, code):
    """R55: A naive time, another key, an unknown dataset and a missing history are wrong usage."""
    place = Place("duckdb", f"duckdb://{tmp_path / 'x.duckdb'}", tmp_path)
    prepare(place, **RULES)
    place.sql("DROP TABLE rawcore.rc_c_hist")

    with pytest.raises(UsageError) as refused:
        call(upkeep(place))

    assert refused.value.code == code
    place.close()


@pytest.mark.parametrize("name", ["spark", "sqlserver", "duckdb", "postgres"])
def test_upkeep_statements_can_be_parsed_in_every_dialect(name):
    """R55: The statements of pruning and erasure are valid SQL in every dialect."""
    dialect = get_dialect(name)
    history = in_dialect(dialect)["rc_p"]
    cut = Cut(second(3), legal_hold=("o'x", {"k": None}))
    statements = [
        model_histories.preview_query(history, cut),
        *model_histories.copy_statements(history, cut, "run", AT),
        model_histories.uncopied_query(history, cut),
        model_histories.delete_statement(history, cut),
        model_histories.forget_values(history, history.table, [each.name for each in history.columns], "x"),
        model_histories.forget_rows(history, history.table, "x"),
        history.union(),
        dialect.render_create_table_if_not_exists_from_columns(
            history.archive, model_histories.archive_columns(history)
        ).removeprefix("IF OBJECT_ID(N'rawcore.rc_p_hist_archive') IS NULL\n"),
    ]

    for sql in statements:
        (parsed,) = sqlglot.parse(sql, read=dialect.SQLGLOT_NAME)
        assert not isinstance(parsed, sqlglot.exp.Command)
