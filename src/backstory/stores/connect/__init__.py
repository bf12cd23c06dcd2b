"""Iceberg tables, used through the SQL of a Spark Connect session."""
