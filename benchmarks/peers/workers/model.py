"""backstory's histories by a model: a base table and its history."""

from line import FOLDER, run

import backstory

warehouse = backstory.open(FOLDER / "warehouse", config=FOLDER / "backstory.toml")


def load(number: int) -> None:
    """Run one load; a refusal is an error here."""
    for receipt in warehouse.historize(FOLDER / f"model_{number}.yaml"):
        assert receipt.error is None, receipt.error


run(load)
