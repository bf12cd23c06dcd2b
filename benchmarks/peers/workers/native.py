"""backstory's native tables."""

from line import FOLDER, run

import backstory

warehouse = backstory.open(FOLDER / "warehouse", config=FOLDER / "backstory.toml")
source = "backstory.src.current"
run(lambda n: warehouse.snapshot(warehouse.spark.table(source), into=f"native.customer_{n}", key="id"))
