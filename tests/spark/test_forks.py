"""A process that forks after Spark started is refused, and its parent continues."""

import gc
import json
import os
import threading

import pyarrow as pa

from backstory.errors import BackstoryError
from backstory.model.table import table_name
from backstory.stores.tables import lock_tables
from backstory.warehouse import Warehouse

NAME = "forks.kept"


def in_a_child(calls):
    """The refusal of each call in a forked process, which then ended."""
    reading, writing_end = os.pipe()
    child = os.fork()
    if not child:
        refusals = []
        for call in calls:
            try:
                refusals.append(f"it went through: {call()}")
            except BackstoryError as error:
                refusals.append([error.code, error.remedy])
            except BaseException as error:  # noqa: BLE001 - the parent looks at it
                refusals.append(repr(error))
        os.write(writing_end, json.dumps(refusals).encode())
        gc.collect()
        os._exit(0)
    os.close(writing_end)
    with os.fdopen(reading) as end:
        refusals = json.load(end)
    assert os.waitpid(child, 0)[1] == 0
    return refusals


class Working(threading.Thread):
    """A thread with a connection to Java, used before and after."""

    def __init__(self, ask):
        super().__init__(daemon=True)
        self.ask, self.begun, self.go_on, self.found = ask, threading.Event(), threading.Event(), []

    def run(self):
        self.found.append(self.ask())
        self.begun.set()
        self.go_on.wait(60)
        self.found.append(self.ask())


def test_a_forked_process_is_refused_and_its_parent_continues(store, spark):
    """Every call that needs the parent's Java is refused, including for a table being written, and Spark's
    own."""
    warehouse = Warehouse(store, embedded=False)
    rows = pa.table({"k": [1], "v": ["a"]})
    warehouse.snapshot(rows, into=NAME, key="k", at="2026-01-01")
    table, frame = warehouse.table(NAME), spark.range(3)
    beside = Working(lambda: table.current().count())
    beside.start()
    assert beside.begun.wait(60)
    calls = [
        lambda: warehouse.snapshot(rows, into=NAME),
        warehouse.tables,
        lambda: warehouse.table(NAME),
        table.current,
        table.check,
        table.log,
        lambda: warehouse.sql("SELECT 1"),
        lambda: warehouse.check(all=True),
        lambda: warehouse.maintain(NAME),
        frame.count,
    ]
    with lock_tables(store, table_name(NAME)):
        refusals = in_a_child(calls)
    assert [code for code, _ in refusals] == ["forked"] * len(calls)
    assert "get_context('spawn')" in refusals[0][1]
    assert warehouse.snapshot(rows, into=NAME, at="2026-01-02").counts["unchanged"] == 1
    beside.go_on.set()
    beside.join(60)
    assert beside.found == [1, 1]
    assert frame.count() == 3
