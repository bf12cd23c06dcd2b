"""The warehouse in which backstory keeps the cases, for each of its doors."""

from datetime import UTC, datetime

from on_spark import Source
from telling import FOLDER

import backstory

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


class Kept:
    """A warehouse in the folder of the run, and its source."""

    def __init__(self):
        self.warehouse = backstory.open(FOLDER / "warehouse", config=FOLDER / "backstory.toml")
        self.warehouse.spark.catalog.setCurrentCatalog("backstory")
        self.source = Source(self.warehouse.spark)
