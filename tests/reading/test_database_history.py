"""Histories in a database are read by their address, with the same commands as other tables."""

import json

import pytest
from historizing import Place, dataset, document

from backstory.cli.app import run

FIRST, SECOND = "2025-01-02T00:00:01Z", "2025-01-02T00:00:02Z"

pytestmark = pytest.mark.database


@pytest.fixture(params=["duckdb", "postgres"])
def url(request, tmp_path):
    """A database of either kind, with the history of two copies."""
    address = request.getfixturevalue(f"{request.param}_url")
    place = Place(request.param, address, tmp_path)
    for number, text in enumerate(("x:p y:p", "x:q"), 1):
        assert place.base(text).load(f"r{number}", number).error is None
    place.close()
    return address


def answer(capsys, *words):
    code = run([*words, "--output", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_current_and_as_of_read_a_database_history(url, capsys):
    assert answer(capsys, "current", "rawcore.rc_c_hist", "--url", url) == (
        0,
        [{"k": "x", "a": "q", "valid_from": SECOND, "valid_to": None}],
    )
    code, rows = answer(capsys, "as-of", "rawcore.rc_c_hist", FIRST, "--url", url)
    assert code == 0
    assert sorted(rows, key=lambda row: row["k"]) == [
        {"k": key, "a": "p", "valid_from": FIRST, "valid_to": SECOND} for key in "xy"
    ]


def test_diff_and_timeline_read_a_database_history(url, capsys):
    """The database does not record the business key, so the caller specifies it."""
    hist = ("rawcore.rc_c_hist", "--url", url)
    assert answer(capsys, "diff", hist[0], FIRST, SECOND, *hist[1:], "--key", "k") == (
        0,
        [
            {"key": {"k": "x"}, "change": "changed", "columns": {"a": ["p", "q"]}},
            {"key": {"k": "y"}, "change": "removed"},
        ],
    )
    assert answer(capsys, "diff", hist[0], FIRST, FIRST, *hist[1:], "--key", "k") == (0, [])
    code, rows = answer(capsys, "timeline", hist[0], "k=x", *hist[1:])
    assert code == 0
    assert [(row["a"], row["valid_from"], row["valid_to"]) for row in rows] == [
        ("p", FIRST, SECOND),
        ("q", SECOND, None),
    ]
    assert len(answer(capsys, "timeline", hist[0], "k=x", *hist[1:], "--limit", "1")[1]) == 1
    assert answer(capsys, "timeline", *hist, "--key", "k=x") == (code, rows)


def test_keys_columns_and_kinds_of_change_select_rows(url, capsys):
    """Results equal a warehouse's. A key identifies exactly one value."""
    hist = ("rawcore.rc_c_hist", "--url", url)
    code, rows = answer(capsys, "as-of", hist[0], FIRST, *hist[1:], "--key", "k=x", "--columns", "a")
    assert (code, rows) == (0, [{"k": "x", "a": "p", "valid_from": FIRST, "valid_to": SECOND}])
    assert answer(capsys, "current", hist[0], *hist[1:], "--key", "k=y")[1] == []
    span = (hist[0], "2025-01-01", "2025-01-03", *hist[1:], "--key", "k", "--through")
    changes = answer(capsys, "diff", *span)[1]
    assert [(each["key"]["k"], each["change"], each["away"]) for each in changes] == [
        ("x", "added", False),
        ("y", "passed", False),
    ]
    removed = answer(capsys, "diff", hist[0], FIRST, SECOND, *hist[1:], "--key", "k", "--change", "removed")
    assert removed == (0, [{"key": {"k": "y"}, "change": "removed", "before": {"a": "p"}}])
    for words in (["--columns", "none"], ["--key", "x"]):
        assert answer(capsys, "current", hist[0], *hist[1:], *words)[0] == 2


@pytest.mark.parametrize("kind", ["duckdb", "postgres"])
def test_a_key_that_several_records_share_is_refused(kind, request, tmp_path, capsys):
    """Records are mixed if one column of a composite key names them, even if they never exist together."""
    address = request.getfixturevalue(f"{kind}_url")
    place = Place(kind, address, tmp_path)
    place.use(document(dataset("a:INTEGER* b* v", input="s.csv")))
    copies = ("1,x,p", "1,y,p"), ("1,z,q", "2,x,p"), ("2,x,q",), ("2,x,r",)
    for number, rows in enumerate(copies, 1):
        (tmp_path / "s.csv").write_text("\n".join(["a,b,v", *rows]))
        assert place.load(f"r{number}", number, skip_base=False).error is None
    place.close()
    hist, times = ("rawcore.rc_c_hist", "--url", address), [f"2025-01-02T00:00:0{each}Z" for each in range(5)]
    for words in (
        ["diff", hist[0], times[1], times[2], "--key", "a"],
        ["diff", hist[0], times[2], times[1], "--key", "a"],
        ["timeline", hist[0], "a=1"],
        ["as-of", hist[0], times[1], "--key", "a=1"],
    ):
        code, output = answer(capsys, *words, *hist[1:])
        assert (code, output["error"]["code"]) == (2, "other-key")
        assert "a." in output["error"]["message"]
    for key, time in (("a", 3), ("b", 3), ("a,b", 1)):  # from time 3, only the record (2, x) exists
        found = answer(capsys, "diff", hist[0], times[time], times[4], *hist[1:], "--key", key)
        assert found[0] == 0
    assert [row["v"] for row in answer(capsys, "timeline", hist[0], "a=2", *hist[1:])[1]] == ["p", "q", "r"]
    assert len(answer(capsys, "timeline", hist[0], "a=1", "b=x", *hist[1:])[1]) == 1


def test_a_users_valid_from_column_is_renamed_in_results(request, tmp_path, capsys):
    """The history defines validity, whatever the model's column names."""
    address = request.getfixturevalue("duckdb_url")
    place, columns = Place("duckdb", address, tmp_path), "k* valid_from valid_to"
    place.use(document(dataset(columns, input="stage.s")))
    for number, end in enumerate("pq", 1):
        place.stage("s", columns, [{"k": "x", "valid_from": "a", "valid_to": end}])
        assert place.load(f"r{number}", number, skip_base=False).error is None
    place.close()
    hist = ("rawcore.rc_c_hist", "--url", address)
    old, new = ({"valid_from_src": "a", "valid_to_src": end} for end in "pq")
    assert answer(capsys, "as-of", hist[0], FIRST, *hist[1:]) == (
        0,
        [{"k": "x", **old, "valid_from": FIRST, "valid_to": SECOND}],
    )
    assert answer(capsys, "diff", hist[0], FIRST, SECOND, *hist[1:], "--key", "k") == (
        0,
        [{"key": {"k": "x"}, "change": "changed", "columns": {"valid_to_src": ["p", "q"]}}],
    )
    code, rows = answer(capsys, "timeline", hist[0], "k=x", *hist[1:])
    unknown = {"known_from": None, "known_to": None, "snapshot_id": None}
    assert (code, rows) == (
        0,
        [
            {"k": "x", **old, "valid_from": FIRST, "valid_to": SECOND, **unknown},
            {"k": "x", **new, "valid_from": SECOND, "valid_to": None, **unknown},
        ],
    )


def test_json_keeps_its_exact_text_in_a_database(request, tmp_path, capsys):
    """Section 2.4: JSON is stored as text, so another spelling is another version, and null is not NULL."""
    for kind in ("duckdb", "postgres"):
        address = request.getfixturevalue(f"{kind}_url")
        place = Place(kind, address, tmp_path)
        place.use(document(dataset("k* j:JSON", input="s.csv")))
        (tmp_path / "s.csv").write_text('k,j\nx,"{""a"":  1}"\ny,null\n')
        assert place.load("r1", 1, skip_base=False).error is None
        place.close()
        code, rows = answer(capsys, "current", "rawcore.rc_c_hist", "--url", address)
        assert code == 0
        assert {row["k"]: row["j"] for row in rows} == {"x": '{"a":  1}', "y": "null"}


def test_invalid_keys_and_axes_for_a_database_are_wrong_usage(url, capsys):
    times = ("rawcore.rc_c_hist", FIRST, SECOND)
    for words, code in (
        (["diff", *times, "--url", url], "bad-option"),
        (["diff", *times, "--key", "k"], "bad-option"),
        (["diff", *times, "--url", url, "--key", "nobody"], "other-key"),
        (["diff", *times, "--url", url, "--key", "k", "--axis", "recorded"], "bad-option"),
        (["timeline", times[0], "x", "--url", url], "other-key"),
        (["timeline", times[0], "nobody=x", "--url", url], "other-key"),
        (["timeline", times[0], "k=x", "--url", url, "--axis", "both"], "bad-option"),
    ):
        exit_code, output = answer(capsys, *words)
        assert (exit_code, output["error"]["code"]) == (2, code)


def test_a_history_in_a_database_has_no_branches(url, capsys):
    """A branch is refused by name, and not ignored."""
    table, of_database = "rawcore.rc_c_hist", ("--url", url, "--branch", "preview")
    for words in (
        ["current", table],
        ["as-of", table, FIRST],
        ["timeline", table, "k=x"],
        ["diff", table, FIRST, SECOND, "--key", "k"],
    ):
        exit_code, output = answer(capsys, *words, *of_database)
        assert (exit_code, output["error"]["code"]) == (2, "bad-option")
        assert "--branch" in output["error"]["remedy"]


def test_unreadable_tables_and_addresses_are_wrong_usage(url, capsys):
    for words, code in (
        (["rawcore.none_hist", "--url", url], "no-table"),
        (["rawcore.rc_c", "--url", url], "no-history"),
        (["rawcore.rc_c_hist", "--url", "duckdb:///none/missing"], "wrong-url"),
        (["rawcore.rc_c_hist", "--url", "mysql://x"], "wrong-url"),
        (["rawcore.rc_c_hist", "--url", url, "--known-at", "2025-01-01"], "bad-option"),
    ):
        exit_code, output = answer(capsys, "current", *words)
        assert (exit_code, output["error"]["code"]) == (2, code)


@pytest.mark.parametrize("kind", ["duckdb", "postgres"])
def test_rows_are_in_the_order_of_the_key_in_every_database(kind, request, tmp_path, capsys):
    """The key's columns come first in a history. NULL sorts first, and strings sort by their bytes."""
    address = request.getfixturevalue(f"{kind}_url")
    place = Place(kind, address, tmp_path)
    place.use(document(dataset("n:INTEGER* k* a none:DATE", input="s.csv")))
    ordered = ["9,x,", "10,B,z", "10,a,y", "10,b,x", "10,ä,w"]
    (tmp_path / "s.csv").write_text("\n".join(["n,k,a,none", *(f"{row}," for row in sorted(ordered))]))
    assert place.load("r1", 1, skip_base=False).error is None
    place.close()
    for words in (["current", "rawcore.rc_c_hist"], ["as-of", "rawcore.rc_c_hist", FIRST]):
        for limit in (5, 2):
            code, rows = answer(capsys, *words, "--url", address, "--limit", str(limit), "--columns", "a,k,n")
            shown = [f"{row['n']},{row['k']},{row['a'] or ''}" for row in rows]
            assert (code, shown) == (0, ordered[:limit])


@pytest.mark.parametrize("kind", ["duckdb", "postgres"])
def test_every_type_is_compared_and_shown_as_a_warehouse_stores_it(kind, request, tmp_path, capsys):
    """Times of day, UUIDs and bytes are texts in every output, and texts of times and UUIDs are keys."""
    address = request.getfixturevalue(f"{kind}_url")
    place, columns = Place(kind, address, tmp_path), "k* u:UUID t:TIME b:BINARY j:JSON"
    place.use(document(dataset(columns, input="s.csv")))
    first, second = ("00000000-0000-0000-0000-00000000000a,12:00:00", "00000000-0000-0000-0000-00000000000b,")
    for number, values in enumerate((f"{first},AP8=", f"{second},AQ=="), 1):
        (tmp_path / "s.csv").write_text(f"k,u,t,b,j\nx,{values},{number}\n")
        assert place.load(f"r{number}", number, skip_base=False).error is None
    place.close()
    hist = ("rawcore.rc_c_hist", "--url", address)
    one, other = first.split(",", maxsplit=1)[0], second.split(",", maxsplit=1)[0]
    row = {
        "k": "x",
        "u": one,
        "t": "12:00:00",
        "b": "00ff",
        "j": "1",
        "valid_from": FIRST,
        "valid_to": SECOND,
    }
    for key in ("k=x", f"u={one}", "t=12:00:00"):
        assert answer(capsys, "as-of", hist[0], FIRST, *hist[1:], "--key", key) == (0, [row])
    changes = {"u": [one, other], "t": ["12:00:00", None], "b": ["00ff", "01"], "j": ["1", "2"]}
    assert answer(capsys, "diff", hist[0], FIRST, SECOND, *hist[1:], "--key", "k") == (
        0,
        [{"key": {"k": "x"}, "change": "changed", "columns": changes}],
    )
    for key in "utbj":
        found = answer(capsys, "diff", hist[0], FIRST, SECOND, *hist[1:], "--key", key)[1]
        assert sorted((each["key"][key] or "", each["change"]) for each in found) == sorted(
            [(changes[key][0], "removed"), (changes[key][1] or "", "added")]
        )
    assert run(["timeline", hist[0], "k=x", *hist[1:], "--output", "table"]) == 0
    drawing = capsys.readouterr().out
    assert f"u: {one} → {other}, t: 12:00:00 → –, b: 00ff → 01, j: 1 → 2" in drawing


def test_times_that_python_lacks_are_shown_as_postgresql_writes_them(postgres_url, tmp_path, capsys):
    """Reads and refusals show an infinite time, a year before 1 and 24:00:00 as text."""
    place = Place("postgres", postgres_url, tmp_path)
    columns = "k* day:DATE* at:TIMESTAMP clock:TIME"
    place.use(document(dataset(columns, input="stage.s")))
    place.stage("s", columns)
    for number, at in enumerate(("infinity", "0044-03-15 BC"), 1):
        place.sql(f"DELETE FROM stage.s; INSERT INTO stage.s VALUES ('x', 'infinity', '{at}', '24:00:00')")
        for asks in ({"dry_run": True}, {}):
            (receipt,) = place.loads(f"r{number}", number, **asks)
            assert receipt.status == "success"
    hist = ("rawcore.rc_c_hist", "--url", postgres_url)
    code, rows = answer(capsys, "timeline", hist[0], "k=x", *hist[1:])
    assert (code, [(row["at"], row["clock"]) for row in rows]) == (
        0,
        [("infinity", "24:00:00"), ("0044-03-15 00:00:00+00 BC", "24:00:00")],
    )
    code, rows = answer(capsys, "diff", hist[0], FIRST, SECOND, *hist[1:], "--key", "k")
    assert (code, rows[0]["columns"]) == (0, {"at": ["infinity", "0044-03-15 00:00:00+00 BC"]})

    place.sql("INSERT INTO stage.s SELECT * FROM stage.s")
    (receipt,) = place.loads("r3", 3)
    assert (receipt.error.code, receipt.error.keys) == ("DUPLICATE_KEY", ["k=x day=infinity"])
    place.close()
