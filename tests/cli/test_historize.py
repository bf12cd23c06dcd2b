"""`backstory historize` for its users: results, exit codes, helpful errors."""

import json

import pytest
from ruamel.yaml import YAML
from small_model import FIRST, MODEL, SECOND

from backstory.cli.app import run
from backstory.doors.historize.door import choose, early_refusals
from backstory.doors.historize.receipts import LoadRequest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model and its stage."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKSTORY_PEPPER", "a secret")
    (tmp_path / "model.yaml").write_text(MODEL)
    (tmp_path / "stage.csv").write_text(FIRST)
    return tmp_path


def historize(folder, *more):
    """The exit code of a load on DuckDB."""
    url = f"duckdb://{folder / 'h.duckdb'}"
    return run(["historize", "model.yaml", "--dialect", "duckdb", "--url", url, *more])


def document(capsys):
    """The document on standard output."""
    return json.loads(capsys.readouterr().out)


def test_a_load_prints_one_object_per_dataset(folder, capsys):
    """Interface 5: It contains only dataset, run id, timestamp, status, counts, schema changes and error."""
    assert historize(folder, "--run-id", "r1", "--load-timestamp", "2026-01-01") == 0
    (receipt,) = document(capsys)
    assert receipt == {
        "dataset": "rc_c",
        "run_id": "r1",
        "load_timestamp": "2026-01-01T00:00:00.000000Z",
        "status": "success",
        "counts": {"new": 2, "changed": 0, "deleted": 0, "reappeared": 0, "unchanged": 0},
        "schema_changes": ["CREATE_TABLE rc_c", "CREATE_TABLE rc_c_hist"],
        "error": None,
    }


def test_table_output_shows_status_and_counts(folder, capsys):
    assert historize(folder, "--run-id", "r1", "--output", "table") == 0
    output = capsys.readouterr().out
    assert "success" in output
    assert "new 2" in output


def test_a_dry_run_names_keys_and_touches_nothing(folder, capsys):
    """R50: A dry run creates no table or lock file, and prints counts and keys."""
    historize(folder, "--run-id", "r1")
    (folder / "stage.csv").write_text(SECOND)
    (lock,) = folder.glob("*.rawcore.rc_c.hist.lock.yaml")
    lock.unlink()
    capsys.readouterr()
    assert historize(folder, "--run-id", "r2", "--dry-run") == 0
    (receipt,) = document(capsys)
    assert receipt["keys"] == {"new": ["3"], "changed": ["1"], "deleted": ["2"]}
    assert not lock.exists()
    historize(folder, "--run-id", "r2")
    assert document(capsys)[0]["counts"] == receipt["counts"]


def test_a_refusal_exits_with_code_3_and_names_its_keys(folder, capsys):
    """A refused load returns status, code, keys and remedy, and exit code 3."""
    (folder / "stage.csv").write_text("id,city\n1,Bern\n1,Rome\n")
    assert historize(folder) == 3
    (receipt,) = document(capsys)
    assert (receipt["status"], receipt["error"]["code"]) == ("rejected", "DUPLICATE_KEY")
    assert receipt["error"]["keys"] == ["1"]
    assert receipt["error"]["remedy"]
    assert historize(folder, "--output", "table") == 3
    output = capsys.readouterr()
    assert "DUPLICATE_KEY" in output.err
    assert "rejected" in output.out


def test_a_missing_file_is_refused_early_only_without_a_run_id(folder):
    """R17: A run with an id may be a known run, which reads no file. A wrong id is refused at once."""
    (folder / "stage.csv").unlink()
    chosen = choose("model.yaml", None)
    assert [each.error.code for each in early_refusals(chosen, LoadRequest())] == ["no-stage"]
    assert early_refusals(chosen, LoadRequest(run_id="r1")) == []
    assert run(["historize", "model.yaml", "--run-id", " "]) == 2


def test_an_unreadable_cell_names_file_and_line(folder, capsys):
    """The value is refused with its place."""
    (folder / "stage.csv").write_text("id,city\n1,Bern\ntwo,Rome\n")
    assert historize(folder) == 3
    assert "stage.csv, line 3, column id" in document(capsys)[0]["error"]["message"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("BIGINT", "BIGINTT"), ["model.yaml, line 9", "datatype", "BIGINT"]),
        (("system_role: business_key", "system_rol: business_key"), ["line 9", "system_rol", "system_role"]),
        (("format: historize/1", "format: historize/2"), ["line 2", "format"]),
        (("input: stage.csv", "inputs: stage.csv"), ["line 7", "inputs", "input"]),
        (("rc_c\n", "RC-C\n"), ["line 6", "target_dataset_name"]),
        (("[{short_name: rawcore}]", "[{short_name: rawcore"), ["model.yaml, line"]),
    ],
)
def test_a_wrong_model_exits_with_code_2_and_names_path_and_line(folder, capsys, change, words):
    """R1: The error of a model has path, line and the expected form."""
    (folder / "model.yaml").write_text(MODEL.replace(*change))
    assert historize(folder) == 2
    error = document(capsys)["error"]
    for word in words:
        assert word in f"{error['message']} {error['remedy']}"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["missing.yaml"], "no-model"),
        (["model.yaml", "--dataset", "rc_x", "--dialect", "duckdb", "--url", "duckdb://"], "no-dataset"),
        (["model.yaml", "--dialect", "oracle"], "unknown-dialect"),
        (["model.yaml", "--dialect", "spark_delta"], "unknown-dialect"),
        (["model.yaml", "--dialect", "duckdb"], "no-url"),
        (["model.yaml", "--dialect", "sqlserver", "--url", "mssql://x"], "no-engine"),
        (["model.yaml", "--dialect", "sqlserver"], "no-engine"),
        (["model.yaml", "--dialect", "duckdb", "--url", "postgresql://x"], "wrong-url"),
        (["model.yaml", "--dialect", "spark_iceberg", "--url", "duckdb://"], "wrong-url"),
        (
            ["model.yaml", "--dialect", "duckdb", "--url", "duckdb://", "--load-timestamp", "soon"],
            "unreadable-time",
        ),
        ([], "no-model"),
    ],
)
def test_wrong_usage_exits_with_code_2(folder, capsys, arguments, code):
    """Nothing is started, and the error has a remedy."""
    assert run(["historize", *arguments]) == 2
    error = document(capsys)["error"]
    assert error["code"] == code
    assert error["remedy"]


def test_a_load_without_a_pepper_is_refused(folder, capsys, monkeypatch):
    """1.1: The error names the places where a pepper is looked up."""
    monkeypatch.delenv("BACKSTORY_PEPPER")
    assert historize(folder) == 2
    assert "SEC_DEV_PEPPER" in document(capsys)["error"]["remedy"]
    monkeypatch.setenv("SEC_DEV_PEPPER", "another")
    assert historize(folder) == 0


@pytest.mark.parametrize("dialect", ["spark", "duckdb", "postgres", "sqlserver"])
def test_sql_prints_the_statements_and_touches_nothing(folder, capsys, dialect):
    """Interface 5: For every dialect, it prints create, base load and the four steps, without the pepper."""
    before = sorted(folder.iterdir())
    assert run(["historize", "model.yaml", "--sql", "--dialect", dialect]) == 0
    text = capsys.readouterr().out
    create, comment, steps = text.partition("-- History load for rc_c\n")
    assert comment
    assert "CREATE TABLE" in create
    assert "INSERT INTO" in create
    words = ["UPDATE", "UPDATE", "INSERT INTO", "INSERT INTO"]
    assert [
        word
        for word in steps.replace("INSERT INTO", "INSERT_INTO").split()
        if word in {"UPDATE", "INSERT_INTO"}
    ] == [word.replace(" ", "_") for word in words]
    for placeholder in ("load_timestamp", "load_timestamp_text", "load_run_id", "pepper"):
        assert f"{{{{ {placeholder} }}}}" in text
    assert "a secret" not in text
    assert "MERGE" not in steps
    assert sorted(folder.iterdir()) == before


def test_the_resolved_model_resolves_to_itself(folder, capsys):
    """R1: --resolved prints the model with its defaults, and loading that gives the same text."""
    run(["historize", "model.yaml", "--resolved"])
    first = capsys.readouterr().out
    (folder / "resolved.yaml").write_text(first)
    run(["historize", "resolved.yaml", "--resolved"])
    assert capsys.readouterr().out == first
    assert YAML().load(first)["target_datasets"][0]["target_columns"][0]["target_column_name"] == "rc_c_key"


def test_the_printed_schema_describes_models(folder, capsys):
    """--schema prints the JSON Schema of models."""
    assert run(["historize", "--schema"]) == 0
    schema = document(capsys)
    assert schema["title"] == "Model"
    assert "target_datasets" in schema["required"]
