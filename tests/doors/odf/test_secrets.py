"""Secrets of a manifest's templates stay in the environment (R8): nothing that is stored, logged or told has them."""

from functools import partial

import pytest
import web
from datasets import Dataset

from backstory.doors.odf.log_table import log_rows

SECRETS = {"ODF_PLACE": "hidden-folder", "ODF_KEY": "quer1-key", "ODF_TOKEN": "t0ken"}
FETCH = (
    "{kind: url, url: '%s/${{ env.ODF_PLACE }}/a.csv?key=${{ env.ODF_KEY }}', "
    "headers: [{name: X-Token, value: '${{ env.ODF_TOKEN }}'}]}"
)


@pytest.fixture
def served(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    with web.serving() as served:
        yield served


def test_no_table_log_or_receipt_has_them(store, tmp_path, served, capsys, caplog):
    """R8: not after a pull that works, nor after one of rows that are malformed."""
    caplog.set_level(0)
    path = f"/{SECRETS['ODF_PLACE']}/a.csv"
    served.play(path, web.Play(b"city,population\nA,1\n", etag='"1"'), web.Play(b"city\nA\n", etag='"2"'))
    life = partial(Dataset, store, tmp_path, namespace="odf_secrets")(
        "{kind: append}", "city STRING, population INT", fetch=FETCH % served.url("").rstrip("/")
    )
    receipts = [life.pull(), life.pull()]
    assert [receipt.status for receipt in receipts] == ["updated", "failed"]
    assert SECRETS["ODF_TOKEN"] in {request.headers["X-Token"] for request in served.seen}

    table = life.table.iceberg
    told = [str(receipt.to_dict()) for receipt in receipts]
    told += [str(dict(table.properties())), *(str(dict(each.summary())) for each in table.snapshots())]
    told += [str(row) for row in (*log_rows(store, life.table.shape.table), *life.rows())]
    told += [caplog.text, *capsys.readouterr()]
    assert [secret for secret in SECRETS.values() if secret in "\n".join(told)] == []
    assert "${{ env.ODF_KEY }}" in "\n".join(told)
