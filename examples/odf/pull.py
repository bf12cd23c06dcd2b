"""Three Open Data Fabric datasets, a Snapshot, a Ledger and an Append log, each pulled twice.

Run it with `python examples/odf/pull.py [FOLDER]`; the warehouse is in FOLDER.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import backstory

HERE = Path(__file__).parent
MANIFESTS = [HERE / name for name in ("countries.yaml", "euro.yaml", "copies.yaml")]


def pulls(warehouse: "backstory.Warehouse") -> Iterator["backstory.DatasetReceipt"]:
    """Pull each manifest; the first pull adds the dataset."""
    for manifest in MANIFESTS:
        yield from warehouse.pull(manifest)


def summary(receipt: "backstory.DatasetReceipt") -> str:
    """A receipt on a line."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in receipt.counts.items() if count)
    offsets = "offsets {} to {}".format(*receipt.offsets) if receipt.offsets else ""
    error = receipt.error.message if receipt.error else ""
    return f"{receipt.dataset:16} {receipt.status:11} " + "; ".join(filter(None, (counts, offsets, error)))


def main() -> None:
    """Pull twice, and show what the datasets know."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="odf-"))
    with backstory.open(folder / "warehouse") as warehouse:
        for pull in ("first", "second"):
            print(f"The {pull} pull")
            for receipt in pulls(warehouse):
                print(f"  {summary(receipt)}")

        def show(table: str, columns: str, condition: str) -> None:
            print(f"\n{table}, where {condition}")
            rows = warehouse.spark.table(f"backstory.odf.`{table}`").where(condition)
            rows.selectExpr(*columns.split()).orderBy("offset").show(truncate=False)

        show("world.countries", "offset date(event_time) observed code name capital", "code = 'KAZ'")
        show("world.euro", "offset listed_on code name", "listed_on > '2014-01-01'")
        show("world.copies", "offset date(taken_at) file rows bytes", "rows <> 250")
    print(f"Everything stands in {folder}.")


if __name__ == "__main__":
    main()
