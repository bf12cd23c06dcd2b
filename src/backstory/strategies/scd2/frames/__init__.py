"""A load of a history on Spark, drawn from the table of transitions; `statements` is its twin in SQL."""
