"""Databases as sources: a copy of a table, or of a query's rows, out of one consistent view."""
