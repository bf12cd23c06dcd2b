"""Answers by Spark, as frames."""
