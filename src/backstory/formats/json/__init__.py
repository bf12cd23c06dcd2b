"""Readers for JSON and GeoJSON, as whole documents or with one row per line."""
