"""The explorer on a small scale: a real server, its answers, and tables of every layout."""

import json
import socket
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from manifesting import manifest, polling
from pyiceberg.catalog.sql import SqlCatalog
from small_model import FIRST, MODEL, SECOND

from backstory.explorer.access import open_explorer
from backstory.explorer.catalog_reader import table_reader
from backstory.settings import Settings
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import tables
from backstory.warehouse import Warehouse

# A value that would be more than a text where it is not escaped; the last reads from right to left.
HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "';--{{7*7}}", "שלום\u202eabc\x07")


@dataclass(frozen=True)
class Answer:
    """The answer of a server."""

    status: int
    headers: dict
    text: str

    @property
    def document(self):
        return json.loads(self.text)


class Straight(urllib.request.HTTPRedirectHandler):
    """A handler that does not follow redirections."""

    def redirect_request(self, *_):
        return None


@dataclass(frozen=True)
class Asked:
    """A running explorer, and requests to it."""

    link: str

    @property
    def base(self):
        return self.link.partition("?")[0].rstrip("/")

    def get(self, path, method="GET", headers=(), **words):
        query = f"?{urlencode(words, doseq=True)}" if words else ""
        request = urllib.request.Request(self.base + path + query, method=method, headers=dict(headers))
        try:
            with urllib.request.build_opener(Straight).open(request, timeout=60) as reply:
                return Answer(reply.status, dict(reply.headers), reply.read().decode())
        except urllib.error.HTTPError as stop:
            return Answer(stop.code, dict(stop.headers), stop.read().decode())


@contextmanager
def exploring(warehouse, token=""):
    """The explorer of a folder, on a free port."""
    running = open_explorer(table_reader(Settings(warehouse)), port=0, token=token)
    try:
        yield Asked(running.link)
    finally:
        running.stop()


def raw(client, text):
    """The server's answer to bytes that no client would send."""
    port = int(client.base.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(text.encode("latin-1"))
        return connection.recv(1 << 16).decode("latin-1")


def foreign_warehouse(folder, rows, name="crm.t", **properties):
    """A warehouse with one table that another program created."""
    folder.mkdir(exist_ok=True)
    with SqlCatalog("backstory", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file:{folder}") as catalog:
        schema, _, table = name.partition(".")
        catalog.create_namespace_if_not_exists(schema)
        made = catalog.create_table((schema, table), rows.schema, properties=properties)
        if rows.num_rows:
            made.append(rows)
    return folder


CUSTOMERS = [
    ("2026-01-01", [1, 2, 3, 4], ["Ada", "Bob", "Cyd", "Dan"], ["A", "A", "B", None]),
    ("2026-03-01", [1, 2, 3, 5], ["Ada", "Bob", "Cyd", HOSTILE[0]], ["B", "B", "B", "A"]),
    ("2026-04-01", [1, 2, 3, 5], ["Ada", "Bo", "Cyd", HOSTILE[0]], ["B", "B", "C", "A"]),
]
LATE = ("2026-02-01", [1, 2, 3, 4], ["Ada", "Bob", "Cyd", "Dan"], ["A", "C", "B", "A"])
MANIFEST = manifest(
    polling(
        "{kind: snapshot, primaryKey: [city]}",
        fetch="{kind: filesGlob, path: 'source/*.csv', eventTime: {kind: fromPath, pattern: '(\\d{4}-\\d{2}-\\d{2})', timestampFormat: '%Y-%m-%d'}}",
        read='{kind: csv, header: true, ddlSchema: ["city STRING", "people BIGINT"]}',
    )
)
SENT = "id BIGINT, state STRING, _fivetran_start TIMESTAMP, _fivetran_end TIMESTAMP, _fivetran_active BOOLEAN, _fivetran_synced TIMESTAMP"
DBT = "id BIGINT, state STRING, dbt_valid_from TIMESTAMP, dbt_valid_to TIMESTAMP, dbt_scd_id STRING, dbt_updated_at TIMESTAMP"


def fill(store, folder):
    """Create tables of every layout in a warehouse with their doors. Tables of earlier tests are dropped."""
    for table in tables(store):
        if table.schema in {"explored", "rawcore"} or str(table) in {"odf.cities", "odf.cities__log"}:
            drop(store, table)
    warehouse = Warehouse(store, embedded=False)
    for at, ids, names, tiers in [*CUSTOMERS, LATE]:
        rows = pa.table({"id": ids, "name": names, "tier": tiers})
        warehouse.snapshot(rows, into="explored.customer", key="id", at=at, remember=True, max_delete_ratio=1)
    _model(warehouse, folder)
    _dataset(warehouse, folder)
    spark, catalog = store.spark, store.catalog
    sent = f"{catalog}.explored.orders"
    properties = (
        "'backstory.layout'='fivetran-history', 'backstory.key'='[\"id\"]', 'backstory.layout-version'='1'"
    )
    spark.sql(f"CREATE TABLE {sent} ({SENT}) USING iceberg TBLPROPERTIES ({properties})")
    open_, never = "true, TIMESTAMP '2026-02-01 00:00:00Z'", "TIMESTAMP '9999-12-31 23:59:59.999Z'"
    spark.sql(
        f"INSERT INTO {sent} VALUES (1, 'new', TIMESTAMP '2026-01-01 00:00:00Z', {never}, {open_}), (2, 'new', TIMESTAMP '2026-01-01 00:00:00Z', {never}, {open_})"
    )
    spark.sql(
        f"UPDATE {sent} SET _fivetran_end = TIMESTAMP '2026-01-31 23:59:59.999Z', _fivetran_active = false WHERE id = 1"
    )
    spark.sql(f"INSERT INTO {sent} VALUES (1, 'paid', TIMESTAMP '2026-02-01 00:00:00Z', {never}, {open_})")
    adopted = f"{catalog}.explored.dbt_orders"
    spark.sql(f"CREATE TABLE {adopted} ({DBT}) USING iceberg")
    spark.sql(
        f"INSERT INTO {adopted} VALUES (1, 'new', TIMESTAMP '2026-01-01 00:00:00Z', TIMESTAMP '2026-02-01 00:00:00Z', 'a', TIMESTAMP '2026-01-01 00:00:00Z'), (1, 'paid', TIMESTAMP '2026-02-01 00:00:00Z', NULL, 'b', TIMESTAMP '2026-02-01 00:00:00Z')"
    )
    live = f"{catalog}.explored.live"
    properties = properties.replace("fivetran-history", "fivetran-live")
    spark.sql(f"CREATE TABLE {live} (id BIGINT, state STRING) USING iceberg TBLPROPERTIES ({properties})")
    spark.sql(f"INSERT INTO {live} VALUES (1, 'new'), (2, 'new')")
    spark.sql(f"UPDATE {live} SET state = 'paid' WHERE id = 1")
    warehouse.adopt("explored.dbt_orders", layout="dbt", key=["id"])


def _model(warehouse, folder):
    (folder / "model.yaml").write_text(MODEL)
    for number, stage in enumerate((FIRST, SECOND), 1):
        (folder / "stage.csv").write_text(stage)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("BACKSTORY_PEPPER", "pepper")
            [done] = warehouse.historize(folder / "model.yaml", load_timestamp=f"2026-0{number}-01T00:00:00Z")
        assert done.error is None


def _dataset(warehouse, folder):
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (folder / "cities.yaml").write_text(MANIFEST)
    warehouse.add(folder / "cities.yaml")
    for day, people in (("2026-01-01", 1), ("2026-02-01", 2)):
        (source / f"{day}.csv").write_text(f"city,people\nBern,{people}\n")
        warehouse.pull("cities")
