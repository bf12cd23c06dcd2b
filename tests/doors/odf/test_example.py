"""The example: real copies in a snapshot, a ledger and a log, each pulled twice, compared with the rule."""

import csv
import importlib.util
import json
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from depth import DEPTH
from specification.event_log import Arrival, state
from specification.events import ingest

import backstory
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import IcebergStore, tables
from backstory.strategies.events.terms import LETTERS, EventEncoding, EventTerms, Moment, Strategy

EXAMPLE = Path(__file__).parents[3] / "examples" / "odf"
COPIES = sorted((EXAMPLE.parent / "data" / "countries").glob("countries-*.csv"))
# The pulled copies: all of them before a release; at the gate, the first ones and some others.
PULLED = COPIES if DEPTH == "laws" else COPIES[:3] + COPIES[3::5]
EURO = (2014, 2020, 2026)
AT = "2026-11-21T09:00:00Z"
COUNTRIES = EventTerms(Strategy.SNAPSHOT, key=("code",), encoding=EventEncoding.OBSERVED, max_retract=0.1)


def example(folder=EXAMPLE):
    """The example's module, for the example in a folder."""
    spec = importlib.util.spec_from_file_location("odf_example", folder / "pull.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def day_of(copy):
    return date.fromisoformat(copy.stem.removeprefix("countries-"))


def rows_of(copy):
    with copy.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def countries_of(copy):
    """The typed rows of a copy after the example's query."""
    for row in rows_of(copy):
        if row["name"] != "Ascension Island":
            values = {name: value or None for name, value in row.items()}
            yield values | {"area_km2": values["area_km2"] and Decimal(values["area_km2"])}


def euro_of(year):
    """The first copy of each country with the euro, up to a year."""
    countries = {}
    for copy in COPIES:
        for row in rows_of(copy):
            if day_of(copy).year <= year and "EUR" in row["currencies"].split(", "):
                countries.setdefault(row["code"], (day_of(copy).isoformat(), row["code"], row["name"]))
    return sorted(countries.values())


def log_of_copies():
    """One line for each copy."""
    for copy in COPIES:
        line = {"file": copy.name, "rows": len(rows_of(copy)), "bytes": copy.stat().st_size}
        yield {"taken_at": f"{day_of(copy)}T00:00:00Z"} | line


def by_the_rule(copies):
    """The result of the copies in sequence by the rule."""
    log, watermark = [], None
    for copy in copies:
        time = datetime.combine(day_of(copy), datetime.min.time(), UTC)
        moment = Moment(AT, time, watermark, len(log))
        outcome = ingest(log, [Arrival(None, values) for values in countries_of(copy)], COUNTRIES, moment)
        log, watermark = log + outcome.events, outcome.watermark
    return log


def cleared(store):
    for table in tables(store, "odf"):
        if table.name.startswith("world."):
            drop(store, table)


@pytest.fixture(scope="module")
def pulled(spark, tmp_path_factory):
    """The receipts of two pulls, and the warehouse."""
    cleared(IcebergStore(spark))
    folder = tmp_path_factory.mktemp("example")
    copies = folder / "data" / "countries"
    copies.mkdir(parents=True)
    for copy in PULLED:
        shutil.copy(copy, copies)
    shutil.copytree(EXAMPLE, folder / "odf")
    module, warehouse = example(folder / "odf"), backstory.open(spark=spark, catalog="backstory")
    yield warehouse, list(module.pulls(warehouse)), list(module.pulls(warehouse))
    cleared(IcebergStore(spark))


def stored(warehouse, name):
    return warehouse.spark.table(f"backstory.odf.`{name}`").orderBy("offset").toArrow().to_pylist()


def test_the_bundled_data_match_the_copies():
    """The example's own files are derived from the real copies."""
    for year in EURO:
        with (EXAMPLE / "data" / f"euro-{year}.csv").open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        assert header == ["listed_on", "code", "name"]
        assert [tuple(row) for row in rows] == euro_of(year)
    lines = (EXAMPLE / "data" / "copies.ndjson").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == list(log_of_copies())


def test_the_countries_equal_the_rule(pulled):
    """R14, R16, R17, R48: Offsets, letters, times and values equal the rule's, and the state is the last
    copy."""
    warehouse, _, _ = pulled
    rows = stored(warehouse, "world.countries")
    log = by_the_rule(PULLED)
    system = ("offset", "system_time", "event_time", "observed")
    assert tuple(rows[0])[: len(system)] == system
    system_rows = [tuple(row.pop(name) for name in system) for row in rows]
    assert len({time for _, time, _, _ in system_rows}) == 1
    assert [(offset, time, letter) for offset, _, time, letter in system_rows] == [
        (event.offset, event.time, LETTERS[event.op]) for event in log
    ]
    assert rows == [event.values for event in log]
    last = {values["code"]: values for values in countries_of(PULLED[-1])}
    now = {event.values["code"]: event.values for event in state(log, COUNTRIES).values()}
    assert now == last


def test_the_ledger_has_each_row_once(pulled):
    """R26, R27: Each later list adds only its new rows."""
    warehouse, receipts, _ = pulled
    rows = stored(warehouse, "world.euro")
    assert sorted((str(row["listed_on"]), row["code"], row["name"]) for row in rows) == euro_of(EURO[-1])
    known = sum(len(euro_of(year)) for year in EURO) - len(rows)
    counts = receipts[1].counts
    assert (counts["appended"], counts["unchanged"], counts["conflicts"]) == (len(rows), known, 0)


def test_the_log_has_each_line(pulled):
    """R25: Appended lines are in the order of their event times."""
    warehouse, _, _ = pulled
    rows = stored(warehouse, "world.copies")
    assert [row["offset"] for row in rows] == list(range(len(COPIES)))
    assert [(row["file"], row["rows"], row["bytes"]) for row in rows] == [
        (line["file"], line["rows"], line["bytes"]) for line in log_of_copies()
    ]


def test_the_second_pull_finds_nothing_new(pulled):
    """R22: The same files make no new commit."""
    _, first, second = pulled
    assert [receipt.status for receipt in first] == ["updated"] * 3
    assert [receipt.status for receipt in second] == ["up-to-date"] * 3
    assert [receipt.watermark for receipt in second] == [receipt.watermark for receipt in first]
    assert all(receipt.offsets is None for receipt in second)


def test_a_receipt_is_printed_on_one_line(pulled):
    """The line that the example prints."""
    _, first, second = pulled
    assert example().summary(first[2]) == "world.copies     updated     26 appended; offsets 0 to 25"
    assert example().summary(second[2]).split() == ["world.copies", "up-to-date"]


def test_a_copy_with_a_repeated_key_is_refused_without_the_query(spark, tmp_path):
    """R31, R47, R21: Without the query, the second copy is refused. With it, the pull continues."""
    cleared(IcebergStore(spark))
    copies = tmp_path / "data" / "countries"
    copies.mkdir(parents=True)
    for copy in COPIES[:3]:
        shutil.copy(copy, copies)
    manifest = tmp_path / "odf" / "countries.yaml"
    manifest.parent.mkdir()
    written = (EXAMPLE / "countries.yaml").read_text("utf-8")
    before, query, after = written.partition("      preprocess:\n")
    manifest.write_text(before + after[after.index("      merge:") :], "utf-8")
    warehouse = backstory.open(spark=spark, catalog="backstory")
    (refused,) = warehouse.pull(manifest)
    assert query
    assert refused.status == "failed"
    assert (refused.error.code, refused.error.exit_code) == ("conflicting-rows", 3)
    assert refused.error.keys == [{"code": "SHN"}]
    assert len(stored(warehouse, "world.countries")) == len(list(countries_of(COPIES[0])))
    manifest.write_text(written, "utf-8")
    (mended,) = warehouse.pull(manifest)
    assert mended.status == "updated"
    rows = stored(warehouse, "world.countries")
    assert [(row["offset"], row["code"]) for row in rows] == [
        (event.offset, event.values["code"]) for event in by_the_rule(COPIES[:3])
    ]
    cleared(IcebergStore(spark))
