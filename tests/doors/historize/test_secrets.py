"""The pepper is never visible, and values are data everywhere (R10, R32)."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from historizing import Place, dataset, document, second, versions

from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.load import prepare_load
from backstory.errors import BackstoryError, Failed, UsageError
from backstory.stores.sql.duckdb_engine import open_duckdb
from backstory.stores.sql.engine import PEPPER as PLACEHOLDER
from backstory.stores.sql.engine import fill_placeholders
from backstory.stores.sql.postgres_engine import open_postgres
from backstory.strategies.scd2.statements import hist_merge, hist_steps

PEPPER = "sal-y-pimienta'\\9"
NASTY = [
    "it's",
    'say "hello"',
    "back\\slash",
    "trailing\\",
    "100%",
    "%s %(name)s %%",
    "{{ load_timestamp }}",
    "{{load_run_id}}",
    "{{ pepper }}",
    "{{ unknown }}",
    "{load_timestamp}",
    "$1 :name ?",
    "-- no comment",
    "/* nor this */ ; DROP TABLE rawcore.rc_c_hist; --",
    "$$",
    "E'\\n'",
    "tab\tand\nline",
    "Ünï 🐘",
]


@pytest.fixture
def peppered(request, place, engine):
    """A place with a recognizable pepper."""
    peppered = Place(place.name, place.url, place.folder, pepper=PEPPER)
    peppered.use(document(dataset(input="stage.s", historization={"engine": engine})))
    yield peppered
    peppered.close()


def everything(place):
    """All values of all tables of the database, as text."""
    tables = place.rows(
        "SELECT table_schema, table_name FROM information_schema.tables "
        "WHERE table_schema IN ('rawcore', 'meta', 'stage')"
    )
    assert len(tables) >= 4
    return " ".join(str(place.rows(f"SELECT * FROM {schema}.{name}")) for schema, name in tables)


def test_the_pepper_is_in_no_table_log_or_receipt(peppered, capsys, caplog):
    """R10: After loads, refusals, failures and dry runs, no table, output, lock file or receipt contains the
    pepper."""
    caplog.set_level(logging.DEBUG)
    receipts = []
    peppered.stage("s", "k* a", [{"k": "a", "a": "1"}, {"k": "b", "a": "1"}])
    receipts += peppered.loads("r1", 1)
    peppered.insert("stage.s", [{"k": "a", "a": "2"}])
    receipts += peppered.loads("r2", 2)
    peppered.stage("s", "k* a", [{"k": "a", "a": "2"}])
    receipts += peppered.loads("r3", 3, dry_run=True)
    peppered.sql("ALTER TABLE rawcore.rc_c RENAME COLUMN load_run_id TO away")
    peppered.sql("ALTER TABLE rawcore.rc_c ADD COLUMN load_run_id INTEGER")
    receipts += peppered.loads("r4", 4)
    assert [receipt.status for receipt in receipts] == ["success", "rejected", "success", "rejected"]
    files = " ".join(path.read_text() for path in peppered.folder.glob("*.yaml"))
    output = "".join(capsys.readouterr()) + caplog.text

    for text in (
        everything(peppered),
        str(receipts),
        files,
        output,
        repr(peppered.target.__dict__.get("_pepper")),
    ):
        assert PEPPER not in text
        assert "pimienta" not in text


def test_a_database_error_does_not_contain_the_pepper(peppered):
    """R10: The error of a failed statement contains neither the statement nor the pepper."""
    peppered.stage("s", "k* a", [{"k": "a", "a": "1"}])
    peppered.loads("r1", 1)
    for break_it in ("rawcore.rc_c", "rawcore.rc_c_hist"):
        peppered.sql(f"DROP TABLE {break_it}")
        peppered.sql(f"CREATE VIEW {break_it} AS SELECT 1 AS k, 2 AS a")
        (receipt,) = peppered.loads(f"r {break_it}", 2)
        assert receipt.exit_code in {1, 3}
        assert "pimienta" not in str(receipt)
        peppered.sql(f"DROP VIEW {break_it}")
    assert "pimienta" not in everything(peppered)


def test_no_logged_postgresql_statement_contains_the_pepper(postgres_url, tmp_path, engine):
    """R10: Neither the server's log of all statements nor pg_stat_activity contains the pepper."""
    watch = Place("postgres", postgres_url, tmp_path)
    name = postgres_url.rpartition("/")[2]
    watch.sql(f"ALTER DATABASE {name} SET log_statement = 'all'")
    watch.sql(f"ALTER DATABASE {name} SET log_min_duration_statement = 0")
    ((folder,),) = watch.rows("SHOW data_directory")
    log = Path(folder).parent / "log"
    begun = log.stat().st_size
    place = Place("postgres", postgres_url, tmp_path, pepper=PEPPER)
    place.use(document(dataset(input="stage.s", historization={"engine": engine})))
    place.stage("s", "k* a", [{"k": "a", "a": "1"}])
    seen, over = set(), threading.Event()

    def watching():
        while not over.is_set():
            watch.rows("SELECT pg_stat_clear_snapshot()")
            seen.update(watch.rows("SELECT query FROM pg_stat_activity WHERE datname = current_database()"))

    with ThreadPoolExecutor(1) as pool:
        watched = pool.submit(watching)
        place.loads("r1", 1)
        place.sql("UPDATE stage.s SET a = '2'")
        place.loads("r2", 2)
        over.set()
        watched.result()
    place.sql("SELECT 'the end of this test'")
    logged = log.read_bytes()[begun:].decode()

    assert "the end of this test" in logged
    assert "INSERT INTO rawcore.rc_c_hist" in logged or "MERGE INTO rawcore.rc_c_hist" in logged
    for text in (logged, str(seen)):
        assert "pimienta" not in text
    place.close()
    watch.close()


def test_statements_have_a_placeholder_for_the_pepper(place, engine):
    """R10, R50: A rendered statement contains the placeholder instead of the pepper."""
    place.mode(engine)
    load = prepare_load(place.model, place.dataset, sync_hist(place.dataset, None, second(1)), place.dialect)
    texts = [statement.sql for statement in (*hist_steps(load.pair), hist_merge(load.pair))]

    assert any(PLACEHOLDER in text for text in texts)
    assert all(place.pepper not in text.replace(PLACEHOLDER, "") for text in texts)


@pytest.mark.parametrize("run", NASTY)
def test_a_run_id_is_data(place, run):
    """R32: A run id is stored unchanged, whatever its text."""
    place.base("a:1").load("r1", 1)
    receipt = place.base("a:2").load(run, 2)

    assert receipt.status == "success"
    stored = {row[0] for row in place.rows("SELECT load_run_id FROM rawcore.rc_c_hist")}
    assert stored == {run}
    assert place.registered("load_run_id", run=run) == [(run,)]


def test_values_are_data(place, engine):
    """R32: Quotes, braces, backslashes and percent signs in keys and attributes reach base and history
    unchanged."""
    place.use(document(dataset(input="stage.s", historization={"engine": engine})))
    rows = [{"k": text, "a": text} for text in NASTY]
    place.stage("s", "k* a", rows)
    (first,) = place.loads("r1", 1)
    place.stage("s", "k* a", [row | {"a": row["a"] + "!"} for row in rows])
    (second_,) = place.loads("r2", 2)

    assert (first.counts["new"], second_.counts["changed"]) == (len(NASTY), len(NASTY))
    current = set(place.rows("SELECT k, a FROM rawcore.rc_c_hist WHERE version_ended_at IS NULL"))
    assert current == {(text, text + "!") for text in NASTY}
    assert len(place.history()) == 2 * len(NASTY)


def test_offending_keys_are_reported_unchanged(place):
    """R23, R32: The keys in a refusal are the values themselves."""
    place.use(document(dataset(input="stage.s")))
    place.stage("s", "k* a", [{"k": text, "a": n} for text in NASTY[:5] for n in ("1", "2")])
    (receipt,) = place.loads("r1", 1)

    assert sorted(receipt.error["keys"]) == sorted(NASTY[:5])


def scoped(place, engine, scope):
    """The receipt of a load without any of three stored keys, each with a text."""
    rules = {"engine": engine, "snapshot": "partial", "delete_scope": scope}
    place.use(document(dataset(input="stage.s", historization=rules)))
    place.stage("s", "k* a", [{"k": text, "a": text} for text in ("it's", "{x}", "100%")])
    (first, *_) = place.loads("r1", 1)
    place.stage("s", "k* a", [{"k": "new", "a": "1"}])
    return [first, *place.loads("r2", 2)]


@pytest.mark.parametrize("text", ["it's", "{x}", "100%"])
def test_texts_in_a_scope_are_data(place, engine, text):
    """R32, R25: A text in a delete scope remains data."""
    _, receipt = scoped(place, engine, "h.a = '" + text.replace("'", "''") + "'")

    assert receipt.counts["deleted"] == 1
    assert place.rows("SELECT a FROM rawcore.rc_c_hist WHERE version_state = 'deleted'") == [(text,)]


def test_a_placeholder_in_a_scope_is_refused(place, engine):
    """R32: A scope with placeholders is refused and never filled in."""
    with pytest.raises(UsageError) as refused:
        scoped(place, engine, "h.a = '{{ load_run_id }}'")
    assert refused.value.code == "wrong-model"
    assert not place.has("rawcore", "rc_c_hist")


def test_a_label_is_data(place, engine):
    """R32, 7.2: A stored label that looks like a placeholder is stored unchanged."""
    labels = {"new": "{{ load_run_id }}", "changed": "it's", "deleted": "100%", "mode": "stored"}
    labels["reappeared"] = labels["new"]
    place.use(document(dataset(input="stage.s", historization={"engine": engine, "state_labels": labels})))
    for number, rows in enumerate(({"a": "1", "b": "1"}, {"a": "2"}), start=1):
        place.stage("s", "k* a", [{"k": k, "a": a} for k, a in rows.items()])
        place.loads(f"r{number}", number)
    states = place.rows("SELECT k, version_state FROM rawcore.rc_c_hist ORDER BY k, version_started_at")

    assert states == [("a", "it's"), ("a", "it's"), ("b", "100%")]
    place.stage("s", "k* a", [{"k": "c", "a": "1"}, {"k": "a", "a": "2"}])
    place.loads("r3", 3)
    assert place.rows("SELECT version_state FROM rawcore.rc_c_hist WHERE k = 'c'") == [("{{ load_run_id }}",)]


@pytest.mark.parametrize("layer", ["x|y~z", "null.replaced/+=-"])
def test_separators_of_the_layer_are_data(place, engine, layer):
    """R32, 1.2: A null token with separators is used unchanged in SQL."""
    schema = {"surrogate_key_null_token": layer}
    place.use(document(dataset(input="stage.s", historization={"engine": engine}), schema=schema))
    place.stage("s", "k* a", [{"k": "a", "a": None}])
    place.loads("r1", 1)

    assert place.history() == versions("a - [1,-) new r1")


def test_placeholders_are_replaced_once():
    """R32: Only double-brace placeholders with values are replaced, in one pass."""
    values = {"a": "'{{ b }}'", "b": "2"}

    assert (
        fill_placeholders("{{ a }} {{b}} {{  a}} {a} {b} {{ 1 2 }}", values)
        == "'{{ b }}' 2 '{{ b }}' {a} {b} {{ 1 2 }}"
    )
    with pytest.raises(Failed, match="no value for it"):
        fill_placeholders("SELECT {{ c }}", values)


@pytest.mark.parametrize("connect", [open_duckdb, open_postgres])
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://bob:hunter2@127.0.0.1:1/db",
        "postgresql://bob:pre@hunter2@127.0.0.1:1/db",
        "postgresql://bob:hunter2/pw@127.0.0.1:1/db",
        "postgresql://bob:hunter2%zz@127.0.0.1:1/db",
        "postgresql://bob@127.0.0.1:1/db?password=hunter2&foo=bar",
        "postgresql://bob@127.0.0.1:1/db?password=hunter2%zz",
        "host=127.0.0.1 password=hunter2",
        "duckdb://bob:hunter2@127.0.0.1/none/db",
    ],
)
def test_no_error_contains_the_password_of_an_address(connect, url):
    """A broken address is never quoted with its password, not even by the driver's message."""
    with pytest.raises(BackstoryError) as refused:
        connect(url)

    assert "hunter2" not in f"{refused.value} {refused.value.__cause__} {refused.value.keys}"
