"""Conversions of strings and typed values to values of another type."""
