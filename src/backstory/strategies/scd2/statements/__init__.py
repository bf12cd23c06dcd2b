"""A load of a history as SQL, drawn from the table of transitions; `frames` is its twin on Spark."""
