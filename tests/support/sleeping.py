"""A session whose Spark has not started although Java runs, as in the first question of a process."""

from conftest import SPARK
from pyspark import SparkContext

from backstory.settings import Settings
from backstory.spark.session import LateSpark


class Sleeping(LateSpark):
    """A session in a running Java whose Spark seems not to have started, until it is used."""

    def __init__(self, spark, warehouse):
        self._there = spark
        SparkContext._active_spark_context = None
        super().__init__(Settings(warehouse, spark=SPARK))

    @property
    def session(self):
        self.wake()
        return self._there

    def wake(self):
        SparkContext._active_spark_context = self._there.sparkContext
        self.started = self._there
