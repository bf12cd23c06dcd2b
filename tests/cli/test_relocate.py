"""The command line for a copied or moved warehouse, without Java."""

import json
import shutil

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from backstory.cli.app import run


@pytest.fixture
def copied(tmp_path):
    """A copy of another program's warehouse with a table, and a table outside of it."""
    folder = tmp_path / "old"
    folder.mkdir()
    with SqlCatalog(
        "backstory", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}"
    ) as catalog:
        catalog.create_namespace("crm")
        rows = pa.table({"id": [1]})
        catalog.create_table("crm.t", rows.schema).append(rows)
        catalog.create_table("crm.far", rows.schema, location=f"file://{tmp_path}/far").append(rows)
    return shutil.copytree(folder, tmp_path / "new")


def tell(capsys, *words):
    code = run([*map(str, words), "--output", "json"])
    output = capsys.readouterr()
    return code, json.loads(output.out), output.err


@pytest.mark.parametrize(
    "words",
    [
        ["current", "crm.t"],
        ["as-of", "crm.t", "2026-01-01"],
        ["log", "crm.t"],
        ["timeline", "crm.t", "1"],
        ["diff", "crm.t", "2026-01-01", "2026-01-02"],
        ["changes", "crm.t"],
    ],
)
def test_reading_a_copy_names_both_folders_and_the_command(words, copied, capsys, tmp_path):
    """Exit code 2: the error has both folders, and the arguments with which `backstory relocate` works."""
    code, document, _ = tell(capsys, *words, "--warehouse", copied)

    assert (code, document["error"]["code"]) == (2, "warehouse-moved")
    message = document["error"]["message"]
    assert f"The warehouse {copied} was copied or moved from {tmp_path}/old" in message
    assert f"run `backstory relocate` with `--warehouse {copied}` once" in document["error"]["remedy"]


def test_tables_reports_a_copied_warehouse_and_lists_outside_tables(copied, capsys, tmp_path):
    """Each table has a row, with its error if it is refused. If all are refused, there is only the error."""
    code, document, _ = tell(capsys, "tables", "--warehouse", copied)
    assert code == 2
    assert [(each["table"], each["rows"]) for each in document] == [("crm.far", 1), ("crm.t", None)]
    assert document[1]["error"]["code"] == "warehouse-moved"
    assert run(["tables", "--warehouse", str(copied), "--output", "table"]) == 2
    output = capsys.readouterr()
    assert "crm.far" in output.out
    assert f"moved from {tmp_path}/old" in " ".join(output.err.split())

    with SqlCatalog("backstory", uri=f"sqlite:///{copied}/catalog.db") as catalog:
        catalog.drop_table("crm.far")
    code, document, _ = tell(capsys, "tables", "--warehouse", copied)
    assert (code, document["error"]["code"]) == (2, "warehouse-moved")


def test_relocate_without_a_move_does_nothing(copied, capsys, tmp_path):
    """A warehouse in its own folder is reported as such, and a missing one as missing. Java is not started."""
    code, document, _ = tell(capsys, "relocate", "--warehouse", tmp_path / "old")
    assert (code, document["tables"], document["files"]) == (0, [], 0)
    assert run(["relocate", "--warehouse", str(tmp_path / "old"), "--output", "table"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    code, document, _ = tell(capsys, "relocate", "--warehouse", copied, "--from", tmp_path / "other")
    assert (code, document["error"]["code"]) == (2, "nothing-moved")
    code, document, _ = tell(capsys, "relocate", "--warehouse", tmp_path / "none")
    assert (code, document["error"]["code"]) == (2, "no-warehouse")
    assert "(from `--warehouse`)" in document["error"]["message"]
    assert not (tmp_path / "none").exists()
