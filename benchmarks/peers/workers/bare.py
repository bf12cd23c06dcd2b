"""No tool at all: a Spark session with the same settings that counts one row."""

from line import run
from pyspark.sql import SparkSession

run(lambda _: SparkSession.builder.getOrCreate().range(1).count())
