"""Secrets in a manifest's templates stay in the environment (R8): they are never stored, logged or shown."""

from functools import partial

import pytest
import web
from datasets import Dataset
from structlog.testing import capture_logs

from backstory.doors.odf import door
from backstory.doors.odf.registry import MANIFEST
from backstory.errors import UsageError
from backstory.journal.chain import log_rows

SECRETS = {"ODF_PLACE": "hidden-folder", "ODF_KEY": "quer1-key", "ODF_TOKEN": "t0ken"}
FETCH = (
    "{kind: url, url: '%s/${{ env.ODF_PLACE }}/a.csv?key=${{ env.ODF_KEY }}', "
    "headers: [{name: X-Token, value: '${{ env.ODF_TOKEN }}'}]}"
)


LITERAL = "{kind: url, url: '%s', headers: [{name: Authorization, value: 'Bearer hunter2hunter2'}]}"


@pytest.fixture
def served(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    with web.serving() as served:
        yield served


def test_no_table_log_or_receipt_contains_secrets(store, tmp_path, served, capsys, caplog):
    """R8: This holds after a successful pull, and after one with malformed rows."""
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
    texts = [str(receipt.to_dict()) for receipt in receipts]
    texts += [str(dict(table.properties())), *(str(dict(each.summary())) for each in table.snapshots())]
    texts += [str(row) for row in (*log_rows(store, life.table.shape.table), *life.rows())]
    texts += [caplog.text, *capsys.readouterr()]
    assert [secret for secret in SECRETS.values() if secret in "\n".join(texts)] == []
    assert "${{ env.ODF_KEY }}" in "\n".join(texts)


def test_a_manifest_with_a_secret_is_not_stored(store, tmp_path, served):
    life = Dataset(
        store, tmp_path, "{kind: append}", namespace="odf_secrets", fetch=LITERAL % served.url("/a")
    )
    with pytest.raises(UsageError, match=r"manifest.yaml, line 8, .*fetch\.headers\[0\]\.value") as refused:
        life.add()

    assert (refused.value.code, life.known) == ("lint-L11", False)
    assert "hunter2" not in str(refused.value)


def test_a_dataset_stored_with_a_secret_is_read_and_reported(store, tmp_path, served):
    """The report continues until a manifest without the secret is added. The secret is not shown."""
    served.play("/a", web.Play(b"city\nA\n", etag='"1"'), web.Play(b"city\nB\n", etag='"2"'))
    life = Dataset(
        store, tmp_path, "{kind: append}", namespace="odf_secrets", read="{kind: csv, header: true}"
    )
    life.add(fetch=(LITERAL % served.url("/a")).replace("hunter2hunter2", "${ODF_TOKEN}"))
    stored = life.table.iceberg.properties()[MANIFEST].replace("${ODF_TOKEN}", "hunter2hunter2")
    table = store.sql_name(life.table.shape.table)
    store.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{MANIFEST}' = '{stored}')")

    with capture_logs() as logs:
        assert life.pull().counts["appended"] == 1
    [line] = [each["event"] for each in logs if "Authorization" in each["event"]]
    assert "fetch.headers[0].value: the manifest contains the value of Authorization" in line
    assert "hunter2" not in line
    assert ["L11"] == [lint.code for lint in door.inspect(store, life.name, namespace="odf_secrets").lints]
    assert "Bearer hunter2hunter2" in {request.headers["Authorization"] for request in served.seen}

    life.add()
    assert "hunter2" not in str(dict(life.table.iceberg.properties()))
    with capture_logs() as logs:
        assert life.pull().counts["appended"] == 1
    assert [each for each in logs if "Authorization" in each["event"]] == []
