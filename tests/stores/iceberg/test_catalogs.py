"""A catalog from the configuration: JDBC on PostgreSQL."""

from plans_in_memory import in_utc
from tables_as_text import in_order, instant, table

from backstory.doors.fivetran.server import listen
from backstory.doors.fivetran.service import Destination
from backstory.model.table import Column
from backstory.model.types import ColumnType, Kind
from backstory.settings import load
from backstory.spark.session import session_properties
from backstory.stores.iceberg.store import IcebergStore
from backstory.testing.sender import Sender, SourceCopy, definition, difference

CONFIGURATION = """
[catalog]
type = "jdbc"
uri = "${TEST_CATALOG_URI}"
warehouse = "%s"
"jdbc.schema-version" = "V1"
"""


def copy(text: str) -> SourceCopy:
    columns = (Column("id", ColumnType(Kind.LONG)), Column("name", ColumnType(Kind.STRING)))
    return SourceCopy(("id",), columns, {(row["id"],): row for row in table(text)})


def test_a_history_is_stored_in_a_catalog_on_postgresql(spark, postgresql, tmp_path, monkeypatch):
    """The catalog of a configuration file accepts batches as the embedded one does."""
    monkeypatch.setenv("TEST_CATALOG_URI", postgresql)
    path = tmp_path / "backstory.toml"
    path.write_text(CONFIGURATION % (tmp_path / "lake"))
    settings = load(config=path)
    for name, value in session_properties(settings).items():
        if name.startswith("spark.sql.catalog.backstory"):
            spark.conf.set(name.replace("catalog.backstory", "catalog.lake"), value)
    running = listen(Destination({"lake": IcebergStore(spark, "lake")}), "127.0.0.1", 0)
    sender = Sender.to(f"127.0.0.1:{running.port}", tmp_path)
    one, two = copy("id name\n1 a\n2 b"), copy("id name\n1 z\n3 c")
    people = definition("people", one, history=True)
    sender.create("crm", people)
    sender.write("crm", people, difference(SourceCopy(("id",)), one, instant("T1"), history=True))
    sender.write("crm", people, difference(one, two, instant("T2"), history=True))
    running.stop(1)

    rows = spark.table("lake.crm.people").drop("_fivetran_synced").toArrow().to_pylist()

    expected = table("""id name start end  active
                        1  a    T1    T2-1 false
                        1  z    T2    TMAX true
                        2  b    T1    T2   false
                        3  c    T2    TMAX true""")
    assert in_order(expected) == in_order(in_utc(rows))
