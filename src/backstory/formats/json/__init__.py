"""JSON, GeoJSON and their line-wise forms."""
