"""What was done to a table, told by its commits."""
