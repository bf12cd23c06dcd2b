"""Historization: metadata in YAML makes a base table and its SCD Type 2 history."""
