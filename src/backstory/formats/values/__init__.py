"""Conversions of texts and typed values to values of another type."""
