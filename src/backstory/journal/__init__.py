"""What was done to a table, as its commits record it."""
