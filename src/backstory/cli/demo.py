"""`backstory demo`: send twelve years of real data to a real Fivetran destination, and read its history."""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from rich.rule import Rule

from backstory.cli.answers import open_warehouse
from backstory.cli.options import DEFAULTS, Options
from backstory.cli.output import console, show
from backstory.cli.projects import show_receipts
from backstory.model.layout import END, START
from backstory.model.table import TableName
from backstory.reading.timelines import draw_lanes
from backstory.settings import CATALOG_FILE
from backstory.spark.versions import arrow_of

if TYPE_CHECKING:
    from backstory.stores.iceberg.store import IcebergStore
    from backstory.table import Table
    from backstory.testing.sender import Sender
    from backstory.warehouse import Warehouse

TABLE = TableName("demo", "countries")
KEY = ("code",)
PROJECT_TABLE = TableName("demo", "nightly")
PROJECT = """\
format: histories/1
tables:
  {table}:
    source: {folder}/countries-{{at:%Y}}-01-01.csv
    key: code
"""
TABLE_OUTPUT = Options(output="table")
UNTIL = datetime(2026, 7, 1, tzinfo=UTC)
EURO_THEN = datetime(2014, 1, 1, tzinfo=UTC)
WORLD_AS_OF = datetime(2016, 1, 1, tzinfo=UTC)


def demo(*, options: Options = DEFAULTS) -> None:
    """Show how twelve years of real data arrive over gRPC and become a history table.

    26 half-yearly copies of the countries of the world are sent to a real destination as encrypted,
    compressed history batches. The table stays in the warehouse.
    """
    if options.output_format == "json":
        console.quiet = True
    with open_warehouse(options) as warehouse:
        store = warehouse.store
        _send_copies(store)
        _show_history(warehouse.table(str(TABLE)))
        _run_project(warehouse)
        _show_readers(store, options)
        if options.output_format == "json":
            console.quiet = False
            show(warehouse.table(str(TABLE)).log(), "json")


def bundled_copies() -> Sequence[Path]:
    """The bundled copies in the order of their dates, from the wheel or the clone."""
    bundled = Path(str(files("backstory"))) / "cli" / "countries"
    folder = bundled if bundled.is_dir() else Path(__file__).parents[3] / "examples/data/countries"
    return sorted(folder.glob("countries-*.csv"))


def _send_copies(store: "IcebergStore") -> None:
    """Start a destination, and send it the differences between the copies."""
    from backstory.doors.fivetran import server, service
    from backstory.stores.iceberg.create import drop
    from backstory.testing.sender import Sender

    for table in (TABLE, PROJECT_TABLE):
        drop(store, table)
    running = server.listen(service.Destination({store.catalog: store}), "127.0.0.1", 0)
    console.print(Rule("[bold]26 copies arrive[/bold]", align="left"))
    console.print(f"A Fivetran destination listens on 127.0.0.1:{running.port} (gRPC).")
    console.print("Each batch: CSV, compressed with zstd, encrypted with AES-256, a key for each file.\n")
    try:
        with tempfile.TemporaryDirectory(prefix="backstory-demo-") as folder:
            send_all(Sender.to(f"127.0.0.1:{running.port}", Path(folder)), bundled_copies())
    finally:
        running.stop()


def send_all(sender: "Sender", paths: Sequence[Path]) -> None:
    """Send the differences between consecutive copies, dated by their file names, and print counts."""
    from backstory.testing.sender import SourceCopy, difference, read_copy

    before = SourceCopy(KEY)
    columns = read_copy(paths[-1], KEY).columns  # the first copies leave a column empty
    for path in paths:
        instant = datetime.fromisoformat(path.stem[-10:]).replace(tzinfo=UTC)
        after = replace(read_copy(path, KEY), columns=columns)
        rows = difference(before, after, instant, history=True)
        began = time.monotonic()
        sender.bring(TABLE.schema, TABLE.name, after, rows, history=True)
        seconds = time.monotonic() - began
        counts = f"{len(rows.replace):4} new {len(rows.update):4} changed {len(rows.delete):4} deleted"
        done = f"{seconds:5.1f} s" if not rows.empty else "nothing to send"
        console.print(f"  {instant:%Y-%m-%d}  {counts}   {done}")
        for key in after.repeated:
            console.print(
                f"              {path.name} has the key {key[0]} twice, with different names: "
                "the sender kept the last row"
            )
        before = after


def _print_heading(words: str) -> None:
    console.print()
    console.print(Rule(f"[bold]{words}[/bold]", align="left"))


def _show_history(table: "Table") -> None:
    for code, columns in (("SWZ", ["name"]), ("KAZ", ["capital"])):
        _print_heading(f"The life of {code}")
        lanes = table.timeline(code).lanes
        for line in draw_lanes(lanes, columns, UNTIL):
            console.print(line, markup=False)
    _print_heading("The world as of 2016-01-01")
    world = _rows_by_code(table.as_of(WORLD_AS_OF))
    console.print(f"{len(world)} countries and territories. In Southern Africa:")
    southern = [row for row in world if row["subregion"] == "Southern Africa"]
    show(
        [{name: row[name] for name in ("code", "name", "capital", "currencies")} for row in southern], "table"
    )
    _print_heading("The euro, then and now")
    then = _euro_users(_rows_by_code(table.as_of(EURO_THEN)))
    now = _euro_users(_rows_by_code(table.current()))
    console.print(f"2014-01-01: {len(then)} users of the euro. Now: {len(now)}.")
    console.print(f"  joined: {', '.join(sorted(now - then)) or 'none'}")
    console.print(f"  left: {', '.join(sorted(then - now)) or 'none'}")
    _print_heading("Commits, newest first")
    commits, shown = table.log(), ("snapshot_id", "operation", "door", "counts")
    show([{name: commit[name] for name in shown} for commit in commits], "table")
    console.print(f"{len(commits)} commits: one for each batch, and none for copies without a change.")


def _run_project(warehouse: "Warehouse") -> None:
    """Deliver the copies of each January with a project file, twice. The second run has nothing to do."""
    project = PROJECT.format(folder=bundled_copies()[0].parent, table=PROJECT_TABLE)
    _print_heading("Every night, by one file")
    console.print(project, markup=False)
    with tempfile.TemporaryDirectory(prefix="backstory-demo-") as folder:
        file = Path(folder) / "histories.yaml"
        file.write_text(project, encoding="utf-8")
        for _ in range(2):
            console.print("$ backstory run", markup=False)
            show_receipts(warehouse.run(file), TABLE_OUTPUT)


def _rows_by_code(frame: Any) -> list[dict[str, Any]]:
    return sorted(arrow_of(frame).to_pylist(), key=lambda row: row["code"])


def _euro_users(rows: Sequence[dict[str, Any]]) -> set[str]:
    return {row["name"] for row in rows if "EUR" in (row["currencies"] or "").split(", ")}


def _show_readers(store: "IcebergStore", options: Options) -> None:
    warehouse = options.settings().warehouse
    _print_heading("Read it without backstory")
    console.print(f"The table stays in {warehouse}.")
    for reader, lines in reading_lines(store, f"sqlite:///{warehouse}/{CATALOG_FILE}").items():
        console.print(f"\n{reader}:\n")
        for line in lines:
            console.print(f"  {line}", markup=False)
    _print_heading("See it in a browser")
    console.print(f"{program()} explore --warehouse {warehouse}", markup=False)


def program() -> str:
    """The command that starts this program from the working folder."""
    path = Path(sys.argv[0]).absolute()
    here = Path.cwd()
    return (
        str(path.relative_to(here)) if path.is_relative_to(here) and not which("backstory") else "backstory"
    )


def reading_lines(store: "IcebergStore", catalog: str) -> dict[str, list[str]]:
    """The lines of Python or SQL that read the table, by program. `catalog` is the catalog's address."""
    from backstory.stores.iceberg.store import existing
    from backstory.stores.table_files import local_path

    table = existing(store, TABLE)
    condition = f"WHERE {START} <= '2016-01-01' AND {END} > '2016-01-01'"
    return {
        "With pyiceberg": [
            "from pyiceberg.catalog.sql import SqlCatalog",
            f'catalog = SqlCatalog("{store.catalog}", uri="{catalog}")',
            f'print(catalog.load_table("{TABLE}").scan().to_arrow())',
        ],
        "With DuckDB and its extension `iceberg`": [
            f"SELECT name, capital FROM iceberg_scan('{local_path(table.location)}')",
            condition,
            "ORDER BY name;",
        ],
        "With plain Spark SQL, using the same catalog": [
            f"SELECT name, capital FROM {store.catalog}.{TABLE}",
            condition,
            "ORDER BY name",
        ],
    }
