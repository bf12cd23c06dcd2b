"""Measure `join_as_of` against the plain equi-join of the same rows, on one session.

Run `python benchmarks/reading/joins.py [SCALE]`: 1 M facts and 4 M versions times SCALE (1), four versions a
key; then the same numbers with half of all rows on one key, where an equi-join would never end. Nothing is
broadcast. Each is run three times in turn; what counts is the ratio of the medians.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from backstory.reading.frames.joins import _beside
from backstory.settings import Settings
from backstory.spark.session import start

FACTS, VERSIONS, ROUNDS = 1_000_000, 4_000_000, 3
DAY, SINCE = 86_400, 1_577_836_800


def made(spark, folder, scale, *, hot):
    """The facts and the versions as files; `hot` puts every second row on one key."""
    count, keys = int(VERSIONS * scale), int(VERSIONS * scale) // 4

    def key(by):
        cold = (f.col("id") * by) % keys
        return f.when(f.col("id") % 2 == 0, 0).otherwise(cold) if hot else cold

    step = 60 if hot else 100 * DAY
    life = Window.partitionBy("k").orderBy("id")
    versions = spark.range(count).withColumn("k", key(1))
    begun = f.timestamp_seconds(f.lit(SINCE) + f.row_number().over(life) * step)
    versions = versions.withColumn("valid_from", begun).select(
        "k",
        f.concat(f.lit("customer "), f.col("id")).alias("name"),
        f.concat(f.lit("city "), f.col("id") % 300).alias("city"),
        "valid_from",
        f.lead("valid_from").over(life).alias("valid_to"),
    )
    span = count // 2 * step if hot else 400 * DAY
    facts = spark.range(int(FACTS * scale)).select(
        "id",
        key(7).alias("k"),
        f.timestamp_seconds(f.lit(SINCE) + f.col("id") * 7919 % span).alias("at"),
        (f.col("id") % 97).alias("amount"),
    )
    for name, rows in (("facts", facts), ("versions", versions)):
        rows.repartition(4).write.mode("overwrite").parquet(str(folder / name))
    return (spark.read.parquet(str(folder / name)) for name in ("facts", "versions"))


def seconds(frame):
    begun = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def main(scale):
    with tempfile.TemporaryDirectory(prefix="backstory-bench-") as folder:
        spark = start(Settings(Path(folder), spark={"spark.master": "local[2]", "spark.driver.memory": "6g"}))
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        for hot in (False, True):
            facts, versions = made(spark, Path(folder), scale, hot=hot)
            ways = {"join_as_of": _beside(facts, versions, ["k"], "at", "left")}
            if not hot:
                ways["equi-join"] = facts.join(versions, "k", "left")
            for frame in ways.values():
                seconds(frame)
            found = {name: [] for name in ways}
            for _ in range(ROUNDS):
                for name, frame in ways.items():
                    found[name].append(seconds(frame))
            medians = {name: statistics.median(times) for name, times in found.items()}
            print(
                "one hot key" if hot else "four versions a key", {n: f"{t:.2f} s" for n, t in medians.items()}
            )
            if not hot:
                print(f"ratio {medians['join_as_of'] / medians['equi-join']:.2f}, at most 1.5")
        spark.stop()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
