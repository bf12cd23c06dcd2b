"""`backstory historize` as its users meet it: answers, exit codes, errors that help."""

import json

import pytest
from ruamel.yaml import YAML
from small_model import FIRST, MODEL, SECOND

from backstory.cli.app import run


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


def told(capsys):
    """The one document on standard output."""
    return json.loads(capsys.readouterr().out)


def test_a_load_answers_with_one_object_a_dataset(folder, capsys):
    """Interface 5: dataset, run id, timestamp, status, counts, schema changes, error; nothing else."""
    assert historize(folder, "--run-id", "r1", "--load-timestamp", "2026-01-01") == 0
    (receipt,) = told(capsys)
    assert receipt == {
        "dataset": "rc_c",
        "run_id": "r1",
        "load_timestamp": "2026-01-01T00:00:00.000000Z",
        "status": "success",
        "counts": {"new": 2, "changed": 0, "deleted": 0, "reappeared": 0, "unchanged": 0},
        "schema_changes": ["CREATE_TABLE rc_c", "CREATE_TABLE rc_c_hist"],
        "error": None,
    }


def test_a_table_for_people(folder, capsys):
    """On a terminal the answer is a table."""
    assert historize(folder, "--run-id", "r1", "--output", "table") == 0
    said = capsys.readouterr().out
    assert "success" in said
    assert "new 2" in said


def test_a_dry_run_names_keys_and_touches_nothing(folder, capsys):
    """R50: a dry run makes no table, no lock file; it tells counts and keys."""
    historize(folder, "--run-id", "r1")
    (folder / "stage.csv").write_text(SECOND)
    (lock,) = folder.glob("*.rawcore.rc_c.hist.lock.yaml")
    lock.unlink()
    capsys.readouterr()
    assert historize(folder, "--run-id", "r2", "--dry-run") == 0
    (receipt,) = told(capsys)
    assert receipt["keys"] == {"new": ["3"], "changed": ["1"], "deleted": ["2"]}
    assert not lock.exists()
    historize(folder, "--run-id", "r2")
    assert told(capsys)[0]["counts"] == receipt["counts"]


def test_a_refusal_is_exit_code_3_and_names_its_keys(folder, capsys):
    """A load that is refused: status, code, keys and remedy in the answer, exit code 3."""
    (folder / "stage.csv").write_text("id,city\n1,Bern\n1,Rome\n")
    assert historize(folder) == 3
    (receipt,) = told(capsys)
    assert (receipt["status"], receipt["error"]["code"]) == ("rejected", "DUPLICATE_KEY")
    assert receipt["error"]["keys"] == ["1"]
    assert receipt["error"]["remedy"]
    assert historize(folder, "--output", "table") == 3
    said = capsys.readouterr()
    assert "DUPLICATE_KEY" in said.err
    assert "rejected" in said.out


def test_an_unreadable_cell_names_file_and_line(folder, capsys):
    """A value of another type is refused with its place."""
    (folder / "stage.csv").write_text("id,city\n1,Bern\ntwo,Rome\n")
    assert historize(folder) == 3
    assert "stage.csv, line 3, column id" in told(capsys)[0]["error"]["message"]


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
def test_a_wrong_model_is_exit_code_2_with_path_and_line(folder, capsys, change, words):
    """R1: what is wrong with a model is told with its path, its line and what it should be."""
    (folder / "model.yaml").write_text(MODEL.replace(*change))
    assert historize(folder) == 2
    error = told(capsys)["error"]
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
        (["model.yaml", "--dialect", "duckdb", "--url", "postgresql://x"], "wrong-url"),
        (["model.yaml", "--dialect", "spark_iceberg", "--url", "duckdb://"], "wrong-url"),
        (
            ["model.yaml", "--dialect", "duckdb", "--url", "duckdb://", "--load-timestamp", "soon"],
            "unreadable-time",
        ),
        ([], "no-model"),
    ],
)
def test_wrong_usage_is_exit_code_2(folder, capsys, arguments, code):
    """Wrong usage starts nothing and says what to do."""
    assert run(["historize", *arguments]) == 2
    error = told(capsys)["error"]
    assert error["code"] == code
    assert error["remedy"]


def test_without_a_pepper_nothing_is_loaded(folder, capsys, monkeypatch):
    """1.1: a missing pepper is an error that names where it is looked for."""
    monkeypatch.delenv("BACKSTORY_PEPPER")
    assert historize(folder) == 2
    assert "SEC_DEV_PEPPER" in told(capsys)["error"]["remedy"]
    monkeypatch.setenv("SEC_DEV_PEPPER", "another")
    assert historize(folder) == 0


@pytest.mark.parametrize("dialect", ["spark", "duckdb", "postgres", "sqlserver"])
def test_sql_prints_the_statements_and_touches_nothing(folder, capsys, dialect):
    """Interface 5: create, base load, then after its comment the four steps, for every dialect; no pepper."""
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
    """R1: --resolved prints the model with its defaults; the same text again when it is loaded."""
    run(["historize", "model.yaml", "--resolved"])
    first = capsys.readouterr().out
    (folder / "resolved.yaml").write_text(first)
    run(["historize", "resolved.yaml", "--resolved"])
    assert capsys.readouterr().out == first
    assert YAML().load(first)["target_datasets"][0]["target_columns"][0]["target_column_name"] == "rc_c_key"


def test_the_schema_is_for_editors(folder, capsys):
    """--schema prints the JSON Schema of models."""
    assert run(["historize", "--schema"]) == 0
    schema = told(capsys)
    assert schema["title"] == "Model"
    assert "target_datasets" in schema["required"]
