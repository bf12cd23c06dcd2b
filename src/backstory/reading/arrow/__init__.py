"""Histories of small tables, answered from their files without Spark, by the rules of reading."""
