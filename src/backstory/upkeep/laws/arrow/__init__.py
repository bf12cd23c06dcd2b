"""The laws of small tables, judged without Spark: the same rule on all of their rows."""
