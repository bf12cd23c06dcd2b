"""Readers for CSV files."""
