"""A session that sleeps although Java runs, so that each question may be the first of its process."""

from conftest import SPARK
from pyspark import SparkContext

from backstory.settings import Settings
from backstory.spark.late_session import LateSpark


class Sleeping(LateSpark):
    """A session that sleeps in a Java where no other is to be seen, until it is asked for."""

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
