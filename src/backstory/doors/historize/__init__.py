"""Historization: a model in YAML defines a base table and its SCD Type 2 history."""
