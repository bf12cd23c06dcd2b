"""The explorer's answers equal the reading commands' answers, for every layout, on pages and as JSON."""

import json
import re
import shlex
from html import unescape

import pyarrow as pa
import pytest
from exploring import HOSTILE, exploring, fill

from backstory.cli.app import run
from backstory.explorer.questions import Question, life_snippets, rows_snippets
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.metadata.table_metadata import TableMetadata

# A table of each layout, a record of it, and two times between which it changed.
LAYOUTS = {
    "explored.customer": ("2", "2026-01-15", "2026-03-15"),
    "explored.orders": ("1", "2026-01-15", "2026-02-15"),
    "rawcore.rc_c_hist": ("1", "2026-01-15", "2026-02-15"),
    "explored.dbt_orders": ("1", "2026-01-15", "2026-02-15"),
    "odf.cities": ("Bern", "2026-01-15", "2026-02-15"),
}


@pytest.fixture(scope="module")
def explorer(spark, warehouse, tmp_path_factory):
    from backstory.stores.iceberg.store import IcebergStore

    fill(IcebergStore(spark), tmp_path_factory.mktemp("explored"))
    with exploring(warehouse) as client:
        yield client


@pytest.fixture
def command(warehouse, capsys, monkeypatch):
    """The JSON output of a command, without Spark."""
    monkeypatch.setenv("JAVA_HOME", str(warehouse / "none"))

    def ask(*words):
        capsys.readouterr()
        code = run([*words, "--warehouse", str(warehouse), "--output", "json"])
        assert code in {0, 4}
        return json.loads(capsys.readouterr().out)

    return ask


def _every_page(explorer, path):
    """The rows of a JSON answer and of its linked pages."""
    rows = []
    while path:
        part = explorer.get(path)
        rows += part.document
        path = (re.findall(r"<(.*)>", part.headers.get("link", "")) or [None])[0]
    return rows


def test_the_explorer_lists_the_tables_of_the_tables_command(explorer, command, monkeypatch):
    monkeypatch.setattr("backstory.explorer.views.TABLES_OF_A_PAGE", 3)
    assert _every_page(explorer, "/tables.json") == command("tables")
    for name in LAYOUTS:
        page = explorer.get("/", after=name[:-1])
        assert page.status == 200
        assert f">{name}</bdi>" in page.text


@pytest.mark.parametrize("table", LAYOUTS)
def test_every_json_page_equals_the_commands_json(explorer, command, table):
    key, first, second = LAYOUTS[table]
    assert explorer.get("/table.json", table=table).document == command("current", table)
    assert explorer.get("/table.json", table=table, at=second).document == command("as-of", table, second)
    assert explorer.get("/record.json", table=table, key=key).document == command("timeline", table, key)
    query = {"table": table, "from": first, "to": second}
    assert explorer.get("/diff.json", **query).document == command("diff", table, first, second)
    assert explorer.get("/check.json", table=table).document == command("check", table)
    assert explorer.get("/log.json", table=table, limit=500).document == command("log", table)


@pytest.mark.parametrize("table", LAYOUTS)
def test_every_page_links_to_its_json(explorer, table):
    key, first, second = LAYOUTS[table]
    views = {
        "/table": {"at": second},
        "/record": {"key": key},
        "/diff": {"from": first, "to": second},
        "/check": {},
        "/log": {},
    }
    for view, words in views.items():
        page = explorer.get(view, table=table, **words)
        assert page.status == 200, page.text
        (twin,) = re.findall(rf'href="({view}\.json[^"]*)"', page.text)
        assert explorer.get(unescape(twin)).status == 200


def test_an_accept_header_selects_json(explorer):
    answer = explorer.get(
        "/record", headers={"accept": "application/json"}, table="explored.customer", key="2"
    )
    assert answer.document == explorer.get("/record.json", table="explored.customer", key="2").document


def test_known_times_and_both_axes_match_the_commands(explorer, command):
    """The late copy of February shows Bob as C at that time. Before it was known, he was A until March."""
    before = command("log", "explored.customer")[1]["recorded_at"]
    rows = explorer.get("/table.json", table="explored.customer", at="2026-02-15", known_at=before).document
    assert rows == command("as-of", "explored.customer", "2026-02-15", "--known-at", before)
    assert [row["tier"] for row in rows] == ["A", "A", "B", None]
    now = explorer.get("/table.json", table="explored.customer", at="2026-02-15").document
    assert [row["tier"] for row in now] == ["A", "C", "B", "A"]
    both = explorer.get("/record.json", table="explored.customer", key="2", axis="both").document
    assert both == command("timeline", "explored.customer", "2", "--axis", "both")
    assert "known 20" in explorer.get("/record", table="explored.customer", key="2", axis="both").text


def test_copied_commands_print_the_json_of_the_page(explorer, command):
    """A page's command line has the same answer as the page."""
    for view, words in (
        ("/table", {"at": "2026-03-15"}),
        ("/record", {"key": "5"}),
        ("/diff", {"from": "2026-01-15", "to": "2026-03-15"}),
        ("/check", {}),
        ("/log", {}),
    ):
        page = explorer.get(view, table="explored.customer", **words).text
        text = unescape(re.search(r"<dt>Command line</dt>\s*<dd><code[^>]*>(.*?)</code>", page)[1])
        program, *rest = shlex.split(text)
        assert program == "backstory"
        assert command(*rest) == explorer.get(f"{view}.json", table="explored.customer", **words).document


def test_copied_sql_returns_the_data_of_the_page(explorer, spark):
    """Both have the same rows, by their columns from the source."""
    for table, names in (
        ("explored.customer", ["id", "name", "tier"]),
        ("rawcore.rc_c_hist", ["id", "city"]),
    ):
        for view, words in (("/table", {"at": "2026-02-15"}), ("/table", {}), ("/record", {"key": "1"})):
            page = explorer.get(view, table=table, **words).text
            text = unescape(re.search(r"<dt>Spark SQL</dt>\s*<dd><code[^>]*>(.*?)</code>", page)[1])
            rows = explorer.get(f"{view}.json", table=table, **words).document
            shown, queried = (
                sorted(str([row[name] for name in names]) for row in answer)
                for answer in (rows, spark.sql(text).collect())
            )
            assert shown == queried


@pytest.mark.parametrize(
    ("kind", "key", "literal"),
    [
        (Kind.NAIVE_DATETIME, "2026-01-15T12:00:00", "TIMESTAMP_NTZ '2026-01-15 12:00:00'"),
        (Kind.UTC_DATETIME, "2026-01-15T12:00:00+01:00", "TIMESTAMP '2026-01-15T11:00:00.000000Z'"),
        (Kind.BINARY, "00FF", "X'00ff'"),
        (Kind.LONG, "007", "7"),
        (Kind.DOUBLE, "0.1", "CAST('0.1' AS DOUBLE)"),
        (Kind.NAIVE_DATE, "2026-01-15", "CAST('2026-01-15' AS DATE)"),
        (Kind.STRING, "it's", r"'it\'s'"),
    ],
)
def test_copied_queries_use_typed_literals(kind, key, literal):
    """A literal has the type of its column, so it names the same value in any time zone."""
    columns = (Column("id", ColumnType(kind)),)
    table = TableMetadata(Shape(TableName("s", "t"), columns, ("id",), Layout.VERSIONS), {}, "")
    for snippets in (
        rows_snippets(Question("table", where=(f"id={key}",)), table),
        life_snippets(Question("record", key=(key,)), table),
    ):
        assert f"`id` = {literal} " in f"{snippets[-1].text} "


def test_consecutive_pages_contain_every_row_once(explorer):
    rows = _every_page(explorer, "/table.json?table=explored.customer&at=2026-02-15&limit=1")
    assert rows == explorer.get("/table.json", table="explored.customer", at="2026-02-15").document
    assert len(rows) == 4


def test_a_filter_shows_only_matching_rows(explorer):
    answer = explorer.get(
        "/table.json", table="explored.customer", at="2026-03-15", where=f"name={HOSTILE[0]}"
    )
    assert [row["id"] for row in answer.document] == [5]
    wrong = explorer.get("/table.json", table="explored.customer", where="nome=Ada")
    assert (wrong.status, wrong.document["error"]["code"]) == (400, "unknown-column")


def test_steps_lead_to_the_previous_and_next_change(explorer):
    def stepped(step, **words):
        answer = explorer.get("/table.json", table="explored.customer", step=step, **words)
        assert answer.status == 303
        return dict(re.findall(r"(\w+)=([^&]*)", answer.headers["location"])).get("at", "")

    assert stepped("previous").startswith("2026-04-01T00")
    assert stepped("previous", at="2026-04-01").startswith("2026-03-01T00")
    assert stepped("next", at="2026-01-01").startswith("2026-02-01T00")
    assert stepped("next", at="2026-04-01") == ""


def test_the_last_changes_are_marked(explorer):
    page = explorer.get("/table", table="explored.customer", at="2026-03-15").text
    assert len(re.findall(r'<td class="changed">', page)) == 2  # tiers of 1 and 2
    assert len(re.findall(r'<tr class="new">', page)) == 1
    assert "(changed)" in page  # for screen readers


def test_a_value_page_shows_start_commit_and_previous_value(explorer, command):
    document = explorer.get(
        "/value.json", table="explored.customer", key="1", column="tier", at="2026-03-15"
    ).document
    commits = {each["snapshot_id"]: each for each in command("log", "explored.customer")}
    commit = commits[document["commit"]["snapshot_id"]]
    assert (document["value"], document["before"], document["gone_before"]) == ("B", "A", False)
    assert (document["valid_from"], document["valid_to"]) == ("2026-03-01T00:00:00Z", None)
    assert commit["committed_at"] == document["commit"]["committed_at"]
    assert document["commit"]["counts"] == commit["counts"]
    first = explorer.get("/value.json", table="explored.customer", key="1", column="tier", at="2026-01-15")
    assert first.document["gone_before"] is True


def test_a_value_without_recorded_times_is_traced_to_its_commit(explorer, command):
    """The last of three commits wrote the row, and the first one wrote the closed version before it."""
    last, _, first = command("log", "explored.orders")
    for at, commit in (("2026-02-15", last), ("2026-01-15", first)):
        document = explorer.get(
            "/value.json", table="explored.orders", key="1", column="state", at=at
        ).document
        assert document["commit"]["snapshot_id"] == commit["snapshot_id"]
    assert (document["value"], document["valid_to"]) == ("new", "2026-02-01T00:00:00Z")


def test_a_table_without_a_history_is_shown_at_its_commits(explorer, command):
    last, first = command("log", "explored.live")
    then = first["committed_at"]
    rows = explorer.get("/table.json", table="explored.live", known_at=then).document
    assert rows == command("current", "explored.live", "--known-at", then)
    assert [row["state"] for row in rows] == ["new", "new"]
    page = explorer.get("/table", table="explored.live").text
    assert len(re.findall(r'<td class="changed">', page)) == 1
    between = {"from": then, "to": last["committed_at"]}
    differences = explorer.get("/diff.json", table="explored.live", **between).document
    assert differences == command("diff", "explored.live", *between.values(), "--axis", "recorded")
    assert explorer.get("/diff.json", table="explored.live").document == differences
    story = explorer.get("/value.json", table="explored.live", key="1", column="state").document
    assert (story["value"], story["before"]) == ("paid", "new")
    assert story["commit"]["snapshot_id"] == last["snapshot_id"]


def test_equal_changes_are_grouped(explorer):
    page = explorer.get(
        "/diff", **{"table": "explored.customer", "from": "2026-01-15", "to": "2026-03-15"}
    ).text
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "2 rows: tier A → B" in text


def test_a_saved_history_is_a_single_file_without_scripts(explorer):
    answer = explorer.get("/record.html", table="explored.customer", key="5")
    assert answer.headers["content-disposition"] == 'attachment; filename="record.html"'
    assert "<svg" in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text
    assert not re.search(r"<script|src=|href=", answer.text)


@pytest.mark.parametrize(
    ("path", "words", "status", "code"),
    [
        ("/table.json", {"table": "explored.customr"}, 404, "no-table"),
        ("/table.json", {"table": "customer"}, 404, "no-table"),
        ("/table.json", {"table": "explored.customer", "at": "soon"}, 400, "unreadable-time"),
        ("/table.json", {"table": "explored.customer", "limit": "501"}, 400, "bad-option"),
        ("/table.json", {"table": "explored.customer", "sql": "DROP TABLE x"}, 400, "bad-option"),
        ("/record.json", {"table": "explored.customer"}, 400, "no-key"),
        ("/record.json", {"table": "explored.customer", "key": "one"}, 400, "other-key"),
        ("/value.json", {"table": "explored.customer", "key": "1", "column": "x"}, 400, "unknown-column"),
        ("/value.json", {"table": "explored.customer", "key": "77", "column": "tier"}, 404, "no-record"),
        ("/record.json", {"table": "explored.customer", "key": "77"}, 404, "no-record"),
        ("/nowhere.json", {}, 404, "no-page"),
    ],
)
def test_errors_are_shown_with_code_and_remedy(explorer, path, words, status, code):
    answer = explorer.get(path, **words)
    error = answer.document["error"]
    assert (answer.status, error["code"]) == (status, code)
    assert error["message"]
    assert error["remedy"]


def test_a_notebook_shows_a_table_summary(spark, explorer):
    import backstory

    drawn = backstory.open(spark=spark, catalog="backstory").table("explored.customer")._repr_html_()
    for text in (
        "explored.customer",
        "versions",
        "id BIGINT, name STRING, tier STRING",
        "native",
        "2 changed",
    ):
        assert text in drawn


def test_the_explorer_from_python_shows_the_same_rows(spark, explorer):
    import backstory

    running = backstory.open(spark=spark, catalog="backstory").explore(port=0)
    try:
        from exploring import Asked

        twin = Asked(running.link).get("/table.json", table="explored.customer").document
        assert twin == explorer.get("/table.json", table="explored.customer").document
        assert running.link in running._repr_html_()
    finally:
        running.stop()


@pytest.mark.parametrize("at", ["0001-01-01", "9999-12-31T23:59:59.999999Z"])
def test_a_history_at_the_borders_of_the_calendar_is_shown(explorer, python, at):
    """Its slider, its bars and its default differences need no time beyond the borders."""
    python.snapshot(pa.table({"id": [1]}), into=f"explored.at_{at[:4]}", key="id", at=at)
    for view in ("/table", "/diff"):
        assert explorer.get(f"{view}.json", table=f"explored.at_{at[:4]}").status == 200


def test_times_outside_the_calendar_are_shown_and_no_steps_lead_to_them(explorer, python):
    """An adopted table may hold them. A version without a start is a row, but never part of a timeline."""
    python.spark.sql(
        "CREATE TABLE backstory.explored.early USING iceberg AS "
        "SELECT id, v, CAST(start AS TIMESTAMP) AS dbt_valid_from, CAST(end AS TIMESTAMP) AS dbt_valid_to "
        "FROM VALUES (1, 'a', '-0044-03-15', '2020-01-01'), (1, 'b', '2020-01-01', '+19999-12-31'), "
        "(2, 'c', NULL, NULL) AS rows (id, v, start, end)"
    )
    early = {"table": "explored.early"}
    python.adopt(early["table"], layout="dbt", key="id")
    for at, shown in (("", ("b", "2020-")), ("2019-01-01", ("a", "-0044"))):
        first = explorer.get("/table.json", at=at, **early).document[0]
        assert (first["v"], first["valid_from"][:5]) == shown
        assert explorer.get("/table", at=at, **early).status == 200
    assert explorer.get("/diff.json", **early).status == 200
    for key in "12":
        answer = explorer.get("/record.json", key=key, **early)
        assert (answer.status, answer.document["error"]["code"]) == (409, "no-timeline")


ODD = {
    "after": ("9" * 5000, "²", "9" * 18, "key=x"),
    "at": ("9999-12-31T23:59:59.999999Z", "0001-01-01", "0001-01-01T00:00+14:00", "x"),
    "from": ("9999-12-31T23:59:59.999999Z", "0001-01-01", "987654321"),
    "to": ("9999-12-31T23:59:59.999999Z", "0001-01-01", "987654321"),
    "known_at": ("9999-12-31T23:59:59.999999Z", "0001-01-01", "2026-02-30"),
    "key": ("9" * 400, "a=b", "\0"),
    "limit": ("9" * 5000, "²", "0"),
    "table": ("no.table", "\0", "x"),
}


@pytest.mark.parametrize("table", LAYOUTS)
@pytest.mark.parametrize("word", ODD)
def test_unusual_requests_are_no_server_errors(explorer, table, word):
    """Extreme times, unknown commits and pages after the last one are errors of the request."""
    key, first, second = LAYOUTS[table]
    views = {
        "/table": {},
        "/record": {"key": key},
        "/diff": {"from": first, "to": second},
        "/check": {},
        "/log": {},
    }
    for view, words in views.items():
        for value in ODD[word]:
            answer = explorer.get(f"{view}.json", **{"table": table, **words, word: value})
            assert answer.status < 500, (view, value[:40], answer.text)
