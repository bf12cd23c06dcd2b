"""Databases as sources: copies of a table or query from one consistent state."""
