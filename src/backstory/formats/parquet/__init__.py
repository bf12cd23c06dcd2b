"""Readers for Parquet files."""
