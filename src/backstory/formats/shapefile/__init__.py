"""ESRI shapefiles."""
