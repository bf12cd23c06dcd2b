"""Iceberg tables, through Spark and its Java. No other room uses Iceberg, and only the engine commits."""
