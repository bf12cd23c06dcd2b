"""Counts that a plan makes on its way, read from the plan that filled a cache."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def observed(cached: "DataFrame") -> "defaultdict[str, Counter[str]]":
    """For each observation below a cached frame its counts; 0 where an empty side was not even read.

    Spark's own `Observation` hears of them later, by another thread, or never: an adaptive plan that
    finds a side empty drops its node.
    """
    relation = cached._jdf.queryExecution().withCachedData()  # noqa: SLF001
    return _counted(cached, relation.cacheBuilder().cachedPlan())


def _counted(frame: "DataFrame", plan: Any) -> "defaultdict[str, Counter[str]]":
    jvm: Any = frame.sparkSession._jvm  # noqa: SLF001
    collect = jvm.java.lang.Class.forName("org.apache.spark.sql.execution.CollectMetricsExec$")
    metrics = collect.getField("MODULE$").get(None).collect(plan).iterator()
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    while metrics.hasNext():
        metric = metrics.next()
        row = metric._2()  # noqa: SLF001
        counts = {name: row.getLong(place) for place, name in enumerate(row.schema().fieldNames())}
        found[metric._1()] = Counter(counts)  # noqa: SLF001
    return found
