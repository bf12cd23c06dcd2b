"""Readers for JSON and GeoJSON, as documents or a row a line."""
