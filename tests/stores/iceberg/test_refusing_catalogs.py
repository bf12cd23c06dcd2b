"""Catalogs that refuse the server: requirement 20, section 2.0."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from destination import definition, serving, status

from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.stores.iceberg.store import IcebergStore
from backstory.testing.sender import Sender

PASSWORD = "canary-ab12"
WAYS = {
    "unreachable": lambda uri: re.sub(r":\d+/", ":1/", uri),
    "credentials": lambda uri: uri.replace("user=backstory", f"user=stranger&password={PASSWORD}"),
    "privilege": lambda uri: uri.replace("user=backstory", "user=guest"),
}


@pytest.fixture(scope="module")
def catalogs(spark, postgresql, tmp_path_factory):
    """The address of a server with one catalog for each kind of refusal, and a working one."""
    uri = postgresql.removeprefix("jdbc:")
    roles = "CREATE ROLE stranger LOGIN PASSWORD 'another'; CREATE ROLE guest LOGIN;"
    rules = Path(psql(uri, f"{roles} SHOW hba_file").strip().splitlines()[-1])
    rules.write_text("host all stranger 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    psql(uri, "REVOKE CREATE ON SCHEMA public FROM PUBLIC; SELECT pg_reload_conf()")
    stores = {"backstory": IcebergStore(spark)}
    for name, way in WAYS.items():
        catalog = f"spark.sql.catalog.no_{name}"
        spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
        settings = {"type": "jdbc", "uri": way(postgresql), "jdbc.schema-version": "V1"}
        for key, value in (settings | {"warehouse": str(tmp_path_factory.mktemp(name))}).items():
            spark.conf.set(f"{catalog}.{key}", value)
        stores[name] = IcebergStore(spark, f"no_{name}")
    with serving(stores) as address:
        yield Sender.to(address, tmp_path_factory.mktemp("files"))


def psql(uri, statements):
    program = shutil.which("psql")
    assert program, "psql is not installed: scripts/setup.sh --tests"
    done = subprocess.run([program, "-At", uri, "-c", statements], capture_output=True, text=True, check=True)
    return done.stdout


def failure(sender, catalog, name):
    """The message of a failed form test."""
    reply = sender.stub.Test(common.TestRequest(name=name, configuration={"catalog": catalog}))
    assert reply.WhichOneof("response") == "failure"
    assert reply.failure
    return reply.failure


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["connection", "write"])
def test_an_inaccessible_catalog_is_a_failure(catalogs, capfd, way, name):
    """20, 9: A closed port, a wrong password and a missing privilege give a text without the password. A
    working catalog is still served."""
    text = failure(catalogs, way, name)
    assert PASSWORD not in text + "".join(capfd.readouterr())
    assert catalogs.stub.Test(common.TestRequest(name="connection")).success


@pytest.mark.parametrize("way", ["credentials", "privilege"])
def test_a_fault_that_the_user_must_fix_is_not_reported_as_a_delay(catalogs, way):
    """2.0: A wrong password or missing privilege is reported as such, and no status asks the sender to repeat
    the request."""
    text = failure(catalogs, way, "connection")
    assert "in time" not in text
    assert "send it again" not in text
    about = {"schema_name": "s", "configuration": {"catalog": way}}
    request = sdk.CreateTableRequest(table=definition("t", "id:LONG*"), **about)
    error = status(catalogs.stub.CreateTable, request)
    assert error is None or "send it again" not in error.details()
