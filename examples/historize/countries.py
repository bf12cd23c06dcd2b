"""Twelve years of real data into a base table and its history: 26 loads, a rename and a drop on the way.

Run it with `python examples/historize/countries.py [FOLDER]`; the warehouse and the model are in FOLDER.
"""

import csv
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import backstory

HERE = Path(__file__).parent
COPIES = HERE.parent / "data" / "countries"
# In 2014 one file held Saint Helena twice: as itself, and as Ascension Island.
TWICE = ("2014-07-01", ["SHN", "Ascension Island"])


def loads(warehouse: "backstory.Warehouse", folder: Path) -> Iterator[backstory.HistoryReceipt]:
    """Bring each copy to the stage, and load it with the model of its time."""
    stage = folder / "stage" / "countries.csv"
    stage.parent.mkdir(parents=True, exist_ok=True)
    for copy in sorted(COPIES.glob("countries-*.csv")):
        day = copy.stem.removeprefix("countries-")
        year = max(year for year in (2014, 2018, 2021) if str(year) <= day)
        shutil.copy(HERE / f"model-{year}.yaml", folder / "model.yaml")
        shutil.copy(copy, stage)
        (receipt,) = warehouse.historize(folder / "model.yaml", run_id=day, load_timestamp=day)
        yield receipt
        if receipt.status == "rejected":
            mend(stage)
            (receipt,) = warehouse.historize(folder / "model.yaml", run_id=day, load_timestamp=day)
            yield receipt


def mend(stage: Path) -> None:
    """Leave out the row that is no country of its own."""
    with stage.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row[:2] != TWICE[1]]
    with stage.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def main() -> None:
    """Load, and show what the history knows."""
    os.environ.setdefault("BACKSTORY_PEPPER", "a secret of your own")
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="countries-"))
    with backstory.open(folder / "warehouse") as warehouse:
        for receipt in loads(warehouse, folder):
            text = (
                receipt.error.message
                if receipt.error
                else ", ".join(f"{count} {outcome}" for outcome, count in receipt.counts.items() if count)
            )
            changes = "".join(f"\n            {change}" for change in receipt.schema_changes)
            print(f"{receipt.run_id}  {receipt.status:9}  {text}{changes}")
        history = warehouse.table("rawcore.rc_world_country_hist")
        for code in ("SWZ", "KAZ", "HRV"):
            print(f"\n{history.timeline(code)}")
    print(f"\nEverything stands in {folder}.")


if __name__ == "__main__":
    main()
