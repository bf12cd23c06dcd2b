"""Answers from the files of small tables, without Spark."""
