"""A small load of a history on the driver, drawn from the table of transitions; `frames` is its twin."""
