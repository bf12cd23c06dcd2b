"""The example: loads of real data with a rename and a drop, compared with the rule.

Before a release all 26 loads run. Otherwise only the important ones run: changes of the model, first, refused
and last.
"""

import csv
import importlib.util
import shutil
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from depth import DEPTH
from specification.scd2 import BaseRow, historize

import backstory
from backstory.doors.historize.door import open_model
from backstory.doors.historize.resolve import schema_of
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import tables
from backstory.testing.conformance_bench import Hashes

EXAMPLE = Path(__file__).parents[3] / "examples" / "historize" / "countries.py"
TABLE = "rawcore.rc_world_country_hist"
DAYS = ("2014-01-01", "2014-07-01", "2018-01-01", "2021-01-01", "2026-07-01")


def example():
    """The example's module."""
    spec = importlib.util.spec_from_file_location("countries_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_the_rule(folder, module):
    """The series of loads by the rule."""
    history, runs = [], {}
    for copy in sorted(module.COPIES.glob("countries-*.csv")):
        day = copy.stem.removeprefix("countries-")
        year = max(year for year in (2014, 2018, 2021) if str(year) <= day)
        model, _ = open_model(EXAMPLE.parent / f"model-{year}.yaml")
        dataset = model.target_datasets[0]
        hashes = Hashes(schema_of(model, dataset), "pepper")
        with copy.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["name"] != "Ascension Island"]
        base = []
        for row in rows:
            values = {name: value or None for name, value in row.items()}
            values["common_name"] = values["name"]
            values["area_km2"] = values["area_km2"] and Decimal(values["area_km2"])
            base.append(BaseRow(row["code"], hashes.row_hash(dataset, values), values))
        instant = datetime.fromisoformat(day).replace(tzinfo=UTC)
        history, runs[day] = historize(history, base, instant, day, lambda key, at: (key, at))
    return history, runs


def _others(_, names):
    """The copies that are not loaded."""
    return [name for name in names if not name.endswith(tuple(f"{day}.csv" for day in DAYS))]


@pytest.fixture(scope="module")
def loaded(spark, tmp_path_factory):
    """The receipts of the example, and its folder."""
    from backstory.stores.iceberg.store import IcebergStore

    store, folder = IcebergStore(spark), tmp_path_factory.mktemp("countries")
    for table in [*tables(store, "rawcore"), *tables(store, "meta")]:
        drop(store, table)
    patch = pytest.MonkeyPatch()
    patch.setenv("BACKSTORY_PEPPER", "pepper")
    module, warehouse = example(), backstory.open(spark=spark, catalog="backstory")
    if DEPTH != "laws":
        module.COPIES = shutil.copytree(module.COPIES, folder / "copies", ignore=_others)
    receipts = list(module.loads(warehouse, folder))
    patch.undo()
    return module, warehouse, receipts, folder


def test_the_history_equals_the_rule(loaded):
    """After all loads, every version equals the rule's: key, hash, start, end, state and run."""
    module, warehouse, _, folder = loaded
    rows = warehouse.spark.table(f"backstory.{TABLE}").toArrow().to_pylist()
    versions = {
        (
            row["code"],
            row["row_hash"],
            row["version_started_at"],
            row["version_ended_at"],
            row["version_state"],
            row["load_run_id"],
        )
        for row in rows
    }
    history, _ = by_the_rule(folder, module)
    assert versions == {(v.key, v.row_hash, v.started, v.ended, v.state, v.run) for v in history}
    assert len(versions) == len(rows)


def test_each_load_reports_the_counts_of_the_rule(loaded):
    """The counts of each load equal the rule's. A copy with a repeated key is refused first, with its key."""
    module, _, receipts, folder = loaded
    _, runs = by_the_rule(folder, module)
    refused = [receipt for receipt in receipts if receipt.error]
    assert [(each.run_id, each.error["code"], each.error["keys"]) for each in refused] == [
        ("2014-07-01", "DUPLICATE_KEY", ["SHN"])
    ]
    for receipt in receipts:
        if not receipt.error:
            assert receipt.counts == runs[receipt.run_id].counts
    assert len(receipts) == 1 + len(list(module.COPIES.glob("*.csv")))


def test_the_rename_and_the_drop(loaded):
    """R34, R37: The renamed column is one column. The dropped one stays, and is NULL in new versions."""
    _, warehouse, receipts, folder = loaded
    changes = {change for receipt in receipts for change in receipt.schema_changes}
    assert {
        "RENAME_COLUMN name to common_name (rc_world_country)",
        "RENAME_COLUMN name to common_name (rc_world_country_hist)",
    } <= changes
    rows = warehouse.spark.table(f"backstory.{TABLE}")
    assert "name" not in rows.columns
    late = rows.where("version_started_at >= '2021-01-01'").select("borders").toArrow().to_pylist()
    assert late
    assert all(row["borders"] is None for row in late)
    early = rows.where("version_started_at < '2021-01-01' AND borders IS NOT NULL")
    assert early.count() > 100
    lock = next(folder.glob("*.rawcore.rc_world_country.hist.lock.yaml")).read_text()
    assert "retired_at" in lock


def test_as_of_and_timeline_read_a_model_history(loaded):
    """`as_of` and `timeline` read the history: Swaziland until 2018, then Eswatini."""
    _, warehouse, _, _ = loaded
    history = warehouse.table(TABLE)
    then = history.as_of("2016-01-01").where("code = 'SWZ'").toArrow().to_pylist()
    assert [row["common_name"] for row in then] == ["Swaziland"]
    now = history.current().where("code = 'SWZ'").toArrow().to_pylist()
    assert [row["common_name"] for row in now] == ["Eswatini"]
    assert "valid_from" in now[0]
    assert "row_hash" not in now[0]
    assert "Swaziland → Eswatini" in str(history.timeline("SWZ"))
