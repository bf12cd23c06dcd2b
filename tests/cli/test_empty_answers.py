"""Empty results: standard error explains them, because headings are easily overlooked."""

import pytest
from histories_as_text import written

from backstory import warehouse
from backstory.cli.app import run
from backstory.model.layout import Layout
from backstory.stores.iceberg.store import IcebergStore
from backstory.warehouse import Warehouse

LIFE = """
k     v  from  to   recorded
good  a  T10   -    T1
"""
NEVER = "1970-01-01"


@pytest.fixture
def output_of(spark, tmp_path, monkeypatch, capsys):
    """The output of a command on both streams, for a table with one version."""
    monkeypatch.setattr(warehouse, "open", lambda *_, **__: Warehouse(IcebergStore(spark), embedded=False))
    monkeypatch.setenv("BACKSTORY_WAREHOUSE", str(IcebergStore(spark).folder))
    monkeypatch.chdir(tmp_path)
    table = str(written(IcebergStore(spark), "empty_answers", Layout.VERSIONS, LIFE))

    def output_of(command, *words):
        assert run([command, table, *words, "--output", "csv"]) == 0
        return capsys.readouterr()

    return output_of


def test_an_empty_result_is_explained_on_standard_error(output_of):
    """The note contains the key and the times. Other results have no note, and neither does --quiet."""
    assert output_of("current", "--key", "gone").err == "No record with key k=gone.\n"
    assert output_of("as-of", NEVER).err == f"No rows at {NEVER}.\n"
    note = f"No record with key k=good at {NEVER}, as known at {NEVER}.\n"
    assert output_of("as-of", NEVER, "--key", "good", "--known-at", NEVER).err == note
    assert output_of("diff", NEVER, NEVER).err == "No differences.\n"
    assert output_of("changes", "--since", "1").err == "No changes.\n"
    assert output_of("current", "--key", "good").err == ""
    assert output_of("current", "--key", "gone", "--quiet").err == ""
    assert output_of("current", "--key", "gone").out == "k,v,valid_from,valid_to\n"
