"""Python workers for the tests' Spark, forked from a process that has imported the modules of tasks.

Before each task, Spark's own workers collect garbage among all their modules, and search thousands of names
of classes in a jar for modules. This takes longer than the few rows of a test. Before a release, Spark's own
workers are used.
"""

import gc
import sys
from importlib import import_module

IMPORTED = ("pandas", "pyspark.worker", "backstory.doors.native.door", "backstory.doors.odf.door")

if __name__ == "__main__":
    archives = {each for each in sys.path if each.endswith((".jar", ".zip")) and "pyspark" in each}
    sys.path[:] = [each for each in sys.path if each not in archives]
    for each in archives:
        sys.path_importer_cache.pop(each, None)
    daemon = import_module("pyspark.daemon")
    for each in IMPORTED:
        import_module(each)
    gc.collect()
    gc.freeze()
    daemon.manager()
