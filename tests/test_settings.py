"""The folder of the warehouse, from the option, the environment and the Python call."""

from pathlib import Path

import pytest

from backstory.errors import UsageError
from backstory.settings import VARIABLE, load


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home and working folder without a configuration."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BACKSTORY_CONFIG", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("named", "folder"),
    [
        ("~/wh", "{home}/wh"),
        (Path("~/wh"), "{home}/wh"),
        ("~", "{home}"),
        ("~nobody-of-this-name/wh", "{here}/~nobody-of-this-name/wh"),
        ("file:///data/my%20wh", "/data/my wh"),
        ("file://localhost/data", "/data"),
        (Path("file:///data"), "/data"),
        ("wh", "{here}/wh"),
        ("a:b/wh", "{here}/a:b/wh"),
        ("./s3:/wh", "{here}/s3:/wh"),
    ],
)
def test_a_path_or_file_address_names_the_warehouse_folder(monkeypatch, tmp_path, home, named, folder):
    folder = Path(folder.format(home=home, here=tmp_path))
    assert load(named).warehouse == folder
    monkeypatch.setenv(VARIABLE, str(named))
    assert load().warehouse == folder


@pytest.mark.parametrize(
    "named", ["s3://me:canary@lake/wh", "S3A://lake/wh", Path("s3://lake/wh"), "file://host/wh", "hdfs:///wh"]
)
def test_a_remote_address_is_refused_as_a_warehouse(monkeypatch, tmp_path, named):
    """No folder is made for it, and the error shows no secret of the address."""
    for name_it in (lambda: load(named), load):
        with pytest.raises(UsageError, match="must be a folder") as refused:
            name_it()
        assert refused.value.code == "no-warehouse"
        assert "[catalog]" in refused.value.remedy
        assert "canary" not in str(refused.value)
        monkeypatch.setenv(VARIABLE, str(named))


def test_a_configured_catalog_needs_no_warehouse_folder(tmp_path):
    (tmp_path / "backstory.toml").write_text(
        '[catalog]\ntype = "rest"\nuri = "https://catalog.example.com"\n'
    )
    assert load("s3://lake/wh").catalogs["backstory"]["type"] == "rest"
