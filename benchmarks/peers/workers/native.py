"""backstory's native tables."""

import os

from line import FOLDER, run

import backstory

warehouse = backstory.open(FOLDER / "warehouse", config=FOLDER / "backstory.toml")
SIDE = os.environ.get("BENCH_SIDE", "")
run(lambda n: warehouse.snapshot("table:src.current", into=f"native.customer_{n}{SIDE}", key="id"))
